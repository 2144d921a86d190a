//! Failures that matched only a catch-all rule, grouped by common features until an operator names them. Bodies are read here and dropped;
//! a redacted line and a condition that recognises the error are kept. The store has the groups and their names as well.

use crate::json_shapes::{ClassWord, Time};
use seawall_core::classify::{Condition, ErrorFingerprint, Rule, fingerprint};
use seawall_core::record::{AttemptStatus, Class};
use seawall_core::time::Wall;
use seawall_engine::record::{AttemptRecord, EndpointNames, ErrorSample};
use seawall_store::notes;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum groups in memory; the unnamed group that was not seen for the longest time is dropped first.
pub(crate) const MAX_ERRORS: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct UnnamedEntry {
    pub names: Arc<EndpointNames>,
    pub condition: Condition,
    count: u64,
    /// Occurrences that the store does not have yet.
    fresh: u64,
    first_at: Wall,
    last_at: Wall,
    sample: String,
    pub named_as: Option<Class>,
}

#[derive(Debug, Default)]
pub(crate) struct UnnamedErrors(HashMap<ErrorFingerprint, UnnamedEntry>);

impl UnnamedErrors {
    pub(crate) fn attempt(&mut self, record: &AttemptRecord, sample: &ErrorSample) {
        let status = record.attempt.status;
        let result = match status {
            AttemptStatus::Http(code) => Ok(code),
            AttemptStatus::Error(kind) => Err(kind),
            AttemptStatus::CircuitOpen => return,
        };
        let print = fingerprint(&record.names.upstream, result, &sample.body);
        if let Some(known) = self.0.get_mut(&print) {
            known.count += 1;
            known.fresh += 1;
            known.last_at = record.at;
            return;
        }
        if self.0.len() >= MAX_ERRORS
            && let Some(oldest) = self.0.iter().min_by_key(|(_, error)| (error.named_as.is_some(), error.last_at)).map(|(print, _)| *print)
        {
            self.0.remove(&oldest);
        }
        let error = UnnamedEntry {
            names: Arc::clone(&record.names),
            condition: Condition::of(status, &sample.body),
            count: 1,
            fresh: 1,
            first_at: record.at,
            last_at: record.at,
            sample: super::excerpt(sample),
            named_as: None,
        };
        self.0.insert(print, error);
    }

    pub(crate) fn one(&self, print: ErrorFingerprint) -> Option<&UnnamedEntry> {
        self.0.get(&print)
    }

    pub(crate) fn name(&mut self, print: ErrorFingerprint, class: Class) {
        if let Some(error) = self.0.get_mut(&print) {
            error.named_as = Some(class);
        }
    }

    /// Takes the occurrences that the store does not have yet. They count as stored unless `give_back` follows.
    pub(crate) fn take_fresh(&mut self) -> Vec<notes::UnnamedGroup> {
        let fresh = self.0.iter_mut().filter(|(_, error)| error.fresh > 0);
        let noted = fresh.map(|(print, error)| notes::UnnamedGroup {
            fingerprint: print.to_string(),
            upstream: error.names.upstream.clone(),
            endpoint: error.names.endpoint.clone(),
            status: error.condition.status.to_string(),
            member: error.condition.member.clone(),
            seen: std::mem::take(&mut error.fresh),
            first_at: error.first_at,
            last_at: error.last_at,
            sample: error.sample.clone(),
            named_as: None,
        });
        noted.collect()
    }

    /// Puts back groups that the store did not accept.
    pub(crate) fn give_back(&mut self, errors: &[notes::UnnamedGroup]) {
        for noted in errors {
            if let Some(error) = ErrorFingerprint::parse(&noted.fingerprint).and_then(|print| self.0.get_mut(&print)) {
                error.fresh += noted.seen;
            }
        }
    }

    /// Merges the groups in the store, from earlier and from other instances. Returns the rules made from names.
    pub(crate) fn take_over(&mut self, stored: &[notes::UnnamedGroup]) -> Vec<(String, Rule)> {
        let mut rules = Vec::new();
        for noted in stored {
            let known = ErrorFingerprint::parse(&noted.fingerprint).zip(AttemptStatus::parse(&noted.status));
            let Some((print, status)) = known else { continue };
            let condition = Condition { status, member: noted.member.clone() };
            let named_as = noted.named_as.as_deref().and_then(Class::from_word);
            if let Some(rule) = named_as.and_then(|class| condition.rule(&noted.upstream, print, class)) {
                rules.push((noted.upstream.clone(), rule));
            }
            let fresh = self.0.get(&print).map_or(0, |error| error.fresh);
            let error = UnnamedEntry {
                names: Arc::new(EndpointNames::new(&noted.upstream, &noted.endpoint)),
                condition,
                count: noted.seen + fresh,
                fresh,
                first_at: noted.first_at,
                last_at: self.0.get(&print).map_or(noted.last_at, |error| error.last_at.max(noted.last_at)),
                sample: noted.sample.clone(),
                named_as,
            };
            self.0.insert(print, error);
        }
        rules
    }

    /// Lists the groups, most recently seen first.
    pub(crate) fn list(&self) -> Vec<UnnamedError> {
        let mut all: Vec<(&ErrorFingerprint, &UnnamedEntry)> = self.0.iter().collect();
        all.sort_by_key(|(print, error)| (std::cmp::Reverse(error.last_at), **print));
        let shown = all.into_iter().map(|(print, error)| UnnamedError {
            fingerprint: print.to_string(),
            upstream: error.names.upstream.clone(),
            endpoint: error.names.endpoint.clone(),
            status: error.condition.status.to_string(),
            count: error.count,
            first_at: Time(error.first_at),
            last_at: Time(error.last_at),
            sample: error.sample.clone(),
            named_as: error.named_as.map(ClassWord),
            toml: error.named_as.map(|class| error.condition.toml(&error.names.upstream, *print, class)),
        });
        shown.collect()
    }
}

/// A failure that only a catch-all caught.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UnnamedError {
    fingerprint: String,
    upstream: String,
    endpoint: String,
    /// A status of HTTP, or how no answer came to be.
    status: String,
    count: u64,
    first_at: Time,
    last_at: Time,
    /// What the upstream said, in one line without secrets.
    sample: String,
    named_as: Option<ClassWord>,
    /// The rule to move into the file, of an error that has a name
    toml: Option<String>,
}
