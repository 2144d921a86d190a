//! Every resolved value of an endpoint and the layer it came from.

use super::model::{Endpoint, Upstream};
use super::node::{Tree, Value};

/// One resolved key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub key: String,
    pub value: String,
    pub origin: String,
}

/// The endpoint's values in the order of their key paths, rules last.
#[must_use]
pub fn endpoint(upstream: &Upstream, endpoint: &Endpoint) -> Vec<Line> {
    let mut lines = vec![
        Line { key: "url".to_owned(), value: format!("\"{}\"", upstream.url), origin: String::new() },
        Line { key: "match".to_owned(), value: format!("\"{}\"", endpoint.matches), origin: String::new() },
    ];
    flatten("", &endpoint.tree.without(&["classify"]), &mut lines);
    for (i, rule) in endpoint.tree.rules().iter().enumerate() {
        lines.push(Line {
            key: format!("classify[{i}]"),
            value: format!("{} → {}", rule.name, rule.class),
            origin: rule.source.as_str().to_owned(),
        });
    }
    lines
}

fn flatten(prefix: &str, tree: &Tree, lines: &mut Vec<Line>) {
    for (name, node) in &tree.0 {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match &node.value {
            Value::Table(inner) => flatten(&key, inner, lines),
            value => lines.push(Line { key, value: value.to_string(), origin: node.origin.to_string() }),
        }
    }
}
