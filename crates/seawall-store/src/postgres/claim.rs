//! Jobs go out: a claim takes what is first in each of its lanes, in one statement.

use super::pool::Pool;
use super::position::Position;
use super::tx::{RELAXED, ask};
use crate::error::Error;
use crate::job::{Claim, Claimed};
use crate::rows::{self, CLAIMED};
use crate::sql::{Row, count};
use std::borrow::Cow;
use std::sync::OnceLock;
use tokio_postgres::types::ToSql;

/// What a lane is asked for: from its front, or from where the last claim ended.
#[derive(Clone, Copy, Debug)]
enum From {
    Front,
    Position,
}

fn claim_statement(from: From) -> &'static str {
    static STATEMENTS: OnceLock<[String; 2]> = OnceLock::new();
    let statements = STATEMENTS.get_or_init(|| {
        let lanes = ["lane(upstream, most)", "lane(upstream, most, priority, turn)"];
        let given = ["$3::text[], $4::int8[]", "$3::text[], $4::int8[], $5::int8[], $6::int8[]"];
        let wanted = ["", "AND jobs.priority = lane.priority AND jobs.turn >= lane.turn "];
        [0, 1].map(|from| {
            let (lane, given, wanted) = (lanes[from], given[from], wanted[from]);
            format!(
                "WITH picked AS MATERIALIZED (SELECT j.t FROM unnest({given}) AS {lane} CROSS JOIN LATERAL \
                 (SELECT jobs.ctid AS t FROM jobs WHERE jobs.state = 0 AND jobs.upstream = lane.upstream {wanted}\
                 ORDER BY jobs.priority DESC, jobs.turn LIMIT lane.most FOR UPDATE SKIP LOCKED) j), \
                 claimed AS (UPDATE jobs SET state = 1, claim = claim + 1, token = $1, lease_until = $2 \
                 WHERE jobs.ctid = ANY(ARRAY(SELECT t FROM picked)) RETURNING {CLAIMED}, turn, body), \
                 moved AS (INSERT INTO lanes AS l (upstream, present) SELECT upstream, max(turn) FROM claimed GROUP BY 1 ORDER BY 1 \
                 ON CONFLICT (upstream) DO UPDATE SET present = excluded.present WHERE l.present < excluded.present) \
                 SELECT *, (SELECT {RELAXED}) FROM claimed ORDER BY priority DESC, turn"
            )
        })
    });
    &statements[from as usize]
}

pub(super) async fn claim(pool: &Pool, claim: &Claim) -> Result<Vec<Claimed>, Error> {
    let positions = &pool.bell().positions;
    let mut claimed = Vec::new();
    let mut lanes = Cow::Borrowed(&claim.lanes[..]);
    if let Some(from) = positions.of(&lanes, claim.now) {
        claimed = take(pool, claim, &lanes, Some(&from)).await?;
        positions.keep(&lanes, &claimed, claim.now, Some(&from));
        lanes = Cow::Owned(rest(&lanes, &claimed));
    }
    if !lanes.is_empty() {
        let mut front = match take(pool, claim, &lanes, None).await {
            // What the first look gave is ours already.
            Err(_) if !claimed.is_empty() => Vec::new(),
            looked => looked?,
        };
        // Found by its token, after a connection broke, is also what the first look gave.
        front.retain(|(_, one)| claimed.iter().all(|(_, known): &(i64, Claimed)| known.lease != one.lease));
        positions.keep(&lanes, &front, claim.now, None);
        claimed.extend(front);
    }
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

/// What lanes have not given yet.
fn rest(lanes: &[(String, usize)], claimed: &[(i64, Claimed)]) -> Vec<(String, usize)> {
    let given = |lane: &str| claimed.iter().filter(|(_, one)| one.job.upstream == lane).count();
    lanes.iter().map(|(lane, most)| (lane.clone(), most.saturating_sub(given(lane)))).filter(|(_, most)| *most > 0).collect()
}

/// Claims, with turns.
async fn take(pool: &Pool, claim: &Claim, lanes: &[(String, usize)], from: Option<&[Position]>) -> Result<Vec<(i64, Claimed)>, Error> {
    let (upstreams, most): (Vec<&str>, Vec<i64>) = lanes.iter().map(|(upstream, most)| (upstream.as_str(), count(*most))).unzip();
    let token = i64::from_ne_bytes(claim.token.to_ne_bytes());
    let until = (claim.now + claim.lease).0;
    let connection = pool.get().await?;
    let taken = match from {
        None => ask(&connection, claim_statement(From::Front), &[&token, &until, &upstreams, &most]).await,
        Some(from) => {
            let (priorities, turns): (Vec<i64>, Vec<i64>) = from.iter().map(|at| (at.priority, at.turn)).unzip();
            let values: [&(dyn ToSql + Sync); 6] = [&token, &until, &upstreams, &most, &priorities, &turns];
            ask(&connection, claim_statement(From::Position), &values).await
        }
    };
    drop(connection);
    let rows = match taken {
        // The connection broke, perhaps after the claim was written: what has this token is ours.
        Err(Error::Unavailable(_)) => {
            let mine = format!("SELECT {CLAIMED}, turn, body FROM jobs WHERE state = 1 AND token = $1 AND upstream = ANY($2)");
            ask(&pool.get().await?, &mine, &[&token, &upstreams]).await?
        }
        other => other?,
    };
    rows.into_iter().map(claimed).collect()
}

fn claimed(mut row: Row) -> Result<(i64, Claimed), Error> {
    let (mut job, lease) = rows::claimed(&mut row)?;
    let turn: i64 = row.take()?;
    job.request.body = rows::body(row.take()?)?;
    Ok((turn, Claimed { lease, job }))
}
