//! The connection pool: opening, sharing, waiting, and giving up.

use super::errors::{bounded, failed, is_read_only};
use super::heartbeat::Pulse;
use super::notification::Bell;
use super::transaction::ask;
use crate::error::Error;
use deadpool_postgres::{Connect, Hook, HookError, Manager, ManagerConfig, Object, PoolError, RecyclingMethod, Runtime, TimeoutType};
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Enough for two writers, the claims of four workers and a few lists; a server has a hundred for all its clients.
const CONNECTIONS: usize = 10;
const CONNECT: Duration = Duration::from_secs(5);
/// Pauses before a restarting server is tried again. After the last one it counts as away, and until it replies again no request waits for
/// it.
const PAUSES_MS: [u64; 7] = [20, 50, 100, 200, 400, 800, 1000];
/// Statements and locks have time limits, and a commit means that data is on the server's disk. Generic plans are used: a plan for the
/// values of one batch would prefer an index full of dead rows. Plans must use indexes: a sequential scan is cheapest while a table is
/// small, but the table grows.
const SETTINGS: &str = "-c search_path=seawall -c statement_timeout=20s -c lock_timeout=10s -c idle_in_transaction_session_timeout=30s \
                        -c synchronous_commit=on -c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
                        -c enable_mergejoin=off -c default_transaction_isolation=read\\ committed";

/// Lifetime of cached plans: a plan for few jobs is wrong for many, and a queue fills in seconds.
const PLANNED: Duration = Duration::from_secs(5);

/// Returns whether a connection was last used in an earlier plan period.
fn is_of_another_time(age: Duration, idle: Duration) -> bool {
    let period = |age: Duration| age.as_nanos() / PLANNED.as_nanos();
    period(age) != period(age.saturating_sub(idle))
}

fn plan_anew() -> Hook {
    Hook::async_fn(|client, metrics| {
        let old = is_of_another_time(metrics.age(), metrics.last_used());
        Box::pin(async move {
            if old {
                bounded(client.batch_execute("DISCARD PLANS")).await.map_err(|error| HookError::message(error.to_string()))?;
            }
            Ok(())
        })
    })
}

#[derive(Clone)]
pub(super) struct PostgresPool {
    connections: deadpool_postgres::Pool,
    config: Config,
    tls: MakeRustlsConnect,
    bell: Arc<Bell>,
    pulse: Pulse,
    away: Arc<AtomicBool>,
}

/// A connection from the pool. It does not return to the pool after the server refused to write: the server is a standby now or was set to
/// read-only, and a new connection may reach another one.
#[derive(Debug)]
pub(super) struct PooledConnection {
    /// `None` only during drop.
    lent: Option<Object>,
    is_read_only: AtomicBool,
}

impl PooledConnection {
    const fn of(lent: Object) -> Self {
        Self { lent: Some(lent), is_read_only: AtomicBool::new(false) }
    }

    /// Waits for a reply with a time limit.
    pub(super) async fn answer<T>(&self, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        let watched = async {
            let answered = answer.await;
            if answered.as_ref().is_err_and(is_read_only) {
                self.is_read_only.store(true, Ordering::Relaxed);
            }
            answered
        };
        bounded(watched).await
    }

    /// Closes the connection, so that its unfinished state is never reused.
    pub(super) fn close(mut self) {
        drop(self.lent.take().map(Object::take));
    }
}

impl Deref for PooledConnection {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.lent.as_ref().expect("a connection is lent until it is dropped")
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if *self.is_read_only.get_mut() {
            drop(self.lent.take().map(Object::take));
        }
    }
}

/// Opens connections that end, with all their requests, when the server falls silent.
struct WhileHeard {
    tls: MakeRustlsConnect,
    pulse: Pulse,
}

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + 'a>>;

impl Connect for WhileHeard {
    fn connect(&self, config: &Config) -> Connecting<'_> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let pulse = self.pulse.clone();
            // The error of the connection reaches the callers of its requests.
            Ok((client, tokio::spawn(async move { drop(pulse.during(connection).await) })))
        })
    }
}

impl std::fmt::Debug for PostgresPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the configuration, which contains a password.
        f.debug_struct("Pool").field("status", &self.connections.status()).finish_non_exhaustive()
    }
}

impl PostgresPool {
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        // Parse errors name the unreadable part, never the password.
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| Error::Failed(cause(&error)))?;
        let own = config.get_options().map_or_else(|| SETTINGS.to_owned(), |theirs| format!("{SETTINGS} {theirs}"));
        // All connections write. If the URL names several servers, this selects the writable one.
        config.options(own).application_name("seawall").connect_timeout(CONNECT).target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(CONNECT);
        }
        let (tls, pulse) = (tls()?, Pulse::new());
        let connect = WhileHeard { tls: tls.clone(), pulse: pulse.clone() };
        let manager = Manager::from_connect(config.clone(), connect, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let connections = deadpool_postgres::Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT))
            .create_timeout(Some(CONNECT))
            .recycle_timeout(Some(CONNECT))
            .pre_recycle(plan_anew())
            .build()
            .map_err(|error| Error::Failed(error.to_string()))?;
        Ok(Self { connections, config, tls, bell: Arc::default(), pulse, away: Arc::default() })
    }

    /// Returns the bell, which also notifies other processes a little later.
    pub(super) const fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub(super) const fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Returns a connection. Waits a while for an absent server, but not for a silent one.
    pub(super) async fn get(&self) -> Result<PooledConnection, Error> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            let error = match self.pulse.during(self.connections.get()).await? {
                Ok(connection) => {
                    self.away.store(false, Ordering::Relaxed);
                    return Ok(PooledConnection::of(connection));
                }
                Err(error) => error,
            };
            let is_late = matches!(error, PoolError::Timeout(_));
            let is_busy = matches!(error, PoolError::Timeout(TimeoutType::Wait));
            let error = refused(&error);
            if !matches!(error, Error::Unavailable(_)) {
                return Err(error);
            }
            match pauses.next().filter(|_| !is_late && !self.is_unreachable()) {
                Some(pause) => tokio::time::sleep(Duration::from_millis(*pause)).await,
                None => {
                    self.away.fetch_or(!is_busy, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }

    /// Returns whether a request has waited for the server without success, and no reply has come since.
    pub(super) fn is_unreachable(&self) -> bool {
        self.away.load(Ordering::Relaxed) || self.pulse.is_silent()
    }

    /// Returns whether the server is reachable and writable right now.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let connection = PooledConnection::of(self.pulse.during(self.connections.get()).await?.map_err(|error| refused(&error))?);
        let answer = ask(&connection, "SELECT current_setting('transaction_read_only') = 'on'", &[]).await?;
        let is_read_only: bool = answer.into_iter().next().map_or(Ok(false), |mut row| row.take())?;
        if is_read_only {
            connection.close();
            return Err(Error::Unavailable("the server is read-only".to_owned()));
        }
        Ok(())
    }

    /// Opens a connection outside of the pool, whose messages the caller polls.
    pub(super) async fn dedicated_connection(
        &self,
    ) -> Result<(Client, tokio_postgres::Connection<tokio_postgres::Socket, impl ServerStream>), Error> {
        self.pulse.connect(self.config.connect(self.tls.clone())).await
    }
}

/// An encrypted or plain stream.
pub(super) trait ServerStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> ServerStream for T {}

fn refused(error: &PoolError) -> Error {
    match error {
        PoolError::Backend(error) => failed(error),
        PoolError::Timeout(TimeoutType::Wait) | PoolError::Closed => Error::Unavailable("no connection was free in time".to_owned()),
        PoolError::Timeout(_) => Error::Unavailable("it could not be reached in time".to_owned()),
        PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => Error::Failed(error.to_string()),
    }
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Builds the TLS setup: certificates are always verified, against the system's roots.
fn tls() -> Result<MakeRustlsConnect, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_made_anew_once_in_a_period() {
        let old = |age: f64, idle: f64| is_of_another_time(Duration::from_secs_f64(age), Duration::from_secs_f64(idle));
        assert!(!old(0.1, 0.1) && !old(4.9, 0.2) && !old(7.0, 1.0));
        assert!(old(5.1, 0.2) && old(60.0, 59.0) && old(11.0, 1.5));
    }
}
