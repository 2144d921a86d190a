//! One run of a job by a worker: finds its upstream, drives the call machine until the call ends or has to wait, and builds the result for
//! the store.

use super::schedule::{self, TickResult};
use super::target::Target;
use super::{JobContext, callback, submit};
use crate::ServerState;
use crate::headers::{self, HeaderMarks, OwnHeaders};
use crate::idempotency::{KEY, KeyReservation, KeyedCall, MAX_ANSWER, is_generated};
use crate::letter::{self, Cause, LetterPlace};
use http::{HeaderMap, HeaderValue, Method, Version};
use seawall_core::call::{self, CallEnd, Outcome};
use seawall_core::decide::{CallProgress, repeatable};
use seawall_core::policy::{Door, IdempotencyMode, Unsafe};
use seawall_core::record::AttemptOutcome;
use seawall_core::request_target::RequestTarget;
use seawall_core::rng::Rng;
use seawall_core::time::Wall;
use seawall_engine::ad_hoc;
use seawall_engine::credential_pauses::CredentialMark;
use seawall_engine::deadlines::Deadlines;
use seawall_engine::driver::{CallContext, Driven, Finished, StartLog, drive_job};
use seawall_engine::limits::LimitSubject;
use seawall_engine::mask::{Mask, Masked};
use seawall_engine::record::{CallRecord, Record};
use seawall_engine::runtime::LiveUpstream;
use seawall_engine::sender::Sending;
use seawall_engine::trace::TraceContext;
use seawall_engine::transport::{HttpTransport, ReplayBody, Room, UpstreamResponse};
use seawall_engine::upstream_target::target;
use seawall_http::connection_pool::ConnectionPool;
use seawall_http::egress::Reach;
use seawall_http::request_headers::RequestHeaders;
use seawall_http::response_body::Relay;
use seawall_store::idempotency;
use seawall_store::job::{AD_HOC, Attempted, Claimed, Job, JobEnding, JobLease, JobOrigin, JobState, NewJob, Response, SUSPECT, SettleJob};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};

/// A job that was lost with this many workers is not started again.
const MAX_CRASHES: u32 = SUSPECT + 1;
/// Pause before a failed `blame` request to the store is repeated.
const BLAME_AGAIN: Duration = Duration::from_millis(500);

/// State of one worker thread.
#[derive(Debug)]
pub(super) struct Bench {
    pub shared: Arc<ServerState>,
    sending: Sending,
    /// For ad-hoc targets from callers, with the guard of its connections.
    outside: RefCell<(Reach, Sending)>,
    deadlines: Deadlines,
    rng: RefCell<Rng>,
}

/// The result of a run.
pub(super) struct Ran<'a> {
    pub settle: SettleJob,
    pub told: Option<TickResult>,
    /// The place of a suspect, held until its result is written.
    pub place: Option<SemaphorePermit<'a>>,
    /// The memory permit of its response, held until the response is written.
    pub room: Option<OwnedSemaphorePermit>,
}

/// Notes the start of a job before its request is sent.
pub(super) trait Beginning: StartLog {
    /// A rule of the configuration lets the request be repeated, so no note is written.
    fn repeats_by_rule(&self);
}

/// The reason why a suspect was not started.
pub(super) enum Unbegun {
    /// Another worker holds the lease now.
    Lost,
    /// The process is stopping.
    Late,
}

/// The result of a run before it becomes a settlement.
struct RunResult {
    ending: JobEnding,
    progress: CallProgress,
    history: Vec<Attempted>,
    /// The last response of the upstream, if it was not a success.
    answer: Option<Response>,
    /// The end of the reservation of its idempotency key.
    key: Option<idempotency::FinishKey>,
    /// The memory permit of its response.
    room: Option<OwnedSemaphorePermit>,
}

impl Bench {
    pub(super) fn new(shared: Arc<ServerState>) -> Self {
        let sending = Sending { clock: shared.clock.clone(), pool: ConnectionPool::default(), connector: shared.connector.clone() };
        let outside = RefCell::new(guarded(&shared));
        let rng = RefCell::new(Rng::seeded(seawall_engine::entropy()));
        Self { shared, sending, outside, deadlines: Deadlines::default(), rng }
    }

    pub(super) fn desk(&self) -> &Arc<JobContext> {
        &self.shared.desk
    }

    pub(super) fn sweep(&self) {
        let now = self.shared.clock.now().mono;
        self.sending.pool.sweep(now);
        self.outside.borrow().1.pool.sweep(now);
    }

    /// Returns the sender for ad-hoc targets under the current configuration. When `allow_private` changes, the old connections are
    /// dropped.
    fn outside(&self) -> Sending {
        let mut outside = self.outside.borrow_mut();
        if !outside.0.is_of(&self.shared.live.load().config.server.allow_private) {
            *outside = guarded(&self.shared);
        }
        outside.1.clone()
    }

    /// Runs a job until it ends or has to wait. A request that may not be repeated is noted in `log` before it is sent.
    pub(super) async fn run(&self, claimed: &Claimed, log: &dyn Beginning) -> Result<Ran<'_>, Unbegun> {
        let job = &claimed.job;
        // Boxed, as are all futures that few jobs need: hundreds of jobs run at once, and small futures stay in the cache.
        let place = if job.crashes == SUSPECT { Some(Box::pin(self.suspected(claimed.lease)).await?) } else { None };
        let mut verdict = match self.locate(job) {
            Ok(target) => Box::pin(self.drive(claimed, &target, log)).await,
            Err((upstream, cause)) => self.refused(job, upstream.as_deref(), cause),
        };
        let room = verdict.room.take();
        let (settle, told) = self.settlement(claimed, verdict);
        Ok(Ran { settle, told, place, room })
    }

    /// Builds the settlement of a run, and the result that its schedule gets.
    fn settlement(&self, claimed: &Claimed, verdict: RunResult) -> (SettleJob, Option<TickResult>) {
        let (job, now) = (&claimed.job, self.desk().now());
        let (ending, told) = schedule::tick_result(job, verdict.ending);
        let verdict = RunResult { ending, ..verdict };
        let follow = self.follow(job, &verdict, now);
        let forgets = letter::forgets(job, &verdict.ending);
        let RunResult { ending, progress, history, answer, key, room: _ } = verdict;
        (SettleJob { lease: claimed.lease, ending, progress, history, answer, follow, key, forgets, now, again: false }, told)
    }

    /// Builds the settlement of a job that is cut off now, after it began a request at `begun_at` that may not be repeated.
    pub(super) fn cut_off(&self, claimed: &Claimed, begun_at: Wall) -> SettleJob {
        let (job, target) = (&claimed.job, self.locate(&claimed.job).ok());
        let cause = letter::outcome_unknown(job, begun_at, "it was cut off when the process stopped");
        let verdict = self.lost(job, target.as_ref(), cause, 1, begun_at);
        self.settlement(claimed, verdict).0
    }

    /// Gives up on a job whose request may have been sent by workers that could not tell the outcome. `sends` is the upper bound of sends.
    fn lost(&self, job: &Job, target: Option<&Target>, cause: Cause, sends: u32, at: Wall) -> RunResult {
        let attempts = job.progress.attempts.saturating_add(sends);
        let progress = CallProgress { attempts, ..job.progress };
        let history = letter::with_unknown(&job.history, attempts, at);
        let place = LetterPlace { upstream: target.map(|to| &*to.upstream), endpoint: target.map(|to| &*to.endpoint) };
        let job = Job { progress, ..job.clone() };
        let letter = letter::letter(&job, Door::Jobs, &place, cause, &history, self.desk().now());
        RunResult { ending: JobEnding::Dead(Box::new(letter)), progress, history, answer: None, key: None, room: None }
    }

    /// Decides whether a job whose workers were lost is given up. That is so if it was begun and may not be repeated, or if it seems to
    /// crash its workers.
    async fn given_up(
        &self,
        job: &Job,
        to: &Target,
        request: &call::CallRequest<'_>,
        reservation: Option<&KeyReservation>,
    ) -> Option<RunResult> {
        let is_repeatable = request.is_repeatable(&to.endpoint.plan);
        let verdict = match job.begun_at {
            Some(begun_at) if !is_repeatable => {
                let cause = letter::outcome_unknown(job, begun_at, "its worker was lost before it could tell the outcome");
                self.lost(job, Some(to), cause, 1, begun_at)
            }
            None if !is_repeatable && self.may_be_begun(job) => self.lost(job, Some(to), letter::begun_by_rule(job), 1, self.desk().now()),
            Some(_) | None if job.crashes >= MAX_CRASHES => {
                self.desk().counts.poisoned.fetch_add(1, Ordering::Relaxed);
                self.lost(job, Some(to), Cause::poison(job.crashes), job.crashes, self.desk().now())
            }
            Some(_) | None => return None,
        };
        let key = match reservation {
            Some(reservation) => reservation.give_up(&verdict.ending, is_repeatable).await,
            None => None,
        };
        Some(RunResult { key, ..verdict })
    }

    /// Returns whether the request may have been begun without a note, by a worker that was lost under other rules or was stopped.
    fn may_be_begun(&self, job: &Job) -> bool {
        job.lost_under.is_some_and(|rules| rules != self.shared.live.load().rules) || letter::has_unknown(&job.history)
    }

    /// Returns the result of a job that is not sent after all. If a rule lets its request be repeated, its claim has recorded the rules in
    /// force; if they have changed since then, a note records the start instead.
    async fn not_begun(
        &self,
        claimed: &Claimed,
        to: &Target,
        request: &call::CallRequest<'_>,
        reservation: Option<&KeyReservation>,
        log: &dyn Beginning,
    ) -> Option<RunResult> {
        let job = &claimed.job;
        if let Some(verdict) = self.given_up(job, to, request, reservation).await {
            return Some(verdict);
        }
        if !request.is_repeatable(&to.endpoint.plan) || repeatable(request.method, Unsafe::Never, false) {
            return None;
        }
        log.repeats_by_rule();
        let is_noted = claimed.rules == self.shared.live.load().rules
            || matches!(self.desk().store.begin_send(claimed.lease, self.desk().now()).await, Ok(true));
        let (progress, history) = (job.progress, job.history.clone());
        (!is_noted).then_some(RunResult { ending: JobEnding::Release, progress, history, answer: None, key: None, room: None })
    }

    /// Frees the place of a suspect whose result is written, and allows one more suspect.
    pub(super) fn acquit(&self, place: SemaphorePermit<'_>) {
        self.desk().crew.trust();
        drop(place);
    }

    /// Waits for a place for the suspect and writes to the store that it is started. The lease may have expired by then.
    async fn suspected(&self, lease: JobLease) -> Result<SemaphorePermit<'_>, Unbegun> {
        let place = self.desk().crew.suspect().await.map_err(|_| Unbegun::Late)?;
        loop {
            match self.desk().store.blame(lease).await {
                Ok(true) => return Ok(place),
                Ok(false) => {
                    self.desk().counts.lost_leases.fetch_add(1, Ordering::Relaxed);
                    return Err(Unbegun::Lost);
                }
                // Once the lease expires by our clock, the worker aborts this job.
                Err(_) => tokio::time::sleep(BLAME_AGAIN).await,
            }
        }
    }

    fn locate(&self, job: &Job) -> Result<Target, (Option<Arc<LiveUpstream>>, Cause)> {
        let path = &job.request.path;
        if job.upstream == AD_HOC {
            // The row keeps the secret reference, so that no list shows its value.
            let url = self.shared.around.resolve(path).map_err(|why| (None, Cause::unusable(Masked::own_words(why))))?;
            let unusable = |why: String| (None, Cause::unusable(Mask::default().and_url(&url).words(why.as_bytes())));
            let (origin, below) = ad_hoc::split(&url).map_err(unusable)?;
            let upstream = self.desk().crew.adhoc.upstream(&origin).map_err(unusable)?;
            let endpoint = Arc::clone(upstream.endpoint(&job.request.method, &below));
            let target = RequestTarget::new(below).map_err(|bad| (None, Cause::unusable(Masked::own_words(bad.to_string()))))?;
            return Ok(Target { upstream, endpoint, target, url: Some(url) });
        }
        let live = self.shared.live.load();
        let Some(upstream) = live.named(&job.upstream) else { return Err((None, Cause::no_upstream(&job.upstream))) };
        let endpoint = Arc::clone(upstream.endpoint(&job.request.method, path));
        // A path that could end a request line is not sent, no matter which program wrote the row.
        let target =
            target(upstream, path).map_err(|bad| (Some(Arc::clone(upstream)), Cause::unusable(Masked::own_words(bad.to_string()))))?;
        Ok(Target { upstream: Arc::clone(upstream), endpoint, target, url: None })
    }

    /// Ends a job that cannot be run at all.
    fn refused(&self, job: &Job, upstream: Option<&LiveUpstream>, cause: Cause) -> RunResult {
        let place = LetterPlace { upstream, endpoint: None };
        let letter = letter::letter(job, Door::Jobs, &place, cause, &job.history, self.desk().now());
        RunResult {
            ending: JobEnding::Dead(Box::new(letter)),
            progress: job.progress,
            history: job.history.clone(),
            answer: None,
            key: None,
            room: None,
        }
    }

    async fn drive(&self, claimed: &Claimed, to: &Target, log: &dyn Beginning) -> RunResult {
        let job = &claimed.job;
        let (method, mut headers) = match method(job).and_then(|method| Ok((method, self.headers(job, to)?))) {
            Ok(both) => both,
            Err(why) => return self.refused(job, Some(&to.upstream), Cause::unusable(Masked::own_words(why))),
        };
        let now = self.desk().now();
        // A job's id is the same for all its attempts, as an idempotency key has to be.
        let made = is_generated(&to.endpoint.spec.policy.idempotency, &method, headers.contains_key(KEY));
        if made && let Ok(key) = HeaderValue::from_bytes(&job.id.text()) {
            headers.insert(KEY, key);
        }
        let reservation = self.reservation(job, to, &method, &headers);
        let request = to.request(job, made, &headers, now);
        if let Some(verdict) = Box::pin(self.not_begun(claimed, to, &request, reservation.as_ref(), log)).await {
            return verdict;
        }
        let trail = RefCell::new(Vec::new());
        let caller: Arc<str> = Arc::from(job.caller.as_str());
        let (nothing, query) = (HeaderMap::new(), to.target.split_once('?').map(|(_, query)| query));
        let scene = CallContext {
            clock: &self.shared.clock,
            deadlines: &self.deadlines,
            rng: &self.rng,
            recorder: &self.shared.recorder,
            endpoint: &to.endpoint,
            id: job.id,
            caller: &caller,
            key_tail: &to.upstream,
            request: Some(to.request_line(job)),
            who: LimitSubject {
                mark: CredentialMark::sent(&to.endpoint.plan, &headers, query),
                ..LimitSubject::internal(&caller, &job.tenant, &nothing)
            },
            trail: Some(&trail),
            keeper: reservation.as_ref().map(|keyed| keyed as _),
            start_log: Some(log),
            closing: None,
        };
        let outside = to.url.as_ref().map(|_| self.outside());
        let mut transport = self.transport(job, to, (method, headers), outside.as_ref().unwrap_or(&self.sending));
        let drove = drive_job(&scene, &request, job.progress, &mut transport).await;
        let trail = trail.into_inner();
        let history = letter::history(&job.history, &trail);
        match drove {
            Driven::Aside(aside) => {
                let until = self.desk().now() + aside.until.since(aside.at.mono);
                let ending = JobEnding::Wait { until, reason: aside.reason.as_str() };
                RunResult { ending, progress: aside.progress, history, answer: None, key: None, room: None }
            }
            Driven::Ended(ended) => {
                let progress = used_up(job, &ended.finish);
                let room = transport.room.take().and_then(Room::into_taken);
                let (ending, answer) = match reservation.as_ref().and_then(KeyReservation::stored) {
                    Some(stored) if stored.status < 400 => (self.done(job, to, &ended.finish, stored), None),
                    stored => {
                        let (ending, answer) = self.ended(job, to, &ended, transport, &trail, &history);
                        (ending, answer.or(stored.map(|stored| letter::masked_response(stored, None, &self.mask(job, to)))))
                    }
                };
                let key = match &reservation {
                    Some(reservation) => Box::pin(reservation.close(&ending)).await,
                    None => None,
                };
                RunResult { ending, progress, history, answer, key, room }
            }
        }
    }

    /// Builds the transport that sends the job's request as often as the call machine decides.
    fn transport<'a>(
        &'a self,
        job: &Job,
        to: &'a Target,
        (method, mut headers): (Method, HeaderMap),
        sending: &'a Sending,
    ) -> HttpTransport<'a> {
        let trace = TraceContext::take(&mut headers, self.rng.borrow_mut().draw());
        HttpTransport {
            sending,
            upstream: &to.upstream,
            endpoint: &to.endpoint,
            method,
            target: to.target.clone(),
            headers: RequestHeaders::new(headers),
            conditions: HeaderMap::new(),
            unread: None,
            body: if job.request.body.is_empty() { ReplayBody::Empty } else { ReplayBody::Kept(job.request.body.clone()) },
            answer: None,
            token: None,
            trace,
            detail: None,
            ahead: MAX_ANSWER + 1,
            room: Some(self.desk().crew.answers()),
            spares_streams: false,
            diagnoses: false,
            passes: Some(headers::passes),
            repeated: false,
            resends: 0,
        }
    }

    /// Builds the reservation of the job's idempotency key.
    fn reservation(&self, job: &Job, to: &Target, method: &Method, headers: &HeaderMap) -> Option<KeyReservation> {
        let policy = &to.endpoint.spec.policy;
        let key = job.idempotency_key.as_ref().filter(|_| policy.idempotency.mode != IdempotencyMode::Off && !method.is_safe())?;
        let asked = KeyedCall {
            caller: &job.caller,
            upstream: &job.upstream,
            method: method.as_str(),
            below: &job.request.path,
            headers,
            body: &job.request.body,
            left: policy.timeout.total,
        };
        let keyed = KeyReservation::of(asked, &policy.idempotency, key, job.id, &self.desk().ledger).of_job();
        Some(if matches!(job.origin, JobOrigin::Replay { .. }) { keyed.forced() } else { keyed })
    }

    /// Returns how a finished job is stored, and the last response if the job is given up on.
    fn ended(
        &self,
        job: &Job,
        to: &Target,
        ended: &Finished,
        transport: HttpTransport<'_>,
        trail: &[(Wall, AttemptOutcome)],
        history: &[Attempted],
    ) -> (JobEnding, Option<Response>) {
        let (finish, detail, answer) = (&ended.finish, transport.detail, transport.answer);
        let outcome = match finish.outcome {
            Outcome::Success | Outcome::Replayed => "success",
            Outcome::Failed(class) => class.as_str(),
            Outcome::Refused(code) => code.as_str(),
        };
        self.record(job, to, finish, outcome, answer.as_ref().map(|answer| answer.response.status().as_u16()));
        match (finish.outcome, answer) {
            (Outcome::Success | Outcome::Replayed, Some(answer)) => {
                // The caller gets the result unchanged, except for our own secrets.
                (JobEnding::Done(self.response(answer, &self.own_mask(job, to))), None)
            }
            (_, answer) => {
                let mask = self.mask(job, to);
                let said = answer.as_ref().map(|answer| mask.words(answer.seen())).filter(|said| !said.as_str().is_empty());
                let detail = detail.or(said).unwrap_or_else(|| letter::fault_words(ended.fault));
                let answer = answer.map(|answer| self.response(answer, &mask));
                let cause = Cause::of(finish, trail, detail);
                let place = LetterPlace { upstream: Some(&to.upstream), endpoint: Some(&to.endpoint) };
                let is_tick = matches!(job.origin, JobOrigin::Schedule { .. });
                let ending = if is_tick || to.endpoint.spec.policy.dead_letter.from.contains(&Door::Jobs) {
                    let job = Job { progress: used_up(job, finish), ..job.clone() };
                    JobEnding::Dead(Box::new(letter::letter(&job, Door::Jobs, &place, cause, history, self.desk().now())))
                } else {
                    JobEnding::Failed { code: cause.code }
                };
                (ending, answer)
            }
        }
    }

    /// Converts a response to its stored form: masked first, then truncated.
    fn response(&self, answer: UpstreamResponse, mask: &Mask) -> Response {
        let legible = answer.seen().clone();
        let (head, body) = answer.response.into_parts();
        let headers = headers::to_store(head.headers, answer.verbatim.as_ref(), head.version, &self.shared.pseudonym);
        let (body, more) = content(body).unwrap_or_default();
        let truncated = more || body.len() > MAX_ANSWER;
        let mut kept = letter::masked_response(Response { status: head.status.as_u16(), headers, body, truncated }, Some(&legible), mask);
        kept.body.truncate(MAX_ANSWER);
        kept
    }

    /// Ends a job whose idempotency key already has a response.
    fn done(&self, job: &Job, to: &Target, finish: &CallEnd, stored: Response) -> JobEnding {
        self.record(job, to, finish, "success", Some(stored.status));
        JobEnding::Done(stored)
    }

    fn record(&self, job: &Job, to: &Target, finish: &CallEnd, outcome: &'static str, status: Option<u16>) {
        self.shared.recorder.push(Record::Call(CallRecord {
            at: self.shared.clock.now().wall,
            call: job.id,
            names: Arc::clone(&to.endpoint.names),
            caller: Arc::from(job.caller.as_str()),
            request: Some(to.request_line(job)),
            attempts: finish.attempts,
            response_status: status,
            outcome,
            reason: finish.reason,
            elapsed: self.desk().now().since(job.created_at),
            refused_by: None,
        }));
    }

    /// Returns the job's own headers, and a signature if the receiver can check one.
    fn headers(&self, job: &Job, to: &Target) -> Result<HeaderMap, String> {
        let kept = job.request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut headers = RequestHeaders::read(kept).map_err(|bad| bad.to_string())?;
        self.resolve(job, &mut headers)?;
        // The job may come from a caller, a schedule or an import. The same rules as for a caller apply, under the current configuration.
        let ours = OwnHeaders { name: None, ..OwnHeaders::of(&to.upstream, &to.endpoint, &self.shared.pseudonym) };
        let marks = HeaderMarks::of(&headers);
        headers::to_upstream(&mut headers, marks, ours, Version::HTTP_11);
        if let Some(signer) = callback::signer(&self.shared, job) {
            for (name, value) in signer.sign(&format!("msg_{}", job.id), self.desk().now(), &job.request.body) {
                let (name, value) = RequestHeaders::check(name, &value).map_err(|bad| bad.to_string())?;
                headers.insert(name, value);
            }
        }
        Ok(headers)
    }

    /// Replaces references by secrets in the headers of a scheduled job. Headers of other jobs are sent as they are: a reference from a
    /// caller is not resolved.
    fn resolve(&self, job: &Job, headers: &mut HeaderMap) -> Result<(), String> {
        let JobOrigin::Schedule { name, subject } = &job.origin else { return Ok(()) };
        let live = self.shared.live.load();
        let gone = || format!("the schedule `{name}` is not configured any more");
        for header in live.schedule_headers(name).ok_or_else(gone)? {
            let value = format!("{}{}", header.before.replace("{subject}", subject), header.secret.reveal());
            let (name, value) = RequestHeaders::check(&header.name, &value).map_err(|bad| bad.to_string())?;
            headers.insert(name, value);
        }
        Ok(())
    }

    /// Masks our own secrets: credentials of the upstream, and secrets in a schedule's headers.
    fn own_mask(&self, job: &Job, to: &Target) -> Mask {
        let mask = letter::own_mask(Some(&to.upstream));
        let JobOrigin::Schedule { name, .. } = &job.origin else { return mask };
        let live = self.shared.live.load();
        let headers = live.schedule_headers(name).unwrap_or_default();
        headers.iter().fold(mask, |mask, header| mask.and_secret(&header.secret))
    }

    /// Masks all secrets that the request contains.
    fn mask(&self, job: &Job, to: &Target) -> Mask {
        let mask = letter::and_request(self.own_mask(job, to), &job.request);
        // A URL from a secret reference is a secret itself.
        match to.url.as_deref().filter(|url| *url != job.request.path) {
            Some(url) => mask.and_url(url),
            None => mask,
        }
    }

    /// Builds the callback job that reports the result.
    fn follow(&self, job: &Job, verdict: &RunResult, now: Wall) -> Vec<NewJob> {
        if job.callback.is_none() {
            return Vec::new();
        }
        let (state, error, response) = match &verdict.ending {
            JobEnding::Done(response) => {
                (JobState::Done, None, Some(letter::masked_response(response.clone(), None, &letter::mask(None, &job.request))))
            }
            JobEnding::Dead(letter) => (JobState::Dead, Some(letter.code.clone()), verdict.answer.clone()),
            JobEnding::Failed { code } => (JobState::Dead, Some(code.clone()), verdict.answer.clone()),
            JobEnding::Wait { .. } | JobEnding::Release | JobEnding::Cancelled => return Vec::new(),
        };
        let progress = verdict.progress;
        let ended = Job { state, error, response, progress, finished_at: Some(now), next_attempt_at: None, ..job.clone() };
        callback::for_job(&ended, self.desk()).into_iter().collect()
    }
}

/// Returns a job's method, if it may be sent. An import, a schedule or another version may have written the row.
fn method(job: &Job) -> Result<Method, String> {
    submit::checked_method(&job.request.method)?;
    Method::from_bytes(job.request.method.as_bytes()).map_err(|error| error.to_string())
}

/// Builds the sender that enforces the current `allow_private`.
fn guarded(shared: &ServerState) -> (Reach, Sending) {
    let reach = Reach::new(shared.live.load().config.server.allow_private.clone());
    let connector = shared.connector.restricted_to(reach.clone());
    (reach, Sending { clock: shared.clock.clone(), pool: ConnectionPool::default(), connector })
}

/// Returns the attempts that a job has used up once its call is over.
const fn used_up(job: &Job, finish: &CallEnd) -> CallProgress {
    CallProgress { attempts: finish.attempts, ..job.progress }
}

/// Returns the body and whether it was truncated.
fn content(body: Relay) -> Option<(bytes::Bytes, bool)> {
    match body {
        Relay::Empty => Some((bytes::Bytes::new(), false)),
        Relay::Full(bytes) => Some((bytes, false)),
        Relay::Stream(streaming) => streaming.into_ahead().map(|bytes| (bytes, true)),
    }
}
