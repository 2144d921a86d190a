//! One possible fate of a request: a status, a fault or a real API's error, with an optional wait and hint. Mixes, sequences and paths
//! share one syntax: `503`, `reset-before`, `429:retry-after=2:latency=50ms`.

use super::errors;
use seawall_core::rng::Rng;
use seawall_core::spelling::nearest;
use seawall_core::time::{Nanos, Wall};
use seawall_core::units::duration;
use std::sync::Arc;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident $word:literal,)*) => {
        /// A fault on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            pub(crate) const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

faults! {
    /// RST instead of a status line.
    ResetBefore "reset-before",
    /// RST behind the headers.
    ResetAfterHeaders "reset-after-headers",
    /// RST behind half of the body.
    ResetMidBody "reset-mid-body",
    /// Half of the promised body, then a clean close.
    Truncate "truncate",
    /// One chunk and no last chunk, then a clean close.
    TruncateChunked "truncate-chunked",
    /// Bytes that are not HTTP.
    Garbage "garbage",
    /// 200 with JSON that breaks off.
    MalformedJson "malformed-json",
    /// No response, for as long as the caller stays.
    Hang "hang",
    /// Headers at once, the body one byte a second.
    Drip "drip",
    /// 256 KiB of headers, then an ordinary response.
    HugeHeaders "huge-headers",
    /// Headers for as long as the caller reads them.
    EndlessHeaders "endless-headers",
    /// More body than Content-Length says; the rest precedes the next response.
    LyingLength "lying-length",
    /// An ordinary response, then the kept-alive connection closes silently.
    CloseIdle "close-idle",
    /// 103, then an ordinary response.
    EarlyHints "early-hints",
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Status(u16),
    Fault(Fault),
    Error(Arc<errors::ErrorAnswer>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimelineEntry {
    pub what: What,
    pub retry_after: Option<RetryAfter>,
    pub latency: Option<Nanos>,
}

impl TimelineEntry {
    pub(crate) const fn status(status: u16) -> Self {
        Self { what: What::Status(status), retry_after: None, latency: None }
    }

    /// # Errors
    /// When it is none of these forms.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut name = String::new();
        let (mut retry_after, mut latency) = (None, None);
        let mut parts = text.trim().split(':').peekable();
        while let Some(part) = parts.next() {
            match part.split_once('=') {
                // The hint's own forms contain colons, so it takes everything up to the next option.
                Some(("retry-after", value)) => {
                    let mut value = value.to_owned();
                    while let Some(more) = parts.next_if(|next| !next.starts_with("latency=")) {
                        value = value + ":" + more;
                    }
                    retry_after = Some(RetryAfter::parse(&value)?);
                }
                Some(("latency", value)) => latency = Some(duration(value)?),
                Some((option, _)) => return Err(format!("`{option}` is not one of retry-after, latency")),
                None if name.is_empty() => part.clone_into(&mut name),
                None => name = name + ":" + part,
            }
        }
        Ok(Self { what: What::parse(&name)?, retry_after, latency })
    }

    /// Parses several entries with commas between them; at most a thousand.
    ///
    /// # Errors
    /// When one of them cannot be parsed.
    pub(crate) fn list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').take(1000).map(Self::parse).collect()
    }
}

impl What {
    fn parse(name: &str) -> Result<Self, String> {
        if name.bytes().all(|b| b.is_ascii_digit()) {
            return match name.parse::<u16>() {
                Ok(status @ 200..=599) => Ok(Self::Status(status)),
                _ => Err(format!("`{name}` is not a status from 200 to 599")),
            };
        }
        if let Some(fault) = Fault::ALL.iter().find(|fault| fault.word() == name) {
            return Ok(Self::Fault(*fault));
        }
        errors::named(name).map(Self::Error).map_err(|unknown| {
            let words = || Fault::ALL.iter().map(|fault| fault.word());
            match nearest(name, words()) {
                _ if name.contains(':') => unknown,
                Some(near) => format!("`{name}` is not a status, a fault or an API's error; did you mean `{near}`?"),
                None => {
                    format!("`{name}` is not a status, a fault or an API's error; faults are {}", words().collect::<Vec<_>>().join(", "))
                }
            }
        })
    }
}

/// A hint about when to come back: the forms that callers must understand, and some that they must survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetryAfter {
    /// `3`, `1.5`, `-1`: sent unchanged.
    Number(String),
    HttpDate(Nanos),
    Past,
    Garbage,
    /// The IETF draft's `RateLimit`, in seconds.
    RateLimit(u64),
    /// `X-RateLimit-Reset` as a Unix time.
    ResetAt(Nanos),
}

impl RetryAfter {
    /// # Errors
    /// When it is none of these forms.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const FORMS: &str =
            "write \"3\", \"1.5\", \"-1\", \"http-date:+3s\", \"past\", \"garbage\", \"ratelimit:7\" or \"x-ratelimit-reset:+60s\"";
        let ahead = |text: &str| duration(text.strip_prefix('+').unwrap_or(text));
        match text.split_once(':') {
            Some(("http-date", length)) => ahead(length).map(Self::HttpDate),
            Some(("x-ratelimit-reset", length)) => ahead(length).map(Self::ResetAt),
            Some(("ratelimit", seconds)) => seconds.parse().map(Self::RateLimit).map_err(|_| FORMS.to_owned()),
            None if text == "past" => Ok(Self::Past),
            None if text == "garbage" => Ok(Self::Garbage),
            None if text.parse::<f64>().is_ok_and(f64::is_finite) => Ok(Self::Number(text.to_owned())),
            _ => Err(FORMS.to_owned()),
        }
    }

    /// Writes the hint's header lines.
    pub(crate) fn write(&self, wall: Wall, out: &mut String) {
        let epoch = |length: Nanos| (wall + length).0.div_euclid(1000);
        let line = match self {
            Self::Number(text) => format!("retry-after: {text}\r\n"),
            Self::HttpDate(length) => format!("retry-after: {}\r\n", http_date(epoch(*length))),
            Self::Past => format!("retry-after: {}\r\n", http_date(epoch(Nanos::ZERO) - 60)),
            Self::Garbage => "retry-after: in a little while\r\n".to_owned(),
            Self::RateLimit(seconds) => format!("ratelimit-policy: \"default\";q=100;w=60\r\nratelimit: \"default\";r=0;t={seconds}\r\n"),
            Self::ResetAt(length) => format!("x-ratelimit-remaining: 0\r\nx-ratelimit-reset: {}\r\n", epoch(*length)),
        };
        out.push_str(&line);
    }
}

/// A Unix time as IMF-fixdate.
pub(crate) fn http_date(epoch_s: i64) -> String {
    Wall(epoch_s.saturating_mul(1000)).http_date()
}

/// Entries by weight. There is at least one, and their weights sum to more than zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// Each entry with the sum of the weights up to and including its own.
    entries: Vec<(u64, TimelineEntry)>,
}

impl Mix {
    pub(crate) fn only(entry: TimelineEntry) -> Self {
        Self { entries: vec![(1, entry)] }
    }

    /// `None` if all weights are zero.
    pub(crate) fn weighted(weights: Vec<(u64, TimelineEntry)>) -> Option<Self> {
        let mut sum = 0;
        let entries: Vec<(u64, TimelineEntry)> = weights
            .into_iter()
            .filter(|(weight, _)| *weight > 0)
            .map(|(weight, entry)| {
                sum += weight;
                (sum, entry)
            })
            .collect();
        (sum > 0).then_some(Self { entries })
    }

    pub(crate) fn pick(&self, rng: &mut Rng) -> &TimelineEntry {
        let last = self.entries.len() - 1;
        let drawn = rng.up_to(self.entries[last].0 - 1);
        let at = self.entries.partition_point(|(sum, _)| *sum <= drawn);
        &self.entries[at.min(last)].1
    }
}

/// The latency of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Latency {
    Fixed(Nanos),
    Uniform(Nanos, Nanos),
    Exponential(Nanos),
    Normal(Nanos, Nanos),
}

impl Latency {
    pub(crate) const NONE: Self = Self::Fixed(Nanos::ZERO);

    pub(crate) fn draw(self, rng: &mut Rng) -> Nanos {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform(low, high) => Nanos(rng.between(low.0, high.0)),
            Self::Exponential(mean) => Nanos::from_secs_f64(rng.exponential(mean.as_secs_f64())),
            Self::Normal(mean, deviation) => Nanos::from_secs_f64(rng.normal(mean.as_secs_f64(), deviation.as_secs_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_carry_their_own_wait_and_hint() {
        let entry = TimelineEntry::parse("429:retry-after=http-date:+3s:latency=50ms").unwrap();
        assert_eq!(entry.what, What::Status(429));
        assert_eq!(entry.retry_after, Some(RetryAfter::HttpDate(Nanos::from_secs(3))));
        assert_eq!(entry.latency, Some(Nanos::from_millis(50)));
        assert!(matches!(TimelineEntry::parse("openai:insufficient_quota").unwrap().what, What::Error(_)));
        assert_eq!(TimelineEntry::list("503,hang").unwrap().len(), 2);
        for bad in ["", "99", "700", "reset", "503:speed=1", "503:retry-after=soon", "nobody:1"] {
            assert!(TimelineEntry::parse(bad).is_err(), "{bad}");
        }
        assert!(TimelineEntry::parse("reset-befor").unwrap_err().contains("did you mean `reset-before`?"));
    }

    #[test]
    fn a_hint_is_written_in_every_form() {
        let write = |text: &str| {
            let mut out = String::new();
            RetryAfter::parse(text).unwrap().write(Wall(784_111_777_000), &mut out);
            out
        };
        assert_eq!(write("1.5"), "retry-after: 1.5\r\n");
        assert_eq!(write("http-date:+3s"), "retry-after: Sun, 06 Nov 1994 08:49:40 GMT\r\n");
        assert_eq!(write("past"), "retry-after: Sun, 06 Nov 1994 08:48:37 GMT\r\n");
        assert!(write("ratelimit:7").ends_with("ratelimit: \"default\";r=0;t=7\r\n"));
        assert!(write("x-ratelimit-reset:+60s").ends_with("x-ratelimit-reset: 784111837\r\n"));
    }

    #[test]
    fn weights_are_kept_to_the_last_entry() {
        let weights = ["200", "503", "429"].map(|name| TimelineEntry::parse(name).unwrap());
        let mix = Mix::weighted([90, 0, 10].into_iter().zip(weights).collect()).unwrap();
        let mut rng = Rng::seeded(1);
        let limited = (0..10_000).filter(|_| mix.pick(&mut rng).what == What::Status(429)).count();
        assert!((900..1100).contains(&limited), "{limited}");
        assert!(Mix::weighted(vec![(0, TimelineEntry::status(200))]).is_none());
    }
}
