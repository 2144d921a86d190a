//! What the server's refusals mean, and the bound on waiting for any answer at all.

use crate::error::Error;
use std::future::Future;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// Longer than the server lets a statement run. That nothing at all is heard of it is found out sooner, by its pulse.
const ANSWER: Duration = Duration::from_secs(25);

/// Waits for an answer, but not for ever.
pub(super) async fn bounded<T>(answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(result) => result.map_err(|error| failed(&error)),
        Err(_) => Err(Error::Unavailable("no answer in time".to_owned())),
    }
}

/// Whether the server refused to write.
pub(super) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

pub(super) fn failed(error: &tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        return Error::Unavailable(format!("{error}{source}"));
    };
    // Its message only: details quote rows.
    let text = said.message().to_owned();
    let code = said.code();
    match code.code().get(..2).unwrap_or_default() {
        _ if *code == SqlState::DISK_FULL => Error::Full,
        _ if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => Error::Damaged(text),
        // Connections, resources, rolled-back transactions, locks, operators' interventions; and a server that does not write now: a
        // standby that is about to be promoted, or one that an operator holds still for a switchover.
        "08" | "53" | "40" | "55" | "57" | "25" => Error::Unavailable(text),
        _ => Error::Failed(text),
    }
}
