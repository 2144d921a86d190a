//! The real policy code in virtual time.
