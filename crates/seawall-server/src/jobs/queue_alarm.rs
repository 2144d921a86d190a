//! Alarms for queues with too many dead letters, raised and cleared once for all instances that share a store. The core has the rule; the
//! store elects the instance that reports.

use super::maintenance::note;
use crate::ServerState;
use crate::observe::{OperatorEvent, Severity as EventSeverity};
use seawall_core::decide::alarm::{AlarmState, AlarmStep, Raised, next_step};
use seawall_core::policy::Severity;
use seawall_engine::runtime::Live;
use seawall_store::alarm::Alarm;
use seawall_store::dead::Depth;
use std::collections::BTreeSet;
use std::sync::PoisonError;

/// Alarm depth for ad-hoc targets, which have no policy.
const USUAL: u64 = 100;

/// A queue and a severity.
pub(crate) type QueueSeverity = (String, Severity);

/// The state of one queue.
struct QueueView<'a> {
    place: &'a QueueSeverity,
    raised: Option<&'a Alarm>,
    open: u64,
    alarm_depth: u64,
}

/// Compares all queues with their policies. A failed read is repeated in the next round.
pub(super) async fn check(shared: &ServerState, depths: &[Depth]) {
    let Ok(raised) = shared.desk.store.alarms().await else { return };
    let live = shared.live.load_full();
    let mut places = known(shared);
    places.extend(raised.iter().map(|alarm| (alarm.queue.clone(), alarm.severity)));
    places.extend(depths.iter().map(|depth| (depth.queue.clone(), depth.severity)));
    for place in &places {
        let open = depths.iter().find(|depth| (&depth.queue, depth.severity) == (&place.0, place.1)).map_or(0, |depth| depth.open);
        let raised = raised.iter().find(|alarm| (&alarm.queue, alarm.severity) == (&place.0, place.1));
        act(shared, QueueView { place, raised, open, alarm_depth: alarm_depth(&live, place) }).await;
    }
}

fn known(shared: &ServerState) -> BTreeSet<QueueSeverity> {
    shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

async fn act(shared: &ServerState, look: QueueView<'_>) {
    let (desk, us, now) = (&shared.desk, shared.eyes.writer, shared.desk.now());
    let raised = look.raised.map(|alarm| Raised { is_ours: alarm.holder == us, raised_at: alarm.raised_at, seen_at: alarm.seen_at });
    let is_alone = desk.store.is_private();
    let known = AlarmState { raised, is_known: known(shared).contains(look.place), is_alone };
    let anew = || Alarm { queue: look.place.0.clone(), severity: look.place.1, holder: us, raised_at: now, seen_at: now };
    match (next_step(known, look.open, look.alarm_depth, now), look.raised.cloned()) {
        (AlarmStep::Raise, _) => {
            if desk.store.raise_alarm(anew()).await == Ok(true) {
                notify(shared, &look, true, AlarmSender::Us);
            }
        }
        (AlarmStep::Take { tell: true }, Some(was)) => {
            if desk.store.hold_alarm(was, anew()).await == Ok(true) {
                notify(shared, &look, true, AlarmSender::Us);
            }
        }
        (AlarmStep::Hold | AlarmStep::Take { tell: false }, Some(was)) => {
            let is = Alarm { raised_at: was.raised_at, ..anew() };
            // A failed extension is repeated in the next round.
            drop(desk.store.hold_alarm(was, is).await);
        }
        (AlarmStep::Clear, Some(was)) => {
            if desk.store.clear_alarm(was).await == Ok(true) {
                notify(shared, &look, false, AlarmSender::Us);
            }
        }
        (AlarmStep::Hear, _) => notify(shared, &look, true, AlarmSender::Another),
        (AlarmStep::Over, _) => notify(shared, &look, false, if is_alone { AlarmSender::Us } else { AlarmSender::Another }),
        // Without a raised alarm there is nothing to extend or clear.
        (AlarmStep::Stay, _) | (AlarmStep::Hold | AlarmStep::Take { .. } | AlarmStep::Clear, None) => {}
    }
}

/// Returns the smallest alarm depth of the upstream's endpoints at this severity.
fn alarm_depth(live: &Live, (queue, severity): &QueueSeverity) -> u64 {
    let Some(upstream) = live.named(queue) else { return USUAL };
    let of = |severity: Option<Severity>| {
        let policies = upstream.endpoints.iter().map(|endpoint| &endpoint.spec.policy.dead_letter);
        policies.filter(|policy| severity.is_none_or(|severity| policy.severity == severity)).map(|policy| policy.alarm_depth).min()
    };
    of(Some(*severity)).or_else(|| of(None)).unwrap_or(USUAL)
}

/// The instance that notifies receivers and writes the log line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlarmSender {
    Us,
    Another,
}

/// Reports an alarm; the only function that does.
fn notify(shared: &ServerState, look: &QueueView<'_>, is_on: bool, by: AlarmSender) {
    let QueueView { place: (queue, severity), open, alarm_depth, .. } = look;
    let (bus, now) = (&shared.eyes.bus, shared.clock.now().wall);
    let event = |weight, title| OperatorEvent::new("dead-letter-alarm", weight, title).of(queue, None).about(severity.as_str());
    let mut alarms = shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner);
    if is_on {
        alarms.insert(look.place.clone());
        let told = event(EventSeverity::Fatal, format!("{open} dead letters of {queue} wait"));
        bus.raise(
            &told.detail(format!("the alarm for `{severity}` is set at {alarm_depth}")).told_elsewhere(by == AlarmSender::Another),
            now,
        );
    } else {
        alarms.remove(look.place);
        let told = event(EventSeverity::Info, format!("dead letters of {queue} are below the alarm again"));
        bus.clear(told.told_elsewhere(by == AlarmSender::Another), now);
    }
    drop(alarms);
    if by == AlarmSender::Another {
        return;
    }
    let event = if is_on { "dead_letter_alarm" } else { "dead_letter_alarm_cleared" };
    let fields = vec![
        ("queue", queue.clone()),
        ("severity", severity.to_string()),
        ("open", open.to_string()),
        ("alarm_depth", alarm_depth.to_string()),
    ];
    note(shared, event, fields);
}
