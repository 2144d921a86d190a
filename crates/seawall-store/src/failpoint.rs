//! Failpoints: places at which a test makes the process die, fail or stall, between any two steps of a job, a letter, a replay or a
//! schedule. Release builds have none.

use crate::error::Error;

/// The effect of a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Ends the process abruptly.
    Kill,
    /// The store fails with an error that may pass.
    Fail,
    /// Each pass takes a second longer.
    Pause,
}

impl Trouble {
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "kill" => Some(Self::Kill),
            "err" => Some(Self::Fail),
            "pause" => Some(Self::Pause),
            _ => None,
        }
    }
}

/// The names of all failpoints.
pub const NAMES: &[&str] = &[
    "enqueue-before-commit",
    "enqueue-after-commit",
    "claim-before-commit",
    "claim-after-commit",
    "renew-before-commit",
    "renew-after-commit",
    "settle-before-commit",
    "settle-in-transaction",
    "settle-after-commit",
    "reserve-before-commit",
    "reserve-after-commit",
    "finish-before-commit",
    "finish-after-commit",
    "tick-before-commit",
    "tick-after-commit",
    "cancel-before-commit",
    "cancel-in-transaction",
    "cancel-after-commit",
    "begin-before-commit",
    "begin-after-commit",
    "blame-before-commit",
    "blame-after-commit",
    "hasten-before-commit",
    "hasten-in-transaction",
    "hasten-after-commit",
    "keep-before-commit",
    "keep-in-transaction",
    "keep-after-commit",
    "replay-before-commit",
    "replay-after-commit",
    "step-before-commit",
    "step-in-transaction",
    "step-after-commit",
    "set-replay-before-commit",
    "set-replay-after-commit",
    "fire-before-commit",
    "fire-in-transaction",
    "fire-after-commit",
    "report-before-commit",
    "report-after-commit",
    "expire-in-transaction",
    "expire-after-commit",
];

#[cfg(debug_assertions)]
static ARMED: std::sync::OnceLock<(String, Trouble)> = std::sync::OnceLock::new();

/// Arms one failpoint for the rest of the process.
#[cfg(debug_assertions)]
pub fn arm(name: &str, trouble: Trouble) {
    // The first armed failpoint stays.
    drop(ARMED.set((name.to_owned(), trouble)));
}

#[cfg(debug_assertions)]
pub(crate) fn hit(name: &str) -> Result<(), Error> {
    match ARMED.get() {
        Some((armed, trouble)) if armed == name => match trouble {
            Trouble::Kill => std::process::abort(),
            Trouble::Fail => Err(Error::Unavailable(format!("the failpoint `{name}`"))),
            Trouble::Pause => {
                std::thread::sleep(std::time::Duration::from_secs(1));
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "the same in both builds")]
pub(crate) const fn hit(_name: &str) -> Result<(), Error> {
    Ok(())
}
