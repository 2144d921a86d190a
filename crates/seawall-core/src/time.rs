//! Time as plain numbers: a length (`Nanos`), a monotonic instant (`Mono`) and a wall-clock instant (`Wall`).
//! Nothing here reads a clock. All arithmetic saturates, so no policy can overflow into the past.

use std::fmt;
use std::ops::{Add, Sub};

/// A length of time in nanoseconds. `MAX` (584 years) stands for "for ever".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Negative and NaN become zero, too large becomes `MAX`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float to int casts saturate, which is what is wanted")]
    pub fn from_secs_f64(s: f64) -> Self {
        Self((s * 1e9) as u64)
    }

    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    #[must_use]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Whole seconds, rounded up, so that a `Retry-After` is never too early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// Multiplies by a ratio; saturates, and NaN or negative gives zero.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float to int casts saturate, which is what is wanted")]
    pub fn scale(self, by: f64) -> Self {
        Self((self.0 as f64 * by) as u64)
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// The usual notation: `250ms`, `1.5s`, `3m`, `2h30m`, `14d`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: u64 = 1_000_000_000;
        if self.0 == u64::MAX {
            return f.write_str("for ever");
        }
        if self.0 < 1_000 {
            return if self.0 == 0 { f.write_str("0s") } else { write!(f, "{}ns", self.0) };
        }
        if self.0 < 1_000_000 {
            return write!(f, "{}µs", trim(self.0 as f64 / 1e3));
        }
        if self.0 < SECOND {
            return write!(f, "{}ms", trim(self.0 as f64 / 1e6));
        }
        if self.0 < 60 * SECOND {
            return write!(f, "{}s", trim(self.0 as f64 / 1e9));
        }
        let mut rest = (self.0 + SECOND / 2) / SECOND;
        let mut parts = 0;
        for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
            let n = rest / size;
            if n > 0 && parts < 2 {
                write!(f, "{n}{unit}")?;
                parts += 1;
                rest %= size;
            } else if parts > 0 {
                break;
            }
        }
        Ok(())
    }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Nanoseconds since the process (or the simulation) began. Breakers, backoff, limits and deadlines use it, so a step of the wall clock
/// cannot affect them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    pub const MAX: Self = Self(u64::MAX);

    /// The time since `earlier`; zero if that is not before this.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Nanos> for Mono {
    type Output = Self;
    fn add(self, length: Nanos) -> Self {
        Self(self.0.saturating_add(length.0))
    }
}

/// Milliseconds since 1970-01-01T00:00:00Z. Quota resets, HTTP dates and job times use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

impl Wall {
    /// As HTTP writes it (RFC 9110 §5.6.7).
    #[must_use]
    pub fn http_date(self) -> String {
        /// The end of the year 9999, the last year that the format can express.
        const LAST: u64 = 253_402_300_799;
        let seconds = u64::try_from(self.0 / 1000).unwrap_or(0).min(LAST);
        httpdate::fmt_http_date(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds))
    }

    /// The time since `earlier`; zero if that is not before this.
    #[must_use]
    pub fn since(self, earlier: Self) -> Nanos {
        let ms = self.0.saturating_sub(earlier.0);
        Nanos::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

impl Wall {
    /// Reads RFC 3339, in any offset.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.trim().parse::<jiff::Timestamp>().ok().map(|at| Self(at.as_millisecond()))
    }

    /// RFC 3339 in UTC with milliseconds, without an allocation: every log line carries one. Years beyond four digits
    /// do not occur.
    #[must_use]
    pub fn rfc3339(self) -> [u8; 24] {
        let (days, ms) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        let (year, month, day) = civil(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let fields = [
            (0, 4, year),
            (5, 2, month),
            (8, 2, day),
            (11, 2, ms / 3_600_000),
            (14, 2, ms / 60_000 % 60),
            (17, 2, ms / 1000 % 60),
            (20, 3, ms % 1000),
        ];
        for (at, digits, value) in fields {
            let mut rest = value.unsigned_abs();
            for place in text[at..at + digits].iter_mut().rev() {
                *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
                rest /= 10;
            }
        }
        text
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.rfc3339()).unwrap_or_default())
    }
}

/// The Gregorian date of a day counted from 1970-01-01. Its years begin in March, so that a leap day comes last.
const fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day_of_year - (153 * month_index + 2) / 5 + 1)
}

impl Add<Nanos> for Wall {
    type Output = Self;
    /// Rounds up to the next millisecond: a wall-clock wait is never early.
    fn add(self, length: Nanos) -> Self {
        let ms = i64::try_from(length.0.div_ceil(1_000_000)).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(ms))
    }
}

/// Both clocks, read together by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

impl Now {
    /// The same moment moved forward on both clocks.
    #[must_use]
    pub fn after(self, length: Nanos) -> Self {
        Self { mono: self.mono + length, wall: self.wall + length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_print_the_way_people_write_them() {
        let texts = [
            (250_000_000, "250ms"),
            (1_500_000_000, "1.5s"),
            (180_000_000_000, "3m"),
            (9_000_000_000_000, "2h30m"),
            (0, "0s"),
            (u64::MAX, "for ever"),
        ];
        for (ns, text) in texts {
            assert_eq!(Nanos(ns).to_string(), text);
        }
    }

    #[test]
    fn nothing_overflows() {
        assert_eq!(Mono(u64::MAX - 5) + Nanos::from_secs(5), Mono::MAX);
        assert_eq!(Nanos::from_secs_f64(f64::NAN), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(1e300), Nanos::MAX);
        assert_eq!(Wall(i64::MAX) + Nanos::MAX, Wall(i64::MAX));
    }

    #[test]
    fn wall_times_print_as_rfc_3339() {
        let texts = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_794_777_105_122, "2026-11-15T21:11:45.122Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ];
        for (ms, text) in texts {
            assert_eq!(Wall(ms).to_string(), text);
        }
    }

    #[test]
    fn wall_waits_round_up() {
        assert_eq!(Wall(0) + Nanos(1), Wall(1));
    }
}
