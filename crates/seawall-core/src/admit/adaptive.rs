//! A concurrency limit that adapts: one more for a success while it is in use, a tenth less for a drop (AIMD). Cancelled calls and our own
//! refusals are no samples; callers do not report them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    limit: u32,
    min: u32,
    max: u32,
}

impl Adaptive {
    /// `min` is at least one and `max` at least `min`: a limit of zero could never learn again.
    #[must_use]
    pub const fn new(initial: u32, min: u32, max: u32) -> Self {
        let min = if min == 0 { 1 } else { min };
        let max = if max < min { min } else { max };
        let limit = if initial < min {
            min
        } else if initial > max {
            max
        } else {
            initial
        };
        Self { limit, min, max }
    }

    /// Grows only while at least half of it is used: a success at low load does not show that more would fit.
    #[inline]
    pub fn succeeded(&mut self, in_flight: u32) {
        if in_flight.saturating_mul(2) >= self.limit && self.limit < self.max {
            self.limit += 1;
        }
    }

    /// A timeout, a reset or an overload response: a tenth less.
    #[inline]
    pub fn dropped(&mut self) {
        self.limit = (self.limit - self.limit.div_ceil(10)).max(self.min);
    }

    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_one_while_half_of_it_is_used() {
        let mut adaptive = Adaptive::new(20, 1, 100);
        adaptive.succeeded(10);
        assert_eq!(adaptive.limit(), 21);
        adaptive.succeeded(10);
        assert_eq!(adaptive.limit(), 21);
    }

    #[test]
    fn a_drop_takes_a_tenth() {
        let mut adaptive = Adaptive::new(30, 1, 100);
        adaptive.dropped();
        assert_eq!(adaptive.limit(), 27);
    }

    #[test]
    fn stays_between_its_bounds() {
        let mut adaptive = Adaptive::new(21, 4, 21);
        adaptive.succeeded(21);
        assert_eq!(adaptive.limit(), 21);
        for _ in 0..100 {
            adaptive.dropped();
        }
        assert_eq!(adaptive.limit(), 4);
        assert_eq!(Adaptive::new(0, 0, 0).limit(), 1);
        assert_eq!(Adaptive::new(u32::MAX, 1, 8).limit(), 8);
    }

    #[test]
    fn a_drop_always_takes_something() {
        let mut adaptive = Adaptive::new(5, 1, 10);
        adaptive.dropped();
        assert_eq!(adaptive.limit(), 4);
    }
}
