//! A caller on a raw socket: sends exactly the given bytes and parses responses as strictly as the RFCs ask.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for anything; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Measures how long something took.
pub(crate) struct Watch(Instant);

#[expect(clippy::disallowed_methods, reason = "tests of the real program live in real time")]
impl Watch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn ms(&self) -> u128 {
        self.0.elapsed().as_millis()
    }
}

/// Returns as soon as `done` holds, and fails with `what` if it never does.
pub(crate) fn eventually(what: &str, done: impl FnMut() -> bool) {
    within(PATIENCE, what, done);
}

/// As `eventually`, with another time limit.
pub(crate) fn within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let watch = Watch::start();
    while !done() {
        assert!(watch.ms() < patience.as_millis(), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) struct Caller {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// A response as it was on the wire.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body had its announced length.
    pub complete: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The outcome that the gateway reports.
    #[track_caller]
    pub(crate) fn outcome(&self) -> &str {
        self.header("seawall-outcome").unwrap_or_else(|| panic!("an outcome in {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The problem document of a refusal of ours, after checking what all of them have in common.
    #[track_caller]
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:?}");
        assert!(self.header("proxy-status").is_some_and(|status| status.starts_with("seawall; error=")), "{self:?}");
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        for member in ["type", "title", "status", "detail", "code", "error", "upstream", "endpoint", "call", "attempts"] {
            assert!(document.get(member).is_some(), "no `{member}` in {document}");
        }
        assert_eq!(document["status"], self.status);
        assert_eq!(document["code"], document["error"]);
        assert_eq!(document.get("retry_after_seconds").map(ToString::to_string).as_deref(), self.header("retry-after"));
        document
    }

    /// The code of a refusal of ours.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        self.problem()["code"].as_str().unwrap().to_owned()
    }
}

impl Caller {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::over(TcpStream::connect(to).unwrap())
    }

    /// Over a connection that was made elsewhere.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Sends what the other side is still willing to take; a refused request may be cut off.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _cut_off = self.stream.write_all(bytes.as_ref());
        self
    }

    pub(crate) fn half_close(&mut self) -> &mut Self {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self
    }

    /// Reads more; `false` at the end of the connection.
    fn more(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => true,
            Ok(0) => false,
            Ok(n) => {
                self.buffer.extend_from_slice(&piece[..n]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no answer: {error}; so far {:?}", String::from_utf8_lossy(&self.buffer)),
        }
    }

    fn until(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                return Some(self.buffer.drain(..at + mark.len()).collect());
            }
            if !self.more() {
                return None;
            }
        }
    }

    fn exactly(&mut self, count: usize) -> (Vec<u8>, bool) {
        while self.buffer.len() < count {
            if !self.more() {
                return (std::mem::take(&mut self.buffer), false);
            }
        }
        (self.buffer.drain(..count).collect(), true)
    }

    /// Everything up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.buffer)
    }

    /// The next bytes, however many have come by now.
    pub(crate) fn piece(&mut self) -> String {
        if self.buffer.is_empty() {
            self.more();
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Whether the other side ends the connection without saying anything more.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.rest().is_empty()
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.reply_to("GET")
    }

    /// Reads one response; the method decides whether it may have a body.
    #[track_caller]
    pub(crate) fn reply_to(&mut self, method: &str) -> Reply {
        let head = self.until(b"\r\n\r\n").expect("an answer");
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut reply = Reply { status, headers, body: Vec::new(), complete: true };
        let (length, coding) = (reply.header("content-length"), reply.header("transfer-encoding"));
        assert!(length.is_none() || coding.is_none(), "two framings: {head}");
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return reply;
        }
        let length = length.map(|length| length.parse().unwrap());
        (reply.body, reply.complete) = match (length, coding.is_some()) {
            (Some(length), _) => self.exactly(length),
            (None, true) => self.chunks(),
            (None, false) => (self.rest(), true),
        };
        reply
    }

    fn chunks(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            let Some(size) = self.until(b"\r\n") else { return (body, false) };
            let size = usize::from_str_radix(String::from_utf8(size).unwrap().trim(), 16).unwrap();
            if size == 0 {
                // Trailers, or the empty line that ends them.
                while self.until(b"\r\n").is_some_and(|line| line != b"\r\n") {}
                return (body, true);
            }
            let (chunk, whole) = self.exactly(size + 2);
            body.extend_from_slice(&chunk[..chunk.len().min(size)]);
            if !whole {
                return (body, false);
            }
        }
    }
}
