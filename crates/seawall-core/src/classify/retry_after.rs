//! Parses the waits that servers ask for: `Retry-After`, the `RateLimit` fields and single values with a unit. A wait that is not after
//! now, not a number or not plausible counts as absent; the rest is capped.

use std::time::{Duration, UNIX_EPOCH};

use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use crate::time::{Nanos, Wall};
use crate::units::{exact, length};
use crate::words::words;

use super::HeaderLookup;

/// The cap on a server's wait.
pub const WAIT_CAP: Nanos = Nanos(32 * 86_400 * 1_000_000_000);
/// A longer wait is a mistake, most often an epoch where seconds belong.
const BELIEVABLE: Nanos = Nanos(3_653 * 86_400 * 1_000_000_000);
/// The assumed clock difference, added to every instant that a server gives as a timestamp.
const CLOCK_SKEW: Nanos = Nanos(1_000_000_000);
/// Longer field values are ignored.
const FIELD_BYTES: usize = 1024;

words! {
    /// The unit or format of a wait.
    pub enum Unit {
        Seconds = "s",
        Millis = "ms",
        EpochSeconds = "epoch-s",
        EpochMillis = "epoch-ms",
        GoDuration = "go-duration",
        HttpDate = "http-date",
        Rfc3339 = "rfc3339",
    }
}

impl Unit {
    /// The wait that `text` asks for at `now`. Timestamps get a second more, because clocks differ.
    #[must_use]
    pub fn read(self, text: &str, now: Wall) -> Option<Nanos> {
        let text = text.trim().trim_matches('"');
        if text.is_empty() || text.len() > FIELD_BYTES {
            return None;
        }
        match self {
            Self::Seconds => believable(exact(text, 1_000_000_000)?),
            Self::Millis => believable(exact(text, 1_000_000)?),
            Self::EpochSeconds => until(decimal(text)? * 1e3, now, CLOCK_SKEW),
            Self::EpochMillis => until(decimal(text)?, now, CLOCK_SKEW),
            Self::GoDuration => believable(length(text)?),
            Self::HttpDate => {
                let at = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                until(at.as_secs_f64() * 1e3, now, Nanos::ZERO)
            }
            Self::Rfc3339 => {
                let at: jiff::Timestamp = text.parse().ok()?;
                until(at.as_millisecond() as f64, now, CLOCK_SKEW)
            }
        }
    }
}

/// Digits with at most one point: no sign, no exponent, no `inf`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && text.len() <= 32;
    plain.then(|| text.parse().ok())?
}

fn believable(wait: Nanos) -> Option<Nanos> {
    (wait > Nanos::ZERO && wait <= BELIEVABLE).then(|| wait.min(WAIT_CAP))
}

/// The wait until an instant in milliseconds since the epoch, rounded up: never early.
#[expect(clippy::cast_possible_truncation, reason = "float to int casts saturate, and what is too far off is not believed")]
fn until(at_ms: f64, now: Wall, skew: Nanos) -> Option<Nanos> {
    let wait = Wall(at_ms.ceil() as i64).since(now);
    believable(wait).map(|wait| (wait + skew).min(WAIT_CAP))
}

/// `Retry-After`: whole or fractional seconds, or a date in any of HTTP's three forms.
#[must_use]
pub fn retry_after(headers: &dyn HeaderLookup, now: Wall) -> Option<Nanos> {
    let text = field(headers, "retry-after")?;
    Unit::Seconds.read(text, now).or_else(|| Unit::HttpDate.read(text, now))
}

/// The wait that a refusal asks for: `Retry-After`, else an exhausted `RateLimit` policy, else `RateLimit-Reset` or `X-RateLimit-Reset`
/// beside a remaining count of 0.
#[must_use]
pub fn asked(headers: &dyn HeaderLookup, now: Wall) -> Option<Nanos> {
    retry_after(headers, now)
        .or_else(|| rate_limit(field(headers, "ratelimit")?))
        .or_else(|| reset(headers, "ratelimit-remaining", "ratelimit-reset", now))
        .or_else(|| reset(headers, "x-ratelimit-remaining", "x-ratelimit-reset", now))
}

/// The drafts' `RateLimit` field: `"qps";r=0;t=7` since draft 8, `limit=9, remaining=0, reset=7` before. Of several exhausted policies the
/// longest wait decides.
#[must_use]
pub fn rate_limit(text: &str) -> Option<Nanos> {
    if text.len() > FIELD_BYTES {
        return None;
    }
    let seconds = |item: Option<&BareItem>| item.and_then(BareItem::as_integer).and_then(|n| u64::try_from(i64::from(n)).ok());
    if let Ok(list) = Parser::new(text).parse::<List>() {
        let exhausted = list.iter().filter_map(|entry| match entry {
            ListEntry::Item(item) if seconds(item.params.get("r")) == Some(0) => seconds(item.params.get("t")),
            ListEntry::Item(_) | ListEntry::InnerList(_) => None,
        });
        return exhausted.max().and_then(|s| believable(Nanos::from_secs(s)));
    }
    let fields = Parser::new(text).parse::<Dictionary>().ok()?;
    let value = |name: &str| match fields.get(name) {
        Some(ListEntry::Item(item)) => seconds(Some(&item.bare_item)),
        Some(ListEntry::InnerList(_)) | None => None,
    };
    (value("remaining")? == 0).then(|| believable(Nanos::from_secs(value("reset")?)))?
}

/// The drafts mean seconds from now, most older APIs an epoch. No server means a wait of 31 years and no epoch of today is below a thousand
/// million, so the size of the number decides.
fn reset(headers: &dyn HeaderLookup, remaining: &str, reset: &str, now: Wall) -> Option<Nanos> {
    let left = decimal(field(headers, remaining)?)?;
    let text = field(headers, reset)?;
    let unit = match decimal(text) {
        Some(number) if number >= 1e12 => Unit::EpochMillis,
        Some(number) if number >= 1e9 => Unit::EpochSeconds,
        Some(_) => Unit::Seconds,
        None if text.ends_with(['s', 'm', 'h']) => Unit::GoDuration,
        None => Unit::Rfc3339,
    };
    (left == 0.0).then(|| unit.read(text, now))?
}

pub(super) fn field<'a>(headers: &'a dyn HeaderLookup, name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(headers.first(name)?).ok()?.trim();
    (text.len() <= FIELD_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1994-11-06T08:49:37Z, the moment of RFC 9110's examples.
    const NOW: Wall = Wall(784_111_777_000);
    const DAY: Nanos = Nanos(86_400_000_000_000);

    fn after(text: &str) -> Option<Nanos> {
        retry_after(&[("Retry-After", text)], NOW)
    }

    #[test]
    fn a_length_of_nothing_is_no_wait() {
        assert_eq!(Unit::GoDuration.read("0s", NOW), None);
        assert_eq!(Unit::GoDuration.read("1s", NOW), Some(Nanos::from_secs(1)));
    }

    #[test]
    fn seconds_whole_and_fractional_are_read() {
        for (text, ms) in [("10", 10_000), ("2.0", 2_000), (" 7 ", 7_000), ("0.25", 250), ("1.", 1_000), (".5", 500)] {
            assert_eq!(after(text), Some(Nanos::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn a_fraction_is_never_read_a_nanosecond_short() {
        assert_eq!(after("64.57"), Some(Nanos(64_570_000_000)));
        assert_eq!(after("0.0000000001"), Some(Nanos(1)));
        assert_eq!(Unit::Millis.read("0.1", NOW), Some(Nanos(100_000)));
    }

    #[test]
    fn all_three_forms_of_a_date_are_read() {
        for text in ["Mon, 07 Nov 1994 08:49:37 GMT", "Monday, 07-Nov-94 08:49:37 GMT", "Mon Nov  7 08:49:37 1994"] {
            assert_eq!(after(text), Some(DAY), "{text}");
        }
    }

    #[test]
    fn what_is_no_wait_counts_as_absent() {
        let past = "Sun, 06 Nov 1994 08:49:37 GMT";
        for text in ["", "0", "0.0", "-5", "+5", "NaN", "inf", "1e3", "0x10", "soon", "1,5", "5 s", "1..2", past, "1760000000"] {
            assert_eq!(after(text), None, "{text}");
        }
        assert_eq!(after(&"9".repeat(400)), None);
        assert_eq!(retry_after(&[("Retry-After", &[0xff, 0x31][..])], NOW), None);
    }

    #[test]
    fn a_believable_wait_is_capped_at_thirty_two_days() {
        assert_eq!(after("31536000"), Some(WAIT_CAP));
        assert_eq!(after("Thu, 06 Nov 1997 08:49:37 GMT"), Some(WAIT_CAP));
    }

    #[test]
    fn timestamps_get_a_second_for_clocks_that_differ() {
        let wait = Some(Nanos::from_secs(61));
        assert_eq!(Unit::EpochSeconds.read("784111837", NOW), wait);
        assert_eq!(Unit::EpochMillis.read("784111837000", NOW), wait);
        assert_eq!(Unit::Rfc3339.read("1994-11-06T08:50:37Z", NOW), wait);
        assert_eq!(Unit::Rfc3339.read("1994-11-06T09:50:37+01:00", NOW), wait);
        for unit in [Unit::EpochSeconds, Unit::EpochMillis, Unit::Rfc3339] {
            assert_eq!(unit.read("0", NOW), None);
        }
        assert_eq!(Unit::EpochSeconds.read("784111777", NOW), None);
        assert_eq!(Unit::EpochSeconds.read("784111777.5", NOW), Some(Nanos::from_millis(1_500)));
    }

    #[test]
    fn the_ratelimit_field_is_read_in_both_drafts() {
        assert_eq!(rate_limit("\"qps\";r=0;t=7"), Some(Nanos::from_secs(7)));
        assert_eq!(rate_limit("\"qps\";r=0;t=7, \"day\";r=0;t=90, \"hour\";r=3;t=999"), Some(Nanos::from_secs(90)));
        assert_eq!(rate_limit("limit=10, remaining=0, reset=7"), Some(Nanos::from_secs(7)));
        for text in [
            "\"qps\";r=1;t=7",
            "\"qps\";r=0",
            "\"qps\";r=0;t=-7",
            "limit=10, remaining=1, reset=7",
            "remaining=0",
            "((",
            "",
            "\"q\";r=0;t=0",
        ] {
            assert_eq!(rate_limit(text), None, "{text}");
        }
    }

    #[test]
    fn the_first_field_that_is_present_decides() {
        let both = [("retry-after", "3"), ("ratelimit", "\"q\";r=0;t=7")];
        assert_eq!(asked(&both, NOW), Some(Nanos::from_secs(3)));
        let garbage = [("Retry-After", "soon"), ("RateLimit", "\"q\";r=0;t=7")];
        assert_eq!(asked(&garbage, NOW), Some(Nanos::from_secs(7)));
        let pair = |left, at| asked(&[("x-ratelimit-remaining", left), ("x-ratelimit-reset", at)], NOW);
        assert_eq!(pair("0", "12"), Some(Nanos::from_secs(12)));
        assert_eq!(pair("1", "12"), None);
        let later = Wall(1_700_000_000_000);
        let epoch = [("ratelimit-remaining", "0"), ("ratelimit-reset", "1700000060")];
        assert_eq!(asked(&epoch, later), Some(Nanos::from_secs(61)));
        assert_eq!(asked(&[("retry-after", "0")], NOW), None);
    }
}
