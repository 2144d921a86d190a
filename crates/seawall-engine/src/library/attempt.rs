//! One attempt, as its sender sees it.

use seawall_core::call::First;
use seawall_core::time::Nanos;
use std::sync::Arc;
use std::time::Duration;

/// The attempt that a closure is to make.
///
/// ```
/// use seawall_engine::{Clock, Policy};
///
/// let clock = Clock::simulated();
/// let policy = Policy::profile("payment").unwrap().with_clock(clock.clone());
/// clock.run(policy.call(|attempt| async move {
///     assert_eq!(attempt.number(), 1);
///     assert!(attempt.timeout() <= attempt.remaining());
///     // A payment is sent again only under one key; this is the key to send.
///     assert_eq!(attempt.idempotency_key().unwrap().len(), 26);
///     Ok::<_, std::io::Error>(())
/// })).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(super) number: u32,
    pub(super) timeout: Nanos,
    pub(super) remaining: Nanos,
    pub(super) idempotency_key: Option<Arc<str>>,
    pub(super) credential: Option<Arc<str>>,
}

impl Attempt {
    #[inline]
    pub(super) const fn first(first: &First) -> Self {
        Self { number: 1, timeout: first.timeout, remaining: first.remaining, idempotency_key: None, credential: None }
    }

    /// Returns the attempt's number, from 1.
    ///
    /// ```
    /// # use seawall_engine::{Clock, Policy};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let answer = policy.call(|attempt| async move { if attempt.number() == 1 { Err(http::StatusCode::BAD_GATEWAY) } else { Ok(attempt.number()) } });
    /// assert_eq!(clock.run(answer).unwrap(), 2);
    /// ```
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the time limit of this attempt. The future is dropped when it takes longer; a blocking closure must enforce it itself.
    ///
    /// ```
    /// # use seawall_engine::Policy;
    /// # use std::time::Duration;
    /// let policy = Policy::from_toml("[defaults]\ntimeout = { attempt = \"2s\" }").unwrap();
    /// let timeout = policy.call_blocking(|attempt| Ok::<_, std::io::Error>(attempt.timeout()));
    /// assert_eq!(timeout.unwrap(), Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.0)
    }

    /// Returns the remaining time of the whole call: the deadline to pass on.
    ///
    /// ```
    /// # use seawall_engine::Policy;
    /// # use std::time::Duration;
    /// let request = Policy::default().request().deadline(Duration::from_secs(5));
    /// let remaining = request.call_blocking(|attempt| Ok::<_, std::io::Error>(attempt.remaining()));
    /// assert_eq!(remaining.unwrap(), Duration::from_secs(5));
    /// ```
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        Duration::from_nanos(self.remaining.0)
    }

    /// Returns the idempotency key to send, the same in every attempt of the call.
    ///
    /// ```
    /// # use seawall_engine::Policy;
    /// let request = Policy::default().request().idempotency_key("order-17");
    /// let sent = request.call_blocking(|attempt| Ok::<_, std::io::Error>(attempt.idempotency_key().map(str::to_owned)));
    /// assert_eq!(sent.unwrap().as_deref(), Some("order-17"));
    /// ```
    #[must_use]
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// Returns the `id` of the credential to use, if the policy's upstream has a pool of keys. The caller has their secrets: the library
    /// reads none.
    ///
    /// ```
    /// # use seawall_engine::Policies;
    /// let policies = Policies::from_toml(r#"
    ///     [upstreams.lastfm]
    ///     url = "https://ws.audioscrobbler.com"
    ///     auth = { keys = [{ id = "first", secret = "env:LASTFM" }] }
    /// "#).unwrap();
    /// let policy = policies.get("lastfm").unwrap();
    /// let used = policy.call_blocking(|attempt| Ok::<_, std::io::Error>(attempt.credential().map(str::to_owned)));
    /// assert_eq!(used.unwrap().as_deref(), Some("first"));
    /// ```
    #[must_use]
    pub fn credential(&self) -> Option<&str> {
        self.credential.as_deref()
    }
}
