//! Which credential is used: the key pool.
