//! Periodic re-evaluation of dead letters: failures that may have passed are replayed once, and a log line reports the result. The time of
//! the last run is in the store, so that a restart neither repeats nor skips one.

use super::replay::{self, REEVALUATION, ReplayPlan};
use crate::ServerState;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Error;
use seawall_store::replay::{Created, NewReplay};
use std::collections::BTreeMap;

/// Maximum letters of one upstream per re-evaluation.
const MAX_LETTERS: u64 = 1000;
/// Pause before the next try if another replay is running.
const SOON: Nanos = Nanos::from_secs(60);

/// The next re-evaluation of each upstream, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct Diary(BTreeMap<String, Wall>);

impl Diary {
    /// Starts the re-evaluations that are due.
    pub(super) async fn round(&mut self, shared: &ServerState) {
        let live = shared.live.load_full();
        for upstream in &live.upstreams {
            let Some(every) = upstream.endpoints.last().map(|endpoint| endpoint.spec.policy.dead_letter.reevaluate) else { continue };
            let name = &upstream.spec.name;
            let is_due = self.0.get(name).is_none_or(|at| *at <= shared.desk.now());
            if is_due && every > Nanos::ZERO {
                // A failed read is repeated in the next round.
                if let Ok(next) = run_if_due(shared, name, every).await {
                    self.0.insert(name.clone(), next);
                }
            }
        }
    }
}

/// Starts a re-evaluation if it is due. Returns the time of the next check.
async fn run_if_due(shared: &ServerState, upstream: &str, every: Nanos) -> Result<Wall, Error> {
    let (desk, mark) = (&shared.desk, format!("reevaluated:{upstream}"));
    let now = desk.now();
    match desk.store.snapshot(mark.clone()).await? {
        Some((last, _)) if now.since(last) < every => return Ok(last + every),
        Some(_) => {
            let depths = desk.store.depths().await?;
            let any = depths.iter().any(|depth| depth.queue == upstream && depth.open > 0);
            if any && !begin(shared, upstream, now).await? {
                return Ok(now + SOON);
            }
        }
        // On the first start the period begins now.
        None => {}
    }
    desk.store.put_snapshot(mark, bytes::Bytes::new(), now).await?;
    Ok(now + every)
}

/// Starts the replay. Returns `false` if another replay covers this upstream.
async fn begin(shared: &ServerState, upstream: &str, now: Wall) -> Result<bool, Error> {
    let filter = BTreeMap::from([("upstream".to_owned(), upstream.to_owned()), ("until".to_owned(), now.to_string())]);
    let plan = ReplayPlan { filter, reevaluates: Some(MAX_LETTERS), ..ReplayPlan::default() };
    let upstreams = vec![upstream.to_owned()];
    let new = NewReplay {
        id: shared.desk.new_id(),
        name: REEVALUATION.to_owned(),
        who: "seawall".to_owned(),
        filter: serde_json::to_string(&plan).map_err(|error| Error::Failed(error.to_string()))?,
        rate: replay::slowest(&upstreams, &shared.live.load()).to_string(),
        upstreams,
        canary: 1,
        created_at: now,
    };
    Ok(shared.desk.store.create_replay(new).await? == Created::Started)
}
