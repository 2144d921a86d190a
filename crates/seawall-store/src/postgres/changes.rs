//! What is written to the rows of jobs that are settled together, as columns.

use crate::job::SUSPECT;
use crate::settled::Change;
use crate::sql::text;
use std::borrow::Cow;
use tokio_postgres::types::ToSql;

/// What a statement sets that has the changes as `s`.
pub(super) fn set() -> String {
    format!(
        "state = s.state, due = coalesce(s.due, jobs.due), finished_at = s.finished_at, progress = s.progress, \
         history = s.history, error = s.error, response_status = s.status, response_cut = s.cut, \
         response_headers = s.headers, response_body = s.body, \
         crashes = CASE WHEN s.state = 4 THEN jobs.crashes ELSE least(jobs.crashes, {SUSPECT}) END"
    )
}

const COLUMNS: [(&str, &str); 11] = [
    ("row", "int8"),
    ("state", "int2"),
    ("due", "int8"),
    ("finished_at", "int8"),
    ("progress", "text"),
    ("history", "text"),
    ("error", "text"),
    ("status", "int4"),
    ("cut", "int2"),
    ("headers", "text"),
    ("body", "bytea"),
];

/// The changes as `s`, with more columns before them, whose values come after the first so many. One list of rows and not
/// two that are joined: the planner knows nothing of their lengths, and compares each row with each.
pub(super) fn from(before: usize, more: &[(&str, &str)]) -> String {
    let columns = || more.iter().chain(&COLUMNS);
    let values: Vec<String> = (before + 1..).zip(columns()).map(|(number, (_, kind))| format!("${number}::{kind}[]")).collect();
    let names: Vec<&str> = columns().map(|(name, _)| *name).collect();
    format!("unnest({}) AS s({})", values.join(", "), names.join(", "))
}

#[derive(Debug)]
pub(super) struct Columns<'a> {
    rows: Vec<i64>,
    states: Vec<i16>,
    dues: Vec<Option<i64>>,
    finished: Vec<Option<i64>>,
    progress: Vec<&'a str>,
    histories: Vec<&'a str>,
    errors: Vec<Option<Cow<'a, str>>>,
    statuses: Vec<Option<i32>>,
    cuts: Vec<Option<i16>>,
    headers: Vec<Option<&'a str>>,
    bodies: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(changes: &'a [(i64, Change<'a>)]) -> Self {
        let change = || changes.iter().map(|(_, change)| change);
        let response = || change().map(|change| change.response);
        Self {
            rows: changes.iter().map(|(row, _)| *row).collect(),
            states: change().map(|change| change.state as i16).collect(),
            dues: change().map(|change| change.due.map(|at| at.0)).collect(),
            finished: change().map(|change| change.finished_at.map(|at| at.0)).collect(),
            progress: change().map(|change| change.progress).collect(),
            histories: change().map(|change| change.history).collect(),
            errors: change().map(|change| change.error.map(text)).collect(),
            statuses: response().map(|response| response.map(|response| response.status.into())).collect(),
            cuts: response().map(|response| response.map(|response| response.truncated.into())).collect(),
            headers: change().map(|change| change.response_headers).collect(),
            bodies: response().map(|response| response.map(|response| &response.body[..])).collect(),
        }
    }

    /// In the order of [`COLUMNS`].
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); COLUMNS.len()] {
        let Self { rows, states, dues, finished, progress, histories, errors, statuses, cuts, headers, bodies } = self;
        [rows, states, dues, finished, progress, histories, errors, statuses, cuts, headers, bodies]
    }
}
