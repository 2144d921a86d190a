//! Dead letters get a second look now and then: what may have passed by itself is replayed once, and a line says how
//! that went. When it was done last is in the store, so that a restart neither repeats nor forgets it.

use super::replay::{self, REEVALUATION, ReplayPlan};
use crate::ServerState;
use seawall_core::time::{Nanos, Wall};
use seawall_store::Error;
use seawall_store::replay::{Created, NewReplay};
use std::collections::BTreeMap;

/// Letters of one upstream that one re-evaluation tries at most.
const MAX_LETTERS: u64 = 1000;
/// How soon it is tried again where another replay is in the way.
const SOON: Nanos = Nanos::from_secs(60);

/// When each upstream's letters are looked at next, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct Diary(BTreeMap<String, Wall>);

impl Diary {
    /// Starts whatever is due.
    pub(super) async fn round(&mut self, shared: &ServerState) {
        let live = shared.live.load_full();
        for upstream in &live.upstreams {
            let Some(every) = upstream.endpoints.last().map(|endpoint| endpoint.spec.policy.dead_letter.reevaluate) else { continue };
            let name = &upstream.spec.name;
            let is_due = self.0.get(name).is_none_or(|at| *at <= shared.desk.now());
            if is_due && every > Nanos::ZERO {
                // A store that fails is asked again in the next round.
                if let Ok(next) = look(shared, name, every).await {
                    self.0.insert(name.clone(), next);
                }
            }
        }
    }
}

/// Looks whether it is time, begins where it is, and says when to look again.
async fn look(shared: &ServerState, upstream: &str, every: Nanos) -> Result<Wall, Error> {
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
        // The letters of a first start are as old as it.
        None => {}
    }
    desk.store.put_snapshot(mark, bytes::Bytes::new(), now).await?;
    Ok(now + every)
}

/// `false` where another replay is at this upstream.
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
