//! Limits how many callers are connected at once. A caller beyond the limit gets a 503 and is disconnected: a process without free file
//! descriptors could neither accept callers nor reach an upstream.

use crate::response::Refusal;
use seawall_core::record::Code;
use seawall_core::time::{Nanos, Wall};
use seawall_engine::runtime::LiveEndpoint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time for a refused caller to read the response.
const FAREWELL: Duration = Duration::from_secs(1);
/// Maximum bytes of a refused request that are read, so that the response is not lost in a reset.
const MAX_UNHEARD: u64 = 64 * 1024;

/// Lower and upper bound of streams per HTTP/2 connection.
const MIN_STREAMS: usize = 8;
const MAX_STREAMS: usize = 100;
/// One connection's streams take at most this fraction of the limit. With 100 streams each, eight connections that read nothing took all
/// places of a process with 1,024 descriptors.
const STREAMS_SHARE: usize = 32;

/// The connection limit of the whole process.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    /// Maximum refused callers that get a response at one time; others are disconnected without one.
    max_leaving: usize,
    taken: AtomicUsize,
    leaving: AtomicUsize,
    turned_away: AtomicU64,
}

/// A place below the limit, given back on drop.
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

    /// Returns the maximum streams of one HTTP/2 connection: each may hold a place and an upstream connection.
    pub(crate) fn max_streams(&self) -> u32 {
        u32::try_from((self.most / STREAMS_SHARE).clamp(MIN_STREAMS, MAX_STREAMS)).unwrap_or(u32::MAX)
    }

    /// Returns whether 90 % of the places are taken.
    pub(crate) fn is_short(&self) -> bool {
        self.taken() >= self.most - self.most / 10
    }

    pub(crate) fn refused(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Takes a place for a new connection.
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

    /// Refuses a connection without reading its request. A TLS caller gets no response, since a handshake costs more than a place would.
    /// `now` is set for plain connections, and `endpoint` selects the error format.
    pub(crate) fn refuse(self: &Arc<Self>, mut stream: TcpStream, now: Option<Wall>, endpoint: Option<&LiveEndpoint>) {
        let before = self.turned_away.fetch_add(1, Ordering::Relaxed);
        let Some(now) = now else { return };
        let Some(seat) = self.sit(|seats| &seats.leaving, self.max_leaving) else { return };
        // Spread over three seconds, so that the callers do not all return at once.
        let answer =
            Refusal::of(Code::Overloaded, None).retry_after(Some(Nanos::from_secs(1 + before % 3))).closing().shaped(endpoint).wire(now);
        tokio::task::spawn_local(async move {
            let farewell = async {
                stream.write_all(&answer).await?;
                stream.shutdown().await?;
                tokio::io::copy(&mut stream.take(MAX_UNHEARD), &mut tokio::io::sink()).await
            };
            // If the caller does not read the response in time, it is dropped.
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
