//! Schema migrations, applied in order in one transaction under a lock: a crash leaves all of them or none.

use super::errors::{bounded, failed};
use super::pool::PostgresPool;
use super::transaction::{Tx, ask};
use crate::error::Error;

const STEPS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
];

/// The key of the advisory lock, unique to Seawall: the first bytes of its name.
const LOCK: i64 = 0x7365_6177_616c_6c00;

pub(super) async fn migrate(pool: &PostgresPool) -> Result<(), Error> {
    let tx = Tx::begin(pool).await?;
    let applied = apply(&tx).await;
    tx.end(applied).await
}

async fn apply(tx: &Tx) -> Result<(), Error> {
    let connection = tx.connection()?;
    ask(connection, "SELECT pg_advisory_xact_lock($1) IS NULL", &[&LOCK]).await?;
    bounded(connection.batch_execute("CREATE SCHEMA IF NOT EXISTS seawall; CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL);"))
        .await?;
    let version = ask(connection, "SELECT coalesce(max(version), 0) FROM schema", &[]).await?;
    let found: u32 = version.into_iter().next().map_or(Ok(0), |mut row| row.take())?;
    let known = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    for (number, step) in (1u32..).zip(STEPS).skip_while(|(number, _)| *number <= found) {
        // Without a time limit: a migration may copy every job, and an aborted one would begin anew at every start.
        bounded(connection.batch_execute("SET LOCAL statement_timeout = 0")).await?;
        let step = format!("{step}; INSERT INTO schema VALUES ({number});");
        connection.batch_execute(&step).await.map_err(|error| failed(&error))?;
    }
    Ok(())
}
