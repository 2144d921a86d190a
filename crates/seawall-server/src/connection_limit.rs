//! How many callers may be connected at once. Whoever comes when every seat is taken is told so and let go: a process that
//! has run out of descriptors could neither answer nor reach an upstream for those who are in.

use crate::response::Refusal;
use seawall_core::record::Code;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::runtime::LiveEndpoint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long somebody who is told to come back may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);
/// So much of an unwanted request is read, so that its answer is not lost in a reset.
const MAX_UNHEARD: u64 = 64 * 1024;

/// Streams of one HTTP/2 connection, at least and at most.
const MIN_STREAMS: usize = 8;
const MAX_STREAMS: usize = 100;
/// One connection's streams take no more than this part of all seats. With 100 streams on each, eight connections that read nothing
/// took every seat of a process with 1,024 descriptors.
const STREAMS_SHARE: usize = 32;

/// The seats of the whole process.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    /// Those who are told to come back at one time; any more are let go without a word.
    max_leaving: usize,
    taken: AtomicUsize,
    leaving: AtomicUsize,
    turned_away: AtomicU64,
}

/// A place that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<ConnectionLimit>,
    of: fn(&ConnectionLimit) -> &AtomicUsize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        (self.of)(&self.seats).fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionLimit {
    pub(crate) const fn new(most: usize, max_leaving: usize) -> Self {
        Self { most, max_leaving, taken: AtomicUsize::new(0), leaving: AtomicUsize::new(0), turned_away: AtomicU64::new(0) }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Streams that one HTTP/2 connection may have: each may hold a seat and a connection to an upstream.
    pub(crate) fn max_streams(&self) -> u32 {
        u32::try_from((self.most / STREAMS_SHARE).clamp(MIN_STREAMS, MAX_STREAMS)).unwrap_or(u32::MAX)
    }

    /// Whether nine of ten seats are taken.
    pub(crate) fn is_short(&self) -> bool {
        self.taken() >= self.most - self.most / 10
    }

    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// A seat for a caller who has just connected.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        self.sit(|seats| &seats.taken, self.most)
    }

    fn sit(self: &Arc<Self>, of: fn(&Self) -> &AtomicUsize, most: usize) -> Option<Seat> {
        if of(self).fetch_add(1, Ordering::Relaxed) >= most {
            of(self).fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Seat { seats: Arc::clone(self), of })
    }

    /// Tells a caller that there is no seat. Nothing of its request is looked at. Who speaks TLS is let go without a word:
    /// a handshake costs more than a seat would. `now` is for those who do not, and `endpoint` says which error format they read.
    pub(crate) fn turn_away(self: &Arc<Self>, mut stream: TcpStream, now: Option<Wall>, endpoint: Option<&LiveEndpoint>) {
        let before = self.turned_away.fetch_add(1, Ordering::Relaxed);
        let Some(now) = now else { return };
        let Some(seat) = self.sit(|seats| &seats.leaving, self.max_leaving) else { return };
        // Spread out, so that they do not all come back in the same second.
        let answer =
            Refusal::of(Code::Overloaded, None).retry_after(Some(Nanos::from_secs(1 + before % 3))).closing().shaped(endpoint).wire(now);
        tokio::task::spawn_local(async move {
            let farewell = async {
                stream.write_all(&answer).await?;
                stream.shutdown().await?;
                tokio::io::copy(&mut stream.take(MAX_UNHEARD), &mut tokio::io::sink()).await
            };
            // Whoever does not listen has been told all the same.
            drop(tokio::time::timeout(FAREWELL, farewell).await);
            drop(seat);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_streams_are_a_small_part_of_all_seats() {
        let streams = |most| ConnectionLimit::new(most, 1).max_streams();
        assert_eq!((streams(4), streams(682), streams(50_000)), (8, 21, 100));
    }
}
