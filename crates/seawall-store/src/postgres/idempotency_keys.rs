//! Ends of the reservations of settled jobs, in one batch. The core has the rules.

use super::pool::PooledConnection;
use super::transaction::ask;
use crate::error::Error;
use crate::model::idempotency::FinishKey;
use crate::model::job::Response;
use crate::statements::idempotency::{ENTRY, entry, number};
use seawall_core::admit::idempotency::{self as rule, KeyEntry};
use seawall_core::time::Wall;
use std::collections::BTreeMap;

/// A reservation's entry, and the end to write.
type KeySlot<'a> = (Option<KeyEntry>, Option<&'a FinishKey>);

const WRITE: &str = "UPDATE keys SET state = e.state, lease_until = e.until, expires_at = e.expires, response_status = e.status, \
                     response_cut = e.cut, response_headers = e.headers, response_body = e.body \
                     FROM unnest($1::bytea[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::bytea[]) \
                     AS e(scope, state, until, expires, status, cut, headers, body) WHERE keys.scope = e.scope";

pub(super) async fn finish(connection: &PooledConnection, ends: &[&FinishKey]) -> Result<(), Error> {
    if ends.is_empty() {
        return Ok(());
    }
    let slots = decided(read(connection, ends).await?, ends);
    let (kept, gone): (Vec<_>, Vec<_>) =
        slots.iter().filter_map(|(scope, (slot, end))| Some((scope, slot, (*end)?))).partition(|(_, slot, _)| slot.is_some());
    let freed: Vec<&[u8]> = gone.iter().map(|(scope, ..)| &scope[..]).collect();
    if !freed.is_empty() {
        ask(connection, "DELETE FROM keys WHERE scope = ANY($1)", &[&freed]).await?;
    }
    let kept: Vec<(&[u8], KeyEntry, Option<&Response>)> =
        kept.into_iter().filter_map(|(scope, slot, end)| Some((&scope[..], (*slot)?, end.response.as_ref()))).collect();
    if kept.is_empty() { Ok(()) } else { write(connection, &kept).await }
}

/// Reads and locks the entries in the order of scopes, like everywhere, to avoid deadlocks.
async fn read<'a>(connection: &PooledConnection, ends: &[&FinishKey]) -> Result<BTreeMap<[u8; 32], KeySlot<'a>>, Error> {
    let scopes: Vec<&[u8]> = ends.iter().map(|end| &end.scope[..]).collect();
    let statement = format!("SELECT scope, {ENTRY} FROM keys WHERE scope = ANY($1) ORDER BY scope FOR UPDATE");
    let mut slots = BTreeMap::new();
    for mut row in ask(connection, &statement, &[&scopes]).await? {
        slots.insert(row.take()?, (Some(entry(&mut row)?), None));
    }
    Ok(slots)
}

fn decided<'a>(mut slots: BTreeMap<[u8; 32], KeySlot<'a>>, ends: &[&'a FinishKey]) -> BTreeMap<[u8; 32], KeySlot<'a>> {
    for end in ends {
        if let Some((slot, by)) = slots.get_mut(&end.scope)
            && rule::finish(slot, end.reservation, end.ending, end.ttl, end.now)
        {
            *by = Some(end);
        }
    }
    slots
}

async fn write(connection: &PooledConnection, kept: &[(&[u8], KeyEntry, Option<&Response>)]) -> Result<(), Error> {
    let scopes: Vec<&[u8]> = kept.iter().map(|(scope, ..)| *scope).collect();
    let (states, until): (Vec<i64>, Vec<Option<Wall>>) = kept.iter().map(|(_, entry, _)| number(entry.state)).unzip();
    let until: Vec<Option<i64>> = until.into_iter().map(|at| at.map(|at| at.0)).collect();
    let expires: Vec<i64> = kept.iter().map(|(_, entry, _)| entry.expires.0).collect();
    let response = || kept.iter().map(|(.., response)| *response);
    let statuses: Vec<Option<i64>> = response().map(|response| response.map(|response| response.status.into())).collect();
    let cuts: Vec<Option<i64>> = response().map(|response| response.map(|response| response.truncated.into())).collect();
    let headers: Vec<Option<&str>> = response().map(|response| response.map(|response| response.headers.as_json())).collect();
    let bodies: Vec<Option<&[u8]>> = response().map(|response| response.map(|response| &response.body[..])).collect();
    ask(connection, WRITE, &[&scopes, &states, &until, &expires, &statuses, &cuts, &headers, &bodies]).await.map(drop)
}
