//! How many files, connections among them, this process may have open, who may have how many, and room for them in its table.

use rustix::process::{Resource, getrlimit, setrlimit};

/// More callers than this are another machine's business.
const MAX_CONNECTIONS: usize = 50_000;
/// More room than this is not made ahead. The system's table takes eight bytes for each.
const MAX_ROOM: usize = 131_072;
/// Connections to the admin port, at most.
const MAX_ADMIN: usize = 256;
/// Files of our own: the store, shared state, the log.
const OWN: usize = 48;
/// Files of a thread that serves beside its listeners: its runtime, and those of a worker for jobs.
const OF_A_THREAD: usize = 7;
/// Callers who are being told that there is no place for them, at most.
const MAX_FAREWELLS: usize = 64;

/// The soft limit, which is what counts.
fn allowed() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Raises the soft limit as far as the hard one allows, up to what this process can use. Shells and service managers set the soft
/// limit low for programs that cannot tell.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = u64::try_from(MAX_ROOM).unwrap_or(u64::MAX);
    let reachable = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
    if limit.current.is_some_and(|soft| soft < reachable) {
        limit.current = Some(reachable);
        // A limit that cannot be raised stays as it is, and callers get their share of it.
        let _: Result<(), rustix::io::Errno> = setrlimit(Resource::Nofile, limit);
    }
}

/// Callers that may be connected at once. Each needs two files, its own connection and one to an upstream; the admin port and our
/// own files have theirs apart, among them each thread's listener on each of the ports.
pub fn connections(threads: usize, ports: usize) -> usize {
    callers(allowed(), threads, ports)
}

fn callers(allowed: usize, threads: usize, ports: usize) -> usize {
    let shared = allowed.saturating_sub(own(threads, ports) + admin(allowed) + farewell(allowed));
    (shared / 2).max(allowed / 8).clamp(1, MAX_CONNECTIONS)
}

fn own(threads: usize, ports: usize) -> usize {
    OWN + (OF_A_THREAD + ports) * threads
}

/// Connections that the admin port may have at once.
pub fn admin_connections() -> usize {
    admin(allowed())
}

fn admin(allowed: usize) -> usize {
    (allowed / 8).clamp(8, MAX_ADMIN)
}

/// Callers who may be told at one time that there is no place for them. Each holds a file until it has heard that.
pub fn farewells() -> usize {
    farewell(allowed())
}

fn farewell(allowed: usize) -> usize {
    (allowed / 4).clamp(4, MAX_FAREWELLS)
}

/// Has the table grow to its size before there are threads. Linux doubles it as it fills up, and where threads share it, whoever
/// opens a file in that moment waits until each processor has been elsewhere: ten milliseconds and more, in the middle of a burst.
pub fn make_room() {
    let Ok(last) = i32::try_from(allowed().min(MAX_ROOM).saturating_sub(1)) else { return };
    // A table that cannot grow now grows later, as ever.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_busy_caller_has_two_files_and_the_rest_have_theirs() {
        for (allowed, threads, ports) in
            [(512, 2, 1), (512, 2, 9), (1_024, 2, 1), (1_024, 32, 1), (4_096, 64, 20), (65_536, 8, 1), (131_072, 128, 100)]
        {
            let all = 2 * callers(allowed, threads, ports) + admin(allowed) + farewell(allowed) + own(threads, ports);
            assert!(all <= allowed, "{allowed} files, {threads} threads, {ports} ports: {all}");
        }
        assert_eq!((callers(1_024, 2, 1), admin(1_024), farewell(1_024)), (384, 128, 64));
    }

    #[test]
    fn there_is_a_place_for_somebody_however_few_files_there_are() {
        assert_eq!((callers(0, 2, 1), admin(0)), (1, 8));
        assert_eq!(callers(64, 2, 1), 8);
    }
}
