//! A gateway and the upstream behind it: the real program twice, or the program and a scripted socket.

use crate::dir::Dir;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The real program, serving; ends with the test.
pub(crate) struct Gateway {
    child: Child,
    pub address: String,
    pub admin: String,
    dir: Dir,
}

/// One answer, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer with headers, not {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("a status in {head:?}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn outcome(&self) -> &str {
        self.header("seawall-outcome").unwrap_or_else(|| panic!("an outcome in {}", self.head))
    }

    pub(crate) fn cache(&self) -> Option<&str> {
        self.header("cache-status")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// One request on its own connection.
pub(crate) fn send(address: &str, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&String::from_utf8_lossy(&bytes))
}

impl Gateway {
    /// Serves one upstream `a` at `upstream`; `policy` are its other keys, one on each line.
    pub(crate) fn before(upstream: &str, policy: &str) -> Self {
        let dir = Dir::with(Self::config(upstream, policy));
        Self::start(dir, &[])
    }

    pub(crate) fn config(upstream: &str, policy: &str) -> String {
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[upstreams.a]\nurl = \"http://{upstream}\"\n\
             retry = {{ attempts = 2, base = \"1ms\", cap = \"2ms\" }}\n{policy}\n"
        )
    }

    pub(crate) fn start(dir: Dir, environment: &[(&str, &str)]) -> Self {
        let log = std::fs::File::create(dir.path("log")).unwrap();
        let mut command = dir.command(["serve", "--threads", "2"]);
        let mut child = command.envs(environment.iter().copied()).stdout(log).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut address_after = |word: &str| {
            let line = lines.by_ref().map(Result::unwrap).find(|line| line.trim_start().starts_with(word));
            let line = line.unwrap_or_else(|| panic!("the banner names the {word}"));
            line.split("http://").nth(1).and_then(|rest| rest.split(['/', ' ']).next()).unwrap().to_owned()
        };
        let (address, admin) = (address_after("gateway"), address_after("admin"));
        // Whatever it says later must not find a closed pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, admin, dir }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.with(path, "")
    }

    /// A GET with these header lines.
    pub(crate) fn with(&self, path: &str, headers: &str) -> Answer {
        send(&self.address, "GET", path, headers)
    }

    pub(crate) fn metrics(&self) -> String {
        // The writer looks every few milliseconds.
        std::thread::sleep(Duration::from_millis(100));
        send(&self.admin, "GET", "/metrics", "").body
    }

    pub(crate) fn log(&self) -> String {
        std::thread::sleep(Duration::from_millis(100));
        self.dir.read("log")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The faulty upstream of the program itself.
pub(crate) struct Flaky {
    child: Child,
    pub address: String,
    _dir: Dir,
}

impl Flaky {
    pub(crate) fn start(script: &str) -> Self {
        let dir = Dir::new();
        dir.write("script.toml", script);
        let mut command = dir.command(["flaky", "--json", "--listen", "127.0.0.1:0", "--script", "script.toml"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says where it listens, not {line:?}"));
        Self { child, address: said["listening"].as_str().unwrap().to_owned(), _dir: dir }
    }

    pub(crate) fn stats(&self) -> serde_json::Value {
        send(&self.address, "GET", "/-/stats", "").json()
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An upstream that answers as it is told, byte for byte, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Scripted {
    pub address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// `answer` gets the request's number, from 1, and its text; nothing to say resets the connection.
    pub(crate) fn start(answer: impl Fn(usize, &str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scripted = Self { address: listener.local_addr().unwrap().to_string(), asked: Arc::default() };
        let (asked, answer) = (Arc::clone(&scripted.asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, asked, answer) = (stream.unwrap(), Arc::clone(&asked), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let Some(request) = whole(&mut stream) else { return };
                    let number = {
                        let mut asked = asked.lock().unwrap();
                        asked.push(request.clone());
                        asked.len()
                    };
                    // A gateway that has gone away is not this side's trouble.
                    drop(stream.write_all(answer(number, &request).as_bytes()));
                });
            }
        });
        scripted
    }

    /// How many requests came so far.
    pub(crate) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The request with this number, from 1.
    pub(crate) fn asked(&self, number: usize) -> String {
        self.asked.lock().unwrap()[number - 1].clone()
    }
}

/// A request with its body, as text.
fn whole(stream: &mut TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut text, mut length) = (String::new(), 0);
    loop {
        let start = text.len();
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
        let line = text[start..].trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    text.push_str(&String::from_utf8_lossy(&body));
    Some(text)
}

/// A whole answer; `headers` are lines.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
}
