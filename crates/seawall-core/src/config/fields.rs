//! Typed reads from a merged tree. The walker has checked every kind and the built-in defaults hold every key, so a missing or mistyped
//! field here is a bug in one of those two, not in a user's file.

use super::node::{ConfigValue, Node, Tree};
use super::place::{self, SecretRef};
use crate::policy::{Rate, Share};
use crate::time::Nanos;

const INVARIANT: &str = "default.toml holds every key with its kind";

macro_rules! typed {
    ($(#[$doc:meta])* $name:ident, $variant:ident, $out:ty) => {
        $(#[$doc])*
        pub(crate) fn $name(tree: &Tree, key: &str) -> $out {
            match tree.node(key).map(|node| &node.value) {
                Some(ConfigValue::$variant(value)) => *value,
                other => unreachable!("{INVARIANT}: `{key}` is {other:?}"),
            }
        }
    };
}

typed!(duration, Duration, Nanos);
typed!(size, Size, u64);
typed!(rate, Rate, Rate);
typed!(share, Share, Share);
typed!(int, Int, u64);
typed!(float, Float, f64);
typed!(boolean, Bool, bool);

pub(crate) fn count(tree: &Tree, key: &str) -> u32 {
    u32::try_from(int(tree, key)).unwrap_or(u32::MAX)
}

pub(crate) fn text(tree: &Tree, key: &str) -> String {
    tree.text(key).map(str::to_owned).unwrap_or_default()
}

/// Text where the empty string stands for "none".
pub(crate) fn optional(tree: &Tree, key: &str) -> Option<String> {
    tree.text(key).filter(|text| !text.is_empty()).map(str::to_owned)
}

pub(crate) fn secret(tree: &Tree, key: &str) -> Option<SecretRef> {
    tree.text(key).and_then(|text| place::secret(text).ok())
}

pub(crate) fn texts(tree: &Tree, key: &str) -> Vec<String> {
    tree.list(key).iter().filter_map(as_text).map(str::to_owned).collect()
}

pub(crate) fn as_text(node: &Node) -> Option<&str> {
    match &node.value {
        ConfigValue::Text(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn as_table(node: &Node) -> Option<&Tree> {
    match &node.value {
        ConfigValue::Table(tree) => Some(tree),
        _ => None,
    }
}

/// A word that the walker has checked against its closed set.
pub(crate) fn word<T>(tree: &Tree, key: &str, from_word: impl Fn(&str) -> Option<T>) -> T {
    tree.text(key).and_then(from_word).expect("the walker accepts only words of the set, and default.toml holds every key")
}

pub(crate) fn words<T>(tree: &Tree, key: &str, from_word: impl Fn(&str) -> Option<T>) -> Vec<T> {
    tree.list(key).iter().filter_map(as_text).filter_map(from_word).collect()
}
