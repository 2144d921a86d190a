//! Notifications: published events are sent to each `[[notify]]` receiver, according to the receiver's own state. A message is a job, so a
//! receiver that is down gets it later.

mod outbox;
mod text;

pub(super) use outbox::recall;

use super::ServerState;
use crate::jobs::callback;
use crate::observe::{Published, Severity};
use bytes::Bytes;
use outbox::KnownAlarms;
use seawall_core::config::model::Notify;
use seawall_core::decide::notice::{Notices, NotificationMessage};
use seawall_core::time::Mono;
use seawall_engine::record::{NoteRecord, Record};
use seawall_http::egress::Reach;
use seawall_store::job::{JobOrigin, NewJob};
use std::collections::VecDeque;
use std::time::Duration;

/// Interval of reads of published events.
const EVERY: Duration = Duration::from_millis(250);
/// Maximum messages that wait for an unavailable store; the oldest are dropped first.
const MAX_UNSENT: usize = 100;

/// A receiver and the alarms that it knows.
#[derive(Debug)]
struct Receiver {
    spec: Notify,
    notices: Notices<Published>,
}

impl Receiver {
    fn receive(&mut self, published: &Published, now: Mono) {
        let event = &published.event;
        let is_wanted = self.spec.events.iter().any(|name| name == event.name);
        match event.resolves {
            // The end of a condition is matched by number, whatever its name. Only `breaker-closed` can also be requested on its own.
            Some(began) => {
                let is_known = self.notices.resolve(began, published.clone(), now);
                if !is_known && is_wanted && event.name == "breaker-closed" {
                    self.notices.publish(published.clone(), now);
                }
            }
            None if is_wanted => {
                let urgent = event.severity == Severity::Fatal;
                self.notices.begins(&event.condition(), published.id, published.clone(), urgent, now);
            }
            None => {}
        }
    }

    /// Returns the message that is due, if any. Events that another instance sends count as sent here, so that either instance can report
    /// their end.
    fn due(&mut self, now: Mono) -> Option<NotificationMessage<Published>> {
        let mut message = self.notices.due(now)?;
        message.notices.retain(|notice| !notice.event.event.told_elsewhere);
        (!message.notices.is_empty() || message.missed > 0).then_some(message)
    }
}

/// Runs while the process serves.
pub(super) async fn run(shared: &ServerState) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut receivers, mut unsent) = (Vec::new(), VecDeque::new());
    follow(&mut receivers, &shared.live.load().config.notify);
    // If the store does not reply now, only the list of reported alarms is lost.
    let mut known = KnownAlarms::read(shared).await.unwrap_or_default();
    known.restore(&mut receivers, shared.clock.now().mono);
    loop {
        every.tick().await;
        follow(&mut receivers, &shared.live.load().config.notify);
        let now = shared.clock.now().mono;
        for published in shared.eyes.bus.unread() {
            receivers.iter_mut().for_each(|receiver| receiver.receive(&published, now));
        }
        for receiver in &mut receivers {
            if let Some(message) = receiver.due(now) {
                unsent.push_back(job(shared, &receiver.spec, &message));
            }
        }
        send(shared, &mut unsent).await;
        known.follow(&receivers, shared).await;
    }
}

/// Updates the receivers to the configuration. An unchanged receiver keeps its state.
fn follow(receivers: &mut Vec<Receiver>, specs: &[Notify]) {
    if receivers.iter().map(|receiver| &receiver.spec).eq(specs) {
        return;
    }
    let mut before = std::mem::take(receivers);
    *receivers = specs
        .iter()
        .map(|spec| {
            let known = before.iter().position(|receiver| receiver.spec.url == spec.url && receiver.spec.format == spec.format);
            let notices = known.map(|place| before.swap_remove(place).notices).unwrap_or_default();
            Receiver { spec: spec.clone(), notices }
        })
        .collect();
}

fn job(shared: &ServerState, spec: &Notify, message: &NotificationMessage<Published>) -> NewJob {
    let desk = &shared.desk;
    let (headers, body) = text::write(spec.format, message, shared.pseudonym.name(), desk.now());
    callback::message(spec.url.clone(), headers, Bytes::from(body), JobOrigin::Notification, desk)
}

async fn send(shared: &ServerState, unsent: &mut VecDeque<NewJob>) {
    while unsent.len() > MAX_UNSENT {
        unsent.pop_front();
    }
    if unsent.is_empty() {
        return;
    }
    let jobs: Vec<NewJob> = unsent.iter().cloned().collect();
    match shared.desk.enqueue(jobs).await {
        Ok(_) => unsent.clear(),
        // The messages are sent again at the next interval.
        Err(error) if error.passes() => {}
        Err(error) => {
            let fields = vec![("messages", unsent.len().to_string()), ("error", error.to_string())];
            shared.recorder.push(Record::Note(NoteRecord { at: shared.desk.now(), event: "notifications_lost", fields }));
            unsent.clear();
        }
    }
}

/// Describes receivers that notifications cannot reach, as far as this process can tell.
pub(super) fn out_of_reach(shared: &ServerState) -> Vec<String> {
    let live = shared.live.load();
    let reach = Reach::new(live.config.server.allow_private.clone());
    let refused = live.config.notify.iter().enumerate().filter_map(|(place, spec)| {
        let url = shared.around.resolve(&spec.url).ok()?;
        // The URL may be a secret, so the text names its position in the file instead.
        crate::jobs::outside(&url, &reach).is_err().then(|| {
            format!("notify[{place}] will not be sent: its address is not public, or no URL; `server.allow_private` lists addresses that may be reached besides")
        })
    });
    refused.collect()
}
