//! The effect of a settlement on its job: one rule for both databases.

use crate::error::Error;
use crate::json;
use crate::model::dead::NewLetter;
use crate::model::history;
use crate::model::job::{JobEnding, JobOrigin, JobState, MAX_HISTORY, Response, SettleJob, Settled};
use crate::progress;
use crate::sql::{RowReader, Sql, text};
use crate::statements::letters;
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use std::sync::Arc;

/// A settlement with its serialised columns. The settling task serialises them, so that the shared writer does not have to.
#[derive(Debug)]
pub(crate) struct WrittenSettlement {
    pub(crate) settle: Arc<SettleJob>,
    progress: String,
    history: String,
}

impl WrittenSettlement {
    pub(crate) fn of(settle: Arc<SettleJob>) -> Self {
        let history = history::to_json(&settle.history[settle.history.len().saturating_sub(MAX_HISTORY)..]);
        Self { progress: progress::write(&settle.progress), history, settle }
    }
}

/// The data of a job that its settlement needs.
#[derive(Debug, Default)]
pub(crate) struct SettlingJob {
    pub(crate) upstream: String,
    pub(crate) tenant: String,
    /// The job is to be cancelled.
    pub(crate) cancel: bool,
    pub(crate) origin: Option<String>,
}

impl SettlingJob {
    /// Reads the columns `upstream, tenant, cancel, origin`.
    pub(crate) fn read(row: &mut RowReader) -> Result<Self, Error> {
        Ok(Self { upstream: row.take()?, tenant: row.take()?, cancel: row.take()?, origin: row.take()? })
    }
}

/// The current state of a job that was settled. Another worker may have claimed it since.
#[derive(Debug)]
pub(crate) struct SettledJob {
    held: SettlingJob,
    state: JobState,
    finished_at: Option<Wall>,
    progress: String,
    history: String,
    error: Option<String>,
}

impl SettledJob {
    /// Reads the columns [`LEFT`](crate::rows::LEFT).
    pub(crate) fn read(row: &mut RowReader) -> Result<Self, Error> {
        let held = SettlingJob::read(row)?;
        let state = row.number(JobState::from_number)?;
        Ok(Self { held, state, finished_at: row.take()?, progress: row.take()?, history: row.take()?, error: row.take()? })
    }

    /// Returns the result of the settlement, if that settlement left the job in this state. A waiting job may have become ready since.
    pub(crate) fn by(&self, of: &WrittenSettlement) -> Result<Option<Settled>, Error> {
        let (settled, change, _) = settle(of, &self.held)?;
        let state = if change.state.is_over() { self.state == change.state } else { !self.state.is_over() };
        let rest = self.finished_at == change.finished_at
            && self.progress == change.progress
            && self.history == change.history
            && self.error.as_deref().map(text) == change.error.map(text);
        Ok((state && rest).then_some(settled))
    }
}

/// The change of a job's row.
#[derive(Debug)]
pub(crate) struct JobChange<'a> {
    pub(crate) state: JobState,
    /// `None` keeps the old value.
    pub(crate) due: Option<Wall>,
    pub(crate) finished_at: Option<Wall>,
    pub(crate) progress: &'a str,
    pub(crate) history: &'a str,
    pub(crate) error: Option<&'a str>,
    /// A key is free again once its job was given up on or cancelled.
    pub(crate) keeps_dedup: bool,
    pub(crate) response: Option<&'a Response>,
}

impl JobChange<'_> {
    /// Returns whether the job returns to the queue, so that it needs a turn.
    pub(crate) fn is_queued(&self) -> bool {
        self.state == JobState::Queued
    }
}

/// The further effect of a settlement.
#[derive(Debug, PartialEq)]
pub(crate) enum SideEffect<'a> {
    Nothing,
    Letter(&'a NewLetter),
    ReplayOver { letter: CallId, worked: bool },
    ReplayFailed { letter: CallId, how: &'a NewLetter },
}

impl SideEffect<'_> {
    pub(crate) async fn write<S: Sql>(&self, sql: &mut S) -> Result<(), Error> {
        match self {
            Self::Nothing => Ok(()),
            Self::Letter(new) => letters::keep(sql, new).await,
            Self::ReplayOver { letter, worked } => letters::replay_ended(sql, *letter, *worked).await,
            Self::ReplayFailed { letter, how } => letters::replay_failed(sql, *letter, how).await,
        }
    }
}

pub(crate) fn settle<'a>(worded: &'a WrittenSettlement, held: &SettlingJob) -> Result<(Settled, JobChange<'a>, SideEffect<'a>), Error> {
    let settle = &worded.settle;
    let letter = letter_of(held.origin.as_deref())?;
    let now = settle.now;
    let cancelled = held.cancel && matches!(settle.ending, JobEnding::Wait { .. } | JobEnding::Release);
    let (state, due, error, response, besides) = match &settle.ending {
        _ if cancelled => (JobState::Cancelled, None, Some(CANCELLED), None, replay_over(letter, false)),
        JobEnding::Cancelled => (JobState::Cancelled, None, Some(CANCELLED), None, replay_over(letter, false)),
        JobEnding::Wait { until, reason } if *until <= now => (JobState::Queued, Some(*until), Some(*reason), None, SideEffect::Nothing),
        JobEnding::Wait { until, reason } => (JobState::Waiting, Some(*until), Some(*reason), None, SideEffect::Nothing),
        JobEnding::Release => (JobState::Queued, None, None, None, SideEffect::Nothing),
        JobEnding::Done(_) => (JobState::Done, None, None, stored_response(settle), replay_over(letter, true)),
        JobEnding::Dead(new) => {
            let besides = letter.map_or(SideEffect::Letter(new), |letter| SideEffect::ReplayFailed { letter, how: new });
            (JobState::Dead, None, Some(new.code.as_str()), stored_response(settle), besides)
        }
        JobEnding::Failed { code } => (JobState::Dead, None, Some(code.as_str()), stored_response(settle), replay_over(letter, false)),
    };
    let settled = if state == JobState::Cancelled { Settled::Cancelled } else { Settled::Kept };
    let change = JobChange {
        state,
        due,
        finished_at: state.is_over().then_some(now),
        progress: &worded.progress,
        history: &worded.history,
        error,
        keeps_dedup: !matches!(state, JobState::Dead | JobState::Cancelled),
        response,
    };
    Ok((settled, change, besides))
}

/// Returns the result and change of a common settlement: a caller's job that ends well or waits, and is not to be cancelled. It can be
/// written without reading the job, if its claim exists and has no request for cancellation.
pub(crate) fn plain(of: &WrittenSettlement) -> Result<Option<(Settled, JobChange<'_>)>, Error> {
    if !of.settle.lease.by_caller {
        return Ok(None);
    }
    let (settled, change, besides) = settle(of, &SettlingJob::default())?;
    let plain = !change.is_queued() && change.keeps_dedup && besides == SideEffect::Nothing;
    Ok(plain.then_some((settled, change)))
}

/// Returns the response that is stored with an ended job.
fn stored_response(settle: &SettleJob) -> Option<&Response> {
    if let JobEnding::Done(response) = &settle.ending { Some(response) } else { settle.answer.as_ref() }
}

pub(crate) const CANCELLED: &str = "cancelled";

fn replay_over<'a>(letter: Option<CallId>, worked: bool) -> SideEffect<'a> {
    letter.map_or(SideEffect::Nothing, |letter| SideEffect::ReplayOver { letter, worked })
}

/// Returns the dead letter that a job replays.
pub(crate) fn letter_of(origin: Option<&str>) -> Result<Option<CallId>, Error> {
    let Some(text) = origin else { return Ok(None) };
    match json::read(text)? {
        JobOrigin::Replay { letter } => Ok(CallId::parse(&letter)),
        JobOrigin::Caller | JobOrigin::Callback(_) | JobOrigin::Notification | JobOrigin::Schedule { .. } => Ok(None),
    }
}
