//! Claims: one statement takes the first jobs of each lane.

use super::claim_position::Position;
use super::pool::PostgresPool;
use super::transaction::{RELAXED, ask};
use crate::error::Error;
use crate::model::job::{ClaimRequest, Claimed, SHORT_BODY};
use crate::rows::{self, CLAIMED};
use crate::sql::{RowReader, count};
use std::borrow::Cow;
use std::sync::OnceLock;
use tokio_postgres::types::ToSql;

/// A short body, and the length of any body. A long body is not read for its length.
const BODY: &str = concat!("CASE WHEN octet_length(jobs.body) <= ", 16384, " THEN jobs.body END, octet_length(jobs.body)");
const _: () = assert!(SHORT_BODY == 16384, "as it is written above");

/// The start of the search in a lane: its front, or the end of the last claim.
#[derive(Clone, Copy, Debug)]
enum ClaimStart {
    Front,
    Position,
}

fn claim_statement(from: ClaimStart) -> &'static str {
    static STATEMENTS: OnceLock<[String; 2]> = OnceLock::new();
    let statements = STATEMENTS.get_or_init(|| {
        let lanes = ["lane(upstream, most)", "lane(upstream, most, priority, turn)"];
        let given = ["$3::text[], $4::int8[]", "$3::text[], $4::int8[], $5::int8[], $6::int8[]"];
        let rules = ["$5", "$7"];
        let wanted = ["", "AND queue.priority = lane.priority AND queue.turn >= lane.turn "];
        [0, 1].map(|from| {
            let (lane, given, wanted, rules) = (lanes[from], given[from], wanted[from], rules[from]);
            format!(
                "WITH picked AS MATERIALIZED (SELECT j.t FROM unnest({given}) AS {lane} CROSS JOIN LATERAL \
                 (SELECT queue.ctid AS t FROM queue WHERE queue.upstream = lane.upstream {wanted}\
                 ORDER BY queue.priority DESC, queue.turn LIMIT lane.most FOR UPDATE SKIP LOCKED) j), \
                 gone AS (DELETE FROM queue WHERE ctid = ANY(ARRAY(SELECT t FROM picked)) RETURNING row, upstream, turn, cancel), \
                 marked AS (INSERT INTO claims (row, token, lease_until, cancel, rules) SELECT row, $1, $2, cancel, {rules}::int8 FROM gone), \
                 moved AS (INSERT INTO lanes AS l (upstream, present) SELECT upstream, max(turn) FROM gone GROUP BY 1 ORDER BY 1 \
                 ON CONFLICT (upstream) DO UPDATE SET present = excluded.present WHERE l.present < excluded.present) \
                 SELECT {CLAIMED}, jobs.turn, {BODY}, (SELECT {RELAXED}) FROM jobs WHERE jobs.row = ANY(ARRAY(SELECT row FROM gone)) \
                 ORDER BY jobs.priority DESC, jobs.turn"
            )
        })
    });
    &statements[from as usize]
}

pub(super) async fn claim(pool: &PostgresPool, claim: &ClaimRequest) -> Result<Vec<Claimed>, Error> {
    let positions = &pool.bell().positions;
    let mut claimed = Vec::new();
    let mut lanes = Cow::Borrowed(&claim.lanes[..]);
    if let Some(from) = positions.of(&lanes, claim.now) {
        claimed = take(pool, claim, &lanes, Some(&from)).await?;
        positions.keep(&lanes, &claimed, claim.now, Some(&from));
        lanes = Cow::Owned(unfilled_lanes(&lanes, &claimed));
    }
    if !lanes.is_empty() {
        let mut front = match take(pool, claim, &lanes, None).await {
            // The jobs of the first statement are claimed already.
            Err(_) if !claimed.is_empty() => Vec::new(),
            looked => looked?,
        };
        // If the second statement is recovered by its token after a broken connection, it includes the jobs of the first.
        front.retain(|(_, one)| claimed.iter().all(|(_, known): &(i64, Claimed)| known.lease != one.lease));
        positions.keep(&lanes, &front, claim.now, None);
        claimed.extend(front);
    }
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

/// Returns the remaining demand per lane.
fn unfilled_lanes(lanes: &[(String, usize)], claimed: &[(i64, Claimed)]) -> Vec<(String, usize)> {
    let given = |lane: &str| claimed.iter().filter(|(_, one)| one.job.upstream == lane).count();
    lanes.iter().map(|(lane, most)| (lane.clone(), most.saturating_sub(given(lane)))).filter(|(_, most)| *most > 0).collect()
}

/// Claims jobs and returns them with their turns.
async fn take(
    pool: &PostgresPool,
    claim: &ClaimRequest,
    lanes: &[(String, usize)],
    from: Option<&[Position]>,
) -> Result<Vec<(i64, Claimed)>, Error> {
    let (upstreams, most): (Vec<&str>, Vec<i64>) = lanes.iter().map(|(upstream, most)| (upstream.as_str(), count(*most))).unzip();
    let token = i64::from_ne_bytes(claim.token.to_ne_bytes());
    let until = (claim.now + claim.lease).0;
    let connection = pool.get().await?;
    let taken = match from {
        None => ask(&connection, claim_statement(ClaimStart::Front), &[&token, &until, &upstreams, &most, &claim.rules]).await,
        Some(from) => {
            let (priorities, turns): (Vec<i64>, Vec<i64>) = from.iter().map(|at| (at.priority, at.turn)).unzip();
            let values: [&(dyn ToSql + Sync); 7] = [&token, &until, &upstreams, &most, &priorities, &turns, &claim.rules];
            ask(&connection, claim_statement(ClaimStart::Position), &values).await
        }
    };
    drop(connection);
    let rows = match taken {
        // The connection broke, perhaps after the claim was committed: all claims with this token are ours.
        Err(Error::Unavailable(_)) => {
            let mine = format!(
                "SELECT {CLAIMED}, jobs.turn, {BODY} FROM claims JOIN jobs ON jobs.row = claims.row \
                 WHERE claims.token = $1 AND jobs.upstream = ANY($2)"
            );
            ask(&pool.get().await?, &mine, &[&token, &upstreams]).await?
        }
        other => other?,
    };
    rows.into_iter().map(|row| claimed(row, token, claim.rules)).collect()
}

fn claimed(mut row: RowReader, token: i64, rules: i64) -> Result<(i64, Claimed), Error> {
    let (mut job, lease) = rows::claimed(&mut row, token)?;
    let turn: i64 = row.take()?;
    let (body, body_left) = rows::claimed_body(&mut row)?;
    job.request.body = body;
    Ok((turn, Claimed { lease, job, body_left, rules }))
}
