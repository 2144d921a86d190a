//! Further tables of a store: schedules, idempotency keys, replays, roll-ups, snapshots, alarms, audit, errors.

use super::{PostgresStore, SqliteStore, Store};
use crate::error::Error;
use crate::model::alarm::Alarm;
use crate::model::idempotency::{FinishKey, ReserveKey, Reserved};
use crate::model::job::NewJob;
use crate::model::notes::{AuditEntry, NumberedEntry, UnnamedGroup};
use crate::model::page::{Page, PageWindow};
use crate::model::replay::{self, Created, NewReplay, Replay, Stepped};
use crate::model::rollup;
use crate::model::schedule::{Firing, NewSubject, ScheduleSubject, TickReport};
use crate::sql::at_once;
use crate::statements;
use bytes::Bytes;
use seawall_core::id::CallId;
use seawall_core::time::Wall;

/// Schedules.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    /// Adds missing subjects; existing ones stay unchanged. Returns the number added.
    pub async fn put_subjects(&self, new: Vec<NewSubject>) -> Result<usize, Error> {
        change!(self, adds statements::schedule::put, new)
    }

    pub async fn remove_subject(&self, schedule: String, subject: String) -> Result<bool, Error> {
        change!(self, ends statements::schedule::remove, schedule, subject)
    }

    /// Lists subjects by name, behind a cursor; of one schedule or of all.
    pub async fn subjects(
        &self,
        schedule: Option<String>,
        after: Option<(String, String)>,
        limit: usize,
    ) -> Result<Vec<ScheduleSubject>, Error> {
        look!(self, statements::schedule::list, schedule, after, limit)
    }

    /// Lists due subjects, longest due first.
    pub async fn due_subjects(&self, now: Wall, most: usize) -> Result<Vec<ScheduleSubject>, Error> {
        look!(self, statements::schedule::due, now, most)
    }

    /// Creates the job of a tick. Returns `false` if another instance took the tick, or the subject is stopped or gone.
    pub async fn fire(&self, firing: Firing) -> Result<bool, Error> {
        change!(self, at "fire", adds statements::schedule::fire, firing)
    }

    pub async fn report_subject(&self, schedule: String, subject: String, report: TickReport) -> Result<bool, Error> {
        change!(self, at "report", ends statements::schedule::report, schedule, subject, report)
    }

    /// Resumes a stopped subject.
    pub async fn resume_subject(&self, schedule: String, subject: String, next_at: Wall) -> Result<bool, Error> {
        change!(self, ends statements::schedule::resume, schedule, subject, next_at)
    }
}

/// Idempotency keys.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    pub async fn reserve_key(&self, wish: ReserveKey) -> Result<Reserved, Error> {
        change!(self, at "reserve", adds statements::idempotency::reserve, wish)
    }

    /// Returns `false` if the reservation was lost in the meantime.
    pub async fn finish_key(&self, end: FinishKey) -> Result<bool, Error> {
        change!(self, at "finish", ends statements::idempotency::finish, end)
    }

    pub async fn sweep_keys(&self, now: Wall, most: usize) -> Result<usize, Error> {
        change!(self, ends statements::idempotency::sweep, now, most)
    }
}

/// Replays of many letters.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    /// Starts a replay, unless a running one covers a common upstream.
    pub async fn create_replay(&self, new: NewReplay) -> Result<Created, Error> {
        change!(self, at "replay", adds statements::replay::create, new)
    }

    pub async fn replay(&self, id: CallId) -> Result<Option<Replay>, Error> {
        look!(self, statements::replay::one, id)
    }

    /// Lists replays, newest first.
    pub async fn replays(&self, window: PageWindow) -> Result<Page<Replay>, Error> {
        look!(self, statements::replay::list, window)
    }

    /// Pauses, resumes or ends a replay. Returns `false` if it is over or does not exist.
    pub async fn set_replay(&self, id: CallId, state: replay::ReplayState, now: Wall) -> Result<bool, Error> {
        change!(self, at "set-replay", ends statements::replay::set, id, state, now)
    }

    /// Advances a replay to the next letter, with its job, or without one if the letter is held back.
    pub async fn step_replay(&self, id: CallId, letter: CallId, job: Option<NewJob>, now: Wall) -> Result<Stepped, Error> {
        change!(self, at "step", adds statements::replay::step, id, letter, job, now)
    }
}

/// Roll-ups and snapshots.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    /// Writes whole rows, in place of the earlier ones of their writer.
    pub async fn put_rollups(&self, rows: Vec<rollup::RollupRow>) -> Result<(), Error> {
        change!(self, adds statements::rollup::put, rows)
    }

    /// Lists the rows of `from..to`, oldest first, at most `rollup::MAX_ROLLUPS`.
    pub async fn rollups(&self, from: Wall, to: Wall, upstream: Option<String>) -> Result<Vec<rollup::RollupRow>, Error> {
        look!(self, statements::rollup::between, from, to, upstream)
    }

    /// Deletes the oldest rows, some thousand per call; 0 if there are none left.
    pub async fn sweep_rollups(&self, before: Wall) -> Result<usize, Error> {
        change!(self, ends statements::rollup::sweep, before)
    }

    pub async fn put_snapshot(&self, name: String, content: Bytes, now: Wall) -> Result<(), Error> {
        change!(self, adds statements::notes::put_snapshot, name, content, now)
    }

    /// Returns the time of a snapshot and its content.
    pub async fn snapshot(&self, name: String) -> Result<Option<(Wall, Bytes)>, Error> {
        look!(self, statements::notes::snapshot, name)
    }
}

/// Alarms.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    /// Lists raised alarms.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        look!(self, statements::alarms::list)
    }

    /// Raises an alarm, even while space is running out. Returns `false` if it is raised already: only one instance succeeds.
    pub async fn raise_alarm(&self, alarm: Alarm) -> Result<bool, Error> {
        change!(self, ends statements::alarms::raise, alarm)
    }

    /// Replaces an alarm, on behalf of its holder or of an instance that takes it over. Returns `false` if it has changed.
    pub async fn hold_alarm(&self, was: Alarm, is: Alarm) -> Result<bool, Error> {
        change!(self, ends statements::alarms::hold, was, is)
    }

    /// Clears an alarm. Returns `false` if it has changed: only one instance succeeds.
    pub async fn clear_alarm(&self, alarm: Alarm) -> Result<bool, Error> {
        change!(self, ends statements::alarms::clear, alarm)
    }
}

/// Audit, unnamed errors.
#[expect(clippy::missing_errors_doc, reason = "they fail as the database fails, and only so")]
impl Store {
    pub async fn record_deed(&self, deed: AuditEntry) -> Result<(), Error> {
        change!(self, adds statements::notes::record, deed)
    }

    /// Lists audit entries before a number, newest first.
    pub async fn audit(&self, before: Option<i64>, limit: usize) -> Result<Vec<NumberedEntry>, Error> {
        look!(self, statements::notes::audit, before, limit)
    }

    /// Counts errors that no rule names.
    pub async fn note_unnamed(&self, errors: Vec<UnnamedGroup>) -> Result<(), Error> {
        change!(self, adds statements::notes::note, errors)
    }

    /// Lists errors with a class, and as many without one; newest first.
    pub async fn unnamed(&self, limit: usize) -> Result<Vec<UnnamedGroup>, Error> {
        look!(self, statements::notes::unnamed, limit)
    }

    /// Sets or removes the class of an error. Returns `false` if there is no such error.
    pub async fn name_error(&self, fingerprint: String, named_as: Option<String>) -> Result<bool, Error> {
        change!(self, ends statements::notes::name, fingerprint, named_as)
    }
}
