//! Sends rows: as many concurrently as requested, each driven by the call machine until it ends or has to wait. A waiting row holds no
//! slot; a pause of its host pauses its whole lane.

use super::call_result::{finished_row, rejected_key};
use super::dead_letter::dead_letter;
use super::destination::Destination;
use super::input::{EarlierRow, Read};
use super::lanes::{self, Lanes, NextWork, StartedRow};
use super::output::{Dead, FinishedRow, OutputEnd};
use super::pages::{Landmark, PageResult, Pages};
use super::response_check::{BodyRequest, Content, Unfit, unfit};
use super::row::{BadRow, InputRow};
use super::tally::RunTally;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use seawall_core::call::{self, Outcome};
use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::policy::Door;
use seawall_core::record::{Class, Code, Reason};
use seawall_core::request_target::RequestTarget;
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now};
use seawall_engine::ad_hoc::AdHoc;
use seawall_engine::clock::Clock;
use seawall_engine::deadlines::Deadlines;
use seawall_engine::driver::{CallContext, Deferred, Driven, Finished, drive_job};
use seawall_engine::limits::LimitSubject;
use seawall_engine::mask::Masked;
use seawall_engine::record::{CallRecord, Record};
use seawall_engine::recorder::Recorder;
use seawall_engine::runtime::Live;
use seawall_engine::sender::Sending;
use seawall_engine::transport::{HttpTransport, ReplayBody, UpstreamResponse};
use seawall_engine::upstream_target::below;
use seawall_http::fault::Fault;
use seawall_http::request_headers::RequestHeaders;
use seawall_server::letter::{self, Cause};
use std::cell::RefCell;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc};

/// Bodies up to this size do not count against the memory for unwritten results, because their number is bounded.
const SMALL: usize = 16 * 1024;
/// The most kibibytes of larger bodies that wait to be written.
pub(super) const MAX_UNWRITTEN: usize = 32 * 1024;
/// The most pages of one row.
const MAX_PAGES: u32 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FetchStop {
    Interrupted,
    /// An upstream rejects our credentials.
    Unauthorized(String),
    /// The receiver of the results is gone, and reports the reason itself.
    NoOutput,
    Failed(String),
}

/// State that all workers share.
#[derive(Debug)]
pub(super) struct FetchState {
    pub clock: Clock,
    pub deadlines: Deadlines,
    pub rng: RefCell<Rng>,
    pub recorder: Arc<Recorder>,
    pub live: Option<Live>,
    pub adhoc: AdHoc,
    /// For configured upstreams, and for other URLs.
    pub sending: Sending,
    pub outside: Sending,
    pub wanted: BodyRequest,
    pub pages: Option<Pages>,
    pub fail_fast_auth: bool,
    /// The run's name, also in dead letters.
    pub name: String,
    pub caller: Arc<str>,
    pub agent: HeaderValue,
    pub lanes: RefCell<Lanes>,
    pub tally: RefCell<RunTally>,
    pub to: mpsc::Sender<FinishedRow>,
    pub unwritten: Arc<Semaphore>,
    /// Results that wait for those before them.
    pub held: RefCell<std::collections::BTreeMap<u64, FinishedRow>>,
    pub stop: RefCell<Option<FetchStop>>,
    /// `notify_waiters` wakes the workers. `timer` and `hungry` have one task each, and `notify_one` keeps the wake-up if it is busy.
    pub rows: Notify,
    pub timer: Notify,
    pub hungry: Notify,
}

/// The result of driving the call machine.
enum AttemptEnd {
    Aside(Deferred),
    Ended(Box<Finished>, Option<UpstreamResponse>, Option<Masked>),
}

impl FetchState {
    /// Stops the run: nothing new is started.
    pub(super) fn halt(&self, why: FetchStop) {
        self.stop.borrow_mut().get_or_insert(why);
        self.lanes.borrow_mut().stopping = true;
        self.rows.notify_waiters();
        self.hungry.notify_one();
        self.timer.notify_one();
    }

    /// Takes rows from the reader while more are wanted.
    pub(super) async fn feed(&self, mut from: mpsc::Receiver<Vec<Read>>) {
        while !self.lanes.borrow().stopping {
            if !self.lanes.borrow().is_hungry() {
                self.hungry.notified().await;
                continue;
            }
            let Some(batch) = from.recv().await else { break };
            for read in batch {
                match read {
                    Read::Row(row, before) => {
                        if let Err(error) = self.lanes.borrow_mut().push(row, before) {
                            return self.halt(FetchStop::Failed(format!("rows cannot be put aside on disk: {error}")));
                        }
                    }
                    Read::Bad(bad, before) => self.refuse(bad, before).await,
                }
            }
            self.rows.notify_waiters();
        }
        self.lanes.borrow_mut().input_over = true;
        self.rows.notify_waiters();
    }

    /// Wakes rows and lanes at their times.
    pub(super) async fn watch(&self) {
        while !self.lanes.borrow().stopping {
            let next = self.lanes.borrow().next_wake();
            match next {
                Some(until) => tokio::select! {
                    () = self.clock.sleep_until(until) => {}
                    () = self.timer.notified() => continue,
                },
                None => {
                    self.timer.notified().await;
                    continue;
                }
            }
            self.lanes.borrow_mut().wake(self.clock.now().mono);
            self.rows.notify_waiters();
        }
    }

    /// One slot: sends row after row until none is left.
    pub(super) async fn slot(&self) {
        loop {
            // Created before the lanes are asked, so that a `notify_waiters` in between is not lost.
            let rows = self.rows.notified();
            let now = self.clock.now();
            let next = match self.lanes.borrow_mut().take(now.mono) {
                Ok(next) => next,
                Err(error) => return self.halt(FetchStop::Failed(format!("rows on disk cannot be read: {error}"))),
            };
            match next {
                NextWork::Over => {
                    self.rows.notify_waiters();
                    return;
                }
                NextWork::Nothing => {
                    self.hungry.notify_one();
                    self.timer.notify_one();
                    rows.await;
                }
                NextWork::Go(run) => self.drive(run).await,
                NextWork::Fresh(lane, fresh) => {
                    let run = self.begin(lane, fresh.0, fresh.1, now);
                    self.drive(run).await;
                }
            }
            if self.lanes.borrow().is_hungry() {
                self.hungry.notify_one();
            }
        }
    }

    fn begin(&self, lane: usize, mut row: InputRow, mut before: EarlierRow, started: Now) -> Box<StartedRow> {
        let id = CallId::new(started.wall, &mut self.rng.borrow_mut());
        let page = match (before.page.take(), &self.pages) {
            (Some((done, next)), Some(_)) => {
                row.below = next;
                done + 1
            }
            (_, Some(pages)) => {
                row.below = pages.first(&row.below);
                1
            }
            (_, None) => 1,
        };
        let (progress, history, landmark) = (CallProgress::default(), Vec::new(), Landmark::default());
        Box::new(StartedRow { id, row, before, progress, history, spent: Nanos::ZERO, started, page, landmark, resends: 0, lane })
    }

    fn locate(&self, row: &InputRow) -> Result<Destination, String> {
        let named = self.live.as_ref().and_then(|live| live.named(&row.lane));
        let upstream = match named {
            Some(upstream) => Arc::clone(upstream),
            None => self.adhoc.upstream(&row.lane)?,
        };
        let below = if row.below.starts_with('/') { &row.below } else { "/" };
        let endpoint = Arc::clone(upstream.endpoint(&row.method, below));
        Ok(Destination { upstream, endpoint, configured: named.is_some() })
    }

    async fn drive(&self, mut run: Box<StartedRow>) {
        let lane = run.lane;
        let given_up = self.lanes.borrow().given_up(lane);
        let to = match self.locate(&run.row) {
            Ok(to) => to,
            Err(why) => {
                self.dead(&run, None, Cause::unusable(Masked::own_words(why)), None, None).await;
                return self.lanes.borrow_mut().leave(lane);
            }
        };
        if let Some(code) = given_up {
            self.dead(&run, Some(&to), lanes::lane_given_up(code), None, None).await;
            return self.lanes.borrow_mut().leave(lane);
        }
        loop {
            // Checked for each page, because the upstream chooses the place of the next one.
            let target = match to.request_target(&run.row.below) {
                Ok(target) => target,
                Err(bad) => {
                    self.dead(&run, Some(&to), Cause::unusable(Masked::own_words(bad.to_string())), None, None).await;
                    break;
                }
            };
            match Box::pin(self.send(&mut run, &to, target)).await {
                AttemptEnd::Aside(aside) => {
                    self.defer_row(run, &to, aside).await;
                    break;
                }
                AttemptEnd::Ended(ended, answer, detail) => {
                    if !self.ended(&mut run, &to, &ended, answer, detail).await {
                        break;
                    }
                }
            }
            if self.lanes.borrow().stopping {
                break;
            }
        }
        self.lanes.borrow_mut().leave(lane);
    }

    /// Drives the call machine until it ends or has to wait.
    async fn send(&self, run: &mut StartedRow, to: &Destination, target: RequestTarget) -> AttemptEnd {
        let began = self.clock.now();
        let nothing = HeaderMap::new();
        let trail = RefCell::new(std::mem::take(&mut run.history));
        let known = trail.borrow().len();
        let request = call::CallRequest {
            method: &run.row.method,
            mark: to.endpoint.plan.mark(&run.row.method, &run.row.below),
            keyed: run.row.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key")),
            at_cost: to.endpoint.plan.at_cost.allows(run.row.below.split('?').next().unwrap_or(""), || None),
            replayable: true,
            // The row's own time excludes pauses of its host, so it is counted here instead.
            deadline: None,
            patient: true,
        };
        let scene = CallContext {
            clock: &self.clock,
            deadlines: &self.deadlines,
            rng: &self.rng,
            recorder: &self.recorder,
            endpoint: &to.endpoint,
            id: run.id,
            caller: &self.caller,
            key_tail: &to.upstream,
            request: Some(to.request_line(&run.row)),
            who: LimitSubject::internal(&self.caller, "", &nothing),
            trail: Some(&trail),
            keeper: None,
            start_log: None,
            closing: None,
        };
        let mut transport = HttpTransport {
            sending: if to.configured { &self.sending } else { &self.outside },
            upstream: &to.upstream,
            endpoint: &to.endpoint,
            method: Method::from_bytes(run.row.method.as_bytes()).unwrap_or_default(),
            target,
            headers: RequestHeaders::new(self.headers(&run.row)),
            conditions: HeaderMap::new(),
            unread: None,
            body: if run.row.body.is_empty() { ReplayBody::Empty } else { ReplayBody::Kept(run.row.body.clone()) },
            answer: None,
            token: None,
            trace: None,
            detail: None,
            ahead: self.wanted.most.saturating_add(1),
            room: None,
            repeated: false,
            resends: 0,
            spares_streams: false,
            diagnoses: false,
            passes: None,
        };
        let mut drove = drive_job(&scene, &request, run.progress, &mut transport).await;
        let now = self.clock.now();
        run.spent = run.spent + now.mono.since(began.mono);
        run.history = trail.into_inner();
        self.count_sends(run, known, &mut drove, now.mono);
        match drove {
            Driven::Aside(aside) => AttemptEnd::Aside(aside),
            Driven::Ended(ended) => AttemptEnd::Ended(Box::new(ended), transport.answer, transport.detail),
        }
    }

    /// Counts sends since the history had `known` attempts. The row's attempts then include all of its resends.
    fn count_sends(&self, run: &mut StartedRow, known: usize, drove: &mut Driven, now: Mono) {
        let mut tally = self.tally.borrow_mut();
        let counted = tally.attempts(&run.row.lane, &run.history[known..], now);
        let before = run.resends;
        match drove {
            Driven::Aside(aside) => run.resends += aside.resends,
            Driven::Ended(ended) => {
                run.resends += ended.finish.attempts.saturating_sub(run.progress.attempts).saturating_sub(counted);
                ended.finish.attempts += before;
            }
        }
        tally.resends(&run.row.lane, run.resends - before, now);
    }

    fn headers(&self, row: &InputRow) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(row.headers.len() + 2);
        headers.insert(USER_AGENT, self.agent.clone());
        for (name, value) in &row.headers {
            // The reader has rejected headers that cannot be sent.
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                if name == USER_AGENT {
                    headers.insert(name, value)
                } else {
                    headers.append(name, value).then_some(HeaderValue::from_static(""))
                };
            }
        }
        headers
    }

    /// Lets a row wait: alone for its next attempt, or with its whole lane.
    async fn defer_row(&self, mut run: Box<StartedRow>, to: &Destination, aside: Deferred) {
        run.progress = aside.progress;
        let now = aside.at.mono;
        let of_lane = match aside.reason {
            Reason::CircuitOpen => Some(Some(Code::CircuitOpen)),
            Reason::ProviderPause => Some(Some(Code::Paused)),
            Reason::KeysCooling => Some(Some(Code::KeysExhausted)),
            Reason::RateLimited | Reason::PoolFull | Reason::Shed | Reason::QueueTimeout => Some(None),
            _ => None,
        };
        if let Some(code) = of_lane {
            self.lanes.borrow_mut().pause(run, aside.until, code, now);
            return self.timer.notify_one();
        }
        run.spent = run.spent + aside.until.since(now);
        if run.spent >= to.endpoint.spec.policy.timeout.total {
            let last = run.history.last().map(|(_, attempt)| *attempt);
            let (class, code) =
                last.map_or((Class::Transient, Code::DeadlineExceeded.as_str().to_owned()), |last| (last.class, last.status.to_string()));
            let detail =
                Masked::own_words(format!("its next attempt would come after the {} that it has", to.endpoint.spec.policy.timeout.total));
            let cause = Cause { class, reason: Reason::DeadlineExceeded.as_str().to_owned(), code, detail };
            return self.dead(&run, Some(to), cause, None, None).await;
        }
        self.lanes.borrow_mut().sleep(run, aside.until);
        self.timer.notify_one();
    }

    /// Handles the end of a call. Returns whether the row continues with its next page.
    async fn ended(
        &self,
        run: &mut Box<StartedRow>,
        to: &Destination,
        ended: &Finished,
        answer: Option<UpstreamResponse>,
        detail: Option<Masked>,
    ) -> bool {
        run.progress.attempts = ended.finish.attempts;
        let status = answer.as_ref().map(|answer| answer.response.status().as_u16());
        if !matches!(ended.finish.outcome, Outcome::Success | Outcome::Replayed) {
            let said = answer.map(|answer| run.row.mask(&to.upstream).words(answer.seen()));
            let detail = detail.or(said).unwrap_or_else(|| letter::fault_words(ended.fault));
            let cause = Cause::of(&ended.finish, &run.history, detail);
            // The policy's own schema may reject a response too. Then its row is suspect, but its body was not kept.
            let suspect = matches!(cause.code.as_str(), "schema" | "malformed").then(Bytes::new);
            self.tally.borrow_mut().prohibited += u64::from(ended.fault == Some(Fault::OUT_OF_REACH));
            if cause.class == Class::Auth && self.fail_fast_auth {
                self.halt(FetchStop::Unauthorized(rejected_key(run, to)));
            }
            self.dead(run, Some(to), cause, status, suspect).await;
            return false;
        }
        self.lanes.borrow_mut().went_well(run.lane);
        let Some(answer) = answer else { return false };
        match self.good(run, to, answer) {
            Ok((content, next)) => self.done(run, to, content, next, status).await,
            Err(unfit) => {
                let (cause, body) = unfit.masked(&run.row.mask(&to.upstream));
                self.dead(run, Some(to), cause, status, Some(body)).await;
                false
            }
        }
    }

    /// The content of a good response, and the place of the next page.
    fn good(&self, run: &mut StartedRow, to: &Destination, answer: UpstreamResponse) -> Result<(Content, Option<String>), Box<Unfit>> {
        let (head, body) = answer.response.into_parts();
        let headers = head.headers;
        let (content, json) = self.wanted.check(&headers, body, &letter::own_mask(Some(&to.upstream)))?;
        let Some(pages) = &self.pages else { return Ok((content, None)) };
        let page = PageResult {
            base: &to.upstream.spec.url,
            below: &run.row.below,
            number: run.page,
            headers: &headers,
            json: json.as_ref(),
            items: self.wanted.items.as_deref(),
        };
        let bad_page = |why: String| unfit("bad_page", why, Bytes::new());
        let is_first = run.page == 1;
        if let Some(has_next) = pages.has_next_member(&page).filter(|_| is_first) {
            self.tally.borrow_mut().first_page(has_next);
        }
        let Some(next) = pages.next(&page).map_err(bad_page)?.map(|next| below(&to.upstream, next)) else { return Ok((content, None)) };
        if run.page >= MAX_PAGES {
            return Err(bad_page(format!("it has more than {MAX_PAGES} pages")));
        }
        if run.landmark.is_met_again(run.page, &run.row.below, &next) {
            return Err(bad_page(format!("its pages go in a circle: page {} is followed by an earlier one", run.page)));
        }
        Ok((content, Some(next)))
    }

    async fn done(&self, run: &mut Box<StartedRow>, to: &Destination, content: Content, next: Option<String>, status: Option<u16>) -> bool {
        let now = self.clock.now();
        let elapsed = now.mono.since(run.started.mono);
        let url = to.url(&run.row.below);
        {
            let mut tally = self.tally.borrow_mut();
            tally.bytes += u64::try_from(content.size()).unwrap_or(0);
            tally.done(&run.row.lane, run.progress.attempts - run.resends, elapsed, || url.clone(), now.mono);
        }
        self.record(run, to, "success", Reason::Succeeded, now);
        let share = self.share(content.size()).await;
        let done = FinishedRow {
            page: self.pages.is_some().then_some(run.page),
            replaces: if next.is_none() { run.before.letter.take() } else { None },
            moved_from: run.before.moved_from.take(),
            end: OutputEnd::Good(content, next.clone()),
            ..finished_row(run, url, status, elapsed, share)
        };
        self.emit(done).await;
        let Some(next) = next else { return false };
        run.row.below = next;
        run.page += 1;
        run.progress = CallProgress::default();
        run.resends = 0;
        run.history.clear();
        run.spent = Nanos::ZERO;
        run.started = self.clock.now();
        true
    }

    /// Ends a row as a dead letter.
    async fn dead(&self, run: &StartedRow, to: Option<&Destination>, cause: Cause, status: Option<u16>, suspect: Option<Bytes>) {
        let now = self.clock.now();
        let elapsed = now.mono.since(run.started.mono);
        {
            let mut tally = self.tally.borrow_mut();
            tally.quarantined += u64::from(suspect.is_some());
            tally.dead(&run.row.lane, cause.class.as_str(), &cause.code, now.mono);
        }
        let outcome = if cause.code == Code::CircuitOpen.as_str() { Code::CircuitOpen.as_str() } else { cause.class.as_str() };
        if let Some(to) = to {
            self.record(run, to, outcome, Reason::from_word(&cause.reason).unwrap_or(Reason::PermanentFailure), now);
        }
        let url = to.map_or_else(|| format!("{}{}", run.row.lane, run.row.below), |to| to.url(&run.row.below));
        let wanted = to.is_none_or(|to| to.endpoint.spec.policy.dead_letter.from.contains(&Door::Batch));
        let letter = wanted.then(|| dead_letter(run, to, cause.clone(), (&self.name, &self.caller), now));
        let done = FinishedRow {
            page: self.pages.is_some().then_some(run.page),
            replaces: run.before.letter,
            moved_from: run.before.moved_from,
            end: OutputEnd::Dead(Box::new(Dead { outcome, cause, letter, suspect })),
            ..finished_row(run, url, status, elapsed, None)
        };
        self.emit(done).await;
    }

    /// Ends an invalid line.
    async fn refuse(&self, bad: BadRow, before: EarlierRow) {
        let started = self.clock.now();
        let id = CallId::new(started.wall, &mut self.rng.borrow_mut());
        let row = InputRow {
            line: bad.line,
            ordinal: bad.ordinal,
            key: bad.key,
            id: String::new(),
            file: String::new(),
            lane: Arc::from(""),
            method: "GET".to_owned(),
            below: bad.text.clone(),
            headers: Vec::new(),
            body: Bytes::new(),
        };
        let (progress, history, landmark) = (CallProgress::default(), Vec::new(), Landmark::default());
        let run = StartedRow { id, row, before, progress, history, spent: Nanos::ZERO, started, page: 1, landmark, resends: 0, lane: 0 };
        self.tally.borrow_mut().bad_line(format!("line {}: {}", bad.line, bad.why));
        let cause = Cause { code: "bad_input".to_owned(), ..Cause::unusable(Masked::own_words(format!("line {}: {}", bad.line, bad.why))) };
        self.dead(&run, None, cause, None, Some(Bytes::from(bad.text))).await;
    }

    fn record(&self, run: &StartedRow, to: &Destination, outcome: &'static str, reason: Reason, now: Now) {
        self.recorder.push(Record::Call(CallRecord {
            at: now.wall,
            call: run.id,
            names: Arc::clone(&to.endpoint.names),
            caller: Arc::clone(&self.caller),
            request: Some(to.request_line(&run.row)),
            attempts: run.progress.attempts,
            response_status: None,
            outcome,
            reason,
            elapsed: now.mono.since(run.started.mono),
            refused_by: None,
        }));
    }

    /// Waits for memory for a large body among the unwritten results.
    async fn share(&self, size: usize) -> Option<tokio::sync::OwnedSemaphorePermit> {
        if size <= SMALL {
            return None;
        }
        let kibibytes = u32::try_from((size / 1024).min(MAX_UNWRITTEN)).unwrap_or(1);
        Arc::clone(&self.unwritten).acquire_many_owned(kibibytes).await.ok()
    }

    /// Sends a result to the writer, in order if the output is ordered.
    async fn emit(&self, done: FinishedRow) {
        if self.lanes.borrow().ordered.is_none() {
            return self.write_in_order(done).await;
        }
        self.held.borrow_mut().insert(done.ordinal, done);
        loop {
            let due = {
                let (mut held, mut lanes) = (self.held.borrow_mut(), self.lanes.borrow_mut());
                let Some((next, _)) = lanes.ordered else { return };
                let due = held.remove(&next);
                let waiting = held.values().map(|done| if let OutputEnd::Good(content, _) = &done.end { content.size() } else { 0 }).sum();
                lanes.ordered = Some((if due.is_some() { next + 1 } else { next }, waiting));
                due
            };
            let Some(done) = due else { break };
            self.write_in_order(done).await;
        }
        self.rows.notify_waiters();
    }

    async fn write_in_order(&self, done: FinishedRow) {
        if self.to.send(done).await.is_err() {
            self.halt(FetchStop::NoOutput);
        }
    }
}
