//! Write transactions and plain reads. A transaction that is dropped unfinished closes its connection, so that it is not reused.

use super::errors::bounded;
use super::jobs;
use super::notification::Bell;
use super::pool::{PooledConnection, PostgresPool};
use crate::error::Error;
use crate::model::job::{Enqueued, NewJob};
use crate::sql::{RowReader, Sql, SqlValue, Write, text};
use seawall_core::time::Wall;
use std::error::Error as StdError;
use std::sync::Arc;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

#[derive(Debug)]
pub(crate) struct Tx {
    /// `None` only after the end.
    connection: Option<PooledConnection>,
    bell: Arc<Bell>,
    /// The commit makes new jobs claimable.
    rings: bool,
}

/// A part of a statement that makes its commit not wait for the server's disk. For work that can be redone: claims, renewals, ticks. A
/// later durable commit also makes these durable.
pub(super) const RELAXED: &str = "set_config('synchronous_commit', 'off', true) IS NULL";

#[derive(Debug)]
pub(crate) struct TransactionRead(PooledConnection);

impl TransactionRead {
    pub(super) async fn new(pool: &PostgresPool) -> Result<Self, Error> {
        pool.get().await.map(Self)
    }
}

impl Tx {
    pub(super) async fn begin(pool: &PostgresPool) -> Result<Self, Error> {
        let tx = Self { connection: Some(pool.get().await?), bell: Arc::clone(pool.bell()), rings: false };
        bounded(tx.connection()?.batch_execute("BEGIN")).await?;
        Ok(tx)
    }

    pub(super) fn connection(&self) -> Result<&PooledConnection, Error> {
        self.connection.as_ref().ok_or_else(|| Error::Failed("the transaction is over".to_owned()))
    }

    /// Commits on success and rolls back on failure.
    pub(crate) async fn end<T>(mut self, result: Result<T, Error>) -> Result<T, Error> {
        let last = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = bounded(self.connection()?.batch_execute(last)).await;
        if ended.is_ok() {
            drop(self.connection.take());
        }
        let value = result?;
        if self.rings && ended.is_ok() {
            self.bell.ring();
        }
        ended.map(|()| value)
    }

    /// Wakes a worker after the commit.
    pub(super) const fn ring(&mut self) {
        self.rings = true;
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }
}

impl Sql for Tx {
    const FIND: &'static str = "strpos";
    const BODY: &'static str = "body";
    const LOCK: &'static str = " FOR UPDATE";

    async fn query(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<RowReader>, Error> {
        query(self.connection()?, sql, values).await
    }

    async fn execute(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
        execute(self.connection()?, sql, values).await
    }
}

impl Write for Tx {
    async fn enqueue(&mut self, job: &NewJob, now: Wall) -> Result<Enqueued, Error> {
        let done = jobs::insert(self.connection()?, &[(job, now)]).await?;
        self.ring();
        done.into_iter().next().ok_or_else(|| Error::Failed("an enqueue left no result".to_owned()))
    }
}

impl Sql for TransactionRead {
    const FIND: &'static str = "strpos";
    const BODY: &'static str = "body";
    const LOCK: &'static str = " FOR UPDATE";

    async fn query(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<RowReader>, Error> {
        query(&self.0, sql, values).await
    }

    async fn execute(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
        execute(&self.0, sql, values).await
    }
}

async fn query(connection: &PooledConnection, sql: &str, values: &[SqlValue]) -> Result<Vec<RowReader>, Error> {
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
    ask(connection, sql, &values).await
}

/// Runs a statement that is prepared once per connection.
pub(super) async fn ask(connection: &PooledConnection, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<RowReader>, Error> {
    let statement = connection.answer(connection.prepare_cached(sql)).await?;
    let rows = connection.answer(connection.query(&statement, values)).await?;
    rows.iter().map(row).collect()
}

async fn execute(connection: &PooledConnection, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
    let statement = connection.answer(connection.prepare_cached(sql)).await?;
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
    connection.answer(connection.execute(&statement, &values)).await
}

fn row(row: &tokio_postgres::Row) -> Result<RowReader, Error> {
    let mut values = Vec::with_capacity(row.len());
    for (index, column) in row.columns().iter().enumerate() {
        values.push(match *column.type_() {
            Type::INT8 => cell::<i64>(row, index, SqlValue::Integer)?,
            Type::INT4 => cell::<i32>(row, index, |number| SqlValue::Integer(number.into()))?,
            Type::INT2 => cell::<i16>(row, index, |number| SqlValue::Integer(number.into()))?,
            Type::BOOL => cell::<bool>(row, index, |yes| SqlValue::Integer(yes.into()))?,
            Type::BYTEA => cell::<Vec<u8>>(row, index, SqlValue::Bytes)?,
            _ => cell::<String>(row, index, SqlValue::Text)?,
        });
    }
    Ok(RowReader::new(values))
}

fn cell<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    index: usize,
    value: impl Fn(T) -> SqlValue,
) -> Result<SqlValue, Error> {
    let found: Option<T> = row.try_get(index).map_err(|error| Error::Damaged(error.to_string()))?;
    Ok(found.map_or(SqlValue::Null, value))
}

impl ToSql for SqlValue {
    fn to_sql(&self, column: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) => match *column {
                Type::INT2 => i16::try_from(*number)?.to_sql(column, out),
                Type::INT4 => i32::try_from(*number)?.to_sql(column, out),
                _ => number.to_sql(column, out),
            },
            Self::Text(words) => text(words).to_sql(column, out),
            Self::Bytes(bytes) => bytes.to_sql(column, out),
        }
    }

    fn accepts(column: &Type) -> bool {
        matches!(*column, Type::INT2 | Type::INT4 | Type::INT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}
