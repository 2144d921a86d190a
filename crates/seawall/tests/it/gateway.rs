//! The real program, started on free ports in a directory of its own and ended with the test.

use super::caller::{Caller, PATIENCE, Reply, eventually, within};
use super::upstream::Upstream;
use serde_json::Value;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

type Text = Arc<Mutex<Vec<u8>>>;

pub(crate) struct Gateway {
    child: Child,
    directory: tempfile::TempDir,
    pub at: SocketAddr,
    pub admin: SocketAddr,
    out: Text,
    err: Text,
}

/// The settings for a start of the program.
pub(crate) struct Start {
    listen: String,
    server: String,
    policy: String,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    threads: u16,
    unread: bool,
    files: Option<u32>,
}

impl Start {
    /// One upstream, `api`, with these keys.
    pub(crate) fn before(upstream: &Upstream, keys: &str) -> Self {
        Self::with(&format!("[upstreams.api]\nurl = \"http://{}\"\n{keys}", upstream.at))
    }

    pub(crate) fn with(policy: &str) -> Self {
        let listen = "127.0.0.1:0".to_owned();
        Self {
            listen,
            server: String::new(),
            policy: policy.to_owned(),
            variables: Vec::new(),
            arguments: Vec::new(),
            threads: 2,
            unread: false,
            files: None,
        }
    }

    /// Sets the gateway's address.
    pub(crate) fn listen(mut self, at: &str) -> Self {
        at.clone_into(&mut self.listen);
        self
    }

    /// Keys of `[server]`.
    pub(crate) fn server(mut self, keys: &str) -> Self {
        self.server.push_str(keys);
        self.server.push('\n');
        self
    }

    pub(crate) fn secret(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Threads that serve, two by default. With one, connections upstream are reused in an order that a test can know.
    pub(crate) fn threads(mut self, threads: u16) -> Self {
        self.threads = threads;
        self
    }

    /// Nobody reads the program's log, so that its pipe fills up.
    pub(crate) fn unread(mut self) -> Self {
        self.unread = true;
        self
    }

    /// Limits the program's open files.
    pub(crate) fn files(mut self, files: u32) -> Self {
        self.files = Some(files);
        self
    }

    pub(crate) fn go(self) -> Gateway {
        self.go_in(tempfile::tempdir().unwrap())
    }

    /// Starts in the folder of an earlier program, with its files.
    pub(crate) fn go_in(self, directory: tempfile::TempDir) -> Gateway {
        self.try_in(directory).unwrap_or_else(|gone| panic!("the program ended: {}", gone.stderr()))
    }

    /// The same; `Err` if the program ended before it could serve a request.
    pub(crate) fn try_in(self, directory: tempfile::TempDir) -> Result<Gateway, Box<Gateway>> {
        let mut gateway = self.begin(directory);
        if gateway.listens() { Ok(gateway) } else { Err(Box::new(gateway)) }
    }

    /// Starts in that folder and waits for the end at a failpoint, which may come before the program serves a request.
    pub(crate) fn die_in(self, directory: tempfile::TempDir) -> tempfile::TempDir {
        let mut gateway = self.begin(directory);
        assert_eq!(gateway.ended(), None, "it ended by itself: {}", gateway.stderr());
        gateway.kill()
    }

    /// A program that listens nowhere yet.
    pub(crate) fn begin(self, directory: tempfile::TempDir) -> Gateway {
        let file = directory.path().join("seawall.toml");
        std::fs::write(&file, self.text()).unwrap();
        let mut child = limited(self.files)
            .args(["serve", "--threads", &self.threads.to_string(), "-c"])
            .arg(&file)
            .args(&self.arguments)
            .current_dir(directory.path())
            .envs(self.variables.clone())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = if self.unread { Text::default() } else { collect(child.stdout.take().unwrap()) };
        let err = collect(child.stderr.take().unwrap());
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Gateway { child, directory, at: nowhere, admin: nowhere, out, err }
    }

    pub(crate) fn text(&self) -> String {
        format!("[server]\nlisten = \"{}\"\nadmin = \"127.0.0.1:0\"\n{}\n{}\n", self.listen, self.server, self.policy)
    }
}

/// The program, with nothing of the tester's own environment that it would read.
pub(crate) fn program() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_seawall")))
}

fn clean(mut command: Command) -> Command {
    command.env_remove("SEAWALL_CONFIG").env_remove("NOTIFY_SOCKET").env("NO_COLOR", "1");
    command
}

/// The program with a limit on open files.
fn limited(files: Option<u32>) -> Command {
    let Some(files) = files else { return program() };
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_seawall")]);
    clean(shell)
}

fn collect(mut from: impl std::io::Read + Send + 'static) -> Text {
    let text = Text::default();
    let kept = Arc::clone(&text);
    thread::spawn(move || {
        let mut piece = [0; 8192];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            kept.lock().unwrap().extend_from_slice(&piece[..n]);
        }
    });
    text
}

fn read(text: &Text) -> String {
    String::from_utf8_lossy(&text.lock().unwrap()).into_owned()
}

impl Gateway {
    /// Waits until it listens; whether it does, and has not ended before.
    pub(crate) fn listens(&mut self) -> bool {
        let err = Arc::clone(&self.err);
        let address = |name: &str| {
            let text = read(&err);
            let (_, line) = text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().split_once("://"))?;
            line.split(['/', ' ']).next()?.parse().ok()
        };
        let mut found = None;
        eventually("the program listens or ends", || {
            // Checks for the end first: a program that dies soon may have printed its address just before.
            let ended = self.child.try_wait().unwrap().is_some();
            found = address("gateway").zip(address("admin"));
            found.is_some() || ended
        });
        if let Some(found) = found {
            (self.at, self.admin) = found;
        }
        found.is_some()
    }

    /// The folder of its configuration and its database.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.directory.path()
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::connect(self.at)
    }

    /// Sends these bytes over a connection of their own and reads one answer.
    #[track_caller]
    pub(crate) fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        self.caller().send(request).reply()
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n"))
    }

    #[track_caller]
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> Reply {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: gateway\r\n{headers}\r\n"))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, headers: &str, body: &str) -> Reply {
        self.ask(format!("POST {path} HTTP/1.1\r\nHost: gateway\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// Asks the admin API.
    #[track_caller]
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Reply {
        self.admin_as(method, path, "application/json", body)
    }

    #[track_caller]
    pub(crate) fn admin_as(&self, method: &str, path: &str, kind: &str, body: &str) -> Reply {
        let length = body.len();
        Caller::connect(self.admin)
            .send(format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
            ))
            .reply()
    }

    /// Ends the program as a power cut would, and gives back the directory that it worked in.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// Ends the program as an operator would, and gives back the directory that it worked in.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.signal("TERM");
        assert_eq!(self.ended(), Some(0), "{}", self.stderr());
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// Asks the admin port with headers of one's own.
    #[track_caller]
    pub(crate) fn admin_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        Caller::connect(self.admin)
            .send(format!("{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}{length}\r\n{body}"))
            .reply_to(method)
    }

    /// The admin port's JSON, which must be a success.
    #[track_caller]
    pub(crate) fn look(&self, path: &str) -> Value {
        let reply = self.admin_with("GET", path, "", "");
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// Whether this is somewhere in the files of its store.
    pub(crate) fn wrote(&self, text: &str) -> bool {
        let files = ["seawall.db", "seawall.db-wal"].map(|name| std::fs::read(self.directory.path().join(name)).unwrap_or_default());
        files.iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    pub(crate) fn metrics(&self) -> String {
        Caller::connect(self.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").reply().text()
    }

    /// The value of a metric, by its name and labels as they are printed.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The folder of its configuration and its store.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    pub(crate) fn stdout(&self) -> String {
        read(&self.out)
    }

    pub(crate) fn stderr(&self) -> String {
        read(&self.err)
    }

    /// Every log line so far, once there are `calls` closing lines.
    #[track_caller]
    pub(crate) fn log(&self, calls: usize) -> Vec<Value> {
        let lines = || -> Vec<Value> { self.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect() };
        eventually("the log has every call", || lines().iter().filter(|line| line["event"] == "call").count() >= calls);
        lines()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "cannot signal the program");
    }

    /// Waits for the program's own end; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.ended_within(PATIENCE)
    }

    pub(crate) fn ended_within(&mut self, patience: Duration) -> Option<i32> {
        let mut status = None;
        within(patience, "the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Writes the policy anew, as an operator would before a reload.
    pub(crate) fn rewrite(&self, start: &Start) -> PathBuf {
        let file = self.directory.path().join("seawall.toml");
        std::fs::write(&file, start.text()).unwrap();
        file
    }

    /// Processor time that it has used, in hundredths of a second.
    pub(crate) fn cpu(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        [11, 12].iter().map(|&field: &usize| fields[field].parse::<u64>().unwrap()).sum()
    }

    /// Resident memory in KiB.
    pub(crate) fn memory(&self) -> u64 {
        self.told("status", "VmRSS:").trim_end_matches(" kB").parse().unwrap()
    }

    /// The value on the line with this name in a file of `/proc`.
    pub(crate) fn told(&self, file: &str, name: &str) -> String {
        let mut told = String::new();
        std::fs::File::open(format!("/proc/{}/{file}", self.child.id())).unwrap().read_to_string(&mut told).unwrap();
        told.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
