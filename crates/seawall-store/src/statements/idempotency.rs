//! Idempotency keys: read, decided by the core and written in one transaction.

use crate::error::Error;
use crate::model::idempotency::{FinishKey, ReserveKey, Reserved};
use crate::model::job::Response;
use crate::rows;
use crate::sql::{RowReader, Sql, first, values};
use seawall_core::admit::idempotency::{self as rule, KeyEntry, RequestFingerprint, ReservationStage, ReserveAnswer};
use seawall_core::id::CallId;
use seawall_core::time::Wall;

struct StoredKey {
    entry: KeyEntry,
    owner: Option<CallId>,
    response: Option<Response>,
}

/// The columns that the core's rules need.
pub(crate) const ENTRY: &str = "fingerprint, state, lease_until, reservation, expires_at";

pub(crate) fn entry(row: &mut RowReader) -> Result<KeyEntry, Error> {
    let fingerprint = RequestFingerprint(row.take()?);
    let (number, until): (i64, Option<Wall>) = (row.take()?, row.take()?);
    let state = match number {
        0 => ReservationStage::InFlight { until: until.unwrap_or(Wall(0)) },
        1 => ReservationStage::Done,
        2 => ReservationStage::Unknown,
        _ => return Err(Error::Damaged(format!("a key is in the unknown state {number}"))),
    };
    Ok(KeyEntry { fingerprint, state, reservation: row.take()?, expires: row.take()? })
}

async fn read<S: Sql>(sql: &mut S, scope: [u8; 32]) -> Result<Option<StoredKey>, Error> {
    let statement = format!(
        "SELECT {ENTRY}, owner, response_status, response_cut, response_headers, response_body FROM keys WHERE scope = $1{}",
        S::LOCK
    );
    let Some(mut row) = first(sql, &statement, values![scope]).await? else { return Ok(None) };
    let entry = entry(&mut row)?;
    let owner = row.take()?;
    let mut response = rows::response(&mut row)?;
    if let Some(response) = &mut response {
        response.body = row.take::<Option<bytes::Bytes>>()?.unwrap_or_default();
    }
    Ok(Some(StoredKey { entry, owner, response }))
}

pub(crate) const fn number(state: ReservationStage) -> (i64, Option<Wall>) {
    match state {
        ReservationStage::InFlight { until } => (0, Some(until)),
        ReservationStage::Done => (1, None),
        ReservationStage::Unknown => (2, None),
    }
}

pub(crate) async fn reserve<S: Sql>(sql: &mut S, wish: &ReserveKey) -> Result<Reserved, Error> {
    loop {
        let kept = read(sql, wish.scope).await?;
        let mut slot = kept.as_ref().map(|kept| kept.entry);
        let own = wish.owner.is_some() && kept.as_ref().is_some_and(|kept| kept.owner == wish.owner);
        let decide = if own { rule::resume } else { rule::reserve };
        let answer = decide(&mut slot, wish.claim, wish.now);
        let stored = kept.as_ref().and_then(|kept| kept.response.clone()).filter(|_| answer == ReserveAnswer::Replay);
        let (ReserveAnswer::Proceed { .. }, Some(entry)) = (answer, slot) else { return Ok(Reserved { answer, stored }) };
        let (state, until) = number(entry.state);
        let values = values![wish.scope, entry.fingerprint.0, state, until, entry.reservation, entry.expires, wish.owner];
        let changed = if kept.is_some() {
            let update = "UPDATE keys SET fingerprint = $2, state = $3, lease_until = $4, reservation = $5, expires_at = $6, owner = $7, \
                          response_status = NULL, response_cut = NULL, response_headers = NULL, response_body = NULL WHERE scope = $1";
            sql.execute(update, values).await?
        } else {
            let insert = "INSERT INTO keys (scope, fingerprint, state, lease_until, reservation, expires_at, owner) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
            sql.execute(insert, values).await?
        };
        // A concurrent request was first: read again.
        if changed > 0 {
            return Ok(Reserved { answer, stored });
        }
    }
}

/// Returns `false` if the reservation was lost in the meantime.
pub(crate) async fn finish<S: Sql>(sql: &mut S, end: &FinishKey) -> Result<bool, Error> {
    let statement = format!("SELECT {ENTRY} FROM keys WHERE scope = $1{}", S::LOCK);
    let mut slot = first(sql, &statement, values![end.scope]).await?.map(|mut row| entry(&mut row)).transpose()?;
    if !rule::finish(&mut slot, end.reservation, end.ending, end.ttl, end.now) {
        return Ok(false);
    }
    let Some(entry) = slot else {
        sql.execute("DELETE FROM keys WHERE scope = $1", values![end.scope]).await?;
        return Ok(true);
    };
    let (state, until) = number(entry.state);
    let response = end.response.as_ref();
    sql.execute(
        "UPDATE keys SET state = $2, lease_until = $3, expires_at = $4, response_status = $5, response_cut = $6, response_headers = $7, \
         response_body = $8 WHERE scope = $1",
        values![
            end.scope,
            state,
            until,
            entry.expires,
            response.map(|response| response.status),
            response.map(|response| response.truncated),
            response.map(|response| response.headers.as_json()),
            response.map(|response| &response.body),
        ],
    )
    .await?;
    Ok(true)
}

pub(crate) async fn sweep<S: Sql>(sql: &mut S, now: &Wall, most: &usize) -> Result<usize, Error> {
    let statement = "DELETE FROM keys WHERE scope IN (SELECT scope FROM keys WHERE expires_at <= $1 LIMIT $2)";
    Ok(usize::try_from(sql.execute(statement, values![*now, *most]).await?).unwrap_or(usize::MAX))
}
