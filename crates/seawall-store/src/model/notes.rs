//! Audit entries, and errors that no rule names.

use seawall_core::time::Wall;

/// An operator's action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Wall,
    pub who: String,
    pub action: String,
    pub detail: String,
}

/// An audit entry with its number, which serves as the page cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedEntry {
    pub number: i64,
    pub deed: AuditEntry,
}

/// A group of similar errors that no rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedGroup {
    pub fingerprint: String,
    pub upstream: String,
    pub endpoint: String,
    pub status: String,
    /// A member of the response and its value that distinguish the error from others.
    pub member: Option<(String, String)>,
    pub seen: u64,
    pub first_at: Wall,
    pub last_at: Wall,
    /// Already redacted.
    pub sample: String,
    /// The class that an operator gave it.
    pub named_as: Option<String>,
}
