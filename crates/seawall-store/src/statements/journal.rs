//! Journals of batch runs. Pieces are deleted from last to first, so that an interrupted deletion leaves a valid earlier state of the run.

use super::letters;
use crate::error::Error;
use crate::model::journal::{JournalPiece, RunId};
use crate::sql::{Sql, first, values};
use bytes::Bytes;
use seawall_core::time::Wall;

/// Appends a piece with its letters. A repetition changes nothing.
pub(crate) async fn append<S: Sql>(sql: &mut S, run: &RunId, piece: &JournalPiece, now: &Wall) -> Result<(), Error> {
    let touch = "INSERT INTO runs (run, updated_at) VALUES ($1, $2) ON CONFLICT (run) DO UPDATE SET updated_at = excluded.updated_at";
    sql.execute(touch, values![*run, *now]).await?;
    let insert = "INSERT INTO journal (run, number, content) VALUES ($1, $2, $3) ON CONFLICT (run, number) DO NOTHING";
    sql.execute(insert, values![*run, piece.number, &piece.content]).await?;
    for id in &piece.outdated {
        letters::discard(sql, id).await?;
    }
    letters::keep_all(sql, &piece.letters).await
}

/// Returns pieces from a number on, in order.
pub(crate) async fn pieces<S: Sql>(sql: &mut S, run: &RunId, from: &u64, most: &usize) -> Result<Vec<(u64, Bytes)>, Error> {
    let statement = "SELECT number, content FROM journal WHERE run = $1 AND number >= $2 ORDER BY number LIMIT $3";
    let rows = sql.query(statement, values![*run, *from, *most]).await?;
    rows.into_iter().map(|mut row| Ok((row.take()?, row.take()?))).collect()
}

/// Deletes at most `most` pieces from a number on, last first. Returns their number.
pub(crate) async fn cut<S: Sql>(sql: &mut S, run: &RunId, from: &u64, most: &usize) -> Result<usize, Error> {
    let statement = "DELETE FROM journal WHERE run = $1 AND number IN \
                     (SELECT number FROM journal WHERE run = $1 AND number >= $2 ORDER BY number DESC LIMIT $3)";
    sql.execute(statement, values![*run, *from, *most]).await.map(|gone| usize::try_from(gone).unwrap_or(usize::MAX))
}

/// Deletes pieces of a run that was not written since; 0 if there is none.
pub(crate) async fn sweep<S: Sql>(sql: &mut S, before: &Wall, most: &usize) -> Result<usize, Error> {
    let Some(mut row) = first(sql, "SELECT run FROM runs WHERE updated_at < $1 ORDER BY updated_at LIMIT 1", values![*before]).await?
    else {
        return Ok(0);
    };
    let run: RunId = row.take()?;
    let gone = cut(sql, &run, &0, most).await?;
    if gone < *most {
        sql.execute("DELETE FROM runs WHERE run = $1", values![run]).await?;
    }
    Ok(gone.max(1))
}
