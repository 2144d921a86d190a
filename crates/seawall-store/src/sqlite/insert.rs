//! Keeps jobs. What one job has in common with the job before it in the same transaction is handed to SQLite once: jobs that come
//! together are alike for the most part, and handing a value over costs as much as a part of writing it.

use super::Error;
use crate::job::{NewJob, State};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection};
use seawall_core::time::Wall;

const STATEMENT: &str = "INSERT INTO jobs (id, state, upstream, tenant, caller, priority, turn, due, run_at, expires_at, created_at, progress, \
     dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body) \
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const COLUMNS: usize = 23;
/// Longer values are not compared.
const SHORT: usize = 256;

/// What of a job has to be put into words for its row.
pub(super) struct Written {
    pub(super) progress: String,
    pub(super) origin: Option<String>,
    pub(super) history: String,
    pub(super) headers: String,
}

/// What a row has besides what its job says.
pub(super) struct Place {
    pub(super) state: State,
    pub(super) turn: i64,
    pub(super) now: Wall,
}

pub(super) struct Insert<'a> {
    statement: CachedStatement<'a>,
    bound: [Bound; COLUMNS],
}

/// What is bound to a parameter.
#[derive(Debug, Default)]
enum Bound {
    /// Something that is not compared, or nothing yet.
    #[default]
    Other,
    Null,
    Integer(i64),
    Text(Vec<u8>),
}

impl Bound {
    fn is(&self, value: ValueRef<'_>) -> bool {
        match (self, value) {
            (Self::Null, ValueRef::Null) => true,
            (Self::Integer(bound), ValueRef::Integer(value)) => *bound == value,
            (Self::Text(bound), ValueRef::Text(value)) => bound == value,
            _ => false,
        }
    }

    fn set(&mut self, value: ValueRef<'_>) {
        match (self, value) {
            (Self::Text(bound), ValueRef::Text(value)) if value.len() <= SHORT => {
                bound.clear();
                bound.extend_from_slice(value);
            }
            (bound, ValueRef::Text(value)) if value.len() <= SHORT => *bound = Self::Text(value.to_vec()),
            (bound, ValueRef::Integer(value)) => *bound = Self::Integer(value),
            (bound, ValueRef::Null) => *bound = Self::Null,
            (bound, _) => *bound = Self::Other,
        }
    }
}

impl<'a> Insert<'a> {
    pub(super) fn prepare(db: &'a Connection) -> Result<Self, Error> {
        Ok(Self { statement: db.prepare_cached(STATEMENT)?, bound: Default::default() })
    }

    /// Writes a row. A `body` that is none is kept elsewhere.
    pub(super) fn execute(&mut self, job: &NewJob, written: &Written, place: &Place, body: Option<&[u8]>) -> Result<(), Error> {
        let Self { statement, bound } = self;
        let id = job.id.to_bytes();
        let values: [ValueRef<'_>; COLUMNS] = [
            ValueRef::Blob(&id),
            ValueRef::Integer(place.state.number()),
            text(&job.upstream),
            text(&job.tenant),
            text(&job.caller),
            ValueRef::Integer(job.priority),
            ValueRef::Integer(place.turn),
            ValueRef::Integer(job.run_at.max(place.now).0),
            ValueRef::Integer(job.run_at.0),
            job.expires_at.map_or(ValueRef::Null, |at| ValueRef::Integer(at.0)),
            ValueRef::Integer(place.now.0),
            text(&written.progress),
            job.dedup.as_ref().map_or(ValueRef::Null, |dedup| ValueRef::Blob(dedup)),
            ValueRef::Blob(&job.fingerprint),
            maybe(job.idempotency_key.as_deref()),
            maybe(job.correlation_id.as_deref()),
            maybe(job.callback.as_deref()),
            maybe(written.origin.as_deref()),
            text(&job.request.method),
            text(&job.request.path),
            text(&written.history),
            text(&written.headers),
            body.map_or(ValueRef::Null, ValueRef::Blob),
        ];
        for ((parameter, value), bound) in (1..).zip(values).zip(bound) {
            if !bound.is(value) {
                statement.raw_bind_parameter(parameter, ToSqlOutput::Borrowed(value))?;
                bound.set(value);
            }
        }
        statement.raw_execute()?;
        Ok(())
    }
}

const fn text(text: &str) -> ValueRef<'_> {
    ValueRef::Text(text.as_bytes())
}

fn maybe(value: Option<&str>) -> ValueRef<'_> {
    value.map_or(ValueRef::Null, text)
}
