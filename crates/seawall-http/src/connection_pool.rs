//! Idle connections of one thread, last in first out: the most recent is used, the oldest expires. Each thread has its own pool, so that
//! taking a connection costs no lock and no other core's cache.

use crate::connect::{ConnectError, Connector, RequestSender};
use crate::h1::Conn;
use crate::h2::MultiplexedConnection;
use crate::request_body::Outgoing;
use seawall_core::config::url::Base;
use seawall_core::time::{Mono, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Idle connections kept for one upstream by one thread.
const MAX_IDLE: usize = 256;
/// The longest idle time of a connection that is used again; many servers close after 60 s.
const IDLE_FOR: Nanos = Nanos::from_secs(55);

#[derive(Debug, Default)]
struct Shelf {
    /// With the time at which each was returned.
    idle: Vec<(Box<Conn<Outgoing>>, Mono)>,
    /// Each carries as many requests as its peer allows. The time is when a sweep first found it without requests.
    shared: Vec<(MultiplexedConnection<Outgoing>, Option<Mono>)>,
}

/// The connections of one thread, by upstream.
#[derive(Clone, Debug, Default)]
pub struct ConnectionPool(Rc<IdleConnections>);

#[derive(Debug, Default)]
struct IdleConnections {
    by_upstream: RefCell<BTreeMap<u32, Shelf>>,
    /// The latest time that a caller passed in. It stands for the time at which a connection is returned, which saves a clock read; sweeps
    /// update it every ten seconds.
    latest: Cell<Mono>,
}

impl IdleConnections {
    fn is(&self, now: Mono) {
        self.latest.set(self.latest.get().max(now));
    }
}

/// A connection in use, which returns to its shelf once the response has been read.
#[derive(Debug)]
pub struct LeasedConnection {
    conn: Box<Conn<Outgoing>>,
    pool: ConnectionPool,
    upstream: u32,
}

impl LeasedConnection {
    pub fn give_back(mut self) {
        if !self.conn.can_go_on() {
            return;
        }
        let mut shelves = self.pool.0.by_upstream.borrow_mut();
        let idle = &mut shelves.entry(self.upstream).or_default().idle;
        if idle.len() < MAX_IDLE {
            // The time of the return and not of the lease, because a response may take longer than a connection may be idle.
            idle.push((self.conn, self.pool.0.latest.get()));
        }
    }
}

/// A connection to send one request over.
#[derive(Debug)]
pub enum PooledSender {
    H1 { lent: LeasedConnection, reused: bool },
    H2 { shared: MultiplexedConnection<Outgoing>, reused: bool },
}

impl LeasedConnection {
    pub fn conn(&mut self) -> &mut Conn<Outgoing> {
        &mut self.conn
    }

    pub const fn answer(&self) -> &Conn<Outgoing> {
        &self.conn
    }
}

impl ConnectionPool {
    /// Opens a new connection.
    pub async fn connect_new(&self, upstream: u32, to: &Base, connector: &Connector, timeout: Nanos) -> Result<PooledSender, ConnectError> {
        // Boxed, because connecting is rare and its future is large: inline, it would enlarge the future of every call.
        match Box::pin(connector.connect(to, timeout)).await? {
            RequestSender::H1(conn) => {
                Ok(PooledSender::H1 { lent: LeasedConnection { conn, pool: self.clone(), upstream }, reused: false })
            }
            RequestSender::H2(shared) => {
                self.0.by_upstream.borrow_mut().entry(upstream).or_default().shared.push((shared.clone(), None));
                Ok(PooledSender::H2 { shared, reused: false })
            }
        }
    }

    /// The most recent idle connection, or a shared one with room for another request.
    pub fn idle(&self, upstream: u32, now: Mono) -> Option<PooledSender> {
        self.0.is(now);
        let mut shelves = self.0.by_upstream.borrow_mut();
        let shelf = shelves.get_mut(&upstream)?;
        if !shelf.shared.is_empty() {
            shelf.shared.retain(|(shared, _)| !shared.is_closed());
            // The first one with room, so that those behind it become idle when the load falls.
            if let Some((shared, _)) = shelf.shared.iter().find(|(shared, _)| shared.has_room()) {
                return Some(PooledSender::H2 { shared: shared.clone(), reused: true });
            }
        }
        while let Some((mut conn, since)) = shelf.idle.pop() {
            if now.since(since) <= IDLE_FOR && !conn.is_dead() {
                let lent = LeasedConnection { conn, pool: self.clone(), upstream };
                return Some(PooledSender::H1 { lent, reused: true });
            }
        }
        None
    }

    /// Closes connections that were idle for too long, also of upstreams that get no more calls.
    pub fn sweep(&self, now: Mono) {
        self.0.is(now);
        let mut shelves = self.0.by_upstream.borrow_mut();
        for shelf in shelves.values_mut() {
            shelf.idle.retain_mut(|(conn, since)| now.since(*since) <= IDLE_FOR && !conn.is_dead());
            // Keeps the first for as long as its peer does; the others were opened because it had no room.
            let mut place = 0;
            shelf.shared.retain_mut(|(shared, quiet)| {
                let since = if shared.is_idle() {
                    *quiet.get_or_insert(now)
                } else {
                    *quiet = None;
                    now
                };
                place += 1;
                !shared.is_closed() && (place == 1 || now.since(since) <= IDLE_FOR)
            });
        }
        shelves.retain(|_, shelf| !shelf.idle.is_empty() || !shelf.shared.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::Conn;
    use crate::io::Io;
    use tokio::net::{TcpListener, TcpStream};

    const UPSTREAM: u32 = 1;

    async fn lent(pool: &ConnectionPool, listener: &TcpListener, peers: &mut Vec<TcpStream>) -> LeasedConnection {
        let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        peers.push(theirs.unwrap().0);
        LeasedConnection { conn: Box::new(Conn::new(Io::Plain(ours.unwrap()))), pool: pool.clone(), upstream: UPSTREAM }
    }

    fn idle(pool: &ConnectionPool) -> usize {
        pool.0.by_upstream.borrow().get(&UPSTREAM).map_or(0, |shelf| shelf.idle.len())
    }

    #[tokio::test]
    async fn a_long_response_costs_no_idle_connection() {
        let (pool, at) = (ConnectionPool::default(), |seconds: u64| Mono(seconds * 1_000_000_000));
        let (listener, mut peers) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Vec::new());
        assert!(pool.idle(UPSTREAM, at(1)).is_none());
        let (long, short) = (lent(&pool, &listener, &mut peers).await, lent(&pool, &listener, &mut peers).await);
        pool.sweep(at(58));
        short.give_back();
        pool.sweep(at(60));
        long.give_back();
        assert_eq!(idle(&pool), 2);
        assert!(pool.idle(UPSTREAM, at(61)).is_some(), "one that was just given back is fresh, however long it was in use");
        assert_eq!(idle(&pool), 1, "and the one below it is not thrown away");
        assert!(pool.idle(UPSTREAM, at(61)).is_some());
        pool.sweep(at(200));
        assert_eq!(idle(&pool), 0);
    }
}
