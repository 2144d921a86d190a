//! Every resolved value of an endpoint and the layer that set it.

use super::model::{EndpointConfig, UpstreamConfig};
use super::node::{ConfigValue, Tree};

/// One resolved key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedKey {
    pub key: String,
    pub value: String,
    pub origin: String,
}

/// The endpoint's values in the order of their key paths, rules last.
#[must_use]
pub fn endpoint(upstream: &UpstreamConfig, endpoint: &EndpointConfig) -> Vec<ResolvedKey> {
    let mut lines = vec![
        ResolvedKey { key: "url".to_owned(), value: format!("\"{}\"", upstream.url), origin: String::new() },
        ResolvedKey { key: "match".to_owned(), value: format!("\"{}\"", endpoint.matches), origin: String::new() },
    ];
    flatten("", &endpoint.tree.without(&["classify"]), &mut lines);
    for (i, rule) in endpoint.tree.rules().iter().enumerate() {
        lines.push(ResolvedKey {
            key: format!("classify[{i}]"),
            value: format!("{} → {}", rule.name, rule.class),
            origin: rule.source.as_str().to_owned(),
        });
    }
    lines
}

fn flatten(prefix: &str, tree: &Tree, lines: &mut Vec<ResolvedKey>) {
    for (name, node) in &tree.0 {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match &node.value {
            ConfigValue::Table(inner) => flatten(&key, inner, lines),
            value => lines.push(ResolvedKey { key, value: value.to_string(), origin: node.origin.to_string() }),
        }
    }
}
