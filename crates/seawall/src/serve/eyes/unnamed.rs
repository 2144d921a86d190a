//! Failures that only a catch-all caught, grouped by what is the same in them, until somebody names them. Bodies are
//! looked at here and forgotten; what is kept is one redacted line and a condition to recognise the error by.

use super::when;
use seawall_core::classify::{Condition, Fingerprint, diagnostic, fingerprint, redacted};
use seawall_core::record::{Class, Status};
use seawall_core::time::Wall;
use seawall_engine::live::{Live, Names};
use seawall_engine::recorder::{AttemptRecord, Sample};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Different errors that are remembered; the one that was not seen for longest goes first.
const MOST: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Unnamed {
    pub names: Arc<Names>,
    pub condition: Condition,
    count: u64,
    first_at: Wall,
    last_at: Wall,
    sample: String,
    pub named_as: Option<Class>,
}

#[derive(Debug, Default)]
pub(crate) struct Errors(HashMap<Fingerprint, Unnamed>);

impl Errors {
    pub(super) fn attempt(&mut self, record: &AttemptRecord, sample: &Sample, live: &Live) {
        let status = record.attempt.status;
        let result = match status {
            Status::Http(code) => Ok(code),
            Status::Error(kind) => Err(kind),
            Status::CircuitOpen => return,
        };
        let print = fingerprint(&record.names.upstream, result, &sample.body);
        if let Some(known) = self.0.get_mut(&print) {
            known.count += 1;
            known.last_at = record.at;
            return;
        }
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, error)| error.last_at).map(|(print, _)| *print)
        {
            self.0.remove(&oldest);
        }
        let said = diagnostic(&sample.body, &sample.content_type);
        // An upstream may repeat the key it was sent.
        let credentials = live.named(&record.names.upstream).and_then(|upstream| upstream.credentials.as_ref());
        let said = credentials.map_or(said.clone(), |credentials| credentials.mask(&said));
        let error = Unnamed {
            names: Arc::clone(&record.names),
            condition: Condition::of(status, &sample.body),
            count: 1,
            first_at: record.at,
            last_at: record.at,
            sample: redacted(&said),
            named_as: None,
        };
        self.0.insert(print, error);
    }

    pub(crate) fn one(&self, print: Fingerprint) -> Option<&Unnamed> {
        self.0.get(&print)
    }

    pub(crate) fn name(&mut self, print: Fingerprint, class: Class) {
        if let Some(error) = self.0.get_mut(&print) {
            error.named_as = Some(class);
        }
    }

    /// Those seen last come first.
    pub(crate) fn list(&self) -> Vec<Value> {
        let mut all: Vec<(&Fingerprint, &Unnamed)> = self.0.iter().collect();
        all.sort_by_key(|(print, error)| (std::cmp::Reverse(error.last_at), **print));
        let shown = all.into_iter().map(|(print, error)| {
            json!({
                "fingerprint": print.to_string(),
                "upstream": error.names.upstream,
                "endpoint": error.names.endpoint,
                "status": error.condition.status.to_string(),
                "count": error.count,
                "first_at": when(error.first_at),
                "last_at": when(error.last_at),
                "sample": error.sample,
                "named_as": error.named_as.map(Class::as_str),
            })
        });
        shown.collect()
    }
}
