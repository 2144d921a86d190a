//! The lock of a batch run: an advisory lock of the server that lasts as long as its connection.

use super::Postgres;
use super::pool::PooledConnection;
use super::transaction::ask;
use crate::error::Error;
use crate::model::journal::RunId;

#[derive(Debug)]
pub(crate) struct PostgresRunLock(Option<Box<PooledConnection>>);

impl Drop for PostgresRunLock {
    fn drop(&mut self) {
        // The lock belongs to the connection, so the connection must not be reused.
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}

impl Postgres {
    pub(crate) async fn hold_run(&self, run: &RunId) -> Result<Option<PostgresRunLock>, Error> {
        let connection = self.0.pool.get().await?;
        let [a, b, c, d, e, f, g, h, ..] = *run;
        let lock = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let answer = ask(&connection, "SELECT pg_try_advisory_lock($1)", &[&lock]).await?;
        let held: bool = answer.into_iter().next().map_or(Ok(false), |mut row| row.take())?;
        Ok(held.then_some(PostgresRunLock(Some(Box::new(connection)))))
    }
}
