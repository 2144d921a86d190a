//! Parses a rule's text into a [`Rule`]: the one parser of `[[classify]]` tables, for users' files and presets alike. It collects every
//! problem with its place, so that a file can be corrected in one go.

mod problems;
mod wait;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::record::{Class, ErrorKind, Scope};
use crate::time::Nanos;

use super::json::Pointer;
use super::pattern::{Expression, Pattern, StatusSet};
use super::rules::{Rule, RuleSource, When};
use super::wait::Wait;
use super::xml::XmlPath;

pub use problems::{ByteRange, Problems};
use problems::{kind, list, text, words};

const RULE_KEYS: &[&str] = &["name", "when", "as", "scope", "wait", "skew", "unprocessed", "fallback"];
const WHEN_KEYS: &[&str] = &["status", "error", "method", "header", "json", "xml", "body", "slower"];
const NAME_BYTES: usize = 64;
/// The most entries of one list, and conditions of one kind.
const ENTRIES: usize = 64;

/// Reads one `[[classify]]` table. `span` is the table's own, for problems about missing keys.
///
/// # Errors
/// Every problem, each with its byte range.
pub fn rule(table: &DeTable<'_>, span: ByteRange, source: RuleSource) -> Result<Rule, Problems> {
    let mut problems = Problems::default();
    problems.unknown_keys(table, RULE_KEYS);
    let class = match table.get("as") {
        Some(value) => problems.word(value, "a class", Class::from_word, Class::WORDS),
        None => problems.missing(span.clone(), "as", "what the result is, one of ", Class::WORDS),
    };
    let when = match table.get("when") {
        Some(value) => conditions(value, &mut problems),
        None => problems.missing(span, "when", "the conditions, some of ", WHEN_KEYS),
    };
    let scope = table.get("scope").and_then(|value| problems.word(value, "a scope", Scope::from_word, Scope::WORDS));
    let wait = table.get("wait").and_then(|value| wait::read(value, &mut problems));
    let skew = table.get("skew").and_then(|value| length(value, &mut problems));
    let unprocessed = table.get("unprocessed").and_then(|value| problems.flag(value));
    let fallback = table.get("fallback").and_then(|value| problems.flag(value));
    let name = table.get("name").and_then(|value| rule_name(value, &mut problems));
    let (Some(class), Some(when), true) = (class, when, problems.is_empty()) else { return Err(problems) };
    Ok(Rule {
        name: name.unwrap_or_else(|| summary(table)),
        when,
        class,
        scope: scope.unwrap_or_else(|| usual_scope(class)),
        wait: wait.unwrap_or_else(|| usual_wait(class)),
        skew: skew.unwrap_or_default(),
        unprocessed: unprocessed.unwrap_or_default(),
        fallback: fallback.unwrap_or_default(),
        source,
    })
}

/// Reads every `[[classify]]` of a document, in order.
///
/// # Errors
/// Every problem of every rule.
pub fn rules(list: &Spanned<DeValue<'_>>, source: RuleSource) -> Result<Vec<Rule>, Problems> {
    let mut problems = Problems::default();
    let mut rules = Vec::new();
    let DeValue::Array(entries) = list.get_ref() else {
        problems.add(list.span(), format!("`classify` is a list of tables, not {}", kind(list)));
        return Err(problems);
    };
    for entry in entries {
        match entry.get_ref() {
            DeValue::Table(table) => match rule(table, entry.span(), source) {
                Ok(rule) => rules.push(rule),
                Err(more) => problems.extend(more),
            },
            _ => problems.add(entry.span(), format!("a rule is a table, not {}", kind(entry))),
        }
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

/// A quota or a rejected credential concerns the key of the request; any other result only the call.
const fn usual_scope(class: Class) -> Scope {
    match class {
        Class::Quota | Class::Auth => Scope::Key,
        Class::Success | Class::Transient | Class::Permanent | Class::Ambiguous => Scope::Call,
    }
}

const fn usual_wait(class: Class) -> Wait {
    match class {
        Class::Quota => Wait::UntilReset,
        Class::Transient | Class::Ambiguous => Wait::Backoff,
        Class::Success | Class::Permanent | Class::Auth => Wait::None,
    }
}

/// The name that logs use for an unnamed rule: its conditions on status and error, as written.
fn summary(table: &DeTable<'_>) -> String {
    let Some(DeValue::Table(when)) = table.get("when").map(Spanned::get_ref) else { return "rule".to_owned() };
    let entries = ["status", "error"].iter().filter_map(|key| when.get(*key)).flat_map(list);
    let entries: Vec<String> = entries.take(4).filter_map(text).collect();
    if entries.is_empty() { "rule".to_owned() } else { entries.join(" ") }
}

fn rule_name(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<String> {
    let name = problems.string(value, "a name")?;
    let plain = !name.is_empty() && name.len() <= NAME_BYTES && !name.chars().any(char::is_control);
    if !plain {
        problems.add(value.span(), format!("a rule's name has 1 to {NAME_BYTES} bytes and no control characters"));
    }
    plain.then(|| name.to_owned())
}

fn conditions(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<When> {
    let table = problems.table(value, "`when`")?;
    problems.unknown_keys(table, WHEN_KEYS);
    let mut when = When::default();
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "status" => when.status = statuses(value, problems),
            "error" => {
                when.error = entries(value, "an error", problems, |entry, problems| {
                    problems.word(entry, "an error", ErrorKind::from_word, ErrorKind::WORDS)
                });
            }
            "method" => when.method = entries(value, "a method", problems, method),
            "header" => {
                when.header = named(value, "`header`", problems, header_name);
            }
            "json" => when.json = named(value, "`json`", problems, Pointer::parse),
            "xml" => when.xml = named(value, "`xml`", problems, XmlPath::parse),
            "body" => when.body = problems.string(value, "an expression").and_then(|text| problems.parsed(value, Expression::parse(text))),
            "slower" => when.slower = length(value, problems),
            _ => {}
        }
    }
    if table.is_empty() {
        problems.add(value.span(), format!("`when` is empty: say which results the rule is about with {}", words(WHEN_KEYS)));
    }
    Some(when)
}

fn statuses(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> StatusSet {
    let mut set = StatusSet::EMPTY;
    let entries = list(value);
    if entries.is_empty() {
        problems.add(value.span(), "an empty list of statuses matches nothing: leave `status` out to mean every response");
    }
    for entry in entries {
        let inserted = match text(entry) {
            Some(text) => set.insert(&text),
            None => Err(format!("a status is a number, \"5xx\" or \"500-599\", not {}", kind(entry))),
        };
        problems.parsed(entry, inserted);
    }
    set
}

fn method(entry: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<String> {
    let method = problems.string(entry, "a method")?;
    let good = !method.is_empty() && method.len() <= 32 && method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if !good {
        problems.add(entry.span(), format!("{method:?} is not a method: write \"GET\" or \"POST\""));
    }
    good.then(|| method.to_ascii_uppercase())
}

fn header_name(text: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || text.len() > 128 || !text.bytes().all(token) {
        return Err(format!("{text:?} is not a header name"));
    }
    Ok(text.to_ascii_lowercase())
}

/// Reads every entry of a list; a single scalar counts as a list of one.
fn entries<T>(
    value: &Spanned<DeValue<'_>>,
    what: &str,
    problems: &mut Problems,
    mut read: impl FnMut(&Spanned<DeValue<'_>>, &mut Problems) -> Option<T>,
) -> Vec<T> {
    let entries = list(value);
    if entries.is_empty() {
        problems.add(value.span(), format!("an empty list matches nothing: name {what} or leave the key out"));
    }
    if entries.len() > ENTRIES {
        problems.add(value.span(), format!("a list has at most {ENTRIES} entries, this one has {}", entries.len()));
    }
    entries.into_iter().take(ENTRIES).filter_map(|entry| read(entry, problems)).collect()
}

/// Reads a table from places to patterns. An empty list is meaningful here: the place must be absent.
fn named<T>(
    value: &Spanned<DeValue<'_>>,
    what: &str,
    problems: &mut Problems,
    place: impl Fn(&str) -> Result<T, String>,
) -> Vec<(T, Vec<Pattern>)> {
    let Some(table) = problems.table(value, what) else { return Vec::new() };
    if table.len() > ENTRIES {
        problems.add(value.span(), format!("{what} has at most {ENTRIES} conditions, this one has {}", table.len()));
    }
    let mut conditions = Vec::new();
    for (key, value) in table.iter().take(ENTRIES) {
        let place = place(key.get_ref()).map_err(|message| problems.add(key.span(), message));
        let empty = list(value).is_empty();
        let patterns = if empty { Vec::new() } else { entries(value, "a value", problems, pattern) };
        conditions.extend(place.ok().map(|place| (place, patterns)));
    }
    conditions
}

fn pattern(entry: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<Pattern> {
    match text(entry) {
        Some(text) => problems.parsed(entry, Pattern::parse(&text)),
        None => {
            problems.add(entry.span(), format!("a value is compared with a string, a number or a boolean, not with {}", kind(entry)));
            None
        }
    }
}

fn length(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<Nanos> {
    let text = problems.string(value, "a length of time, as in \"60s\"")?;
    problems.parsed(value, crate::units::duration(text))
}

#[cfg(test)]
mod tests;
