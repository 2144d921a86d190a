//! The queue of records from serving threads to the log writer. A request pays for a push under a short lock; the writer formats, counts
//! and writes. If the writer falls behind, log lines are dropped and counted; requests never wait for the log.

use crate::locked_cell::Locked;
use crate::metrics;
use crate::metrics::Metrics;
use crate::record::{Record, log_line};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum queued records. Further ones are not even counted by metrics, only as dropped.
const MAX_WAITING: usize = 1 << 18;
/// With more records queued, lines are no longer written, only counted.
const MAX_WRITTEN: usize = 1 << 15;

/// Maximum bytes of queued samples. Further records lose their samples.
const MAX_SAMPLE_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
struct WaitingGauge {
    records: Vec<Record>,
    sample_bytes: usize,
}

#[derive(Debug)]
pub struct Recorder {
    waiting: Locked<WaitingGauge>,
    pub metrics: Metrics,
    dropped: AtomicU64,
    stopping: AtomicBool,
    /// There is no writer: nothing is kept.
    silent: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            waiting: Locked::new(WaitingGauge { records: Vec::with_capacity(1024), sample_bytes: 0 }),
            metrics: Metrics::default(),
            dropped: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            silent: false,
        }
    }
}

impl Recorder {
    /// For a front end without a log, which reports in its own way.
    #[must_use]
    pub fn silent() -> Self {
        Self { silent: true, ..Self::default() }
    }

    pub fn push(&self, mut record: Record) {
        if self.silent {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.records.len() < MAX_WAITING {
            if let Record::Attempt(attempt) = &mut record
                && let Some(sample) = &attempt.sample
            {
                let bytes = waiting.sample_bytes + sample.size();
                if bytes <= MAX_SAMPLE_BYTES {
                    waiting.sample_bytes = bytes;
                } else {
                    attempt.sample = None;
                }
            }
            waiting.records.push(record);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of lines that were dropped because the writer was behind.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts all queued records and writes their lines. `batch` and `buffer` are reused between rounds.
    fn drain(
        &self,
        batch: &mut Vec<Record>,
        buffer: &mut Vec<u8>,
        stamp: &mut log_line::Stamp,
        json: bool,
        sink: &mut dyn Write,
        watch: &mut dyn FnMut(&[Record]),
    ) -> bool {
        {
            let mut waiting = self.waiting.lock();
            std::mem::swap(&mut waiting.records, batch);
            waiting.sample_bytes = 0;
        }
        watch(batch);
        if batch.is_empty() {
            return false;
        }
        let behind = batch.len() > MAX_WRITTEN;
        self.metrics.count(batch);
        if behind {
            self.dropped.fetch_add(metrics::as_u64(batch.len()), Ordering::Relaxed);
        } else {
            for record in batch.iter() {
                if json { log_line::json(buffer, stamp, record) } else { log_line::text(buffer, record) }
            }
        }
        batch.clear();
        // A failing log must not stop the gateway; the lines count as dropped.
        if sink.write_all(buffer).and_then(|()| sink.flush()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        buffer.clear();
        true
    }

    /// The writer's main loop: runs until [`Recorder::stop`], then writes the rest. `watch` gets all records, and is called many times per
    /// second even if there are none.
    pub fn write_to(&self, mut sink: Box<dyn Write + Send>, json: bool, mut watch: impl FnMut(&[Record])) {
        let (mut batch, mut buffer) = (Vec::with_capacity(1024), Vec::with_capacity(1 << 16));
        let mut stamp = log_line::Stamp::default();
        loop {
            // Read before draining, so that the last drain sees every record that was pushed before `stop`.
            let stopping = self.stopping.load(Ordering::Acquire);
            let busy = self.drain(&mut batch, &mut buffer, &mut stamp, json, &mut *sink, &mut watch);
            if stopping && !busy {
                return;
            }
            // Waking the writer for each record would cost the request a system call, so the writer polls instead.
            if !stopping {
                std::thread::sleep(Duration::from_millis(if busy { 5 } else { 20 }));
            }
        }
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{AttemptRecord, EndpointNames, ErrorSample};
    use seawall_core::id::CallId;
    use seawall_core::record::{AttemptOutcome, AttemptStatus, Class, Decision, Reason};
    use seawall_core::rng::Rng;
    use seawall_core::time::{Nanos, Wall};
    use std::sync::Arc;

    fn attempt(names: &Arc<EndpointNames>) -> Record {
        let attempt = AttemptOutcome {
            number: 1,
            status: AttemptStatus::Http(418),
            key: None,
            latency: Nanos::ZERO,
            elapsed: Nanos::ZERO,
            class: Class::Permanent,
            named: false,
            decision: Decision::Return,
            wait: Nanos::ZERO,
            reason: Reason::PermanentFailure,
        };
        let sample = Some(Box::new(ErrorSample { content_type: String::new(), body: vec![b'x'; ErrorSample::MAX_BODY] }));
        let call = CallId::new(Wall(0), &mut Rng::seeded(1));
        let (names, caller) = (Arc::clone(names), Arc::from("anonymous"));
        Record::Attempt(AttemptRecord {
            at: Wall(0),
            call,
            names,
            caller,
            attempt,
            request: None,
            resends: 0,
            span: None,
            key_tail: None,
            timeout: None,
            error: None,
            sample,
        })
    }

    #[test]
    fn samples_that_wait_for_the_writer_are_bounded_in_bytes() {
        let (recorder, names) = (Recorder::default(), Arc::new(EndpointNames::new("u", "e")));
        for _ in 0..10_000 {
            recorder.push(attempt(&names));
        }
        let waiting = recorder.waiting.lock();
        assert_eq!(waiting.records.len(), 10_000, "every record is kept");
        let samples = waiting.records.iter().filter_map(|record| match record {
            Record::Attempt(attempt) => attempt.sample.as_deref(),
            _ => None,
        });
        let bytes: usize = samples.map(ErrorSample::size).sum();
        assert!((MAX_SAMPLE_BYTES / 2..=MAX_SAMPLE_BYTES).contains(&bytes), "{bytes}");
    }
}
