//! The connection to Redis: one per process, maintained by a supervisor, and given up as soon as a reply is late. Decides nothing about
//! calls.

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
/// Interval of this instance's heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// Interval of reconnection attempts.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum queued reports of calls whose callers have gone; further ones are dropped, and leases end what they concern.
const MAX_LATE: usize = 4_096;

/// Texts and numbers as arguments of a script.
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

/// The connection over which a cell's copy was last sent.
#[derive(Debug, Default)]
pub(crate) struct Seed(AtomicU64);

/// News of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Lost(String),
    Back,
}

/// A report in the background.
#[derive(Debug)]
pub(crate) struct Late {
    pub link: Arc<Link>,
    pub settle: SettleAttempt,
    pub receipts: Receipts,
}

/// Shared state in Redis, as seen by one process.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    /// Maximum wait of a call for a reply before it continues without one.
    patience: Duration,
    connection: Locked<Option<MultiplexedConnection>>,
    up: AtomicBool,
    /// Counts connections: state may have to be sent again on a new one.
    epoch: AtomicU64,
    instances: AtomicU32,
    /// Offset of the script's clock from ours, in ticks.
    ahead: AtomicI64,
    why: Locked<String>,
    lost: Notify,
    late: mpsc::Sender<Late>,
    reports: Locked<Option<mpsc::Receiver<Late>>>,
    /// Our name among the instances.
    name: String,
}

impl RedisStore {
    /// Opens no connection yet: the process can serve while Redis is away.
    ///
    /// # Errors
    /// When the URL names no Redis.
    pub fn new(url: &str, patience: Nanos) -> Result<Self, String> {
        // The error's own text may contain the URL with a password.
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

    /// Returns the last known number of instances.
    #[must_use]
    pub fn instances(&self) -> u32 {
        self.instances.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Estimates the script's clock by its last known offset.
    pub(crate) fn script_clock(&self, clock: &Clock) -> Meeting {
        let mono = clock.now().mono;
        let ticks = signed(mono.0 / TICK).saturating_add(self.ahead.load(Ordering::Relaxed));
        Meeting { ticks: u64::try_from(ticks).unwrap_or(0), mono }
    }

    /// Updates the offset from the script's clock in a reply.
    pub(crate) fn script_clock_at(&self, ticks: u64, clock: &Clock) -> Meeting {
        let mono = clock.now().mono;
        self.ahead.store(signed(ticks).saturating_sub(signed(mono.0 / TICK)), Ordering::Relaxed);
        Meeting { ticks, mono }
    }

    /// Runs a script. If Redis does not reply, returns `None` and marks it as away.
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

    /// Runs a script on one cell. After a reconnection the local copy is sent along once, in case the server has lost the cell.
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

    /// Queues a background report. If the queue is full, it is dropped, and leases end what it concerns.
    pub(crate) fn report_late(&self, late: Late) {
        drop(self.late.try_send(late));
    }

    /// Maintains the connection while polled. Reports each loss and each return once.
    pub async fn supervise(&self, clock: &Clock, tell: impl Fn(News)) {
        let Some(mut reports) = self.reports.lock().take() else { return };
        let mut told_lost = false;
        loop {
            let beaten = match self.beat(clock).await {
                Ok(()) => Ok(()),
                // Retried once, since the server may have restarted or the connection may have been closed.
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

    /// Connects if necessary and sends a heartbeat.
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
                self.script_clock_at(number(&reply, 1), clock);
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
