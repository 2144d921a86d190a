//! Private servers for tests: started on a free port in a directory of their own, ended with the test. A server that is
//! not installed fails the test that needs it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A port that was free a moment ago.
pub(crate) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Waits until the port accepts connections.
#[track_caller]
pub(crate) fn listens(at: SocketAddr) {
    for _ in 0..500 {
        if TcpStream::connect(at).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nothing listens on {at}");
}

/// A Redis of one's own that keeps nothing on disk.
pub(crate) struct Redis {
    pub at: SocketAddr,
    directory: tempfile::TempDir,
    child: Child,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let (at, directory) = (free_port(), tempfile::tempdir().unwrap());
        let child = Self::spawn(at, &directory);
        listens(at);
        Self { at, directory, child }
    }

    fn spawn(at: SocketAddr, directory: &tempfile::TempDir) -> Child {
        Command::new("redis-server")
            .args(["--port", &at.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed: `apt-get install redis-server`, or run ./test")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.at)
    }

    /// kill −9: no connection is closed properly.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Comes back on the same port and knows nothing any more.
    pub(crate) fn restart(&mut self) {
        self.child = Self::spawn(self.at, &self.directory);
        listens(self.at);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // One that was killed by the test needs no second blow.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
