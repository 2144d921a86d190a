//! The failure of a call.

use seawall_core::call::{CallEnd, Outcome};
use seawall_core::record::{Class, Code, Reason};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A failed call: the reason, and the last error if there was one.
///
/// ```
/// use seawall_engine::{Clock, Policy, Reason};
///
/// let clock = Clock::simulated();
/// let policy = Policy::default().with_clock(clock.clone()).with_seed(7);
/// let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// let failure = clock.run(policy.call(|_| async move { Err::<(), _>(refused()) })).unwrap_err();
///
/// assert_eq!(failure.attempts(), 5);
/// assert_eq!(failure.reason(), Reason::AttemptsExhausted);
/// assert!(failure.to_string().starts_with("gave up after 5 attempts in "));
/// assert_eq!(failure.into_error().unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
/// ```
#[derive(Clone, PartialEq)]
pub struct Failure<E> {
    pub(super) error: Option<E>,
    pub(super) finish: CallEnd,
    pub(super) class: Option<Class>,
}

impl<E> Failure<E> {
    /// Returns the error of the last attempt; `None` if it timed out, or if nothing was sent.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let failure = clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::NOT_FOUND) })).unwrap_err();
    /// assert_eq!(failure.error(), Some(&http::StatusCode::NOT_FOUND));
    /// ```
    #[must_use]
    pub const fn error(&self) -> Option<&E> {
        self.error.as_ref()
    }

    /// Takes the error of the last attempt.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let failure = clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::NOT_FOUND) })).unwrap_err();
    /// assert_eq!(failure.into_error(), Some(http::StatusCode::NOT_FOUND));
    /// ```
    #[must_use]
    pub fn into_error(self) -> Option<E> {
        self.error
    }

    /// Returns the number of attempts.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let failure = clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::NOT_FOUND) })).unwrap_err();
    /// assert_eq!(failure.attempts(), 1, "what is not there will not be there in a second");
    /// ```
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.finish.attempts
    }

    /// Returns the time since the beginning of the call, waits included.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// # use std::time::Duration;
    /// let never = policy.request().deadline(Duration::from_secs(3)).call(|_| std::future::pending::<Result<(), std::io::Error>>());
    /// assert!(clock.run(never).unwrap_err().elapsed() <= Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.finish.elapsed.0)
    }

    /// Returns the class of the last attempt's failure; `None` if nothing was sent.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let failure = clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::SERVICE_UNAVAILABLE) })).unwrap_err();
    /// assert_eq!(failure.class(), Some(Class::Transient));
    /// ```
    #[must_use]
    pub const fn class(&self) -> Option<Class> {
        match self.finish.outcome {
            Outcome::Failed(class) => Some(class),
            Outcome::Success | Outcome::Refused(_) | Outcome::Replayed => self.class,
        }
    }

    /// Returns why the call ended.
    ///
    /// ```
    /// # use seawall_engine::{Class, Clock, Code, Policy, Reason};
    /// # let clock = Clock::simulated();
    /// # let policy = Policy::default().with_clock(clock.clone());
    /// let failure = clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::SERVICE_UNAVAILABLE) })).unwrap_err();
    /// assert_eq!(failure.reason(), Reason::AttemptsExhausted);
    /// ```
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.finish.reason
    }

    /// Returns the code of our own refusal, if the call did not end with a response of the other side.
    ///
    /// ```
    /// # use seawall_engine::{Clock, Code, Policy};
    /// let clock = Clock::simulated();
    /// let text = "[defaults]\nretry = { attempts = 1 }\nbreaker = { consecutive = 1, max_wait = \"0s\" }";
    /// let policy = Policy::from_toml(text).unwrap().with_clock(clock.clone());
    /// let broken = || clock.run(policy.call(|_| async { Err::<(), _>(http::StatusCode::BAD_GATEWAY) })).unwrap_err();
    /// assert_eq!(broken().code(), None);
    /// assert_eq!(broken().code(), Some(Code::CircuitOpen));
    /// ```
    #[must_use]
    pub const fn code(&self) -> Option<Code> {
        match self.finish.outcome {
            Outcome::Refused(code) => Some(code),
            Outcome::Success | Outcome::Failed(_) | Outcome::Replayed => None,
        }
    }

    /// Returns the time after which a new call may succeed, if known.
    ///
    /// ```
    /// # use seawall_engine::{Clock, Policy};
    /// # use std::time::Duration;
    /// let clock = Clock::simulated();
    /// let text = "[defaults]\nlimits = [{ name = \"once\", rate = \"1/m\", burst = 1 }]";
    /// let policy = Policy::from_toml(text).unwrap().with_clock(clock.clone());
    /// let ask = || clock.run(policy.call(|_| async { Ok::<_, std::io::Error>(()) }));
    /// assert!(ask().is_ok());
    /// assert_eq!(ask().unwrap_err().retry_after(), Some(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.finish.retry_after.map(|after| Duration::from_nanos(after.0))
    }
}

impl<E: fmt::Debug> fmt::Debug for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("error", &self.error)
            .field("class", &self.class())
            .field("reason", &self.reason())
            .field("attempts", &self.attempts())
            .field("elapsed", &self.elapsed())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.finish.attempts {
            0 => write!(f, "not sent ({})", self.finish.reason)?,
            1 => write!(f, "gave up after 1 attempt in {} ({})", self.finish.elapsed, self.finish.reason)?,
            n => write!(f, "gave up after {n} attempts in {} ({})", self.finish.elapsed, self.finish.reason)?,
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl<E: Error + 'static> Error for Failure<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}
