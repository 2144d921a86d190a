//! Databases on a PostgreSQL that the tests of this process share.

use super::cluster::Cluster;

/// The address of a new, empty database on a PostgreSQL of our own.
pub(crate) fn postgres() -> String {
    awaited(Cluster::shared().database())
}

/// Waits for something that wants a runtime.
pub(crate) fn awaited<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
