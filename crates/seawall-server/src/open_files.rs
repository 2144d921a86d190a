//! Budget of file descriptors for callers, the admin port and own files, and preallocation of the descriptor table.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Maximum callers that one process is meant for.
const MAX_CONNECTIONS: usize = 50_000;
/// Maximum preallocated table size. The kernel takes eight bytes per entry.
const MAX_ROOM: usize = 131_072;
/// Maximum connections to the admin port.
const MAX_ADMIN: usize = 256;
/// Descriptors of our own: the store, shared state, the log.
const OWN: usize = 48;
/// Descriptors of a serving thread besides its listeners: its runtime, and those of a job worker.
const OF_A_THREAD: usize = 7;
/// Maximum refused callers that are being sent a response.
const MAX_FAREWELLS: usize = 64;

/// Returns the soft limit, which is the effective one.
fn allowed() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Raises the soft limit as far as the hard one allows, up to what this process can use. Shells and service managers set the soft limit low
/// for programs that use `select`.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = u64::try_from(MAX_ROOM).unwrap_or(u64::MAX);
    let reachable = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
    if limit.current.is_some_and(|soft| soft < reachable) {
        limit.current = Some(reachable);
        // If this fails, the limit stays, and callers get their share of it.
        let _: Result<(), rustix::io::Errno> = setrlimit(Resource::Nofile, limit);
    }
}

/// Returns the maximum of connected callers. Each needs two descriptors, its own connection and one to an upstream. The admin port and our
/// own files are subtracted first, including each thread's listener on each port.
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

/// Returns the maximum of connections to the admin port.
pub fn admin_connections() -> usize {
    admin(allowed())
}

fn admin(allowed: usize) -> usize {
    (allowed / 8).clamp(8, MAX_ADMIN)
}

/// Returns the maximum of refused callers that are sent a response at one time. Each holds a descriptor until it has read it.
pub fn refusals_in_flight() -> usize {
    farewell(allowed())
}

fn farewell(allowed: usize) -> usize {
    (allowed / 4).clamp(4, MAX_FAREWELLS)
}

/// Grows the descriptor table to its final size before threads exist. Linux doubles it as it fills up; in a process with threads, the
/// opening thread then waits for an RCU grace period: ten milliseconds and more, in the middle of a burst.
pub fn make_room() {
    let Ok(last) = i32::try_from(allowed().min(MAX_ROOM).saturating_sub(1)) else { return };
    // If this fails, the table grows on demand as usual.
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
