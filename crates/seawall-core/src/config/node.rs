//! A checked value with its origin, and the merging of layers.

use crate::classify::Rule;
use crate::policy::{Rate, Share};
use crate::time::Nanos;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The layer that set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigLayer {
    BuiltIn,
    Profile(Arc<str>),
    Preset(Arc<str>),
    /// The user's own file.
    File(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueOrigin {
    pub layer: ConfigLayer,
    /// From 1.
    pub line: usize,
    pub span: Range<usize>,
}

impl ValueOrigin {
    /// Whether the user wrote this value, instead of inheriting it.
    #[must_use]
    pub const fn is_explicit(&self) -> bool {
        matches!(self.layer, ConfigLayer::File(_))
    }
}

impl std::fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.layer {
            ConfigLayer::BuiltIn => f.write_str("default"),
            ConfigLayer::Profile(name) => write!(f, "profile {name}"),
            ConfigLayer::Preset(name) => write!(f, "preset {name}"),
            ConfigLayer::File(name) => write!(f, "{name}:{}", self.line),
        }
    }
}

#[derive(Clone, Debug)]
pub enum ConfigValue {
    Duration(Nanos),
    Size(u64),
    Rate(Rate),
    Share(Share),
    Int(u64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Node>),
    Table(Tree),
    Rules(Vec<Arc<Rule>>),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub value: ConfigValue,
    pub origin: ValueOrigin,
}

/// The keys of one table.
#[derive(Clone, Debug, Default)]
pub struct Tree(pub BTreeMap<String, Node>);

impl Tree {
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.0.get(name)
    }

    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Self> {
        match &self.node(name)?.value {
            ConfigValue::Table(tree) => Some(tree),
            _ => None,
        }
    }

    /// The elements of a list; none where it is absent.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Node] {
        match self.node(name).map(|node| &node.value) {
            Some(ConfigValue::List(items)) => items,
            _ => &[],
        }
    }

    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.node(name)?.value {
            ConfigValue::Text(text) => Some(text),
            _ => None,
        }
    }

    #[must_use]
    pub fn rules(&self) -> &[Arc<Rule>] {
        match self.node("classify").map(|node| &node.value) {
            Some(ConfigValue::Rules(rules)) => rules,
            _ => &[],
        }
    }

    /// Returns this tree with `over` merged on top: tables key by key, rules in front of the existing ones, everything else replaced whole.
    #[must_use]
    pub fn overlaid_with(&self, over: &Self) -> Self {
        let mut merged = self.clone();
        for (name, node) in &over.0 {
            let laid = match (merged.0.get(name), &node.value) {
                (Some(Node { value: ConfigValue::Table(below), .. }), ConfigValue::Table(above)) => {
                    Node { value: ConfigValue::Table(below.overlaid_with(above)), origin: node.origin.clone() }
                }
                (Some(Node { value: ConfigValue::Rules(below), .. }), ConfigValue::Rules(above)) => {
                    let rules = above.iter().chain(below).cloned().collect();
                    Node { value: ConfigValue::Rules(rules), origin: node.origin.clone() }
                }
                _ => node.clone(),
            };
            merged.0.insert(name.clone(), laid);
        }
        merged
    }

    /// Drops these keys, for layers that must not pass everything on.
    #[must_use]
    pub fn without(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(name, _)| !names.contains(&name.as_str())).map(|(name, node)| (name.clone(), node.clone())).collect())
    }
}

impl std::fmt::Display for ConfigValue {
    /// Formats the value in the file's syntax.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Duration(length) => write!(f, "\"{length}\""),
            Self::Size(bytes) => write!(f, "\"{}\"", size_text(*bytes)),
            Self::Rate(rate) => write!(f, "\"{rate}\""),
            Self::Share(share) => write!(f, "\"{share}\""),
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(items) => {
                let texts: Vec<String> = items.iter().map(|item| item.value.to_string()).collect();
                write!(f, "[{}]", texts.join(", "))
            }
            Self::Table(tree) => {
                let texts: Vec<String> = tree.0.iter().map(|(name, node)| format!("{name} = {}", node.value)).collect();
                write!(f, "{{ {} }}", texts.join(", "))
            }
            Self::Rules(rules) => write!(f, "[{} rules]", rules.len()),
        }
    }
}

fn size_text(bytes: u64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    format!("{bytes}B")
}
