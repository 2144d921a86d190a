//! Small things that are kept: who did what, and errors that no rule names.

use seawall_core::time::Wall;

/// Something that an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Wall,
    pub who: String,
    pub action: String,
    pub detail: String,
}

/// A deed with its place in the list, which is where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedEntry {
    pub number: i64,
    pub deed: AuditEntry,
}

/// Errors alike that no rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedGroup {
    pub fingerprint: String,
    pub upstream: String,
    pub endpoint: String,
    pub status: String,
    /// A member of the answer and its value, where one tells the error from others.
    pub member: Option<(String, String)>,
    pub seen: u64,
    pub first_at: Wall,
    pub last_at: Wall,
    /// Redacted before it came here.
    pub sample: String,
    /// The class that somebody gave it.
    pub named_as: Option<String>,
}
