//! Problems of a rule's text with their places, and the small parsers that find them.

use std::borrow::Cow;
use std::ops::Range;

use crate::spelling::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A byte range of the file.
pub type ByteRange = Range<usize>;

/// Every problem found so far, in the order of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<(ByteRange, String)>);

impl Problems {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, span: ByteRange, message: impl Into<String>) {
        self.0.push((span, message.into()));
    }

    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub(super) fn missing<T>(&mut self, span: ByteRange, key: &str, meaning: &str, words: &[&str]) -> Option<T> {
        self.add(span, format!("`{key}` is missing: {meaning}{}", self::words(words)));
        None
    }

    pub(super) fn unknown_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref();
            let hint = nearest(name, known.iter().copied())
                .map_or_else(|| format!("known are {}", words(known)), |near| format!("did you mean `{near}`?"));
            self.add(key.span(), format!("unknown key `{name}`; {hint}"));
        }
    }

    pub(super) fn parsed<T>(&mut self, value: &Spanned<DeValue<'_>>, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(value.span(), message)).ok()
    }

    pub(super) fn string<'a>(&mut self, value: &'a Spanned<DeValue<'_>>, what: &str) -> Option<&'a str> {
        let DeValue::String(text) = value.get_ref() else {
            self.add(value.span(), format!("{what} is a string, not {}", kind(value)));
            return None;
        };
        Some(text)
    }

    pub(super) fn flag(&mut self, value: &Spanned<DeValue<'_>>) -> Option<bool> {
        let DeValue::Boolean(flag) = value.get_ref() else {
            self.add(value.span(), format!("this is true or false, not {}", kind(value)));
            return None;
        };
        Some(*flag)
    }

    pub(super) fn table<'a, 'i>(&mut self, value: &'a Spanned<DeValue<'i>>, what: &str) -> Option<&'a DeTable<'i>> {
        let DeValue::Table(table) = value.get_ref() else {
            self.add(value.span(), format!("{what} is a table, not {}", kind(value)));
            return None;
        };
        Some(table)
    }

    pub(super) fn word<T>(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        what: &str,
        from_word: impl Fn(&str) -> Option<T>,
        known: &[&str],
    ) -> Option<T> {
        let text = self.string(value, what)?;
        let read = from_word(text);
        if read.is_none() {
            let hint = nearest(text, known.iter().copied())
                .map_or_else(|| format!("write one of {}", words(known)), |near| format!("did you mean \"{near}\"?"));
            self.add(value.span(), format!("{text:?} is not {what}; {hint}"));
        }
        read
    }
}

/// `a`, `b` or `c`.
pub(super) fn words(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

pub(super) fn kind(value: &Spanned<DeValue<'_>>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A scalar as text, in the form that patterns compare.
pub(super) fn text(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(Cow::into_owned(text.clone())),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// A list's entries; anything else is a list of one.
pub(super) fn list<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<&'a Spanned<DeValue<'i>>> {
    match value.get_ref() {
        DeValue::Array(entries) => entries.iter().collect(),
        _ => vec![value],
    }
}
