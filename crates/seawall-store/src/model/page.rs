//! Pages of long lists, newest first. A cursor is the id of the last entry of the page before, so that lists can change
//! while they are read.

use seawall_core::id::CallId;

/// Entries a page has at most, whatever is asked for.
pub const MAX_ENTRIES: usize = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<CallId>,
}

/// Which part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWindow {
    pub after: Option<CallId>,
    pub limit: usize,
}

impl PageWindow {
    /// As many as may be asked for, and one more, which tells whether there is another page.
    pub(crate) fn rows(self) -> usize {
        self.limit.clamp(1, MAX_ENTRIES) + 1
    }

    /// Makes a page of what `rows` gave.
    pub(crate) fn page<T>(self, mut entries: Vec<T>, id: impl Fn(&T) -> CallId) -> Page<T> {
        let limit = self.limit.clamp(1, MAX_ENTRIES);
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = if more { entries.last().map(id) } else { None };
        Page { entries, next }
    }
}
