//! How many files, connections among them, this process may have open, and room for them in its table.

use rustix::process::{Resource, getrlimit};

/// More callers than this are another machine's business.
const MOST_CONNECTIONS: usize = 50_000;
/// More room than this is not made ahead. The system's table takes eight bytes for each.
const MOST_ROOM: usize = 131_072;

/// The soft limit, which is what counts.
fn allowed() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Callers that may be connected at once: two thirds of the files that this process may have open. The rest is for
/// connections to upstreams, for the store and for the log.
pub(crate) fn connections() -> usize {
    (allowed() / 3 * 2).clamp(1, MOST_CONNECTIONS)
}

/// Has the table grow to its size before there are threads. Linux doubles it as it fills up, and where threads share it, whoever
/// opens a file in that moment waits until each processor has been elsewhere: ten milliseconds and more, in the middle of a burst.
pub(crate) fn make_room() {
    let Ok(last) = i32::try_from(allowed().min(MOST_ROOM).saturating_sub(1)) else { return };
    // A table that cannot grow now grows later, as ever.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last));
}
