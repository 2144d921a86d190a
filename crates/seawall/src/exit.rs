//! The program's exit codes. Scripts depend on these numbers.

use seawall_server::Stopped;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    /// Finished, but some rows ended as dead letters.
    DeadLetters = 3,
    /// `check --strict` or `sim --assert` reports a finding.
    Findings = 4,
    /// An upstream rejects our credentials.
    Unauthorized = 5,
    /// No server responds at the address of the admin port.
    NoSeawall = 10,
    /// The store cannot be opened or does not respond.
    StoreUnavailable = 11,
    InvalidConfig = 78,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Stopped> for Exit {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Drained => Self::Done,
            Stopped::CutOff => Self::Interrupted,
        }
    }
}

/// An error with an exit code of its own, and a hint for the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CommandError {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
}

impl CommandError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into(), hint: None }
    }

    /// Returns a usage error unless the condition holds.
    pub(crate) fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::usage(message())) }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { exit: Exit::InvalidConfig, message: message.into(), hint: None }
    }

    pub(crate) fn no_seawall(message: impl Into<String>) -> Self {
        Self { exit: Exit::NoSeawall, message: message.into(), hint: None }
    }

    pub(crate) fn store(message: impl Into<String>) -> Self {
        Self { exit: Exit::StoreUnavailable, message: message.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
