//! Maps errors of the server, and bounds the wait for any reply.

use crate::error::Error;
use std::future::Future;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// Longer than the server's statement timeout. The heartbeat detects a silent server sooner.
const ANSWER: Duration = Duration::from_secs(25);

/// Waits for a reply with a time limit.
pub(super) async fn bounded<T>(answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(result) => result.map_err(|error| failed(&error)),
        Err(_) => Err(Error::Unavailable("no answer in time".to_owned())),
    }
}

/// Returns whether the server refused to write.
pub(super) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

pub(super) fn failed(error: &tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        return Error::Unavailable(format!("{error}{source}"));
    };
    // The message only: details quote rows.
    let text = said.message().to_owned();
    let code = said.code();
    match code.code().get(..2).unwrap_or_default() {
        _ if *code == SqlState::DISK_FULL => Error::Full,
        _ if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => Error::Damaged(text),
        // Connections, resources, rolled-back transactions, locks, operator intervention, and read-only servers: a standby before its
        // promotion, or a server that is held for a switchover.
        "08" | "53" | "40" | "55" | "57" | "25" => Error::Unavailable(text),
        _ => Error::Failed(text),
    }
}
