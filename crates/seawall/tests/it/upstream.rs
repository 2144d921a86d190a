//! A scripted upstream on a raw socket: keeps every byte that it receives and sends exactly the scripted bytes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// One request as the upstream saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or("")
    }

    /// The values of a header, by its name in lower case.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    /// All of it.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.head, String::from_utf8_lossy(&self.body))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        !self.all(name).is_empty()
    }
}

/// One request and the chance to answer it.
pub(crate) struct Turn {
    pub seen: Seen,
    /// Requests before this one, over all connections.
    pub number: usize,
    pub stream: TcpStream,
    open: bool,
}

impl Turn {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        // The gateway may have left, which is for the test to judge.
        let _gone = self.stream.write_all(bytes.as_ref());
        self
    }

    /// Sends this and is done.
    pub(crate) fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.send(bytes);
    }

    /// Says nothing for this long and is done.
    pub(crate) fn hang(&mut self, ms: u64) {
        self.pause(ms);
    }

    /// Ends the connection after this turn.
    pub(crate) fn close(&mut self) {
        self.open = false;
    }

    pub(crate) fn pause(&mut self, ms: u64) -> &mut Self {
        thread::sleep(std::time::Duration::from_millis(ms));
        self
    }

    /// Waits until the gateway ends the connection; whether it did within a second.
    pub(crate) fn is_left(&mut self) -> bool {
        self.stream.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
        let gone = match self.stream.read(&mut [0; 1]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        self.open = false;
        gone
    }
}

#[derive(Default)]
struct Books {
    seen: Mutex<Vec<Seen>>,
    raw: Mutex<Vec<u8>>,
    failures: Mutex<Vec<String>>,
    connections: AtomicUsize,
    requests: AtomicUsize,
    stopped: AtomicBool,
}

/// Lives until it is dropped; dropping it fails the test if a script panicked.
pub(crate) struct Upstream {
    pub at: SocketAddr,
    books: Arc<Books>,
}

type Script = Arc<dyn Fn(&mut Turn) + Send + Sync>;

impl Upstream {
    pub(crate) fn with(script: impl Fn(&mut Turn) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, books, script) = (listener.local_addr().unwrap(), Arc::<Books>::default(), Arc::new(script) as Script);
        let kept = Arc::clone(&books);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if kept.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (books, script) = (Arc::clone(&kept), Arc::clone(&script));
                books.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    let served = catch_unwind(AssertUnwindSafe(|| serve(&books, &script, &stream.unwrap())));
                    if let Err(panic) = served {
                        let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a script panicked".to_owned());
                        books.failures.lock().unwrap().push(text);
                    }
                });
            }
        });
        Self { at, books }
    }

    /// Answers the first request with the first text, and so on; the last is repeated.
    pub(crate) fn replying(replies: &[&str]) -> Self {
        let replies: Vec<String> = replies.iter().map(|reply| (*reply).to_owned()).collect();
        Self::with(move |turn| {
            let reply = &replies[turn.number.min(replies.len() - 1)];
            turn.send(reply);
        })
    }

    /// Says `ok` to everything.
    pub(crate) fn fine() -> Self {
        Self::replying(&[OK])
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.books.seen.lock().unwrap().clone()
    }

    /// The request with this number, from 1.
    pub(crate) fn asked(&self, number: usize) -> String {
        self.seen()[number - 1].text()
    }

    pub(crate) fn count(&self) -> usize {
        self.books.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.books.connections.load(Ordering::SeqCst)
    }

    /// Every byte that ever came, requests or not.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.books.raw.lock().unwrap()).into_owned()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.books.stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.at));
        let failures = self.books.failures.lock().unwrap();
        if !thread::panicking() {
            assert!(failures.is_empty(), "the upstream's script failed: {failures:?}");
        }
    }
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An answer with a body of its own length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn serve(books: &Books, script: &Script, stream: &TcpStream) {
    let mut reader = Reader { stream: stream.try_clone().unwrap(), buffer: Vec::new(), books };
    while let Some((head, body)) = reader.request() {
        let seen = Seen { head, body };
        books.seen.lock().unwrap().push(seen.clone());
        let number = books.requests.fetch_add(1, Ordering::SeqCst);
        let mut turn = Turn { seen, number, stream: stream.try_clone().unwrap(), open: true };
        script(&mut turn);
        if !turn.open {
            return;
        }
    }
}

struct Reader<'a> {
    stream: TcpStream,
    buffer: Vec<u8>,
    books: &'a Books,
}

impl Reader<'_> {
    fn more(&mut self) -> Option<()> {
        let mut piece = [0; 64 * 1024];
        let n = self.stream.read(&mut piece).ok().filter(|n| *n > 0)?;
        self.buffer.extend_from_slice(&piece[..n]);
        self.books.raw.lock().unwrap().extend_from_slice(&piece[..n]);
        Some(())
    }

    fn until(&mut self, mark: &[u8]) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                let taken: Vec<u8> = self.buffer.drain(..at + mark.len()).collect();
                return Some(String::from_utf8_lossy(&taken).into_owned());
            }
            self.more()?;
        }
    }

    fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            self.more()?;
        }
        Some(self.buffer.drain(..count).collect())
    }

    fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let head = self.until(b"\r\n\r\n")?;
        let probe = Seen { head, body: Vec::new() };
        let mut body = Vec::new();
        if probe.all("transfer-encoding") == ["chunked"] {
            loop {
                let size = usize::from_str_radix(self.until(b"\r\n")?.trim(), 16).unwrap();
                body.extend(self.exactly(size)?);
                self.exactly(2)?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = probe.all("content-length").first() {
            body = self.exactly(length.parse().unwrap())?;
        }
        Some((probe.head, body))
    }
}
