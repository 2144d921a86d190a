//! A plain HTTP client, used for both ways: each call is sent once and fails without a response in time. The ways differ in the address and
//! in the key, which the gateway adds by itself.

use super::story::ONE_KEY;
use super::tally::DemoTally;
use seawall_core::time::Nanos;
use seawall_engine::clock::Clock;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The timeout of a call, both ways: the default of Python's httpx.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_READ: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub(super) struct DemoClient {
    to: SocketAddr,
    prefix: &'static str,
    suffix: String,
}

impl DemoClient {
    pub(super) fn naive(to: SocketAddr) -> Self {
        Self { to, prefix: "/v3", suffix: format!("?key={ONE_KEY}") }
    }

    pub(super) fn seawall(to: SocketAddr) -> Self {
        Self { to, prefix: "/youtube", suffix: String::new() }
    }

    pub(super) fn spawn(&self, video: u64, tally: Rc<DemoTally>, clock: &Clock) {
        let (client, clock) = (self.clone(), clock.clone());
        tally.begin();
        tokio::task::spawn_local(async move {
            let start = clock.now().mono;
            let status = tokio::time::timeout(TIMEOUT, client.send(video)).await;
            tally.end(matches!(status, Ok(Ok(200))), clock.now().mono.since(start));
        });
    }

    /// Sends the request; returns the status of a complete response.
    async fn send(&self, video: u64) -> std::io::Result<u16> {
        let mut stream = TcpStream::connect(self.to).await?;
        let request =
            format!("GET {}/videos/{video}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.prefix, self.suffix, self.to);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::with_capacity(1024);
        let mut limited = stream.take(u64::try_from(MAX_READ).unwrap_or(u64::MAX));
        limited.read_to_end(&mut answer).await?;
        status(&answer).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}

/// A call's duration for display.
pub(super) fn milliseconds(length: Nanos) -> String {
    format!("{} ms", length.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_and_garbage_is_none() {
        assert_eq!(status(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\n\r\n{}"), Some(503));
        assert!(status(b"").is_none() && status(b"garbage").is_none());
    }
}
