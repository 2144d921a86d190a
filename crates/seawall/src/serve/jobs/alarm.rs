//! Says when a queue of dead letters is too deep, and when it no longer is.

use super::upkeep::note;
use crate::serve::Shared;
use crate::serve::eyes::{Event, Severity as EventSeverity};
use seawall_core::decide::alarm::is_alarming;
use seawall_core::policy::Severity;
use seawall_engine::live::Live;
use seawall_store::dead::Depth;
use std::sync::PoisonError;

/// For letters of targets that no policy names.
const USUAL: u64 = 100;

/// Compares all queues with what their policies bear.
pub(super) fn check(shared: &Shared, depths: &[Depth]) {
    let live = shared.live.load_full();
    let mut alarms = shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner);
    let emptied: Vec<(String, &'static str)> =
        alarms.iter().filter(|(queue, severity)| !depths.iter().any(|depth| is_of(depth, queue, severity))).cloned().collect();
    for (queue, severity) in emptied {
        tell(shared, false, &queue, severity, 0, 0);
        alarms.remove(&(queue, severity));
    }
    for depth in depths {
        let (place, most) = ((depth.queue.clone(), depth.severity.as_str()), bearable(&live, depth));
        let before = alarms.contains(&place);
        let now = is_alarming(before, depth.open, most);
        if now == before {
            continue;
        }
        tell(shared, now, &depth.queue, depth.severity.as_str(), depth.open, most);
        if now {
            alarms.insert(place);
        } else {
            alarms.remove(&place);
        }
    }
}

fn is_of(depth: &Depth, queue: &str, severity: &str) -> bool {
    depth.queue == queue && depth.severity.as_str() == severity
}

/// The least of what the upstream's endpoints bear at this severity.
fn bearable(live: &Live, depth: &Depth) -> u64 {
    let Some(upstream) = live.named(&depth.queue) else { return USUAL };
    let of = |severity: Option<Severity>| {
        let policies = upstream.endpoints.iter().map(|endpoint| &endpoint.spec.policy.dead_letter);
        policies.filter(|policy| severity.is_none_or(|severity| policy.severity == severity)).map(|policy| policy.alarm_depth).min()
    };
    of(Some(depth.severity)).or_else(|| of(None)).unwrap_or(USUAL)
}

/// The one place where an alarm is told.
fn tell(shared: &Shared, is_on: bool, queue: &str, severity: &'static str, open: u64, alarm_depth: u64) {
    let (bus, now) = (&shared.eyes.bus, shared.clock.now().wall);
    if is_on {
        let told = Event::new("dead-letter-alarm", EventSeverity::Fatal, format!("{open} dead letters of {queue} wait"));
        bus.raise(&told.detail(format!("the alarm for `{severity}` is set at {alarm_depth}")).of(queue, None).about(severity), now);
    } else {
        let told = Event::new("dead-letter-alarm", EventSeverity::Info, format!("dead letters of {queue} are below the alarm again"));
        bus.clear(told.of(queue, None).about(severity), now);
    }
    let event = if is_on { "dead_letter_alarm" } else { "dead_letter_alarm_cleared" };
    let fields = vec![
        ("queue", queue.to_owned()),
        ("severity", severity.to_owned()),
        ("open", open.to_string()),
        ("alarm_depth", alarm_depth.to_string()),
    ];
    note(shared, event, fields);
}
