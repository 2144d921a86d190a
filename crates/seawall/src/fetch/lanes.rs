//! Waiting rows, in one lane for each upstream or host: the next row, pauses, and rows on disk. Lanes take turns, so that a slow host never
//! blocks the rest; rows in memory are bounded, whatever the input is.

use super::input::EarlierRow;
use super::pages::Landmark;
use super::row::InputRow;
use super::spill::Spill;
use crate::setup::Scratch;
use seawall_core::admit::limit::{Gcra, LimitAnswer, LimitCell};
use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::record::{AttemptOutcome, Class, Code, Reason};
use seawall_core::time::{Mono, Nanos, Now, Wall};
use seawall_engine::mask::Masked;
use seawall_server::letter::Cause;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// The approximate memory for waiting rows; further rows go to disk.
const MEMORY: usize = 2 << 20;
/// Above this number, idle lanes are reused for other hosts.
const MAX_LANES: usize = 1024;
/// The most lanes with a file at a time. Beyond that, reading waits instead.
const MAX_SPILLS: usize = 256;
/// For each slot, the most rows that wait for their own next attempt.
const ASLEEP_EACH: usize = 32;
/// The most lines that rows may start ahead of the next line of an ordered output.
const WINDOW: u64 = 2048;
/// The most bytes that wait for their turn in an ordered output before only the next line may start.
const MAX_HELD: usize = 32 << 20;

/// A row that has been started.
#[derive(Debug)]
pub(super) struct StartedRow {
    pub id: CallId,
    pub row: InputRow,
    pub before: EarlierRow,
    pub progress: CallProgress,
    pub history: Vec<(Wall, AttemptOutcome)>,
    /// Time of attempts and the row's own waits, without pauses of its whole host.
    pub spent: Nanos,
    pub started: Now,
    /// The current page, from 1.
    pub page: u32,
    pub landmark: Landmark,
    /// Sends of this page beyond its attempts: they replaced a dead connection.
    pub resends: u32,
    pub lane: usize,
}

#[derive(Debug)]
struct OriginLane {
    name: Arc<str>,
    /// Started rows that may continue.
    ready: VecDeque<Box<StartedRow>>,
    queue: VecDeque<(InputRow, EarlierRow)>,
    spill: Option<Spill>,
    running: usize,
    asleep: usize,
    is_active: bool,
    paused_until: Mono,
    /// When its host began to refuse all requests.
    trouble_since: Option<Mono>,
    given_up: Option<Code>,
}

impl OriginLane {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            ready: VecDeque::new(),
            queue: VecDeque::new(),
            spill: None,
            running: 0,
            asleep: 0,
            is_active: false,
            paused_until: Mono(0),
            trouble_since: None,
            given_up: None,
        }
    }

    fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.queue.is_empty() || self.spills()
    }

    fn spills(&self) -> bool {
        self.spill.as_ref().is_some_and(|spill| !spill.is_empty())
    }
}

/// A started row that waits, ordered by time.
#[derive(Debug)]
struct Asleep {
    until: Mono,
    run: Box<StartedRow>,
}

impl PartialEq for Asleep {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Asleep {}

impl PartialOrd for Asleep {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Asleep {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.until, other.run.row.ordinal).cmp(&(self.until, self.run.row.ordinal))
    }
}

/// A worker's next task.
#[derive(Debug)]
pub(super) enum NextWork {
    Go(Box<StartedRow>),
    Fresh(usize, Box<(InputRow, EarlierRow)>),
    Nothing,
    /// No more rows will come.
    Over,
}

#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<OriginLane>,
    by_name: HashMap<Arc<str>, usize>,
    /// Lanes that have rows and are not paused, the next one first.
    active: VecDeque<usize>,
    paused: BinaryHeap<Reverse<(Mono, usize)>>,
    asleep: BinaryHeap<Asleep>,
    idle: Vec<usize>,
    most_running: usize,
    running: usize,
    memory: usize,
    /// Rows that have not been started, and started rows that may continue.
    waiting: u64,
    ready: usize,
    spills: usize,
    scratch: Option<Scratch>,
    /// Remainders from earlier runs of rows that are on disk.
    left: BTreeMap<u64, EarlierRow>,
    /// No row in memory could be started.
    starved: bool,
    pub input_over: bool,
    pub stopping: bool,
    pace: Option<(Gcra, LimitCell)>,
    pace_until: Mono,
    /// The next line of an ordered output, and the bytes that wait for their turn.
    pub ordered: Option<(u64, usize)>,
    max_outage: Nanos,
}

impl Lanes {
    pub(super) fn new(most_running: usize, pace: Option<Gcra>, ordered: bool, max_outage: Nanos) -> Self {
        Self {
            lanes: Vec::new(),
            by_name: HashMap::new(),
            active: VecDeque::new(),
            paused: BinaryHeap::new(),
            asleep: BinaryHeap::new(),
            idle: Vec::new(),
            most_running,
            running: 0,
            memory: 0,
            waiting: 0,
            ready: 0,
            spills: 0,
            scratch: None,
            left: BTreeMap::new(),
            starved: false,
            input_over: false,
            stopping: false,
            pace: pace.map(|limit| (limit, LimitCell::default())),
            pace_until: Mono(0),
            ordered: ordered.then_some((0, 0)),
            max_outage,
        }
    }

    /// Whether to read more input: to have rows in memory, or to find a row for another host.
    pub(super) const fn is_hungry(&self) -> bool {
        !self.input_over
            && !self.stopping
            && (self.memory < MEMORY || (self.starved && self.spills < MAX_SPILLS && self.memory < 2 * MEMORY))
    }

    /// Rows that have not been started, that wait, and that run.
    pub(super) fn counts(&self) -> (u64, usize, usize) {
        (self.waiting, self.asleep.len(), self.running)
    }

    pub(super) fn paused(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.paused_until != Mono(0)).count()
    }

    pub(super) fn push(&mut self, row: InputRow, before: EarlierRow) -> io::Result<()> {
        let at = self.lane(&row.lane);
        self.waiting += 1;
        self.starved = false;
        let lane = &mut self.lanes[at];
        if lane.spills() || (self.memory >= MEMORY && self.spills < MAX_SPILLS && self.ordered.is_none()) {
            if lane.spill.is_none() {
                let scratch = match &self.scratch {
                    Some(scratch) => scratch,
                    None => self.scratch.insert(Scratch::new("fetch").map_err(io::Error::other)?),
                };
                lane.spill = Some(Spill::new(scratch.path(), at)?);
                self.spills += 1;
            }
            if before != EarlierRow::default() {
                self.left.insert(row.ordinal, before);
            }
            if let Some(spill) = &mut lane.spill {
                spill.push(&row)?;
            }
        } else {
            self.memory += row.weight();
            lane.queue.push_back((row, before));
        }
        self.activate(at);
        Ok(())
    }

    fn lane(&mut self, name: &Arc<str>) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let fresh = OriginLane::new(Arc::clone(name));
        let reused = if self.lanes.len() < MAX_LANES { None } else { self.idle.pop() };
        let at = match reused.filter(|at| self.is_idle(*at)) {
            Some(at) => {
                self.by_name.remove(&self.lanes[at].name);
                self.lanes[at] = fresh;
                at
            }
            None => {
                self.lanes.push(fresh);
                self.lanes.len() - 1
            }
        };
        self.by_name.insert(Arc::clone(name), at);
        at
    }

    fn is_idle(&self, at: usize) -> bool {
        let lane = &self.lanes[at];
        !lane.has_work() && lane.running == 0 && lane.asleep == 0 && !lane.is_active && lane.paused_until == Mono(0) && lane.spill.is_none()
    }

    fn activate(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        if !lane.is_active && lane.paused_until == Mono(0) && lane.has_work() {
            lane.is_active = true;
            self.active.push_back(at);
        }
    }

    /// Wakes rows that may continue and lanes whose pause is over.
    pub(super) fn wake(&mut self, now: Mono) {
        if self.pace_until <= now {
            self.pace_until = Mono(0);
        }
        while let Some(next) = self.asleep.peek().filter(|next| next.until <= now) {
            let at = next.run.lane;
            if let Some(Asleep { run, .. }) = self.asleep.pop() {
                self.lanes[at].asleep -= 1;
                self.lanes[at].ready.push_back(run);
                self.ready += 1;
                self.activate(at);
            }
        }
        while let Some(Reverse((until, at))) = self.paused.peek().copied().filter(|Reverse((until, _))| *until <= now) {
            self.paused.pop();
            // An entry is stale if its pause was extended or a success has ended it.
            if self.lanes[at].paused_until == until {
                self.lanes[at].paused_until = Mono(0);
                self.activate(at);
            }
        }
    }

    /// The time of the next `wake`.
    pub(super) fn next_wake(&self) -> Option<Mono> {
        let asleep = self.asleep.peek().map(|next| next.until);
        let paused = self.paused.peek().map(|Reverse((until, _))| *until);
        let pace = Some(self.pace_until).filter(|until| *until > Mono(0));
        [asleep, paused, pace].into_iter().flatten().min()
    }

    pub(super) fn take(&mut self, now: Mono) -> io::Result<NextWork> {
        self.starved = false;
        let nothing_left = self.waiting == 0 && self.ready == 0 && self.running == 0 && self.asleep.is_empty();
        if self.stopping || (self.input_over && nothing_left) {
            return Ok(NextWork::Over);
        }
        if let Some((limit, cell)) = &self.pace
            && let LimitAnswer::Refused { retry_at } = limit.check(cell, now, 1)
        {
            self.pace_until = retry_at;
            return Ok(NextWork::Nothing);
        }
        self.pace_until = Mono(0);
        for _ in 0..self.active.len() {
            let Some(at) = self.active.pop_front() else { break };
            self.lanes[at].is_active = false;
            let taken = self.pick(at)?;
            self.activate(at);
            if let Some(next) = taken {
                self.lanes[at].running += 1;
                self.running += 1;
                if let Some((limit, cell)) = &mut self.pace {
                    let _asked: LimitAnswer = limit.take(cell, now, 1);
                }
                return Ok(next);
            }
        }
        self.starved = self.ordered.is_none() && self.asleep.len() < self.most_running * ASLEEP_EACH;
        Ok(NextWork::Nothing)
    }

    fn pick(&mut self, at: usize) -> io::Result<Option<NextWork>> {
        // Other lanes, if there are any, share the other half of the slots.
        let alone = self.active.is_empty() && self.running == self.lanes[at].running;
        let crowded = self.asleep.len() >= self.most_running * ASLEEP_EACH;
        let lane = &mut self.lanes[at];
        if !alone && lane.running >= self.most_running.div_ceil(2) {
            return Ok(None);
        }
        if let Some(run) = lane.ready.pop_front() {
            self.ready -= 1;
            return Ok(Some(NextWork::Go(run)));
        }
        if crowded {
            return Ok(None);
        }
        if let Some((next, held)) = self.ordered {
            let in_reach = |ordinal: u64| ordinal == next || (held < MAX_HELD && ordinal < next.saturating_add(WINDOW));
            // An ordered output has no rows on disk and reads none ahead for other hosts.
            if lane.queue.front().is_some_and(|(row, _)| !in_reach(row.ordinal)) {
                return Ok(None);
            }
        }
        if let Some((row, before)) = lane.queue.pop_front() {
            self.memory -= row.weight();
            self.waiting -= 1;
            return Ok(Some(NextWork::Fresh(at, Box::new((row, before)))));
        }
        let Some(spill) = &mut lane.spill else { return Ok(None) };
        let row = spill.pop(&lane.name)?;
        if spill.is_empty() {
            lane.spill = None;
            self.spills -= 1;
        }
        let Some(row) = row else { return Ok(None) };
        self.waiting -= 1;
        let before = self.left.remove(&row.ordinal).unwrap_or_default();
        Ok(Some(NextWork::Fresh(at, Box::new((row, before)))))
    }

    /// Why rows of this lane are not worth sending, if they are not.
    pub(super) fn given_up(&self, at: usize) -> Option<Code> {
        self.lanes[at].given_up
    }

    /// A row left its slot: it ended, or has to wait.
    pub(super) fn leave(&mut self, at: usize) {
        self.lanes[at].running -= 1;
        self.running -= 1;
        if self.lanes.len() >= MAX_LANES && self.is_idle(at) {
            self.idle.push(at);
        }
    }

    /// The host gave a good response: any pause of the lane is over.
    pub(super) fn went_well(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        lane.trouble_since = None;
        if lane.paused_until != Mono(0) {
            lane.paused_until = Mono(0);
            self.activate(at);
        }
    }

    /// A row waits for its own next attempt.
    pub(super) fn sleep(&mut self, run: Box<StartedRow>, until: Mono) {
        self.lanes[run.lane].asleep += 1;
        self.asleep.push(Asleep { until, run });
    }

    /// Pauses the whole lane until then. If its trouble lasts longer than the allowed outage, the lane is given up with `code`.
    pub(super) fn pause(&mut self, run: Box<StartedRow>, until: Mono, code: Option<Code>, now: Mono) {
        let at = run.lane;
        let max_outage = self.max_outage;
        let lane = &mut self.lanes[at];
        let since = *lane.trouble_since.get_or_insert(now);
        lane.ready.push_front(run);
        self.ready += 1;
        if let Some(code) = code.filter(|_| until.since(since) > max_outage) {
            lane.given_up = Some(code);
            lane.paused_until = Mono(0);
            self.activate(at);
            return;
        }
        if until > lane.paused_until {
            lane.paused_until = until;
            self.paused.push(Reverse((until, at)));
        }
        if lane.is_active {
            lane.is_active = false;
            self.active.retain(|other| *other != at);
        }
    }
}

/// The cause for rows of a lane that was given up, by the code of its last refusal.
pub(super) fn lane_given_up(code: Code) -> Cause {
    let (reason, class) = match code {
        Code::CircuitOpen => (Reason::CircuitOpen, Class::Transient),
        Code::Paused => (Reason::ProviderPause, Class::Transient),
        _ => (Reason::KeysCooling, Class::Quota),
    };
    let detail = Masked::own_words("its host had been away for longer than --max-outage");
    Cause { class, reason: reason.as_str().to_owned(), code: code.as_str().to_owned(), detail }
}

#[cfg(test)]
mod tests;
