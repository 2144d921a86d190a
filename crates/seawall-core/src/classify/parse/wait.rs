//! Parses a rule's `wait`: a word, a length, a table with the place of the value, or a list of these.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problems::{Problems, kind, words};
use crate::classify::json::Pointer;
use crate::classify::pattern::Expression;
use crate::classify::retry_after::Unit;
use crate::classify::wait::Wait;
use crate::spelling::nearest;
use crate::units::length;

const WORDS: &[&str] = &["none", "backoff", "retry-after", "until-reset", "until-month"];
const TABLE_KEYS: &[&str] = &["header", "json", "body", "unit", "need", "have", "per_second", "longest"];
/// The deepest nesting of lists; no rule needs more than two levels.
const DEPTH: usize = 3;
const ENTRIES: usize = 8;

pub(super) fn read(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<Wait> {
    nested(value, problems, DEPTH)
}

fn nested(value: &Spanned<DeValue<'_>>, problems: &mut Problems, depth: usize) -> Option<Wait> {
    let Some(depth) = depth.checked_sub(1) else {
        problems.add(value.span(), "waits are nested too deeply");
        return None;
    };
    match value.get_ref() {
        DeValue::String(text) => problems.parsed(value, word(text)),
        DeValue::Table(table) => place(table, value, problems, depth),
        DeValue::Array(_) => several(value, problems, depth).map(Wait::First),
        DeValue::Integer(_) | DeValue::Float(_) => {
            problems.add(value.span(), "a length of time has a unit: write \"60s\"");
            None
        }
        DeValue::Boolean(_) | DeValue::Datetime(_) => {
            problems.add(value.span(), format!("a wait is a word, a length, a table or a list of these, not {}", kind(value)));
            None
        }
    }
}

fn word(text: &str) -> Result<Wait, String> {
    match text {
        "none" => Ok(Wait::None),
        "backoff" => Ok(Wait::Backoff),
        "retry-after" => Ok(Wait::RetryAfter),
        "until-reset" => Ok(Wait::UntilReset),
        "until-month" => Ok(Wait::UntilMonth),
        _ => match (length(text), nearest(text, WORDS.iter().copied())) {
            (Some(length), _) => Ok(Wait::Fixed(length)),
            (None, Some(near)) => Err(format!("{text:?} is not a wait; did you mean \"{near}\"?")),
            (None, None) => Err(format!("{text:?} is not a wait; write a length, as in \"60s\", or one of {}", words(WORDS))),
        },
    }
}

fn several(value: &Spanned<DeValue<'_>>, problems: &mut Problems, depth: usize) -> Option<Vec<Wait>> {
    let DeValue::Array(entries) = value.get_ref() else {
        problems.add(value.span(), format!("this is a list of waits, not {}", kind(value)));
        return None;
    };
    if entries.is_empty() || entries.len() > ENTRIES {
        problems.add(value.span(), format!("a list of waits has 1 to {ENTRIES} entries, this one has {}", entries.len()));
        return None;
    }
    let waits: Vec<Option<Wait>> = entries.iter().map(|entry| nested(entry, problems, depth)).collect();
    waits.into_iter().collect()
}

fn place(table: &DeTable<'_>, value: &Spanned<DeValue<'_>>, problems: &mut Problems, depth: usize) -> Option<Wait> {
    problems.unknown_keys(table, TABLE_KEYS);
    let mut keys: Vec<&str> = table.keys().map(|key| key.get_ref().as_ref()).filter(|key| TABLE_KEYS.contains(key)).collect();
    keys.sort_unstable();
    match keys.as_slice() {
        ["header", "unit"] => {
            let name = text_at(table, "header", problems, super::header_name);
            let unit = unit(table, problems);
            Some(Wait::Header { name: name?, unit: unit? })
        }
        ["json", "unit"] => {
            let pointer = text_at(table, "json", problems, Pointer::parse);
            let unit = unit(table, problems);
            Some(Wait::Json { pointer: pointer?, unit: unit? })
        }
        ["body", "unit"] => {
            let expression = text_at(table, "body", problems, grouped);
            let unit = unit(table, problems);
            Some(Wait::Body { expression: expression?, unit: unit? })
        }
        ["have", "need", "per_second"] => {
            let need = text_at(table, "need", problems, Pointer::parse);
            let have = text_at(table, "have", problems, Pointer::parse);
            let per_second = text_at(table, "per_second", problems, Pointer::parse);
            Some(Wait::Deficit { need: need?, have: have?, per_second: per_second? })
        }
        ["longest"] => {
            let list = table.get("longest")?;
            let waits = several(list, problems, depth)?;
            let measured = waits.iter().all(|wait| !matches!(wait, Wait::None | Wait::Backoff | Wait::UntilReset | Wait::UntilMonth));
            if !measured {
                problems.add(list.span(), "`longest` compares lengths: a word other than \"retry-after\" has none");
            }
            measured.then_some(Wait::Longest(waits))
        }
        ["header"] | ["json"] | ["body"] => {
            problems.add(value.span(), format!("`unit` is missing: one of {}", words(Unit::WORDS)));
            None
        }
        _ => {
            let forms = "{ header, unit }, { json, unit }, { body, unit }, { need, have, per_second } or { longest }";
            problems.add(value.span(), format!("a wait's table is {forms}"));
            None
        }
    }
}

fn unit(table: &DeTable<'_>, problems: &mut Problems) -> Option<Unit> {
    problems.word(table.get("unit")?, "a unit", Unit::from_word, Unit::WORDS)
}

fn text_at<T>(table: &DeTable<'_>, key: &str, problems: &mut Problems, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    let value = table.get(key)?;
    let text = problems.string(value, "this")?;
    problems.parsed(value, parse(text))
}

fn grouped(text: &str) -> Result<Expression, String> {
    let expression = Expression::parse(text)?;
    match expression.groups() {
        1 => Ok(expression),
        found => Err(format!("the expression has exactly one group, around the value; this one has {found}")),
    }
}
