//! A directory of its own for each test, and the real program run in it with nothing of the environment around it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Every table of the configuration, as the manual shows it.
pub(crate) const CONTRACT: &str = include_str!("fixtures/contract.toml");

/// The least that is valid; keys of the upstream may follow.
pub(crate) const UPSTREAM: &str = "[upstreams.a]\nurl = \"https://a.test\"\n";

pub(crate) struct Dir(tempfile::TempDir);

/// The end of a run of the program.
#[derive(Debug)]
pub(crate) struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With this as `seawall.toml`.
    pub(crate) fn with(config: impl AsRef<[u8]>) -> Self {
        let dir = Self::new();
        dir.write("seawall.toml", config);
        dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seawall"));
        command.env_clear().env("HOME", self.0.path()).current_dir(self.0.path()).args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        finish(self.command(args))
    }
}

/// No input makes the program panic.
pub(crate) fn finish(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let run = Run { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) };
    assert!(!run.err.contains("panicked"), "{run:?}");
    run
}

impl Run {
    pub(crate) fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}
