//! The faulty upstream on the wire: each fault looks as it is named, and everything else is plain HTTP.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The real program on a free port; ends with the test.
pub(crate) struct Flaky {
    child: Child,
    pub address: String,
}

impl Flaky {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seawall"));
        command.args(["flaky", "--json"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says where it listens, not {line:?}"));
        Self { child, address: said["listening"].as_str().unwrap().to_owned() }
    }

    pub(crate) fn scripted(script: &str) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.toml");
        std::fs::write(&path, script).unwrap();
        (Self::start(&["--script", path.to_str().unwrap()]), folder)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Everything that one request on its own connection gets, and how it ended.
    fn raw(&self, request: &str) -> (String, io::Result<()>) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        read(&mut stream)
    }

    fn get(&self, path: &str) -> (String, io::Result<()>) {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: f\r\nconnection: close\r\n\r\n"))
    }

    fn body(&self, path: &str) -> String {
        body(&self.get(path).0).to_owned()
    }

    pub(crate) fn stats(&self) -> serde_json::Value {
        serde_json::from_str(&self.body("/-/stats")).unwrap()
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read(stream: &mut TcpStream) -> (String, io::Result<()>) {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes).map(drop);
    (String::from_utf8_lossy(&bytes).into_owned(), ended)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer with headers, not {answer:?}")).1
}

fn promised(answer: &str) -> usize {
    let line = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
    line.unwrap_or_else(|| panic!("a length in {answer:?}")).parse().unwrap()
}

fn is_reset(ended: &io::Result<()>) -> bool {
    matches!(ended, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}

/// Reads one whole answer off a kept-alive connection.
fn one(reader: &mut BufReader<TcpStream>) -> (u16, String) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("a status line, not {line:?}")).parse().unwrap();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

#[test]
fn resets_are_resets() {
    let flaky = Flaky::start(&[]);
    let (answer, ended) = flaky.get("/status/reset-before");
    assert!(answer.is_empty() && is_reset(&ended), "{answer} {ended:?}");
    let (answer, ended) = flaky.get("/status/reset-after-headers");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && body(&answer).is_empty() && is_reset(&ended), "{answer} {ended:?}");
    let (answer, ended) = flaky.get("/status/reset-mid-body");
    assert!((1..promised(&answer)).contains(&body(&answer).len()) && is_reset(&ended), "{answer} {ended:?}");
}

#[test]
fn truncated_bodies_end_cleanly_and_too_early() {
    let flaky = Flaky::start(&[]);
    let (answer, ended) = flaky.get("/status/truncate");
    assert!((1..promised(&answer)).contains(&body(&answer).len()) && ended.is_ok(), "{answer} {ended:?}");
    let (answer, ended) = flaky.get("/status/truncate-chunked");
    assert!(answer.contains("transfer-encoding: chunked") && !answer.ends_with("0\r\n\r\n") && ended.is_ok(), "{answer} {ended:?}");
}

#[test]
fn nonsense_is_nonsense() {
    let flaky = Flaky::start(&[]);
    let (answer, ended) = flaky.get("/status/garbage");
    assert!(!answer.starts_with("HTTP/") && !answer.is_empty() && ended.is_ok());
    let (answer, ended) = flaky.get("/status/malformed-json");
    assert!(ended.is_ok() && answer.starts_with("HTTP/1.1 200 OK") && answer.contains("content-type: application/json"));
    assert_eq!(promised(&answer), body(&answer).len());
    assert!(serde_json::from_str::<serde_json::Value>(body(&answer)).is_err());
}

#[test]
fn hostile_headers_and_lengths() {
    let flaky = Flaky::start(&[]);
    let (answer, ended) = flaky.get("/status/huge-headers");
    assert!(ended.is_ok() && answer.len() > 256 << 10 && body(&answer).contains("\"ok\":true"));
    let (answer, ended) = flaky.get("/status/lying-length");
    assert!(ended.is_ok() && promised(&answer) < body(&answer).len(), "{answer}");
    let mut stream = flaky.connect();
    stream.write_all(b"GET /status/endless-headers HTTP/1.1\r\nhost: f\r\n\r\n").unwrap();
    let mut first = vec![0; 1 << 20];
    stream.read_exact(&mut first).unwrap();
    assert!(!first.windows(4).any(|four| four == b"\r\n\r\n"));
}

#[test]
fn hanging_and_dripping_take_their_time() {
    let flaky = Flaky::start(&[]);
    let mut stream = flaky.connect();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stream.write_all(b"GET /status/hang HTTP/1.1\r\nhost: f\r\n\r\n").unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let mut stream = flaky.connect();
    stream.write_all(b"GET /status/drip HTTP/1.1\r\nhost: f\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    reader.get_ref().set_read_timeout(Some(Duration::from_millis(1700))).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(reader.read(&mut bytes).unwrap(), 1);
    assert_eq!(flaky.stats()["in_flight"], 2);
}

#[test]
fn a_kept_connection_closes_without_a_word() {
    let flaky = Flaky::start(&[]);
    let (answer, ended) = flaky.raw("GET /status/close-idle HTTP/1.1\r\nhost: f\r\n\r\n");
    assert!(answer.ends_with('}') && !answer.contains("connection: close") && ended.is_ok(), "{answer} {ended:?}");
}

#[test]
fn early_hints_come_first() {
    let flaky = Flaky::start(&[]);
    let (answer, _) = flaky.get("/status/early-hints");
    assert!(answer.starts_with("HTTP/1.1 103 Early Hints\r\n") && body(&answer).starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn what_was_sent_comes_back() {
    let flaky = Flaky::start(&[]);
    let request = "POST /echo/a?b=1 HTTP/1.1\r\nhost: f\r\nX-Twice: 1\r\nx-twice: 2\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n";
    let (answer, _) = flaky.raw(&format!("{request}5\r\nhello\r\n0\r\n\r\n"));
    let (interim, answer) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(interim, "HTTP/1.1 100 Continue");
    let echo: serde_json::Value = serde_json::from_str(body(answer)).unwrap();
    assert_eq!((&echo["method"], &echo["path"], &echo["body"]), (&"POST".into(), &"/echo/a?b=1".into(), &"hello".into()));
    assert_eq!(echo["headers"][1], serde_json::json!(["X-Twice", "1"]));
    assert_eq!(echo["headers"][2], serde_json::json!(["x-twice", "2"]));
}

#[test]
fn paths_ask_for_what_they_name() {
    let flaky = Flaky::start(&[]);
    assert!(flaky.get("/status/404").0.starts_with("HTTP/1.1 404 Not Found\r\n"));
    assert_eq!(flaky.body("/bytes/200000").len(), 200_000);
    assert!(flaky.body("/sse/2").contains("data: {\"n\":2}\n\n\r\n0\r\n\r\n"));
    assert!(flaky.get("/status/lastfm:29").0.starts_with("HTTP/1.1 200 OK\r\n"));
    let (answer, _) = flaky.raw("HEAD /bytes/5000 HTTP/1.1\r\nhost: f\r\nconnection: close\r\n\r\n");
    assert_eq!((promised(&answer), body(&answer)), (5000, ""));
    let (answer, _) = flaky.raw("POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400"));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let flaky = Flaky::start(&[]);
    let mut stream = flaky.connect();
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: f\r\n\r\n");
    let all: String = ["/status/200", "/delay/30ms", "/status/503", "/bytes/70000", "/last"].map(request).concat();
    stream.write_all(all.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reader = BufReader::new(stream);
    let answers: Vec<(u16, usize)> = (0..5).map(|_| one(&mut reader)).map(|(status, body)| (status, body.len())).collect();
    assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 503, 200, 200]);
    assert_eq!(answers[3].1, 70_000);
}

#[test]
fn twenty_thousand_requests_are_answered_right() {
    let flaky = Flaky::start(&["--quiet"]);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let stream = flaky.connect();
            scope.spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut stream = stream;
                for n in 0..2500 {
                    let status = if n % 10 == 0 { 503 } else { 200 };
                    let head = format!("POST /status/{status} HTTP/1.1\r\nhost: f\r\nx-client: {client}\r\ncontent-length: 3\r\n\r\nabc");
                    stream.write_all(head.as_bytes()).unwrap();
                    assert_eq!(one(&mut reader).0, status);
                }
            });
        }
    });
    let stats = flaky.stats();
    assert_eq!((&stats["statuses"]["200"], &stats["statuses"]["503"]), (&18_000.into(), &2000.into()));
    assert_eq!(stats["connections"], 9);
    assert!(flaky.raw("POST /-/reset HTTP/1.1\r\nhost: f\r\nconnection: close\r\n\r\n").0.contains("\"ok\":true"));
    assert_eq!(flaky.stats()["requests"], 0);
}

#[test]
fn a_crew_makes_callers_wait_and_turns_some_away() {
    let script = "[[routes]]\nmatch = \"GET /work\"\ncapacity = { workers = 1, service = \"200ms\", queue = 1 }\nretry_after = \"3\"\n";
    let (flaky, _folder) = Flaky::scripted(script);
    let request = "GET /work HTTP/1.1\r\nhost: f\r\nconnection: close\r\n\r\n";
    let mut streams: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = flaky.connect();
            stream.write_all(request.as_bytes()).unwrap();
            // Arrivals must be told apart.
            std::thread::sleep(Duration::from_millis(20));
            stream
        })
        .collect();
    let answers: Vec<String> = streams.iter_mut().map(|stream| read(stream).0).collect();
    assert!(answers[0].starts_with("HTTP/1.1 200") && answers[1].starts_with("HTTP/1.1 200"), "{answers:?}");
    assert!(answers[2].starts_with("HTTP/1.1 503") && answers[2].contains("retry-after: 3\r\n"), "{answers:?}");
}

#[test]
fn a_bad_script_is_told_with_its_line_and_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.toml");
    std::fs::write(&path, "[[routes]]\nmatch = \"GET /\"\nmix = { \"hangs\" = 1 }\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_seawall")).args(["flaky", "--script"]).arg(&path).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(told.contains("bad.toml:3:") && told.contains("did you mean `hang`?"), "{told}");
}

#[test]
fn sigterm_ends_it_with_a_summary() {
    let mut flaky = Flaky::start(&[]);
    assert!(flaky.get("/status/503").1.is_ok());
    let mut open = flaky.connect();
    open.write_all(b"GET /status/hang HTTP/1.1\r\nhost: f\r\n\r\n").unwrap();
    assert!(Command::new("kill").arg(flaky.child.id().to_string()).status().unwrap().success());
    assert_eq!(flaky.child.wait().unwrap().code(), Some(0));
    let mut told = String::new();
    flaky.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("503 × 1"), "{told}");
}
