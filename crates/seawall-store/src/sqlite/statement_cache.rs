//! A statement that runs for many jobs in one transaction. Parameters that equal those of the previous run stay bound: jobs that arrive
//! together mostly share values, and binding a value costs a good part of writing it.

use super::Error;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection};

/// Longer values are not compared.
const SHORT: usize = 256;

pub(super) struct Bound<'a> {
    statement: CachedStatement<'a>,
    values: Vec<BoundValue>,
}

impl<'a> Bound<'a> {
    /// Returns the statement in its slot and prepares it on first use, since even a lookup costs a good part of the execution.
    pub(super) fn prepared_once<'p>(place: &'p mut Option<Self>, db: &'a Connection, sql: &str) -> Result<&'p mut Self, Error> {
        match place {
            Some(known) => Ok(known),
            none => Ok(none.insert(Self { statement: db.prepare_cached(sql)?, values: Vec::new() })),
        }
    }

    /// Executes the statement. Returns the number of changed rows.
    pub(super) fn execute<const COUNT: usize>(&mut self, values: [ValueRef<'_>; COUNT]) -> Result<usize, Error> {
        self.values.resize_with(COUNT, BoundValue::default);
        for ((parameter, value), bound) in (1..).zip(values).zip(&mut self.values) {
            if !bound.is(value) {
                // Reset first: a failed bind leaves the parameter unbound.
                *bound = BoundValue::Other;
                self.statement.raw_bind_parameter(parameter, ToSqlOutput::Borrowed(value))?;
                *bound = BoundValue::of(value);
            }
        }
        Ok(self.statement.raw_execute()?)
    }
}

/// The value bound to a parameter.
#[derive(Debug, Default)]
enum BoundValue {
    /// A value that is not compared, or none yet.
    #[default]
    Other,
    Null,
    Integer(i64),
    Text(Vec<u8>),
}

impl BoundValue {
    fn is(&self, value: ValueRef<'_>) -> bool {
        match (self, value) {
            (Self::Null, ValueRef::Null) => true,
            (Self::Integer(bound), ValueRef::Integer(value)) => *bound == value,
            (Self::Text(bound), ValueRef::Text(value)) => bound == value,
            _ => false,
        }
    }

    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Text(value) if value.len() <= SHORT => Self::Text(value.to_vec()),
            ValueRef::Integer(value) => Self::Integer(value),
            ValueRef::Null => Self::Null,
            ValueRef::Text(_) | ValueRef::Blob(_) | ValueRef::Real(_) => Self::Other,
        }
    }
}

pub(super) const fn text(text: &str) -> ValueRef<'_> {
    ValueRef::Text(text.as_bytes())
}

/// Converts an optional value; `None` becomes NULL.
pub(super) fn optional_value<'v, T>(value: Option<T>, of: impl FnOnce(T) -> ValueRef<'v>) -> ValueRef<'v> {
    value.map_or(ValueRef::Null, of)
}
