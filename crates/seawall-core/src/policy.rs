//! A resolved policy: plain immutable values, one struct per knob group of the configuration file. The stages read them; `config` makes
//! them.

use crate::time::Nanos;
use crate::words::words;

/// A share in parts per million, so that "20 %" is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(pub u32);

impl Share {
    pub const ZERO: Self = Self(0);
    pub const WHOLE: Self = Self(1_000_000);

    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }

    /// `part` as a share of `whole`, at most all of it; zero if `whole` is zero.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        let share = (u128::from(part) * 1_000_000).checked_div(u128::from(whole)).unwrap_or(0);
        Self(u32::try_from(share).unwrap_or(u32::MAX).min(Self::WHOLE.0))
    }

    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Whether `part` of `whole` is at least this share, exactly: the comparison every breaker trips on.
    #[must_use]
    pub const fn is_reached_by(self, part: u64, whole: u64) -> bool {
        part as u128 * 1_000_000 >= self.0 as u128 * whole as u128
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

/// A count per period: `50/s`, `5000/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub count: u64,
    pub per: Nanos,
}

impl Rate {
    pub const ZERO: Self = Self { count: 0, per: Nanos(1_000_000_000) };

    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self { count, per: Nanos(1_000_000_000) }
    }

    #[must_use]
    pub fn per_second_f64(self) -> f64 {
        self.count as f64 / self.per.as_secs_f64()
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.per.0 {
            1_000_000_000 => write!(f, "{}/s", self.count),
            60_000_000_000 => write!(f, "{}/m", self.count),
            3_600_000_000_000 => write!(f, "{}/h", self.count),
            86_400_000_000_000 => write!(f, "{}/d", self.count),
            _ => write!(f, "{}/{}", self.count, self.per),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    pub connect: Nanos,
    pub attempt: Nanos,
    pub total: Nanos,
    /// The longest silence between a response's head and the first byte of a streamed body.
    pub first_byte: Nanos,
    /// The longest silence inside a body, in either direction.
    pub idle: Nanos,
}

words! {
    /// The growth of the wait, and its jitter.
    pub enum BackoffKind {
        Exponential = "exponential",
        FullJitter = "full-jitter",
        EqualJitter = "equal-jitter",
        Decorrelated = "decorrelated",
        PercentJitter = "percent-jitter",
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub kind: BackoffKind,
    pub base: Nanos,
    pub factor: f64,
    pub cap: Nanos,
    /// Only `percent-jitter` uses it.
    pub jitter: Share,
}

words! {
    /// When a method that is not idempotent may be sent again.
    pub enum Unsafe { Never = "never", WithKey = "with-key", Always = "always" }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// Sends in all, the first included.
    pub attempts: u32,
    pub backoff: Backoff,
    /// Retries that ambiguous failures may use up in one call before they count as permanent.
    pub ambiguous: u32,
    pub retry_after_cap: Nanos,
    /// Retries earned per success.
    pub budget: Share,
    /// Retries that are always allowed.
    pub budget_floor: Rate,
    pub unsafe_methods: Unsafe,
}

words! {
    /// Whether unsafe requests may be sent again without a key because a second execution costs no more than money.
    pub enum Repeat { Never = "never", Declared = "declared", AtCost = "at-cost" }
}

words! {
    /// Whether a guard acts, only counts, or is off.
    pub enum Mode { Enforce = "enforce", Shadow = "shadow", Off = "off" }
}

words! {
    /// The scope of one breaker.
    pub enum BreakerPer { Endpoint = "endpoint", Upstream = "upstream" }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    pub mode: Mode,
    pub per: BreakerPer,
    pub window: Nanos,
    pub failure_rate: Share,
    pub min_calls: u32,
    /// Failures in a row that trip at once; 0 switches this trip off.
    pub consecutive: u32,
    /// A result at least this slow counts as slow; zero switches this trip off.
    pub slow: Nanos,
    pub slow_rate: Share,
    /// First open time; it doubles with each failed probe up to `open_max`.
    pub open: Nanos,
    pub open_max: Nanos,
    /// Concurrent probes while half-open.
    pub probes: u32,
    /// Probe successes that close the breaker.
    pub successes: u32,
    /// After closing, the admitted share grows to the whole over this time; zero admits everything at once.
    pub ramp: Nanos,
    /// The longest time that a call waits for the breaker; zero refuses it at once.
    pub max_wait: Nanos,
}

words! {
    pub enum Algorithm {
        TokenBucket = "token-bucket",
        FixedWindow = "fixed-window",
        SlidingWindow = "sliding-window",
        LeakyBucket = "leaky-bucket",
    }
}

words! {
    /// Whether a limit admits or refuses while the shared state cannot be reached.
    pub enum Fail { Open = "open", Closed = "closed" }
}

/// One dimension of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitKey {
    Global,
    Ip,
    Caller,
    User,
    Tenant,
    Upstream,
    Endpoint,
    /// The leased credential.
    Key,
    Header(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPolicy {
    pub name: String,
    pub key: Vec<LimitKey>,
    pub rate: Rate,
    pub burst: u64,
    pub algorithm: Algorithm,
    pub mode: Mode,
    pub fail: Fail,
    /// The longest time that a call waits for room instead of being refused.
    pub max_wait: Nanos,
}

impl LimitPolicy {
    /// The part that one of `instances` may admit by itself: all of them together do not exceed the limit's rate, and each admits at least
    /// one call.
    #[must_use]
    pub fn share(&self, instances: u32) -> Self {
        let instances = u64::from(instances.max(1));
        let mut share = self.clone();
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                share.rate.per = Nanos(self.rate.per.0.saturating_mul(instances));
                share.burst = (self.burst / instances).max(1);
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow if self.rate.count > 0 => {
                share.rate.count = (self.rate.count / instances).max(1);
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {}
        }
        share
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkheadPolicy {
    pub name: String,
    pub concurrent: u32,
    pub queue: u32,
    pub queue_timeout: Nanos,
    pub priority: u32,
    pub adaptive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    pub ttl: Nanos,
    pub stale_if_error: Nanos,
    pub stale_while_revalidate: Nanos,
}

impl CachePolicy {
    /// Whether the cache stores anything at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.ttl.0 > 0 || self.stale_if_error.0 > 0 || self.stale_while_revalidate.0 > 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

words! {
    pub enum OnExhausted { Return = "return", Enqueue = "enqueue" }
}

words! {
    /// The error format of the gateway's own responses, so that the provider's clients can parse them.
    pub enum ErrorShape {
        /// RFC 9457, with the code as `error`.
        Problem = "problem",
        Anthropic = "anthropic",
        Aws = "aws",
        AwsXml = "aws-xml",
        Discord = "discord",
        Github = "github",
        Google = "google",
        Graphql = "graphql",
        Lastfm = "lastfm",
        Musicbrainz = "musicbrainz",
        Openai = "openai",
        Openrouter = "openrouter",
        Shopify = "shopify",
        Slack = "slack",
        Spotify = "spotify",
        Stripe = "stripe",
        Subsonic = "subsonic",
        X = "x",
    }
}

impl ErrorShape {
    /// The format in a sentence.
    #[must_use]
    pub fn described(self) -> String {
        match self {
            Self::Problem => "problem+json".to_owned(),
            shape => format!("`error_shape = \"{shape}\"`"),
        }
    }
}

words! {
    pub enum IdempotencyMode { Off = "off", Optional = "optional", Required = "required", Generate = "generate" }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub mode: IdempotencyMode,
    pub ttl: Nanos,
    /// The upstream itself executes a repeated key once, so a request in doubt may be sent again.
    pub honoured: bool,
}

words! {
    /// The doors that leave dead letters.
    pub enum Door { Jobs = "jobs", Batch = "batch", Gateway = "gateway" }
}

words! {
    /// The shape of a notification.
    pub enum NotifyFormat { Json = "json", Slack = "slack", Ntfy = "ntfy" }
}

words! {
    pub enum Severity { Review = "review", Pager = "pager" }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    pub from: Vec<Door>,
    pub severity: Severity,
    pub ttl: Nanos,
    pub alarm_depth: u64,
    pub replay_rate: Rate,
    pub reevaluate: Nanos,
    pub instructions: String,
}

words! {
    pub enum Pick { FewestFailures = "fewest-failures", RoundRobin = "round-robin", LeastUsed = "least-used" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_compare_exactly() {
        assert!(Share::percent(10).is_reached_by(1, 10));
        assert!(!Share::percent(10).is_reached_by(999_999, 10_000_000));
        assert!(Share::percent(50).is_reached_by(u64::MAX, u64::MAX));
        assert_eq!(Share(125_000).to_string(), "12.5%");
    }

    #[test]
    fn the_shares_of_all_instances_are_not_more_than_the_limit() {
        let limit = |algorithm| LimitPolicy {
            name: String::new(),
            key: Vec::new(),
            rate: Rate::per_second(100),
            burst: 20,
            algorithm,
            mode: Mode::Enforce,
            fail: Fail::Open,
            max_wait: Nanos::ZERO,
        };
        let bucket = limit(Algorithm::TokenBucket).share(3);
        assert_eq!((bucket.rate, bucket.burst), (Rate { count: 100, per: Nanos::from_secs(3) }, 6));
        assert_eq!(limit(Algorithm::FixedWindow).share(3).rate, Rate::per_second(33));
        assert_eq!(limit(Algorithm::SlidingWindow).share(1000).rate, Rate::per_second(1));
        assert_eq!(limit(Algorithm::LeakyBucket).share(0), limit(Algorithm::LeakyBucket));
    }

    #[test]
    fn rates_print_the_way_people_write_them() {
        assert_eq!(Rate { count: 5000, per: Nanos::from_secs(3600) }.to_string(), "5000/h");
        assert_eq!(Rate::per_second(50).to_string(), "50/s");
    }
}
