//! A cell behind a lock.

use parking_lot::{Mutex, MutexGuard};

/// A value behind a lock that ignores poisoning: the value is plain data, valid at any time.
#[derive(Debug)]
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}
