//! What people should hear of: each event once to everybody who listens, and the last ones for whoever comes later.
//! Nobody who listens slowly holds anybody up: what is missed is missed, and can be asked for again.

use super::{bounded, when};
use seawall_core::time::Wall;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;

const RECENT: usize = 200;
/// Frames that a listener may be behind.
const BEHIND: usize = 512;
/// Events that wait for whoever writes messages; the oldest go first.
const MOST_UNREAD: usize = 1000;
/// Numbers that are passed over after a restart.
const SKIPPED: u64 = 10_000;
/// Things that have begun and not ended.
const MOST_STANDING: usize = 4096;
/// Listeners at the same time.
const MOST_LISTENERS: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Info,
    Warning,
    Fatal,
}

impl Severity {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Fatal => "fatal",
        }
    }
}

/// Something that happened, in words for people.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub name: &'static str,
    pub severity: Severity,
    pub title: String,
    pub detail: String,
    pub upstream: Option<String>,
    pub endpoint: Option<String>,
    /// What it is about, where that is not all of an upstream or endpoint.
    pub about: String,
    /// The event that this one ends.
    pub resolves: Option<u64>,
    /// Another instance tells receivers of it: here it is only to be seen.
    pub told_elsewhere: bool,
}

impl Event {
    pub(crate) fn new(name: &'static str, severity: Severity, title: impl Into<String>) -> Self {
        let (title, nothing) = (title.into(), String::new);
        let (upstream, endpoint, resolves) = (None, None, None);
        Self { name, severity, title, detail: nothing(), upstream, endpoint, about: nothing(), resolves, told_elsewhere: false }
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(crate) fn of(mut self, upstream: &str, endpoint: Option<&str>) -> Self {
        self.upstream = Some(upstream.to_owned());
        self.endpoint = endpoint.map(str::to_owned);
        self
    }

    pub(crate) fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// The same for all events of one name about one thing.
    pub(crate) fn condition(&self) -> String {
        let place = |name: &Option<String>| name.clone().unwrap_or_default();
        format!("{} {}/{} {}", self.name, place(&self.upstream), place(&self.endpoint), self.about)
    }

    pub(crate) const fn told_elsewhere(mut self, is_told: bool) -> Self {
        self.told_elsewhere = is_told;
        self
    }

    pub(crate) const fn resolving(mut self, event: Option<u64>) -> Self {
        self.resolves = event;
        self
    }

    pub(crate) fn json(&self, id: u64, at: Wall) -> Value {
        let mut members = Map::new();
        members.insert("id".to_owned(), json!(id));
        members.insert("at".to_owned(), when(at));
        members.insert("name".to_owned(), json!(self.name));
        members.insert("severity".to_owned(), json!(self.severity.as_str()));
        members.insert("title".to_owned(), json!(self.title));
        members.insert("detail".to_owned(), json!(self.detail));
        let optional =
            [("upstream", self.upstream.as_ref().map(|name| json!(name))), ("endpoint", self.endpoint.as_ref().map(|name| json!(name)))];
        for (name, value) in optional.into_iter().chain([("resolves", self.resolves.map(|id| json!(id)))]) {
            members.extend(value.map(|value| (name.to_owned(), value)));
        }
        Value::Object(members)
    }
}

/// A frame as it goes over the wire, made once for all listeners.
pub(crate) type Frame = Arc<str>;

/// An event that was told, and when.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub id: u64,
    pub at: Wall,
    pub event: Event,
}

#[derive(Debug)]
pub(crate) struct Bus {
    sender: broadcast::Sender<Frame>,
    recent: Mutex<Recent>,
    /// For whoever writes messages of them.
    unread: Mutex<VecDeque<Published>>,
    /// What began and has not ended, by its condition.
    standing: Mutex<HashMap<String, Standing>>,
    listeners: Arc<AtomicUsize>,
}

/// Something that began and has not ended, and the event that began it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub id: u64,
    pub name: String,
    pub upstream: Option<String>,
    pub about: String,
}

#[derive(Debug, Default)]
struct Recent {
    last: u64,
    events: VecDeque<(u64, &'static str, Value)>,
}

impl Default for Bus {
    fn default() -> Self {
        let (unread, standing) = (Mutex::default(), Mutex::default());
        Self { sender: broadcast::channel(BEHIND).0, recent: Mutex::default(), unread, standing, listeners: Arc::default() }
    }
}

/// Counts a listener for as long as it lives.
#[derive(Debug)]
pub(crate) struct Listener {
    pub frames: broadcast::Receiver<Frame>,
    /// What it missed while it was away.
    pub missed: Vec<Frame>,
    count: Arc<AtomicUsize>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bus {
    /// Tells everybody, and gives the event's number.
    pub(crate) fn publish(&self, event: &Event, at: Wall) -> u64 {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.last += 1;
        let (id, value) = (recent.last, event.json(recent.last, at));
        // Without listeners there is nobody to tell.
        drop(self.sender.send(frame(id, event.name, &value)));
        bounded(&mut recent.events, RECENT, (id, event.name, value));
        let published = Published { id, at, event: event.clone() };
        bounded(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner), MOST_UNREAD, published);
        id
    }

    /// Tells everybody of something that will end, or has not ended yet.
    pub(crate) fn raise(&self, event: &Event, at: Wall) -> u64 {
        let id = self.publish(event, at);
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let condition = event.condition();
        if standing.len() < MOST_STANDING || standing.contains_key(&condition) {
            let (name, upstream, about) = (event.name.to_owned(), event.upstream.clone(), event.about.clone());
            standing.insert(condition, Standing { id, name, upstream, about });
        }
        id
    }

    /// Tells everybody that what an event of this name and place began has ended, if one did.
    pub(crate) fn clear(&self, event: Event, at: Wall) -> bool {
        let began = self.ended(&event);
        let is_news = began.is_some();
        if is_news {
            self.publish(&event.resolving(began), at);
        }
        is_news
    }

    /// Forgets that something stands, and says which event began it.
    pub(crate) fn ended(&self, event: &Event) -> Option<u64> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.condition()).map(|standing| standing.id)
    }

    /// Whether an event of this name and place has begun something that has not ended.
    pub(crate) fn stands(&self, event: &Event) -> bool {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&event.condition())
    }

    /// What stands of this, by its condition.
    pub(crate) fn standing(&self, of: impl Fn(&str) -> bool) -> BTreeMap<String, Standing> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.iter().filter(|(condition, _)| of(condition)).map(|(condition, one)| (condition.clone(), one.clone())).collect()
    }

    /// What stood when an earlier process ended. Numbers go on where its own ended, and some more: it may have given out others since
    /// it wrote them down.
    pub(crate) fn recall(&self, standing: &BTreeMap<String, Standing>) {
        let last = standing.values().map(|one| one.id).max().map_or(0, |last| last.saturating_add(SKIPPED));
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.last = recent.last.max(last);
        let known = standing.iter().take(MOST_STANDING).map(|(condition, one)| (condition.clone(), one.clone()));
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).extend(known);
    }

    /// What was published since this was last asked, oldest first.
    pub(crate) fn unread(&self) -> VecDeque<Published> {
        std::mem::take(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tick(&self, value: &Value) {
        if self.sender.receiver_count() > 0 {
            drop(self.sender.send(Arc::from(format!("event: tick\ndata: {value}\n\n"))));
        }
    }

    /// Newest first.
    pub(crate) fn recent(&self) -> Vec<Value> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.events.iter().rev().map(|(_, _, value)| value.clone()).collect()
    }

    /// Somebody who has heard everything up to `heard`, if there is room for one more.
    pub(crate) fn listen(&self, heard: Option<u64>) -> Option<Listener> {
        if self.listeners.fetch_add(1, Ordering::Relaxed) >= MOST_LISTENERS {
            self.listeners.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // Under the lock, so that nothing falls between what is missed and what is heard.
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = recent.events.iter().filter(|(id, ..)| heard.is_some_and(|heard| *id > heard));
        let missed = missed.map(|(id, name, value)| frame(*id, name, value)).collect();
        Some(Listener { frames: self.sender.subscribe(), missed, count: Arc::clone(&self.listeners) })
    }
}

fn frame(id: u64, name: &str, value: &Value) -> Frame {
    Arc::from(format!("event: {name}\nid: {id}\ndata: {value}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_back_hears_what_was_missed_and_nothing_twice() {
        let bus = Bus::default();
        for _ in 0..300 {
            bus.publish(&Event::new("config-reloaded", Severity::Info, "a\nb"), Wall(0));
        }
        assert_eq!(bus.recent().len(), RECENT);
        assert_eq!(bus.recent()[0]["id"], 300);
        let mut back = bus.listen(Some(298)).unwrap();
        assert_eq!(back.missed.len(), 2);
        bus.publish(&Event::new("config-reloaded", Severity::Info, "x"), Wall(0));
        assert!(back.frames.try_recv().unwrap().contains("id: 301\n"));
        assert!(bus.listen(None).unwrap().missed.is_empty(), "who is new hears what is new");
        assert!(back.missed[0].lines().count() == 4, "text cannot start a line of its own: {:?}", back.missed[0]);
    }

    #[test]
    fn what_ends_names_the_last_event_that_began_it_and_ends_once() {
        let (bus, lost) = (Bus::default(), || Event::new("shared-state-lost", Severity::Warning, "x"));
        assert!(!bus.clear(lost(), Wall(0)), "nothing was lost");
        bus.raise(&lost(), Wall(0));
        let last = bus.raise(&lost(), Wall(0));
        bus.raise(&lost().of("api", None), Wall(0));
        assert!(bus.clear(lost(), Wall(0)));
        assert_eq!(bus.recent()[0]["resolves"], last);
        assert!(!bus.clear(lost(), Wall(0)));
        assert_eq!(bus.unread().len(), 4);
        assert_eq!(bus.unread().len(), 0);
    }

    #[test]
    fn there_is_room_for_so_many_listeners() {
        let bus = Bus::default();
        let all: Vec<Option<Listener>> = (0..=MOST_LISTENERS).map(|_| bus.listen(None)).collect();
        assert_eq!(all.iter().flatten().count(), MOST_LISTENERS);
        drop(all);
        assert!(bus.listen(None).is_some());
    }
}
