//! Names an unnamed error: the condition that identifies it, and the rule that an operator makes of it. The rule is parsed from the text
//! that is shown, so that the rule in force equals the rule in the file.

use serde_json::Value;
use toml::de::DeTable;

use crate::record::{AttemptStatus, Class};

use super::fingerprint::{ErrorFingerprint, NAMING, normalised};
use super::json;
use super::rules::{Rule, RuleSource};

/// The depth to which a member that names the error is searched.
const DEPTH: usize = 4;
/// A longer value is a description and not a name.
const LONGEST: usize = 64;

/// The condition that identifies an unnamed error, besides its upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: AttemptStatus,
    /// A member of the JSON body and its value, if one names the error.
    pub member: Option<(String, String)>,
}

impl Condition {
    #[must_use]
    pub fn of(status: AttemptStatus, body: &[u8]) -> Self {
        Self { status, member: json::document(body).and_then(|document| naming_member(&document, DEPTH)) }
    }

    /// The rule in the configuration file's syntax.
    #[must_use]
    pub fn toml(&self, upstream: &str, fingerprint: ErrorFingerprint, class: Class) -> String {
        let mut text = format!("[[upstreams.{}.classify]]\nname = \"named-{fingerprint}\"\nwhen = {{ ", key(upstream));
        let when = match self.status {
            AttemptStatus::Http(code) => format!("status = [{code}]"),
            AttemptStatus::Error(kind) => format!("error = [\"{kind}\"]"),
            AttemptStatus::CircuitOpen => "status = []".to_owned(),
        };
        text.push_str(&when);
        if let Some((pointer, value)) = &self.member {
            text.push_str(&format!(", json = {{ {} = [{}] }}", quoted(pointer), quoted(value)));
        }
        text.push_str(&format!(" }}\nas = \"{class}\"\n"));
        text
    }

    /// The rule itself.
    #[must_use]
    pub fn rule(&self, upstream: &str, fingerprint: ErrorFingerprint, class: Class) -> Option<Rule> {
        let text = self.toml(upstream, fingerprint, class);
        let table = text.split_once('\n').and_then(|(_, keys)| DeTable::parse(keys).ok())?;
        super::parse::rule(table.get_ref(), 0..0, RuleSource::Upstream).ok()
    }
}

/// The member that names the error: the most specific name first, the outermost of those.
fn naming_member(document: &Value, depth: usize) -> Option<(String, String)> {
    NAMING.iter().find_map(|name| find(document, name, depth, &mut String::new()))
}

fn find(value: &Value, name: &str, depth: usize, path: &mut String) -> Option<(String, String)> {
    let members = value.as_object()?;
    if let Some(text) = members.get(name).and_then(json::text).filter(|text| names(text)) {
        return Some((format!("{path}/{name}"), text.into_owned()));
    }
    let depth = depth.checked_sub(1)?;
    members.iter().filter(|(name, _)| !name.contains(['/', '~', '*'])).find_map(|(member, inner)| {
        let length = path.len();
        path.push('/');
        path.push_str(member);
        let found = find(inner, name, depth, path);
        path.truncate(length);
        found
    })
}

/// Whether a value is the same in every instance of the error: short, and without anything that looks like an id.
fn names(text: &str) -> bool {
    let plain = !text.is_empty() && text.len() <= LONGEST && !text.contains(['*', '\\']) && !text.chars().any(char::is_control);
    plain && (text.bytes().all(|byte| byte.is_ascii_digit()) || normalised(text) == text)
}

fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if bare { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{ObservedResult, RuleSet};
    use crate::record::ErrorKind;
    use crate::time::{Nanos, Wall};

    fn of(body: &str) -> Option<(String, String)> {
        Condition::of(AttemptStatus::Http(418), body.as_bytes()).member
    }

    #[test]
    fn the_most_telling_member_is_found() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of(r#"{"message":"no","error":{"code":"teapot"}}"#), pair("/error/code", "teapot"));
        assert_eq!(of(r#"{"code":7,"error":{"code":"teapot"}}"#), pair("/code", "7"));
        assert_eq!(of(r#"{"code":"user 12345","reason":"short-and-stout"}"#), pair("/reason", "short-and-stout"));
        assert_eq!(of(r#"{"id":"9"}"#), None);
        assert_eq!(of("plain"), None);
    }

    #[test]
    fn the_rule_that_is_shown_is_the_rule_that_applies() {
        let body = br#"{"error":{"code":"say \"hi\"?"}}"#;
        let bodies: [(&[u8], &[u8]); 2] = [(br#"{"error":{"code":"teapot"}}"#, br#"{"error":{"code":"kettle"}}"#), (body, b"{}")];
        for (this, other) in bodies {
            let condition = Condition::of(AttemptStatus::Http(418), this);
            let rule = condition.rule("a b", ErrorFingerprint(7), Class::Quota).unwrap();
            assert!(condition.toml("a b", ErrorFingerprint(7), Class::Quota).starts_with("[[upstreams.\"a b\".classify]]\n"));
            let set = RuleSet::new(vec![rule]);
            let class = |result, body| {
                let seen = ObservedResult { method: "GET", result, headers: &(), body, latency: Nanos::ZERO };
                let verdict = set.classify(&seen, Wall(0));
                (verdict.class, verdict.named)
            };
            assert_eq!(class(Ok(418), this), (Class::Quota, true));
            if condition.member.is_some() {
                assert_eq!(class(Ok(418), other), (Class::Permanent, false));
            }
            assert_eq!(class(Ok(419), this), (Class::Permanent, false));
        }
        let error = Condition::of(AttemptStatus::Error(ErrorKind::Reset), b"").rule("a", ErrorFingerprint(1), Class::Permanent).unwrap();
        assert_eq!(error.when.error, [ErrorKind::Reset]);
    }
}
