//! A provider's pause, shared by threads. Without a pause, a check costs one atomic read.

use parking_lot::Mutex;
use seawall_core::guard::PauseState;
use seawall_core::time::{Mono, Nanos};
use std::sync::atomic::{AtomicU64, Ordering};

/// Interval at which an instance asks Redis again about a known pause, so that a lifted pause ends everywhere soon.
const RECHECK: Nanos = Nanos::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct PauseCell {
    /// The end of `pause`; after it, the lock need not be taken.
    until: AtomicU64,
    pause: Mutex<PauseState>,
}

impl PauseCell {
    /// Returns whether a call may be sent; otherwise when the pause ends.
    #[inline]
    pub(crate) fn admit(&self, now: Mono) -> Result<(), Mono> {
        if self.is_over(now) { Ok(()) } else { self.with(|pause| pause.admit(now)) }
    }

    #[inline]
    pub(crate) fn is_over(&self, now: Mono) -> bool {
        now.0 >= self.until.load(Ordering::Relaxed)
    }

    pub(crate) fn extend(&self, until: Mono, now: Mono) {
        self.with(|pause| pause.extend(until, now));
    }

    /// Applies a pause reported by Redis.
    pub(crate) fn follow_redis(&self, until: Mono, now: Mono) {
        self.with(|pause| pause.follow_other(until, RECHECK, now));
    }

    /// Applies Redis's report that there is no pause.
    pub(crate) fn follow_redis_end(&self) {
        self.with(PauseState::follow_end);
    }

    /// Applies Redis's report that a probe has disproved the pause.
    pub(crate) fn disprove(&self, until: Mono) {
        self.with(|pause| pause.disprove(until));
    }

    /// Returns whether the response to an attempt sent at that time ended the pause.
    #[inline]
    pub(crate) fn answered(&self, sent_at: Mono, now: Mono) -> bool {
        if self.is_over(now) {
            return false;
        }
        self.with(|pause| {
            pause.answered(sent_at, now);
            pause.is_over(now)
        })
    }

    pub(crate) fn lift(&self) {
        self.with(PauseState::lift);
    }

    /// Returns beginning and end, while it lasts.
    pub(crate) fn span(&self, now: Mono) -> Option<(Mono, Mono)> {
        self.pause.lock().span(now)
    }

    fn with<R>(&self, act: impl FnOnce(&mut PauseState) -> R) -> R {
        let mut pause = self.pause.lock();
        let result = act(&mut pause);
        // Written under the lock, so that it never lags behind the pause.
        self.until.store(pause.span(Mono(0)).map_or(0, |(_, until)| until.0), Ordering::Relaxed);
        result
    }
}
