//! Who did what to the running gateway. Every action of an operator leaves a line here and in the log.

use super::{bounded, when};
use seawall_core::time::Wall;
use seawall_engine::recorder::{NoteRecord, Record, Recorder};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const MOST: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<VecDeque<Value>>);

impl Audit {
    pub(crate) fn note(&self, recorder: &Recorder, at: Wall, who: &str, action: &'static str, detail: &str) {
        let line = json!({ "at": when(at), "who": who, "action": action, "detail": detail });
        bounded(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), MOST, line);
        let fields = vec![("who", who.to_owned()), ("action", action.to_owned()), ("detail", detail.to_owned())];
        recorder.push(Record::Note(NoteRecord { at, event: "operator", fields }));
    }

    /// Newest first.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}
