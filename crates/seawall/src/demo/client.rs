//! A small HTTP client, the same for both ways: one try, one second's patience for an answer of the upstream's own, and
//! obedience to `Retry-After`. What differs is only where it sends.

use super::story::ONE_KEY;
use super::tally::Tally;
use seawall_core::time::Nanos;
use seawall_engine::clock::Clock;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How often a client does what `Retry-After` says before it gives up.
const OBEYS: u32 = 5;
const MOST_READ: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub(super) struct Client {
    to: SocketAddr,
    prefix: &'static str,
    suffix: String,
    patience: Duration,
}

struct Reply {
    status: u16,
    retry_after: Option<u64>,
    attempts: u64,
}

impl Client {
    pub(super) fn naive(to: SocketAddr) -> Self {
        Self { to, prefix: "/v3", suffix: format!("?key={ONE_KEY}"), patience: Duration::from_secs(1) }
    }

    /// The gateway keeps its own deadline; the client only needs to outlast it.
    pub(super) fn seawall(to: SocketAddr) -> Self {
        Self { to, prefix: "/youtube", suffix: String::new(), patience: Duration::from_secs(11) }
    }

    pub(super) fn spawn(&self, video: u64, tally: Rc<Tally>, clock: &Clock) {
        let (client, clock) = (self.clone(), clock.clone());
        tally.begin();
        tokio::task::spawn_local(async move {
            let start = clock.now().mono;
            let (success, attempts) = client.call(video).await;
            tally.end(success, attempts, clock.now().mono.since(start));
        });
    }

    async fn call(&self, video: u64) -> (bool, u64) {
        let mut attempts = 0;
        for obeyed in 0..=OBEYS {
            let reply = tokio::time::timeout(self.patience, self.send(video)).await;
            let Ok(Ok(reply)) = reply else { return (false, attempts + 1) };
            attempts += reply.attempts;
            match reply.retry_after {
                _ if reply.status == 200 => return (true, attempts),
                Some(seconds) if obeyed < OBEYS && seconds <= 5 => tokio::time::sleep(Duration::from_secs(seconds)).await,
                _ => return (false, attempts),
            }
        }
        (false, attempts)
    }

    async fn send(&self, video: u64) -> std::io::Result<Reply> {
        let mut stream = TcpStream::connect(self.to).await?;
        let request =
            format!("GET {}/videos/{video}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.prefix, self.suffix, self.to);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::with_capacity(1024);
        let mut limited = stream.take(u64::try_from(MOST_READ).unwrap_or(u64::MAX));
        limited.read_to_end(&mut answer).await?;
        parse(&answer).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
    }
}

fn parse(answer: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(answer);
    let head = text.split("\r\n\r\n").next()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        head.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()))
    };
    Some(Reply {
        status,
        retry_after: header("retry-after").and_then(|value| value.parse().ok()),
        attempts: header("seawall-attempts").and_then(|value| value.parse().ok()).unwrap_or(1),
    })
}

/// The time a call took, as people read it.
pub(super) fn milliseconds(length: Nanos) -> String {
    format!("{} ms", length.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let reply = parse(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nseawall-attempts: 3\r\n\r\n{}").unwrap();
        assert_eq!((reply.status, reply.retry_after, reply.attempts), (503, Some(2), 3));
        assert!(parse(b"").is_none() && parse(b"garbage").is_none());
    }
}
