//! The connection to Redis: one for the process, kept up by a supervisor of its own, and given up at once when it does
//! not answer in time. Decides nothing about calls.

use super::link::{Link, Receipts};
use super::script_arrays::{Meeting, TICK, number, signed};
use super::scripts;
use crate::clock::Clock;
use crate::locked_cell::Locked;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, Script, ServerErrorKind};
use seawall_core::call::SettleAttempt;
use seawall_core::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

const CONNECT: Duration = Duration::from_millis(500);
/// How often we say that we are there.
const BEAT: Duration = Duration::from_millis(500);
/// How often we look whether it is back.
const LOOK: Duration = Duration::from_millis(100);
/// Reports of calls whose callers left, on their way; more are dropped, and leases end them.
const MAX_LATE: usize = 4_096;

/// Text arguments and numbers, as a script takes them.
#[derive(Debug, Default)]
pub(crate) struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    pub(crate) fn text(mut self, text: impl AsRef<[u8]>) -> Self {
        self.0.push(text.as_ref().to_vec());
        self
    }

    pub(crate) fn number(self, number: u64) -> Self {
        self.signed(signed(number))
    }

    pub(crate) fn signed(mut self, number: i64) -> Self {
        self.0.push(itoa::Buffer::new().format(number).as_bytes().to_vec());
        self
    }

    pub(crate) fn numbers(self, numbers: impl IntoIterator<Item = i64>) -> Self {
        numbers.into_iter().fold(self, Self::signed)
    }
}

/// The connection over which a cell's copy was last offered.
#[derive(Debug, Default)]
pub(crate) struct Seed(AtomicU64);

/// What the supervisor has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Lost(String),
    Back,
}

/// A report that nobody waits for.
#[derive(Debug)]
pub(crate) struct Late {
    pub link: Arc<Link>,
    pub settle: SettleAttempt,
    pub receipts: Receipts,
}

/// Shared state in Redis, as one process sees it.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    /// How long a call waits for an answer before it goes on without.
    patience: Duration,
    connection: Locked<Option<MultiplexedConnection>>,
    up: AtomicBool,
    /// Counts connections: what was known before the present one may have to be told again.
    epoch: AtomicU64,
    instances: AtomicU32,
    /// The script's clock less ours, in ticks.
    ahead: AtomicI64,
    why: Locked<String>,
    lost: Notify,
    late: mpsc::Sender<Late>,
    reports: Locked<Option<mpsc::Receiver<Late>>>,
    /// How we are called among the instances.
    name: String,
}

impl RedisStore {
    /// Nothing is connected yet: a Redis that is away when we start is no reason not to serve.
    ///
    /// # Errors
    /// When the URL names no Redis.
    pub fn new(url: &str, patience: Nanos) -> Result<Self, String> {
        // The error's own text may repeat the URL, and a URL may hold a password.
        let client = Client::open(url).map_err(|error| format!("not a Redis URL ({})", error.category()))?;
        let (late, reports) = mpsc::channel(MAX_LATE);
        Ok(Self {
            client,
            patience: Duration::from_nanos(patience.0),
            connection: Locked::new(None),
            up: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            instances: AtomicU32::new(1),
            ahead: AtomicI64::new(0),
            why: Locked::new(String::new()),
            lost: Notify::new(),
            late,
            reports: Locked::new(Some(reports)),
            name: format!("{:016x}", crate::entropy()),
        })
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// How many instances there were when we last heard.
    #[must_use]
    pub fn instances(&self) -> u32 {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the script's clock stands, by what we last heard of it.
    pub(crate) fn meeting(&self, clock: &Clock) -> Meeting {
        let mono = clock.now().mono;
        let ticks = signed(mono.0 / TICK).saturating_add(self.ahead.load(Ordering::Relaxed));
        Meeting { ticks: u64::try_from(ticks).unwrap_or(0), mono }
    }

    /// The script's clock as it was when it answered.
    pub(crate) fn met(&self, ticks: u64, clock: &Clock) -> Meeting {
        let mono = clock.now().mono;
        self.ahead.store(signed(ticks).saturating_sub(signed(mono.0 / TICK)), Ordering::Relaxed);
        Meeting { ticks, mono }
    }

    /// Runs a script; `None` when shared state does not answer, which is known from then on.
    pub(crate) async fn run<T: FromRedisValue>(&self, script: &Script, keys: &[&str], arguments: &Arguments) -> Option<T> {
        if !self.is_up() {
            return None;
        }
        let mut connection = self.connection.lock().clone()?;
        match timeout(self.patience, invoke(&mut connection, script, keys, arguments)).await {
            Ok(Ok(reply)) => Some(reply),
            Ok(Err(error)) => self.fail(error.category()),
            Err(_) => self.fail("no answer in time"),
        }
    }

    /// Runs a script on one cell. After each new connection our copy goes along once, for a server that has forgotten
    /// the cell.
    pub(crate) async fn run_seeded(
        &self,
        seed: &Seed,
        script: &Script,
        keys: &[&str],
        arguments: Arguments,
        copy: impl FnOnce() -> Vec<i64>,
    ) -> Option<Vec<i64>> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let arguments = if seed.0.load(Ordering::Relaxed) == epoch { arguments } else { arguments.numbers(copy()) };
        let reply = self.run(script, keys, &arguments).await?;
        seed.0.store(epoch, Ordering::Relaxed);
        Some(reply)
    }

    fn fail<T>(&self, why: &str) -> Option<T> {
        if self.up.swap(false, Ordering::Relaxed) {
            why.clone_into(&mut self.why.lock());
            self.lost.notify_one();
        }
        None
    }

    /// Takes a report that nobody waits for; when too many are on their way, it is dropped, and leases end what it was
    /// about.
    pub(crate) fn report_late(&self, late: Late) {
        drop(self.late.try_send(late));
    }

    /// Keeps the connection up for as long as it is polled, and tells once when it is lost and once when it is back.
    pub async fn supervise(&self, clock: &Clock, tell: impl Fn(News)) {
        let Some(mut reports) = self.reports.lock().take() else { return };
        let mut told_lost = false;
        loop {
            let beaten = match self.beat(clock).await {
                Ok(()) => Ok(()),
                // A server that was restarted, or a connection that somebody closed, deserves a second look.
                Err(_) => self.beat(clock).await,
            };
            match beaten {
                Ok(()) => {
                    self.up.store(true, Ordering::Relaxed);
                    if std::mem::take(&mut told_lost) {
                        tell(News::Back);
                    }
                }
                Err(why) => {
                    self.up.store(false, Ordering::Relaxed);
                    if !std::mem::replace(&mut told_lost, true) {
                        tell(News::Lost(why));
                    }
                }
            }
            let pause = tokio::time::sleep(if told_lost { LOOK } else { BEAT });
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    () = self.lost.notified(), if !told_lost => {
                        told_lost = true;
                        tell(News::Lost(self.why.lock().clone()));
                        break;
                    }
                    Some(late) = reports.recv() => drop(late.link.report(&late.settle, &late.receipts, clock).await),
                }
            }
        }
    }

    /// Connects if need be, and says that we are there.
    async fn beat(&self, clock: &Clock) -> Result<(), String> {
        let known = self.connection.lock().clone();
        let mut connection = match known {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let arguments = Arguments::default().number(0).text(&self.name);
        let beat = invoke::<Vec<i64>>(&mut connection, &scripts::BEAT, &["{seawall}:instances"], &arguments);
        let reply = timeout(self.patience, beat).await.map_err(|_| "no answer in time".to_owned());
        match reply.and_then(|reply| reply.map_err(|error| error.category().to_owned())) {
            Ok(reply) => {
                self.instances.store(u32::try_from(number(&reply, 0)).unwrap_or(1), Ordering::Relaxed);
                self.met(number(&reply, 1), clock);
                Ok(())
            }
            Err(why) => {
                *self.connection.lock() = None;
                Err(why)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let connected = timeout(CONNECT, connecting).await.map_err(|_| "cannot connect in time".to_owned())?;
        let connection = connected.map_err(|error| error.category().to_owned())?;
        *self.connection.lock() = Some(connection.clone());
        self.epoch.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }
}

async fn invoke<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    script: &Script,
    keys: &[&str],
    arguments: &Arguments,
) -> redis::RedisResult<T> {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script.get_hash()).arg(keys.len()).arg(keys).arg(&arguments.0);
    match command.query_async(connection).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            let _: String = script.load_async(connection).await?;
            command.query_async(connection).await
        }
        answer => answer,
    }
}
