//! The `wait` of a rule, and its value for one result. It never draws backoff itself: the value is backoff, a length, an instant, or the
//! key pool's own reset.

use serde_json::Value;

use crate::lease::reset::next_month_start_utc;
use crate::time::{Nanos, Wall};

use super::body::ParsedBody;
use super::json::{self, Pointer};
use super::pattern::Expression;
use super::retry_after::{self, Unit, WAIT_CAP};
use super::{HeaderLookup, ObservedResult};

/// The source of a rule's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    None,
    /// Our own backoff; on 429 and 503 a `Retry-After` is honoured as well.
    Backoff,
    /// `Retry-After`, else the `RateLimit` fields, else backoff.
    RetryAfter,
    /// The reset time of the key pool.
    UntilReset,
    /// The first of next month, 00:00 UTC.
    UntilMonth,
    Fixed(Nanos),
    Header {
        name: String,
        unit: Unit,
    },
    Json {
        pointer: Pointer,
        unit: Unit,
    },
    /// The expression's only group.
    Body {
        expression: Expression,
        unit: Unit,
    },
    /// `(need - have) / per_second` seconds: until a leaky bucket has refilled.
    Deficit {
        need: Pointer,
        have: Pointer,
        per_second: Pointer,
    },
    /// The first that is present.
    First(Vec<Self>),
    /// The longest wait that is present.
    Longest(Vec<Self>),
}

/// The wait that the rule and the server ask for. The decision weighs it against backoff, cap and deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// At once.
    None,
    Backoff,
    /// At least this long from now; at most 32 days.
    After(Nanos),
    /// The key pool's reset decides; add the verdict's `skew`.
    UntilReset,
    Until(Wall),
}

impl Hint {
    pub(super) fn plus(self, skew: Nanos) -> Self {
        match self {
            Self::After(wait) => Self::After((wait + skew).min(WAIT_CAP)),
            Self::Until(at) => Self::Until(at + skew),
            Self::None | Self::Backoff | Self::UntilReset => self,
        }
    }
}

impl Wait {
    #[must_use]
    pub fn needs_body(&self) -> bool {
        match self {
            Self::Json { .. } | Self::Body { .. } | Self::Deficit { .. } => true,
            Self::First(waits) | Self::Longest(waits) => waits.iter().any(Self::needs_body),
            Self::None | Self::Backoff | Self::RetryAfter | Self::UntilReset | Self::UntilMonth | Self::Fixed(_) | Self::Header { .. } => {
                false
            }
        }
    }

    pub(super) fn hint(&self, seen: &ObservedResult<'_>, body: &ParsedBody<'_>, now: Wall) -> Hint {
        self.present(seen, body, now).unwrap_or(Hint::Backoff)
    }

    fn present(&self, seen: &ObservedResult<'_>, body: &ParsedBody<'_>, now: Wall) -> Option<Hint> {
        let after = |wait: Option<Nanos>| wait.map(Hint::After);
        match self {
            Self::None => Some(Hint::None),
            Self::Backoff => {
                let honoured = matches!(seen.result, Ok(429 | 503));
                Some(after(retry_after::retry_after(seen.headers, now).filter(|_| honoured)).unwrap_or(Hint::Backoff))
            }
            Self::RetryAfter => after(retry_after::asked(seen.headers, now)),
            Self::UntilReset => Some(Hint::UntilReset),
            Self::UntilMonth => Some(Hint::Until(next_month_start_utc(now))),
            Self::Fixed(wait) => Some(Hint::After((*wait).min(WAIT_CAP))),
            Self::Header { name, unit } => after(header(seen.headers, name, *unit, now)),
            Self::Json { pointer, unit } => {
                after(body.json().and_then(|document| pointer.find_map(document, |value| unit.read(&json::text(value)?, now))))
            }
            Self::Body { expression, unit } => {
                let caught = expression.capture(body.bytes());
                after(caught.and_then(|text| unit.read(std::str::from_utf8(text).ok()?, now)))
            }
            Self::Deficit { need, have, per_second } => after(body.json().and_then(|document| deficit(document, need, have, per_second))),
            Self::First(waits) => waits.iter().find_map(|wait| wait.present(seen, body, now)),
            Self::Longest(waits) => {
                let lengths = waits.iter().filter_map(|wait| match wait.present(seen, body, now)? {
                    Hint::After(length) => Some(length),
                    Hint::None | Hint::Backoff | Hint::UntilReset | Hint::Until(_) => None,
                });
                after(lengths.max())
            }
        }
    }
}

fn header(headers: &dyn HeaderLookup, name: &str, unit: Unit, now: Wall) -> Option<Nanos> {
    unit.read(retry_after::field(headers, name)?, now)
}

fn deficit(document: &Value, need: &Pointer, have: &Pointer, per_second: &Pointer) -> Option<Nanos> {
    let number = |pointer: &Pointer| pointer.find_map(document, Value::as_f64);
    let seconds = (number(need)? - number(have)?) / number(per_second)?;
    let wait = Nanos::from_secs_f64(seconds);
    // Rounded up: a nanosecond too late is better than one too early.
    let wait = if wait.as_secs_f64() < seconds { wait + Nanos(1) } else { wait };
    (seconds.is_finite() && seconds > 0.0).then(|| wait.min(WAIT_CAP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_700_000_000_000);

    fn hint(wait: &Wait, status: u16, headers: &[(&str, &str)], body: &str) -> Hint {
        let seen = ObservedResult { method: "GET", result: Ok(status), headers: &headers, body: body.as_bytes(), latency: Nanos::ZERO };
        wait.hint(&seen, &ParsedBody::new(body.as_bytes()), NOW)
    }

    fn secs(seconds: u64) -> Hint {
        Hint::After(Nanos::from_secs(seconds))
    }

    #[test]
    fn backoff_honours_retry_after_on_429_and_503_only() {
        let headers = [("retry-after", "9")];
        for (status, expected) in [(429, secs(9)), (503, secs(9)), (500, Hint::Backoff), (408, Hint::Backoff)] {
            assert_eq!(hint(&Wait::Backoff, status, &headers, ""), expected, "{status}");
        }
        assert_eq!(hint(&Wait::RetryAfter, 500, &headers, ""), secs(9));
        assert_eq!(hint(&Wait::RetryAfter, 500, &[], ""), Hint::Backoff);
    }

    #[test]
    fn the_first_present_wait_decides_and_backoff_is_the_last_resort() {
        let wait = Wait::First(vec![
            Wait::Header { name: "retry-after-ms".into(), unit: Unit::Millis },
            Wait::Json { pointer: Pointer::parse("/d/*/retryDelay").unwrap(), unit: Unit::GoDuration },
            Wait::Body { expression: Expression::parse("retry in ([0-9]+)s").unwrap(), unit: Unit::Seconds },
        ]);
        let body = r#"{"d":[{"x":1},{"retryDelay":"46s"}],"m":"retry in 5s"}"#;
        assert_eq!(hint(&wait, 429, &[("retry-after-ms", "4000")], body), secs(4));
        assert_eq!(hint(&wait, 429, &[("retry-after-ms", "-1")], body), secs(46));
        assert_eq!(hint(&wait, 429, &[], "retry in 5s"), secs(5));
        assert_eq!(hint(&wait, 429, &[], ""), Hint::Backoff);
        assert!(wait.needs_body());
    }

    #[test]
    fn the_longest_present_wait_decides() {
        let one = |name: &str| Wait::Header { name: name.into(), unit: Unit::GoDuration };
        let wait = Wait::Longest(vec![one("a"), one("b"), one("c")]);
        assert_eq!(hint(&wait, 429, &[("a", "1s"), ("b", "6m0s")], ""), secs(360));
        assert_eq!(hint(&wait, 429, &[("a", "0s")], ""), Hint::Backoff);
    }

    #[test]
    fn a_deficit_is_what_the_bucket_needs_to_refill() {
        let pointer = |text| Pointer::parse(text).unwrap();
        let wait = Wait::Deficit { need: pointer("/n"), have: pointer("/h"), per_second: pointer("/r") };
        assert_eq!(hint(&wait, 200, &[], r#"{"n":1000,"h":400,"r":50.0}"#), secs(12));
        for body in [r#"{"n":1,"h":4,"r":50}"#, r#"{"n":4,"h":1,"r":0}"#, r#"{"n":4,"h":1}"#, "x"] {
            assert_eq!(hint(&wait, 200, &[], body), Hint::Backoff, "{body}");
        }
    }

    #[test]
    fn skew_moves_lengths_and_instants() {
        assert_eq!(secs(1).plus(Nanos::from_secs(60)), secs(61));
        assert_eq!(Hint::Until(Wall(5)).plus(Nanos::from_secs(1)), Hint::Until(Wall(1005)));
        assert_eq!(Hint::Backoff.plus(Nanos::from_secs(1)), Hint::Backoff);
        assert_eq!(Hint::After(WAIT_CAP).plus(Nanos::from_secs(1)), Hint::After(WAIT_CAP));
    }
}
