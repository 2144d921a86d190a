//! The only reader of the machine's clocks: every other line of Seawall is told what time it is.

use seawall_core::time::{Mono, Now, Wall};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Both clocks, the monotonic one counted from the moment this was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

#[expect(clippy::disallowed_methods, reason = "this file is where the clocks are read")]
impl Clock {
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Now {
        let mono = Mono(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        Now { mono, wall: Wall(wall) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_goes_back() {
        let clock = Clock::start();
        let first = clock.now();
        assert!(clock.now().mono >= first.mono);
        assert!(first.wall > Wall(1_700_000_000_000));
    }
}
