//! The shape tables as a JSON Schema, for editors that complete and check TOML.

use super::keys;
use super::shape::{TableShape, ValueKind};
use serde_json::{Map, Value, json};

/// JSON Schema (draft 2020-12) of the configuration file.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = table(&keys::ROOT);
    if let Value::Object(root) = &mut schema {
        root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        root.insert("title".to_owned(), json!("Seawall configuration"));
    }
    schema
}

fn table(shape: &TableShape) -> Value {
    let properties: Map<String, Value> = shape
        .iter()
        .map(|key| {
            let mut value = kind(&key.kind);
            if let (Value::Object(value), false) = (&mut value, key.doc.is_empty()) {
                value.insert("description".to_owned(), json!(key.doc));
            }
            (key.name.to_owned(), value)
        })
        .collect();
    let required: Vec<&str> = shape.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if let (Value::Object(object), false) = (&mut object, required.is_empty()) {
        object.insert("required".to_owned(), json!(required));
    }
    object
}

fn kind(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Duration { .. } => pattern(r"^\s*([0-9.]+\s*(ns|us|µs|ms|s|m|min|h|d|w)\s*)+$"),
        ValueKind::Size => pattern(r"^\s*[0-9.]+\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)$"),
        ValueKind::Rate { .. } => pattern(r"^[0-9]+/([0-9.]+)?(ms|s|m|min|h|d)$"),
        ValueKind::Share => pattern(r"^[0-9.]+%$"),
        ValueKind::Int { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::Float { min, max } => json!({ "type": "number", "minimum": min, "maximum": max }),
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Word(words) => json!({ "enum": words }),
        ValueKind::Secret => pattern("^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$"),
        ValueKind::Url => pattern("^https?://"),
        ValueKind::UrlOrSecret => pattern("^(https?://|env:|file:)"),
        ValueKind::Place(prefixes) => pattern(&format!("^({})", prefixes.join("|"))),
        ValueKind::Listen => pattern("^.+:[0-9]+$"),
        ValueKind::Inject => pattern("^(query:.+|header:.+|basic)$"),
        ValueKind::Header => pattern(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"),
        ValueKind::HeaderValue => pattern(r"^[ -~]*$"),
        ValueKind::Label => pattern(r"^[ !#-\[\]-~]{1,64}$"),
        ValueKind::Method => pattern(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"),
        ValueKind::Match => pattern(r"^(\*|[A-Z]+) /"),
        ValueKind::Text | ValueKind::Cidr | ValueKind::Reset | ValueKind::LimitKey => json!({ "type": "string" }),
        ValueKind::List(inner) => json!({ "type": "array", "items": self::kind(inner) }),
        ValueKind::OneOrMany(inner) => json!({ "anyOf": [self::kind(inner), { "type": "array", "items": self::kind(inner) }] }),
        ValueKind::Table(shape) => table(shape),
        ValueKind::Map(shape) => json!({ "type": "object", "additionalProperties": table(shape) }),
        ValueKind::Tables(shape) => json!({ "type": "array", "items": table(shape) }),
        ValueKind::Rules(shape) => rules(shape),
        ValueKind::Strings => json!({ "type": "object" }),
        ValueKind::Counts => json!({ "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } }),
        ValueKind::Either(plain, table) => json!({ "anyOf": [self::kind(plain), self::kind(table)] }),
    }
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

/// Adds the forms of rules that their shape cannot express: `wait` may be a table or a list, `status` may hold words.
fn rules(shape: &TableShape) -> Value {
    let mut rule = table(shape);
    if let Some(wait) = rule.pointer_mut("/properties/wait") {
        *wait = json!({ "type": ["string", "object", "array"], "description": wait.get("description") });
    }
    if let Some(status) = rule.pointer_mut("/properties/when/properties/status/items") {
        *status = json!({ "type": ["integer", "string"] });
    }
    json!({ "type": "array", "items": rule })
}
