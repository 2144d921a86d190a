//! Idle connections of one thread, last in first out: the warmest is used, the coldest dies of age. Each thread has its
//! own pool, so that taking a connection costs no lock and no other core's cache.

use crate::connect::{Connector, Sender};
use crate::fault::Fault;
use crate::h1::Conn;
use crate::h2::Shared;
use seawall_core::config::url::Base;
use seawall_core::time::{Mono, Nanos};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Idle connections kept for one upstream by one thread.
const MOST_IDLE: usize = 256;
/// An idle connection older than this is not trusted; many servers close after 60 s.
const IDLE_FOR: Nanos = Nanos::from_secs(55);

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<(Box<Conn>, Mono)>,
    /// One connection carries many requests.
    shared: Option<Shared>,
}

/// The connections of one thread, by upstream.
#[derive(Clone, Debug, Default)]
pub struct Pool(Rc<RefCell<BTreeMap<u32, Shelf>>>);

/// A connection in use, that goes back to its shelf once the answer has been read.
#[derive(Debug)]
pub(crate) struct Lent {
    conn: Box<Conn>,
    pool: Pool,
    upstream: u32,
    now: Mono,
}

impl Lent {
    pub(crate) fn give_back(mut self) {
        if !self.conn.can_go_on() {
            return;
        }
        let mut shelves = self.pool.0.borrow_mut();
        let idle = &mut shelves.entry(self.upstream).or_default().idle;
        if idle.len() < MOST_IDLE {
            idle.push((self.conn, self.now));
        }
    }
}

/// A connection to send one request over.
#[derive(Debug)]
pub(crate) enum Line {
    H1 { lent: Lent, reused: bool },
    H2 { shared: Shared, reused: bool },
}

impl Lent {
    pub(crate) fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    pub(crate) const fn answer(&self) -> &Conn {
        &self.conn
    }
}

impl Pool {
    /// A new connection.
    pub(crate) async fn fresh(&self, upstream: u32, to: &Base, connector: &Connector, timeout: Nanos, now: Mono) -> Result<Line, Fault> {
        // Connecting is rare and its future is large: boxed, it does not weigh on every call that finds a connection.
        match Box::pin(connector.connect(to, timeout)).await? {
            Sender::H1(conn) => Ok(Line::H1 { lent: Lent { conn, pool: self.clone(), upstream, now }, reused: false }),
            Sender::H2(shared) => {
                self.0.borrow_mut().entry(upstream).or_default().shared = Some(shared.clone());
                Ok(Line::H2 { shared, reused: false })
            }
        }
    }

    /// The warmest idle connection.
    pub(crate) fn idle(&self, upstream: u32, now: Mono) -> Option<Line> {
        let mut shelves = self.0.borrow_mut();
        let shelf = shelves.get_mut(&upstream)?;
        if let Some(shared) = shelf.shared.as_ref() {
            if !shared.is_closed() {
                return Some(Line::H2 { shared: shared.clone(), reused: true });
            }
            shelf.shared = None;
        }
        while let Some((mut conn, since)) = shelf.idle.pop() {
            if now.since(since) > IDLE_FOR {
                // Those below have been idle for longer still.
                shelf.idle.clear();
                break;
            }
            if !conn.is_dead() {
                let lent = Lent { conn, pool: self.clone(), upstream, now };
                return Some(Line::H1 { lent, reused: true });
            }
        }
        None
    }

    /// Closes what has been idle for too long, for upstreams that nobody calls any more.
    pub fn sweep(&self, now: Mono) {
        let mut shelves = self.0.borrow_mut();
        for shelf in shelves.values_mut() {
            shelf.idle.retain_mut(|(conn, since)| now.since(*since) <= IDLE_FOR && !conn.is_dead());
            if shelf.shared.as_ref().is_some_and(Shared::is_closed) {
                shelf.shared = None;
            }
        }
        shelves.retain(|_, shelf| !shelf.idle.is_empty() || shelf.shared.is_some());
    }
}
