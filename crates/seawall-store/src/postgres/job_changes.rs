//! Changes to the rows of jobs that are settled together, as columns.

use crate::model::job::{JobLease, SUSPECT};
use crate::sql::text;
use crate::statements::settled::JobChange;
use std::borrow::Cow;
use tokio_postgres::types::ToSql;

const COLUMNS: [(&str, &str); 13] = [
    ("row", "int8"),
    ("token", "int8"),
    ("id", "bytea"),
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

/// A part of a statement that deletes the claims of changed jobs, if `more` holds, and returns them as `gone`. Further `columns` precede
/// the common ones; their parameters start after the first `before`. One list of rows is used instead of a join of two, because the planner
/// knows no lengths and would compare all pairs. Claims are looked up one by one for the same reason: the statistics may say that there are
/// none.
pub(super) fn release_claims(before: usize, columns: &[(&str, &str)], more: &str) -> String {
    let columns = || columns.iter().chain(&COLUMNS);
    let values: Vec<String> = (before + 1..).zip(columns()).map(|(number, (_, kind))| format!("${number}::{kind}[]")).collect();
    let names: Vec<&str> = columns().map(|(name, _)| *name).collect();
    let (values, names) = (values.join(", "), names.join(", "));
    format!(
        "gone AS MATERIALIZED (SELECT s.* FROM unnest({values}) AS s({names}) CROSS JOIN LATERAL \
         (SELECT 1 FROM claims WHERE claims.row = s.row AND claims.token = s.token{more} FOR UPDATE) AS claim), \
         given_up AS (DELETE FROM claims WHERE row = ANY(ARRAY(SELECT row FROM gone)))"
    )
}

/// Inserts the ended jobs of `gone`.
pub(super) fn insert_finished() -> &'static str {
    "over AS (INSERT INTO ended (row, token, finished_at, state, id, progress, history, error, response_status, response_cut, \
     response_headers, response_body) SELECT row, token, finished_at, state, id, progress, history, error, status, cut, headers, body \
     FROM gone WHERE state >= 3)"
}

/// Postpones the other jobs of `gone`, until a turn or a later time.
pub(super) fn requeue(turn: &str) -> String {
    format!(
        "off AS (UPDATE jobs SET waits = gone.state / 2, turn = {turn}, due = coalesce(gone.due, jobs.due), token = gone.token, \
         progress = gone.progress, history = gone.history, error = gone.error, crashes = least(jobs.crashes, {SUSPECT}) \
         FROM gone WHERE jobs.row = gone.row AND gone.state < 3 \
         RETURNING jobs.row, jobs.priority, jobs.turn, jobs.due, jobs.upstream, jobs.waits)"
    )
}

#[derive(Debug)]
pub(super) struct ChangeColumns<'a> {
    rows: Vec<i64>,
    tokens: Vec<i64>,
    ids: Vec<Vec<u8>>,
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

impl<'a> ChangeColumns<'a> {
    pub(super) fn of(changes: &'a [(JobLease, JobChange<'a>)]) -> Self {
        let lease = || changes.iter().map(|(lease, _)| lease);
        let change = || changes.iter().map(|(_, change)| change);
        let response = || change().map(|change| change.response);
        Self {
            rows: lease().map(|lease| lease.row).collect(),
            tokens: lease().map(|lease| lease.token).collect(),
            ids: lease().map(|lease| lease.id.to_bytes().to_vec()).collect(),
            states: change().map(|change| change.state as i16).collect(),
            dues: change().map(|change| change.due.map(|at| at.0)).collect(),
            finished: change().map(|change| change.finished_at.map(|at| at.0)).collect(),
            progress: change().map(|change| change.progress).collect(),
            histories: change().map(|change| change.history).collect(),
            errors: change().map(|change| change.error.map(text)).collect(),
            statuses: response().map(|response| response.map(|response| response.status.into())).collect(),
            cuts: response().map(|response| response.map(|response| response.truncated.into())).collect(),
            headers: response().map(|response| response.map(|response| response.headers.as_json())).collect(),
            bodies: response().map(|response| response.map(|response| &response.body[..])).collect(),
        }
    }

    /// Returns the values in the order of [`COLUMNS`].
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); COLUMNS.len()] {
        let Self { rows, tokens, ids, states, dues, finished, progress, histories, errors, statuses, cuts, headers, bodies } = self;
        [rows, tokens, ids, states, dues, finished, progress, histories, errors, statuses, cuts, headers, bodies]
    }
}
