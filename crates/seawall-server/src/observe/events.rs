//! Events for operators, delivered once to each listener; the most recent ones are kept for later readers. A slow listener never delays
//! others: it misses events and can ask for them again. Events of a short interval form one packet that is written once and shared by all
//! listeners. The thread of the admin port sends it.

use super::bounded;
use crate::json_shapes::Time;
use bytes::Bytes;
use seawall_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use utoipa::ToSchema;

const RECENT: usize = 200;
/// Packets that a listener may lag behind.
const BEHIND: usize = 64;
/// A packet of this many bytes is sent without waiting for more events.
const LONG: usize = 64 * 1024;
/// Interval for which events are gathered into one packet; too short for a person to notice.
const TOGETHER: Duration = Duration::from_millis(50);
/// Maximum events that wait for the notifier; the oldest are dropped first.
const MAX_UNREAD: usize = 1000;
/// Event numbers skipped after a restart.
const SKIPPED: u64 = 10_000;
/// Maximum conditions that have begun and not ended.
const MAX_STANDING: usize = 4096;
/// Maximum listeners at the same time.
const MAX_LISTENERS: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = EventSeverity)]
pub(crate) enum Severity {
    Info,
    Warning,
    Fatal,
}

/// An event in words for people.
#[derive(Clone, Debug)]
pub(crate) struct OperatorEvent {
    pub name: &'static str,
    pub severity: Severity,
    pub title: String,
    pub detail: String,
    /// The cause, in one word for programs.
    pub cause: Option<&'static str>,
    pub upstream: Option<String>,
    pub endpoint: Option<String>,
    /// The subject, if it is narrower than the upstream or endpoint.
    pub about: String,
    /// The event that this one resolves.
    pub resolves: Option<u64>,
    /// Another instance notifies receivers of it; this one only displays it.
    pub told_elsewhere: bool,
}

impl OperatorEvent {
    pub(crate) fn new(name: &'static str, severity: Severity, title: impl Into<String>) -> Self {
        let (title, nothing) = (title.into(), String::new);
        let (upstream, endpoint, resolves) = (None, None, None);
        let (detail, about) = (nothing(), nothing());
        Self { name, severity, title, detail, cause: None, upstream, endpoint, about, resolves, told_elsewhere: false }
    }

    /// Sets the cause, for programs and for people.
    pub(crate) fn because(mut self, cause: &'static str, detail: impl Into<String>) -> Self {
        self.cause = Some(cause);
        self.detail(detail)
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

    /// Returns a key that is equal for all events of one name and subject.
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

    pub(crate) fn told(&self, id: u64, at: Wall) -> StoredEvent {
        StoredEvent {
            id,
            at: Time(at),
            name: self.name,
            severity: self.severity,
            title: self.title.clone(),
            detail: self.detail.clone(),
            cause: self.cause,
            upstream: self.upstream.clone(),
            endpoint: self.endpoint.clone(),
            resolves: self.resolves,
        }
    }
}

/// Something that people should hear of.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct StoredEvent {
    id: u64,
    at: Time,
    name: &'static str,
    severity: Severity,
    /// In words.
    title: String,
    /// What more there is to say, in words.
    detail: String,
    /// Why, as one word: for breakers, what moved them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    upstream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    endpoint: Option<String>,
    /// The event that this one ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resolves: Option<u64>,
}

/// A published event with its number and time.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub id: u64,
    pub at: Wall,
    pub event: OperatorEvent,
}

#[derive(Debug)]
pub(crate) struct Bus {
    sender: broadcast::Sender<Bytes>,
    recent: Mutex<Recent>,
    /// Signals that the packet is not empty.
    gathering: Notify,
    /// Events for the notifier.
    unread: Mutex<VecDeque<Published>>,
    /// Conditions that have begun and not ended.
    standing: Mutex<HashMap<String, StandingEvent>>,
    listeners: Arc<AtomicUsize>,
}

/// A condition that has begun and not ended, with the latest event that raised it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StandingEvent {
    pub id: u64,
    pub name: String,
    pub upstream: Option<String>,
    pub about: String,
}

#[derive(Debug, Default)]
struct Recent {
    last: u64,
    events: VecDeque<StoredEvent>,
    /// Frames that have not been sent yet.
    packet: String,
}

impl Default for Bus {
    fn default() -> Self {
        let (unread, standing, gathering) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { sender: broadcast::channel(BEHIND).0, recent: Mutex::default(), gathering, unread, standing, listeners: Arc::default() }
    }
}

/// A listener; counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub packets: broadcast::Receiver<Bytes>,
    /// Events that it missed while disconnected.
    pub missed: Bytes,
    count: Arc<AtomicUsize>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bus {
    /// Publishes an event and returns its number.
    pub(crate) fn publish(&self, event: &OperatorEvent, at: Wall) -> u64 {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.last += 1;
        let (id, told) = (recent.last, event.told(recent.last, at));
        self.gather(&mut recent, || frame(&told));
        bounded(&mut recent.events, RECENT, told);
        let published = Published { id, at, event: event.clone() };
        bounded(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner), MAX_UNREAD, published);
        id
    }

    /// Publishes the beginning or continuation of a condition.
    pub(crate) fn raise(&self, event: &OperatorEvent, at: Wall) -> u64 {
        let id = self.publish(event, at);
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let condition = event.condition();
        if standing.len() < MAX_STANDING || standing.contains_key(&condition) {
            let (name, upstream, about) = (event.name.to_owned(), event.upstream.clone(), event.about.clone());
            standing.insert(condition, StandingEvent { id, name, upstream, about });
        }
        id
    }

    /// Publishes the end of a condition, if it had begun. Returns whether it had.
    pub(crate) fn clear(&self, event: OperatorEvent, at: Wall) -> bool {
        let began = self.ended(&event);
        let is_news = began.is_some();
        if is_news {
            self.publish(&event.resolving(began), at);
        }
        is_news
    }

    /// Removes a condition and returns the event that began it.
    pub(crate) fn ended(&self, event: &OperatorEvent) -> Option<u64> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.condition()).map(|standing| standing.id)
    }

    /// Returns whether the condition of this event has begun and not ended.
    pub(crate) fn stands(&self, event: &OperatorEvent) -> bool {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&event.condition())
    }

    /// Returns the open conditions that `of` selects.
    pub(crate) fn standing(&self, of: impl Fn(&str) -> bool) -> BTreeMap<String, StandingEvent> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.iter().filter(|(condition, _)| of(condition)).map(|(condition, one)| (condition.clone(), one.clone())).collect()
    }

    /// Restores the conditions of an earlier process. Event numbers continue with a gap, because that process may have used more numbers
    /// after it last saved.
    pub(crate) fn recall(&self, standing: &BTreeMap<String, StandingEvent>) {
        let last = standing.values().map(|one| one.id).max().map_or(0, |last| last.saturating_add(SKIPPED));
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.last = recent.last.max(last);
        let known = standing.iter().take(MAX_STANDING).map(|(condition, one)| (condition.clone(), one.clone()));
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).extend(known);
    }

    /// Takes the events published since the last call, oldest first.
    pub(crate) fn unread(&self) -> VecDeque<Published> {
        std::mem::take(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tick(&self, tick: &impl Serialize) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        self.gather(&mut recent, || format!("event: tick\ndata: {}\n\n", data(tick)));
    }

    /// Adds a frame to the packet, if there are listeners.
    fn gather(&self, recent: &mut Recent, frame: impl FnOnce() -> String) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        recent.packet.push_str(&frame());
        if recent.packet.len() >= LONG {
            self.deliver(recent);
        } else {
            self.gathering.notify_one();
        }
    }

    /// Sends the packet to all listeners.
    fn deliver(&self, recent: &mut Recent) {
        if !recent.packet.is_empty() {
            // The last listener may have left; then `send` fails and the packet is dropped.
            drop(self.sender.send(Bytes::from(std::mem::take(&mut recent.packet))));
        }
    }

    /// Sends packets until the future is dropped.
    pub(crate) async fn tell(&self) {
        loop {
            self.gathering.notified().await;
            tokio::time::sleep(TOGETHER).await;
            self.deliver(&mut self.recent.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns the recent events, newest first.
    pub(crate) fn recent(&self) -> Vec<StoredEvent> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.events.iter().rev().cloned().collect()
    }

    /// Adds a listener that has seen all events up to `heard`. Returns `None` at `MAX_LISTENERS`.
    pub(crate) fn listen(&self, heard: Option<u64>) -> Option<Listener> {
        if self.listeners.fetch_add(1, Ordering::Relaxed) >= MAX_LISTENERS {
            self.listeners.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // Subscribes under the lock, so that no event falls between the missed ones and the subscription.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // Sends the pending packet first, so that the new listener does not get its events twice: `missed` has them.
        self.deliver(&mut recent);
        let missed = recent.events.iter().filter(|told| heard.is_some_and(|heard| told.id > heard)).map(frame).collect::<String>();
        Some(Listener { packets: self.sender.subscribe(), missed: Bytes::from(missed), count: Arc::clone(&self.listeners) })
    }
}

/// Formats an event as a server-sent event.
fn frame(told: &StoredEvent) -> String {
    format!("event: {}\nid: {}\ndata: {}\n\n", told.name, told.id, data(told))
}

/// Returns one line: JSON escapes line ends inside strings.
fn data(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand_out(bus: &Bus) {
        bus.deliver(&mut bus.recent.lock().unwrap());
    }

    fn heard(listener: &mut Listener) -> Option<String> {
        listener.packets.try_recv().ok().map(|packet| String::from_utf8(packet.to_vec()).unwrap())
    }

    #[test]
    fn what_happens_together_is_one_packet_that_all_share() {
        let bus = Bus::default();
        let publish = |times| {
            for _ in 0..times {
                bus.publish(&OperatorEvent::new("config-reloaded", Severity::Info, "x"), Wall(0));
            }
        };
        let (mut one, mut other) = (bus.listen(None).unwrap(), bus.listen(None).unwrap());
        publish(3);
        hand_out(&bus);
        let (mine, yours) = (one.packets.try_recv().unwrap(), other.packets.try_recv().unwrap());
        assert_eq!(mine.as_ptr(), yours.as_ptr(), "it is written once");
        assert_eq!(mine.windows(4).filter(|text| text == b"id: ").count(), 3);
        publish(1000);
        assert!(heard(&mut one).is_some_and(|packet| packet.len() >= LONG), "a long one does not wait");
    }

    #[test]
    fn who_comes_while_a_packet_is_gathered_hears_nothing_of_it_twice() {
        let bus = Bus::default();
        let mut first = bus.listen(None).unwrap();
        bus.publish(&OperatorEvent::new("config-reloaded", Severity::Info, "x"), Wall(0));
        let mut second = bus.listen(Some(0)).unwrap();
        hand_out(&bus);
        assert!(heard(&mut first).unwrap().contains("id: 1\n"));
        assert!(second.missed.starts_with(b"event: config-reloaded\nid: 1\n"));
        assert_eq!(heard(&mut second), None);
    }

    #[test]
    fn whoever_comes_back_hears_what_was_missed_and_nothing_twice() {
        let bus = Bus::default();
        for _ in 0..300 {
            bus.publish(&OperatorEvent::new("config-reloaded", Severity::Info, "a\nb"), Wall(0));
        }
        assert_eq!(bus.recent().len(), RECENT);
        assert_eq!(bus.recent()[0].id, 300);
        let mut back = bus.listen(Some(298)).unwrap();
        let missed = String::from_utf8(back.missed.to_vec()).unwrap();
        assert_eq!(missed.matches("event: ").count(), 2);
        bus.publish(&OperatorEvent::new("config-reloaded", Severity::Info, "x"), Wall(0));
        hand_out(&bus);
        assert!(heard(&mut back).unwrap().contains("id: 301\n"));
        assert!(bus.listen(None).unwrap().missed.is_empty(), "who is new hears what is new");
        assert_eq!(missed.lines().count(), 8, "text cannot start a line of its own: {missed:?}");
    }

    #[test]
    fn what_ends_names_the_last_event_that_began_it_and_ends_once() {
        let (bus, lost) = (Bus::default(), || OperatorEvent::new("shared-state-lost", Severity::Warning, "x"));
        assert!(!bus.clear(lost(), Wall(0)), "nothing was lost");
        bus.raise(&lost(), Wall(0));
        let last = bus.raise(&lost(), Wall(0));
        bus.raise(&lost().of("api", None), Wall(0));
        assert!(bus.clear(lost(), Wall(0)));
        assert_eq!(bus.recent()[0].resolves, Some(last));
        assert!(!bus.clear(lost(), Wall(0)));
        assert_eq!(bus.unread().len(), 4);
        assert_eq!(bus.unread().len(), 0);
    }

    #[test]
    fn there_is_room_for_so_many_listeners() {
        let bus = Bus::default();
        let all: Vec<Option<Listener>> = (0..=MAX_LISTENERS).map(|_| bus.listen(None)).collect();
        assert_eq!(all.iter().flatten().count(), MAX_LISTENERS);
        drop(all);
        assert!(bus.listen(None).is_some());
    }
}
