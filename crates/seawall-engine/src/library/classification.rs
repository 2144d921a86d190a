//! The meaning of one result, given by a classifier: decided by itself, or as a status or failure that the policy's rules decide.

use http::HeaderMap;
use seawall_core::classify::{Classification, HeaderLookup, Hint};
use seawall_core::record::{Class, ErrorKind, Scope};
use seawall_core::time::Nanos;
use std::time::Duration;

use crate::clock::nanos;

/// The meaning of a result. Most classifiers return a [`Class`], an [`ErrorKind`] or an [`http::StatusCode`], which convert to it.
///
/// ```
/// use seawall_engine::{Class, ErrorKind, Meaning, Policy};
/// use std::time::Duration;
///
/// // The policy's rules decide what a 503 or a timeout is.
/// let _ = [Meaning::status(503), Meaning::from(ErrorKind::Timeout)];
/// // This one is decided here: a refusal that says when to come back.
/// let _ = Meaning::from(Class::Transient).after(Duration::from_secs(2)).unprocessed();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Meaning<'a>(pub(super) MeaningKind<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum MeaningKind<'a> {
    Success,
    /// Decided by the policy's rules.
    Seen {
        result: Result<u16, ErrorKind>,
        headers: Option<&'a HeaderMap>,
    },
    /// Decided by the classifier.
    Said {
        result: Result<u16, ErrorKind>,
        verdict: Classification,
    },
}

/// Header fields as the rules read them.
#[derive(Debug)]
pub(super) struct MeaningFields<'a>(pub(super) &'a HeaderMap);

impl HeaderLookup for MeaningFields<'_> {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }
}

impl<'a> Meaning<'a> {
    /// A success.
    pub const SUCCESS: Self = Self(MeaningKind::Success);

    /// Builds the meaning of an HTTP status; the policy's rules decide it.
    ///
    /// ```
    /// # use seawall_engine::Meaning;
    /// let unavailable = Meaning::status(503);
    /// ```
    #[must_use]
    pub const fn status(status: u16) -> Self {
        Self(MeaningKind::Seen { result: Ok(status), headers: None })
    }

    /// Builds the meaning of an HTTP response; the policy's rules read its status and headers (`Retry-After`, `RateLimit`).
    ///
    /// ```
    /// # use seawall_engine::Meaning;
    /// let mut headers = http::HeaderMap::new();
    /// headers.insert("retry-after", "7".parse().unwrap());
    /// let later = Meaning::answer(429, &headers);
    /// ```
    #[must_use]
    pub const fn answer(status: u16, headers: &'a HeaderMap) -> Self {
        Self(MeaningKind::Seen { result: Ok(status), headers: Some(headers) })
    }

    /// Builds a meaning of this class, whatever the rules. Logs and metrics show it under the HTTP status of such a failure: 503, 400, 500,
    /// 429 and 401.
    #[must_use]
    const fn class(class: Class) -> Self {
        let status = match class {
            Class::Success => return Self::SUCCESS,
            Class::Transient => 503,
            Class::Permanent => 400,
            Class::Ambiguous => 500,
            Class::Quota => 429,
            Class::Auth => 401,
        };
        Self(MeaningKind::Said { result: Ok(status), verdict: said(class) })
    }

    /// Sets a minimum wait: the retry waits this long or by the policy's own backoff, whichever is longer.
    ///
    /// ```
    /// # use seawall_engine::{Class, Meaning};
    /// # use std::time::Duration;
    /// let later = Meaning::from(Class::Transient).after(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn after(mut self, length: Duration) -> Self {
        if let MeaningKind::Said { verdict, .. } = &mut self.0 {
            verdict.wait = Hint::After(nanos(length));
        }
        self
    }

    /// Marks that nothing was executed: the request may be repeated even if it is not idempotent.
    ///
    /// ```
    /// # use seawall_engine::{Class, Meaning};
    /// let refused = Meaning::from(Class::Transient).unprocessed();
    /// ```
    #[must_use]
    pub const fn unprocessed(mut self) -> Self {
        if let MeaningKind::Said { verdict, .. } = &mut self.0 {
            verdict.unprocessed = true;
        }
        self
    }
}

const fn said(class: Class) -> Classification {
    Classification {
        class,
        scope: Scope::Call,
        wait: Hint::Backoff,
        skew: Nanos::ZERO,
        rule: None,
        named: true,
        unprocessed: false,
        blameless: false,
    }
}

impl From<Class> for Meaning<'_> {
    fn from(class: Class) -> Self {
        Self::class(class)
    }
}

/// A failure without a response; the policy's rules decide it.
impl From<ErrorKind> for Meaning<'_> {
    fn from(kind: ErrorKind) -> Self {
        Self(MeaningKind::Seen { result: Err(kind), headers: None })
    }
}

impl From<http::StatusCode> for Meaning<'_> {
    fn from(status: http::StatusCode) -> Self {
        Self::status(status.as_u16())
    }
}

impl<'a, B> From<&'a http::Response<B>> for Meaning<'a> {
    fn from(response: &'a http::Response<B>) -> Self {
        Self::answer(response.status().as_u16(), response.headers())
    }
}
