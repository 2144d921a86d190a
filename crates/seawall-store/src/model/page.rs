//! Pages of long lists, newest first. A cursor is the id of the last entry of the page before, so that lists may change while they are
//! read.

use seawall_core::id::CallId;

/// Maximum entries of a page, whatever the request.
pub const MAX_ENTRIES: usize = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// The cursor of the next page; `None` on the last.
    pub next: Option<CallId>,
}

/// The requested part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWindow {
    pub after: Option<CallId>,
    pub limit: usize,
}

impl PageWindow {
    /// Returns the number of rows to read: one more than the limit, to detect a further page.
    pub(crate) fn rows(self) -> usize {
        self.limit.clamp(1, MAX_ENTRIES) + 1
    }

    /// Builds a page from that many rows.
    pub(crate) fn page<T>(self, mut entries: Vec<T>, id: impl Fn(&T) -> CallId) -> Page<T> {
        let limit = self.limit.clamp(1, MAX_ENTRIES);
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = if more { entries.last().map(id) } else { None };
        Page { entries, next }
    }
}
