//! The text of a notification: a Standard Webhooks envelope, a Slack message, or ntfy's text with its headers.

use crate::observe::{Published, Severity, StoredEvent};
use seawall_core::decide::notice::{Notice, NotificationMessage};
use seawall_core::policy::NotifyFormat;
use seawall_core::time::Wall;
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum length of a Slack block.
const MAX_BLOCK: usize = 2900;
/// Maximum length of an ntfy title; the text has the rest.
const MAX_TITLE: usize = 200;

type MessageHeaders = Vec<(String, String)>;

/// Returns headers and body.
pub(super) fn write(format: NotifyFormat, message: &NotificationMessage<Published>, instance: &str, now: Wall) -> (MessageHeaders, String) {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let document = || vec![header("content-type", "application/json")];
    match format {
        NotifyFormat::Slack => (document(), slack(message, instance).to_string()),
        NotifyFormat::Ntfy => {
            let (title, priority, tag) = (ascii(&headline(message)), priority(message), mark(message).1);
            let headers = vec![
                header("content-type", "text/plain; charset=utf-8"),
                header("title", &title),
                header("priority", priority),
                header("tags", tag),
            ];
            (headers, lines(message, instance).join("\n"))
        }
        NotifyFormat::Json => (document(), envelope(message, instance, now).to_string()),
    }
}

/// Returns the most severe notice; the first of equal ones.
fn first(message: &NotificationMessage<Published>) -> Option<&Notice<Published>> {
    let rank = |notice: &&Notice<Published>| match notice.event.event.severity {
        Severity::Fatal => 0,
        Severity::Warning => 1,
        Severity::Info => 2,
    };
    message.notices.iter().min_by_key(rank)
}

/// An event, and the number of its occurrences since the last message.
#[derive(Serialize)]
struct ShownEvent {
    #[serde(flatten)]
    event: StoredEvent,
    times: u32,
}

fn shown(notice: &Notice<Published>) -> ShownEvent {
    let Published { id, at, event } = &notice.event;
    ShownEvent { event: event.told(*id, *at), times: notice.times }
}

fn envelope(message: &NotificationMessage<Published>, instance: &str, now: Wall) -> Value {
    let first = first(message);
    json!({
        "type": first.map(|notice| notice.event.event.name),
        "timestamp": now.to_string(),
        "data": first.map(shown),
        "events": message.notices.iter().map(shown).collect::<Vec<_>>(),
        "missed": message.missed,
        "instance": instance,
    })
}

fn headline(message: &NotificationMessage<Published>) -> String {
    let title = first(message).map(|notice| notice.event.event.title.clone()).unwrap_or_default();
    match message.notices.len() {
        0 | 1 => title,
        all => format!("{title}, and {} more", all - 1),
    }
}

/// Returns one line per event, and the instance.
fn lines(message: &NotificationMessage<Published>, instance: &str) -> Vec<String> {
    let mut lines: Vec<String> = message.notices.iter().map(line).collect();
    if message.missed > 0 {
        lines.push(format!("{} more events are not shown", message.missed));
    }
    lines.push(format!("seen by {instance}"));
    lines
}

fn line(notice: &Notice<Published>) -> String {
    let event = &notice.event.event;
    let mut line = event.title.clone();
    if !event.detail.is_empty() {
        line.push_str(&format!(": {}", event.detail));
    }
    if notice.times > 1 {
        line.push_str(&format!(" ({} times)", notice.times));
    }
    line
}

/// Returns the icons of Slack and ntfy for a message.
fn mark(message: &NotificationMessage<Published>) -> (&'static str, &'static str) {
    match first(message).map(|notice| notice.event.event.severity) {
        Some(Severity::Fatal) => (":red_circle:", "rotating_light"),
        Some(Severity::Warning) => (":large_orange_circle:", "warning"),
        Some(Severity::Info) | None => (":large_green_circle:", "white_check_mark"),
    }
}

fn priority(message: &NotificationMessage<Published>) -> &'static str {
    match first(message).map(|notice| notice.event.event.severity) {
        Some(Severity::Fatal) => "5",
        Some(Severity::Warning) => "4",
        Some(Severity::Info) | None => "3",
    }
}

fn slack(message: &NotificationMessage<Published>, instance: &str) -> Value {
    let block = |text: &str| json!({ "type": "section", "text": { "type": "mrkdwn", "text": text } });
    let lines: Vec<String> = lines(message, instance).iter().map(|line| cut(&escaped(line), MAX_BLOCK).to_owned()).collect();
    let headline = format!("{} {}", mark(message).0, escaped(&headline(message)));
    let blocks: Vec<Value> =
        std::iter::once(block(&format!("*{}*", cut(&headline, MAX_BLOCK)))).chain(lines.iter().map(|line| block(line))).collect();
    json!({ "text": headline, "blocks": blocks })
}

/// Escapes Slack's three control characters.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Reduces text to characters that a header may contain.
fn ascii(text: &str) -> String {
    text.chars().take(MAX_TITLE).map(|c| if c.is_ascii() && !c.is_ascii_control() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::OperatorEvent;

    fn message() -> NotificationMessage<Published> {
        let notice = |id, event: OperatorEvent, times| Notice { event: Published { id, at: Wall(0), event }, times };
        let opened = OperatorEvent::new("breaker-opened", Severity::Warning, "a/b is failing").of("a", Some("b")).detail("<500> & more");
        let denied = OperatorEvent::new("auth-failed", Severity::Fatal, "zürich accepts no credential of ours").of("zürich", None);
        NotificationMessage { notices: vec![notice(3, opened, 4), notice(4, denied, 1)], missed: 2 }
    }

    #[test]
    fn an_envelope_has_the_worst_in_front_and_all_inside() {
        let (headers, body) = write(NotifyFormat::Json, &message(), "seawall-1", Wall(0));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(headers, [("content-type".to_owned(), "application/json".to_owned())]);
        assert_eq!((&body["type"], &body["data"]["id"], &body["missed"]), (&json!("auth-failed"), &json!(4), &json!(2)));
        assert_eq!(body["timestamp"], "1970-01-01T00:00:00.000Z");
        assert_eq!((&body["events"][0]["name"], &body["events"][0]["times"]), (&json!("breaker-opened"), &json!(4)));
    }

    #[test]
    fn slack_and_ntfy_have_words() {
        let (_, body) = write(NotifyFormat::Slack, &message(), "seawall-1", Wall(0));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["text"], ":red_circle: zürich accepts no credential of ours, and 1 more");
        assert_eq!(body["blocks"][1]["text"]["text"], "a/b is failing: &lt;500&gt; &amp; more (4 times)");
        assert_eq!(body["blocks"].as_array().unwrap().len(), 5);
        let (headers, text) = write(NotifyFormat::Ntfy, &message(), "seawall-1", Wall(0));
        assert_eq!(headers[1].1, "z?rich accepts no credential of ours, and 1 more");
        assert_eq!((headers[2].1.as_str(), headers[3].1.as_str()), ("5", "rotating_light"));
        assert!(text.starts_with("a/b is failing: <500> & more (4 times)\nzürich"), "{text}");
        assert!(text.ends_with("2 more events are not shown\nseen by seawall-1"), "{text}");
    }
}
