//! Advances replays: a canary first, then the requested rate. Any instance may do a step. The position is in the store alone, so that any
//! instance can die.

use super::maintenance::note;
use super::replay::{self, ReplayPlan};
use crate::ServerState;
use seawall_core::guard::State as Breaker;
use seawall_core::id::CallId;
use seawall_core::policy::Rate;
use seawall_core::time::{Nanos, Wall};
use seawall_core::units;
use seawall_store::Error;
use seawall_store::dead::{Letter, LetterQuery, LetterStatus};
use seawall_store::page::PageWindow;
use seawall_store::replay::{RECENT, Replay, ReplayState, Stepped};
use std::collections::BTreeSet;
use std::time::Duration;

/// Interval of the rounds while a replay runs, and while none does.
const BUSY: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_millis(500);
/// Time that a late round makes up for at once.
const LATE: Nanos = Nanos::from_millis(250);
/// Maximum letters of one replay in flight; more would only wait in line.
const MAX_UNDERWAY: u64 = 1000;
/// Letters that one round reads.
const LOOK: usize = 100;

/// Advances replays while the process serves.
pub(super) async fn run(shared: &ServerState) {
    let mut open = OpenReplays::default();
    loop {
        let running = open.running(shared).await.unwrap_or_default();
        for replay in &running {
            // A failed step is repeated in the next round.
            drop(move_on(shared, replay).await);
        }
        tokio::time::sleep(if running.is_empty() { IDLE } else { BUSY }).await;
    }
}

/// Replays that are not over, however old they are.
#[derive(Default)]
struct OpenReplays {
    known: BTreeSet<CallId>,
    is_complete: bool,
}

impl OpenReplays {
    /// Returns the running replays.
    async fn running(&mut self, shared: &ServerState) -> Result<Vec<Replay>, Error> {
        let (store, mut after, mut seen) = (&shared.desk.store, None, Vec::new());
        loop {
            let page = store.replays(PageWindow { after, limit: LOOK }).await?;
            seen.extend(page.entries);
            after = page.next;
            // After the first complete read, new replays are always on the first page.
            if after.is_none() || self.is_complete {
                break;
            }
        }
        self.is_complete = true;
        for id in std::mem::take(&mut self.known) {
            if !seen.iter().any(|replay| replay.new.id == id) {
                seen.extend(store.replay(id).await?);
            }
        }
        seen.retain(|replay| matches!(replay.state, ReplayState::Running | ReplayState::Paused(_)));
        self.known = seen.iter().map(|replay| replay.new.id).collect();
        seen.retain(|replay| replay.state == ReplayState::Running);
        Ok(seen)
    }
}

async fn move_on(shared: &ServerState, replay: &Replay) -> Result<(), Error> {
    let Ok(plan) = serde_json::from_str::<ReplayPlan>(&replay.new.filter) else { return Ok(()) };
    let Ok(filter) = plan.filter() else { return Ok(()) };
    let counts = replay.counts;
    let underway = counts.started.saturating_sub(counts.worked + counts.failed);
    let is_full = plan.reevaluates.is_some_and(|most| counts.started >= most);
    let letters = if is_full { Vec::new() } else { next(shared, &plan, &filter, replay).await? };
    if letters.is_empty() {
        // Another instance may have taken the last letters between the two reads.
        let is_over = underway == 0 && shared.desk.store.replay(replay.new.id).await?.is_some_and(|again| again == *replay);
        return if is_over { finish(shared, replay, &plan, None).await } else { Ok(()) };
    }
    if let Some(why) = obstacle(shared, replay).await? {
        return halt(shared, replay, &plan, why).await;
    }
    // No letter has succeeded yet: one at a time, so that a common failure occurs once.
    let is_canary = counts.worked < u64::from(replay.new.canary);
    if underway >= MAX_UNDERWAY || (is_canary && underway > 0) {
        return Ok(());
    }
    let rate = units::rate(&replay.new.rate).unwrap_or(Rate::per_second(1));
    let now = shared.desk.now();
    let mut allowed = if is_canary { 1 } else { due(rate, now.since(replay.updated_at)) };
    for letter in &letters {
        if allowed == 0 {
            break;
        }
        match step(shared, replay, &plan, letter, now).await? {
            Stepped::Started(_) => allowed -= 1,
            Stepped::HeldBack => {}
            // Another instance took the step, or an operator has stopped the replay.
            Stepped::Passed | Stepped::NotRunning => break,
        }
    }
    Ok(())
}

/// Returns how many letters may be sent after a pause of this length.
fn due(rate: Rate, since: Nanos) -> u64 {
    let one = rate.per.0 / rate.count.max(1);
    if since.0 < one {
        return 0;
    }
    (since.min(LATE).0 / one.max(1)).max(1)
}

async fn next(shared: &ServerState, plan: &ReplayPlan, filter: &LetterQuery, replay: &Replay) -> Result<Vec<Letter>, Error> {
    let window = PageWindow { after: replay.position, limit: LOOK };
    let mut letters = shared.desk.store.letters(filter.clone(), window).await?.entries;
    if plan.reevaluates.is_some() {
        // Skips all held-back letters of the page in one step.
        let (live, last) = (shared.live.load(), letters.last().cloned());
        letters.retain(|letter| plan.holds_back(letter, &live).is_none());
        if letters.is_empty() {
            letters.extend(last);
        }
    }
    Ok(letters)
}

async fn step(shared: &ServerState, replay: &Replay, plan: &ReplayPlan, listed: &Letter, now: Wall) -> Result<Stepped, Error> {
    let desk = &shared.desk;
    let id = listed.letter.id;
    let held_back = plan.holds_back(listed, &shared.live.load()).is_some();
    // Lists come without bodies. A letter that was deleted meanwhile is skipped.
    let whole = if held_back { None } else { desk.store.letter(id).await? };
    let job = whole.map(|letter| replay::job(&letter, desk.new_id(), now));
    let stepped = desk.store.step_replay(replay.new.id, id, job, now).await?;
    if matches!(stepped, Stepped::Started(_)) {
        desk.crew.wake_one();
    }
    Ok(stepped)
}

/// Returns a condition that stops a replay.
async fn obstacle(shared: &ServerState, replay: &Replay) -> Result<Option<String>, Error> {
    let live = shared.live.load_full();
    let now = shared.clock.now().mono;
    for upstream in replay.new.upstreams.iter().filter_map(|name| live.named(name)) {
        let open = upstream.endpoints.iter().find(|endpoint| endpoint.state.breaker_state(now).0 == Breaker::Open);
        if let Some(endpoint) = open {
            return Ok(Some(format!("the breaker of `{}` ({}) is open", upstream.spec.name, endpoint.names.endpoint)));
        }
    }
    if replay.recent_failures > RECENT / 2 {
        return Ok(Some(format!(
            "more than half failed again: {} of the last {RECENT}{}",
            replay.recent_failures,
            last_words(shared, replay).await?
        )));
    }
    let counts = replay.counts;
    let canary_failed = counts.worked < u64::from(replay.new.canary) && counts.failed > 0 && counts.started == counts.failed;
    let (true, Some(last)) = (canary_failed, replay.position) else { return Ok(None) };
    // A failure from before the operator resumed the replay is known to that operator.
    let failed = shared.desk.store.letter(last).await?.filter(|letter| letter.letter.dead_at >= replay.updated_at);
    Ok(failed.map(|letter| format!("the first letter failed again: {} {}", letter.letter.code, letter.letter.detail).trim_end().to_owned()))
}

/// Returns the error of the last failed letter, as an example.
async fn last_words(shared: &ServerState, replay: &Replay) -> Result<String, Error> {
    let Some(last) = replay.position else { return Ok(String::new()) };
    let failed = shared.desk.store.letter(last).await?.filter(|letter| letter.status == LetterStatus::Kept && letter.replays > 0);
    Ok(failed.map(|letter| format!(", with {} {}", letter.letter.code, letter.letter.detail).trim_end().to_owned()).unwrap_or_default())
}

/// Pauses a replay until an operator resumes it. An automatic one ends instead, so that it blocks nothing.
async fn halt(shared: &ServerState, replay: &Replay, plan: &ReplayPlan, why: String) -> Result<(), Error> {
    if plan.reevaluates.is_some() {
        return finish(shared, replay, plan, Some(why)).await;
    }
    if shared.desk.store.set_replay(replay.new.id, ReplayState::Paused(why.clone()), shared.desk.now()).await? {
        note(shared, "replay_paused", vec![("id", replay.new.id.to_string()), ("name", replay.new.name.clone()), ("reason", why)]);
    }
    Ok(())
}

async fn finish(shared: &ServerState, replay: &Replay, plan: &ReplayPlan, why: Option<String>) -> Result<(), Error> {
    if shared.desk.store.set_replay(replay.new.id, ReplayState::Done, shared.desk.now()).await? {
        let counts = replay.counts;
        let event = if plan.reevaluates.is_some() { "dead_letters_reevaluated" } else { "replay_done" };
        let mut fields = vec![
            ("id", replay.new.id.to_string()),
            ("name", replay.new.name.clone()),
            ("upstreams", replay.new.upstreams.join(",")),
            ("started", counts.started.to_string()),
            ("ok", counts.worked.to_string()),
            ("failed", counts.failed.to_string()),
            ("held_back", counts.held_back.to_string()),
        ];
        fields.extend(why.map(|why| ("reason", why)));
        note(shared, event, fields);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_however_often_one_looks() {
        let rate = Rate::per_second(10);
        assert_eq!(due(rate, Nanos::from_millis(99)), 0);
        assert_eq!(due(rate, Nanos::from_millis(100)), 1);
        assert_eq!(due(rate, Nanos::from_secs(3600)), 2, "a pause is not made up for");
        assert_eq!(due(Rate::per_second(1000), Nanos::from_millis(100)), 100);
        assert_eq!(due(Rate { count: 1, per: Nanos::from_secs(60) }, Nanos::from_secs(60)), 1);
    }
}
