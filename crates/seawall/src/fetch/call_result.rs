//! The result of a row's call.

use super::destination::Destination;
use super::lanes::StartedRow;
use super::output::{FinishedRow, OutputEnd};
use super::response_check::Content;
use seawall_core::time::Nanos;
use seawall_engine::attempt::KeyTail as _;

/// A result as it begins: what does not depend on how its row ended.
pub(super) fn finished_row(
    run: &StartedRow,
    url: String,
    status: Option<u16>,
    elapsed: Nanos,
    share: Option<tokio::sync::OwnedSemaphorePermit>,
) -> FinishedRow {
    FinishedRow {
        line: run.row.line,
        ordinal: run.row.ordinal,
        key: run.row.key,
        id: run.row.id.clone(),
        file: run.row.file.clone(),
        url,
        page: None,
        status,
        attempts: run.progress.attempts,
        elapsed,
        end: OutputEnd::Good(Content::Nothing, None),
        replaces: None,
        moved_from: None,
        share,
    }
}

/// The error of a run that stops because an upstream rejects its key.
pub(super) fn rejected_key(run: &StartedRow, to: &Destination) -> String {
    let key = run.history.iter().rev().find_map(|(_, attempt)| attempt.key);
    let tail = key.and_then(|key| to.upstream.tail(key));
    let name = if to.configured { format!("upstream `{}`", to.upstream.spec.name) } else { run.row.lane.to_string() };
    match tail {
        Some(tail) => format!("{name} does not accept the key {tail}"),
        None => format!("{name} does not accept our requests"),
    }
}
