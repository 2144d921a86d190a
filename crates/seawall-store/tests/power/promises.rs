//! The store's promises up to a point of a recording, as its users noted them, compared with the state found.

use std::collections::{BTreeMap, BTreeSet};

/// A kind and a name, such as a job's id or a key's number.
pub(crate) type Thing = (String, String);

pub(crate) const ABSENT: &str = "absent";

/// The possible states of each thing: the last acknowledged one, and all requested since.
#[derive(Clone, Default)]
pub(crate) struct Promises {
    may_be: BTreeMap<Thing, Vec<String>>,
    /// Pairs of jobs: the second exists exactly if the first is over.
    follows: Vec<(String, String)>,
    /// A subject's tick and its job: the job exists exactly if the subject has advanced past that tick.
    ticks: Vec<(String, i64, String)>,
}

/// The state found; absent things have no entry.
pub(crate) type Found = BTreeMap<Thing, String>;

impl Promises {
    pub(crate) fn note(&mut self, note: &str) {
        let words: Vec<&str> = note.split(' ').collect();
        match words[..] {
            ["ask", what, which, state] => self.states(what, which).push(state.to_owned()),
            ["ack", what, which, state] => *self.states(what, which) = vec![state.to_owned()],
            ["follows", job, callback] => self.follows.push((job.to_owned(), callback.to_owned())),
            ["tick", subject, at, job] => self.ticks.push((subject.to_owned(), at.parse().unwrap(), job.to_owned())),
            _ => panic!("nobody understands {note:?}"),
        }
    }

    fn states(&mut self, what: &str, which: &str) -> &mut Vec<String> {
        self.may_be.entry((what.to_owned(), which.to_owned())).or_insert_with(|| vec![ABSENT.to_owned()])
    }

    /// Returns whether a thing is certain to be in this state.
    pub(crate) fn is_surely(&self, what: &str, which: &str, state: &str) -> bool {
        self.may_be.get(&(what.to_owned(), which.to_owned())).is_some_and(|states| states[..] == [state.to_owned()])
    }

    /// Returns whether a thing may be in this state.
    pub(crate) fn may_be(&self, what: &str, which: &str, state: &str) -> bool {
        self.may_be.get(&(what.to_owned(), which.to_owned())).map_or(state == ABSENT, |states| states.iter().any(|may_be| may_be == state))
    }

    /// Returns all things of a kind that were ever requested.
    pub(crate) fn all(&self, what: &str) -> Vec<String> {
        self.may_be.keys().filter(|(kind, _)| kind == what).map(|(_, which)| which.clone()).collect()
    }

    /// Lists the contradictions between the promises and the state found.
    pub(crate) fn broken_by(&self, found: &Found) -> Vec<String> {
        let state = |thing: &Thing| found.get(thing).map_or(ABSENT, String::as_str);
        let mut wrong = Vec::new();
        let things: BTreeSet<&Thing> = self.may_be.keys().filter(|(what, _)| what != "closed").chain(found.keys()).collect();
        let nothing = vec![ABSENT.to_owned()];
        for thing in things {
            let may_be = self.may_be.get(thing).unwrap_or(&nothing);
            if !may_be.iter().any(|may_be| may_be == state(thing)) {
                wrong.push(format!("{} {} is {:?} and may be {may_be:?}", thing.0, thing.1, state(thing)));
            }
        }
        let job = |id: &String| state(&("job".to_owned(), id.clone())).to_owned();
        let is_over = |id: &String| ["done", "dead"].contains(&job(id).as_str());
        for (parent, callback) in self.follows.iter().filter(|(parent, callback)| is_over(parent) != (job(callback) != ABSENT)) {
            wrong.push(format!("job {parent} is {:?} and its callback {callback} is {:?}", job(parent), job(callback)));
        }
        for (subject, tick, of) in &self.ticks {
            let next = state(&("subject".to_owned(), subject.clone()));
            let gone_on = next.parse().is_ok_and(|next: i64| next > *tick);
            if gone_on != (job(of) != ABSENT) {
                wrong.push(format!("subject {subject} is at {next:?}, and the job of its tick {tick} is {:?}", job(of)));
            }
        }
        wrong
    }
}
