//! The program that runs the server.

use std::fmt::Debug;

/// Prints for people and talks to the service manager.
pub trait Host: Debug + Send + Sync {
    /// Prints a line.
    fn note(&self, text: &str);
    /// Prints an error with its causes and the next step.
    fn error(&self, error: &anyhow::Error);
    /// The server accepts requests.
    fn ready(&self);
    /// The server drains.
    fn stopping(&self);
}
