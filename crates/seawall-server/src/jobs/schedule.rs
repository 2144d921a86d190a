//! Schedules: syncs their subjects with the configuration, turns due ticks into jobs, and records the result per subject. The store gives
//! each tick to one instance.

use super::JobContext;
use super::maintenance::note;
use crate::ServerState;
use crate::idempotency;
use crate::letter;
use crate::observe::{OperatorEvent, Severity};
use bytes::Bytes;
use seawall_core::classify::redacted;
use seawall_core::config::model::Schedule;
use seawall_core::decide::CallProgress;
use seawall_core::record::Class;
use seawall_core::time::Wall;
use seawall_engine::runtime::Live;
use seawall_store::job::{Job, JobEnding, JobOrigin, JobRequest, NewJob};
use seawall_store::page::MAX_ENTRIES;
use seawall_store::schedule::{Firing, NewSubject, ScheduleSubject, SubjectSource, TickReport};
use seawall_store::{Error, Store};
use std::sync::Arc;
use std::time::Duration;

/// Interval of the search for due ticks.
const EVERY: Duration = Duration::from_millis(250);
/// Maximum ticks per read.
const BATCH: usize = 200;
/// Why a subject stopped: the configuration no longer has its schedule.
const GONE: &str = "the schedule is not configured";

/// Runs while the process serves.
pub(crate) async fn run(shared: &ServerState) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut synced: Option<Arc<Live>> = None;
    loop {
        every.tick().await;
        let live = shared.live.load_full();
        if synced.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &live)) {
            // A failed sync is repeated in the next round.
            if sync(&shared.desk, &live.config.schedules).await.is_ok() {
                synced = Some(Arc::clone(&live));
            }
        }
        if !live.config.schedules.is_empty() {
            drop(fire(&shared.desk, &live.config.schedules).await);
        }
    }
}

fn named<'a>(schedules: &'a [Schedule], name: &str) -> Option<&'a Schedule> {
    schedules.iter().find(|schedule| schedule.name == name)
}

/// Syncs the store's subjects with the configuration; subjects added over the API stay.
async fn sync(desk: &JobContext, schedules: &[Schedule]) -> Result<(), Error> {
    let now = desk.now();
    let new: Vec<NewSubject> = schedules
        .iter()
        .flat_map(|schedule| {
            schedule.subjects.iter().map(move |subject| NewSubject {
                schedule: schedule.name.clone(),
                subject: subject.clone(),
                source: SubjectSource::Config,
                next_at: desk.by_chance(|rng| schedule.first_at(now, rng)),
            })
        })
        .collect();
    for some in new.chunks(BATCH) {
        desk.store.put_subjects(some.to_vec()).await?;
    }
    let mut after = None;
    loop {
        let page = desk.store.subjects(None, after, MAX_ENTRIES).await?;
        for subject in &page {
            settle(desk, schedules, subject).await?;
        }
        match page.last() {
            Some(last) if page.len() == MAX_ENTRIES => after = Some((last.schedule.clone(), last.subject.clone())),
            _ => return Ok(()),
        }
    }
}

/// Updates one subject to this configuration.
async fn settle(desk: &JobContext, schedules: &[Schedule], subject: &ScheduleSubject) -> Result<(), Error> {
    let (of, name) = (subject.schedule.clone(), subject.subject.clone());
    let schedule = named(schedules, &subject.schedule);
    let is_listed = schedule.is_some_and(|schedule| schedule.subjects.contains(&subject.subject));
    match schedule {
        _ if subject.source == SubjectSource::Config && !is_listed => {
            desk.store.remove_subject(of, name).await?;
        }
        None if subject.stopped.is_none() => {
            desk.store.report_subject(of, name, TickReport::Stopped { reason: GONE.to_owned() }).await?;
        }
        Some(schedule) if subject.stopped.as_deref() == Some(GONE) => {
            let next_at = desk.by_chance(|rng| schedule.first_at(desk.now(), rng));
            desk.store.resume_subject(of, name, next_at).await?;
        }
        _ => {}
    }
    Ok(())
}

/// Turns all due ticks into jobs.
async fn fire(desk: &JobContext, schedules: &[Schedule]) -> Result<(), Error> {
    loop {
        let now = desk.now();
        let due = desk.store.due_subjects(now, BATCH).await?;
        for subject in &due {
            let Some(schedule) = named(schedules, &subject.schedule) else {
                settle(desk, schedules, subject).await?;
                continue;
            };
            let fired = schedule.fired(subject.due_at(), subject.next_at, now);
            let job = job(desk, schedule, &subject.subject, fired.runs_at, fired.expires_at);
            let (of, name) = (subject.schedule.clone(), subject.subject.clone());
            let firing = Firing { schedule: of, subject: name, tick: subject.due_at(), next_at: fired.next_at, job, now };
            if desk.store.fire(firing).await? {
                desk.crew.wake_one();
            }
        }
        if due.len() < BATCH {
            return Ok(());
        }
    }
}

/// Returns the correlation id of all results of one subject.
pub(crate) fn correlation(schedule: &str, subject: &str) -> String {
    format!("schedule:{schedule}:{subject}")
}

fn job(desk: &JobContext, schedule: &Schedule, subject: &str, run_at: Wall, expires_at: Wall) -> NewJob {
    let request = request(schedule, subject);
    NewJob {
        id: desk.new_id(),
        upstream: schedule.upstream.clone(),
        tenant: String::new(),
        caller: format!("schedule:{}", schedule.name),
        priority: 0,
        fingerprint: idempotency::fingerprint(&request.method, &request.path, b"", &request.body),
        request,
        idempotency_key: None,
        dedup: None,
        correlation_id: Some(correlation(&schedule.name, subject)),
        callback: schedule.deliver.clone(),
        run_at,
        expires_at: Some(expires_at),
        origin: JobOrigin::Schedule { name: schedule.name.clone(), subject: subject.to_owned() },
        progress: CallProgress::default(),
        history: Vec::new(),
    }
}

/// Builds the request of one subject. Its name is percent-encoded in the URL and escaped in a JSON body.
fn request(schedule: &Schedule, subject: &str) -> JobRequest {
    const PLACE: &str = "{subject}";
    // A secret reference stays one until the request is sent, so the store holds no secret.
    let headers: Vec<(String, String)> =
        schedule.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.replace(PLACE, subject))).collect();
    let is_json = headers.iter().any(|(name, value)| name == "content-type" && value.contains("json"));
    let quoted = serde_json::Value::from(subject).to_string();
    let within = if is_json { quoted.trim_start_matches('"').strip_suffix('"').unwrap_or(subject) } else { subject };
    JobRequest {
        method: schedule.method.to_ascii_uppercase(),
        path: schedule.path.replace(PLACE, &encoded(subject)),
        headers,
        body: Bytes::from(schedule.body.replace(PLACE, within)),
    }
}

/// Percent-encodes all but RFC 3986's unreserved characters. Dots are encoded in a name of only dots, which would change the path.
fn encoded(subject: &str) -> String {
    let only_dots = subject.bytes().all(|byte| byte == b'.');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') || (byte == b'.' && !only_dots);
    subject.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The result of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TickResult {
    name: String,
    subject: String,
    how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    Worked,
    Failed(String),
    /// The request may have been executed, and may not be repeated before the next tick.
    Unknown(String),
    /// An operator has to fix a credential.
    Unwelcome(String),
}

/// Returns the ending of a tick's job and the result for its subject. A tick leaves no dead letter: the next one does the same work, and
/// until then the subject shows the error.
pub(crate) fn tick_result(job: &Job, ending: JobEnding) -> (JobEnding, Option<TickResult>) {
    let JobOrigin::Schedule { name, subject } = &job.origin else { return (ending, None) };
    let told = |how| Some(TickResult { name: name.clone(), subject: subject.clone(), how });
    match ending {
        JobEnding::Dead(letter) => {
            let error = format!("{} {}", letter.code, letter.detail).trim_end().to_owned();
            let how = match letter.class {
                Class::Auth => How::Unwelcome(error),
                _ if letter::may_have_run(&letter) => How::Unknown(error),
                Class::Success | Class::Transient | Class::Permanent | Class::Ambiguous | Class::Quota => How::Failed(error),
            };
            (JobEnding::Failed { code: letter.code }, told(how))
        }
        JobEnding::Done(response) => (JobEnding::Done(response), told(How::Worked)),
        JobEnding::Failed { code } => (JobEnding::Failed { code: code.clone() }, told(How::Failed(code))),
        other @ (JobEnding::Wait { .. } | JobEnding::Release | JobEnding::Cancelled) => (other, None),
    }
}

/// Attaches an event to one subject.
fn about(event: OperatorEvent, live: &Live, name: &str, subject: &str) -> OperatorEvent {
    let event = event.about(format!("{name} {subject}"));
    match named(&live.config.schedules, name) {
        Some(schedule) => event.of(&schedule.upstream, None),
        None => event,
    }
}

/// Publishes that a stopped subject runs again.
pub(crate) fn publish_resumed(shared: &ServerState, live: &Live, name: &str, subject: &str) {
    let event = OperatorEvent::new("schedule-stopped", Severity::Info, format!("schedule {name} goes on for {subject}"));
    shared.eyes.bus.clear(about(event, live, name, subject), shared.desk.now());
}

/// Records the result of a tick. If a crash prevents that, the next tick records its own.
pub(crate) async fn report(shared: &ServerState, told: TickResult) {
    let TickResult { name, subject, how } = told;
    let (desk, live) = (&shared.desk, shared.live.load_full());
    let now = desk.now();
    let report = match how {
        How::Worked => TickReport::Ok { at: now },
        How::Failed(error) => {
            let before = find(&desk.store, &name, &subject).await.ok().flatten().map_or(0, |found| found.consecutive_failures);
            let retry_at = named(&live.config.schedules, &name).map(|schedule| desk.by_chance(|rng| schedule.retry_at(before, now, rng)));
            TickReport::Failed { error, retry_at }
        }
        How::Unknown(error) => TickReport::Failed { error, retry_at: None },
        How::Unwelcome(reason) => {
            let fields = vec![("schedule", name.clone()), ("subject", subject.clone()), ("reason", reason.clone())];
            note(shared, "schedule_stopped", fields);
            let event = OperatorEvent::new("schedule-stopped", Severity::Fatal, format!("schedule {name} has stopped for {subject}"));
            shared.eyes.bus.raise(&about(event.detail(redacted(&reason)), &live, &name, &subject), now);
            TickReport::Stopped { reason }
        }
    };
    drop(desk.store.report_subject(name, subject, report).await);
}

/// Finds one subject. The store lists subjects by name and after a cursor; the name without its last character precedes the name.
pub(crate) async fn find(store: &Store, schedule: &str, subject: &str) -> Result<Option<ScheduleSubject>, Error> {
    let mut begins = subject.to_owned();
    begins.pop();
    let mut after = Some((schedule.to_owned(), begins));
    loop {
        let page = store.subjects(Some(schedule.to_owned()), after, BATCH).await?;
        if let Some(found) = page.iter().find(|found| found.subject == subject) {
            return Ok(Some(found.clone()));
        }
        match page.last() {
            Some(last) if page.len() == BATCH => after = Some((schedule.to_owned(), last.subject.clone())),
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_cannot_change_the_path_it_is_part_of() {
        assert_eq!(encoded("alice"), "alice");
        assert_eq!(encoded("a/b?c#d e"), "a%2Fb%3Fc%23d%20e");
        assert_eq!(encoded("ü"), "%C3%BC");
        assert_eq!(encoded(".."), "%2E%2E");
        assert_eq!(encoded("a.b"), "a.b");
    }
}
