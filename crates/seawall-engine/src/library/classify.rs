//! Classifiers of results: the library's own for common errors, and closures for all others.

use super::classification::Meaning;
use seawall_core::record::{Class, ErrorKind};
use seawall_http::fault::Fault;
use std::error::Error;
use std::io;

/// Classifies errors. A closure from `&E` to a [`Class`], an [`ErrorKind`], an [`http::StatusCode`] or a [`Meaning`] is a classifier;
/// [`Usual`] knows the errors of the standard library, `http` and `hyper`.
///
/// To make [`crate::Policy::call`] accept an error of your own, implement it for [`Usual`]:
///
/// ```
/// use seawall_engine::{Class, Classify, Clock, Meaning, Policy, Usual};
///
/// #[derive(Debug)]
/// enum Refused { Busy, NoSuchTrack }
///
/// impl Classify<Refused> for Usual {
///     fn classify<'a>(&self, error: &'a Refused) -> Meaning<'a> {
///         match error {
///             Refused::Busy => Class::Transient.into(),
///             Refused::NoSuchTrack => Class::Permanent.into(),
///         }
///     }
/// }
///
/// let clock = Clock::simulated();
/// let policy = Policy::default().with_clock(clock.clone());
/// let failure = clock.run(policy.call(|_| async { Err::<(), _>(Refused::NoSuchTrack) })).unwrap_err();
/// assert_eq!((failure.attempts(), failure.class()), (1, Some(Class::Permanent)));
/// ```
#[diagnostic::on_unimplemented(
    message = "nobody has said what the error `{E}` means",
    label = "whether `{E}` is worth another attempt is not known",
    note = "say it in one line: `policy.classify(|error: &{E}| Class::Transient).call(…)`",
    note = "or once for all: `impl Classify<{E}> for Usual`"
)]
pub trait Classify<E> {
    /// Returns the meaning of this error.
    ///
    /// ```
    /// # use seawall_engine::{Classify, Meaning, Usual};
    /// // A closure is a classifier, and so is `Usual`.
    /// let ours = |_: &&str| Meaning::status(503);
    /// let meanings = [ours.classify(&"busy"), Usual.classify(&http::StatusCode::SERVICE_UNAVAILABLE)];
    /// ```
    fn classify<'a>(&self, error: &'a E) -> Meaning<'a>;
}

impl<E, F, M> Classify<E> for F
where
    F: Fn(&E) -> M,
    M: Into<Meaning<'static>>,
{
    fn classify<'a>(&self, error: &'a E) -> Meaning<'a> {
        self(error).into()
    }
}

/// The usual meaning of common errors: `std::io::Error`, `hyper::Error`, `http::StatusCode`, `http::Response` and boxed errors that one of
/// these caused.
///
/// ```
/// use seawall_engine::{Classify, Meaning, Usual};
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// let meaning: Meaning = Usual.classify(&refused);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Usual;

impl Usual {
    /// Classifies an error by the first known one of its causes. An unknown error is permanent: wrong guesses that a retry helps make
    /// outages longer.
    ///
    /// ```
    /// use seawall_engine::{Policy, Usual};
    /// # #[derive(Debug)] struct Wrapped(std::io::Error);
    /// # impl std::fmt::Display for Wrapped { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("wrapped") } }
    /// # impl std::error::Error for Wrapped { fn source(&self) -> Option<&(dyn std::error::Error + 'static)> { Some(&self.0) } }
    ///
    /// let policy = Policy::default();
    /// let request = policy.classify(|error: &Wrapped| Usual::by_cause(error));
    /// ```
    #[must_use]
    pub fn by_cause(error: &(dyn Error + 'static)) -> Meaning<'static> {
        known(error).unwrap_or(Class::Permanent.into())
    }
}

fn known(error: &(dyn Error + 'static)) -> Option<Meaning<'static>> {
    let mut cause = Some(error);
    // Chains are short; an endless one would be a bug in the error.
    for _ in 0..16 {
        let error = cause?;
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // An io error often only wraps another error.
            return error.get_ref().and_then(|inner| known(inner)).or_else(|| of_io(error));
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return Some(of_hyper(error));
        }
        cause = error.source();
    }
    None
}

impl Classify<io::Error> for Usual {
    fn classify<'a>(&self, error: &'a io::Error) -> Meaning<'a> {
        of_io(error).unwrap_or(Class::Permanent.into())
    }
}

impl Classify<hyper::Error> for Usual {
    fn classify<'a>(&self, error: &'a hyper::Error) -> Meaning<'a> {
        of_hyper(error)
    }
}

impl Classify<http::StatusCode> for Usual {
    fn classify<'a>(&self, error: &'a http::StatusCode) -> Meaning<'a> {
        (*error).into()
    }
}

impl<B> Classify<http::Response<B>> for Usual {
    fn classify<'a>(&self, error: &'a http::Response<B>) -> Meaning<'a> {
        error.into()
    }
}

impl Classify<Box<dyn Error + Send + Sync>> for Usual {
    fn classify<'a>(&self, error: &'a Box<dyn Error + Send + Sync>) -> Meaning<'a> {
        Self::by_cause(&**error)
    }
}

/// A service that cannot fail.
impl Classify<std::convert::Infallible> for Usual {
    fn classify<'a>(&self, error: &'a std::convert::Infallible) -> Meaning<'a> {
        match *error {}
    }
}

/// Returns `None` for errors such as a missing file or a missing permission, which a retry does not fix.
fn of_io(error: &io::Error) -> Option<Meaning<'static>> {
    use io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::ConnectionRefused | Io::HostUnreachable | Io::NetworkUnreachable | Io::AddrNotAvailable | Io::NetworkDown => ErrorKind::Connect,
        Io::TimedOut => ErrorKind::Timeout,
        Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::NotConnected | Io::UnexpectedEof | Io::WriteZero => {
            ErrorKind::Reset
        }
        Io::InvalidData => ErrorKind::Malformed,
        Io::Interrupted | Io::WouldBlock | Io::ResourceBusy | Io::Deadlock => return Some(Class::Transient.into()),
        Io::QuotaExceeded => return Some(Class::Quota.into()),
        _ => return None,
    };
    Some(kind.into())
}

fn of_hyper(error: &hyper::Error) -> Meaning<'static> {
    if error.is_user() { Class::Permanent.into() } else { Fault::of(error).kind.into() }
}

#[cfg(test)]
mod tests {
    use super::super::classification::MeaningKind;
    use super::*;

    fn class_or_kind(meaning: Meaning<'_>) -> String {
        match meaning.0 {
            MeaningKind::Success => "success".into(),
            MeaningKind::Seen { result, .. } => result.map_or_else(|kind| kind.to_string(), |status| status.to_string()),
            MeaningKind::Said { verdict, .. } => verdict.class.to_string(),
        }
    }

    #[test]
    fn errors_of_the_standard_library_are_known() {
        let kinds = [
            (io::ErrorKind::ConnectionRefused, "connect"),
            (io::ErrorKind::TimedOut, "timeout"),
            (io::ErrorKind::BrokenPipe, "reset"),
            (io::ErrorKind::Interrupted, "transient"),
            (io::ErrorKind::PermissionDenied, "permanent"),
        ];
        for (kind, expected) in kinds {
            assert_eq!(class_or_kind(Usual.classify(&io::Error::from(kind))), expected, "{kind:?}");
        }
    }

    #[test]
    fn the_cause_is_found_however_deep_it_is_wrapped() {
        let inner = io::Error::from(io::ErrorKind::ConnectionReset);
        let wrapped: Box<dyn Error + Send + Sync> = Box::new(io::Error::other(io::Error::other(inner)));
        assert_eq!(class_or_kind(Usual.classify(&wrapped)), "reset");
        let unknown: Box<dyn Error + Send + Sync> = "who knows".into();
        assert_eq!(class_or_kind(Usual.classify(&unknown)), "permanent");
    }
}
