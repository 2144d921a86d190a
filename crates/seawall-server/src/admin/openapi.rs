//! The OpenAPI 3.1 description of this API, built from routes and types. Common parts are added here once: authentication, the form of
//! errors, and the completeness of responses.

use super::paths::paths;
use crate::query::written;
use crate::response::ProblemDocument;
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use utoipa::OpenApi;

/// Built on first use: most processes never need it.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_string()));

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Seawall admin API",
        version = "1",
        description = "Everything an operator can see and do. Times are RFC 3339, refusals are problem+json with a `code`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    security((), ("token" = [])),
    components(schemas(ProblemDocument)),
)]
struct ApiInfo;

paths!(openapi);

/// This document
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "process", responses((status = 200, body = Object)))]
async fn openapi() -> Response {
    written(200, TEXT.clone())
}

fn document() -> Value {
    let mut about = ApiInfo::openapi();
    super::paths().describe(&mut about);
    let mut whole = serde_json::to_value(about).unwrap_or_default();
    whole["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    let mut said = BTreeSet::new();
    for operation in operations(&mut whole["paths"]) {
        refusals(&mut operation["responses"]);
        names(&operation["responses"], &mut said);
    }
    let schemas = &mut whole["components"]["schemas"];
    exclude_each_other(schemas);
    for (name, schema) in members(schemas) {
        // utoipa inlines the items of a generic type; this restores the reference.
        if let Some(of) = name.strip_prefix("List_") {
            schema["properties"]["items"]["items"] = json!({ "$ref": format!("#/components/schemas/{of}") });
        }
    }
    let mut known = 0;
    while known < said.len() {
        known = said.len();
        said.clone().iter().for_each(|name| names(&schemas[name], &mut said));
    }
    for (_, schema) in members(schemas).filter(|(name, _)| said.contains(*name)) {
        require_all_members(schema);
    }
    whole
}

fn members(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flat_map(|members| members.iter_mut())
}

fn operations(paths: &mut Value) -> impl Iterator<Item = &mut Value> {
    members(paths).flat_map(|(_, path)| members(path).map(|(_, operation)| operation))
}

/// Collects the names of all referenced schemas.
fn names(part: &Value, found: &mut BTreeSet<String>) {
    match part {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).and_then(|to| to.rsplit('/').next()).map(str::to_owned));
            members.values().for_each(|member| names(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}

/// Adds error responses to all paths: the guard, the router or the store may refuse any request, in one common format.
fn refusals(responses: &mut Value) {
    for class in ["4XX", "5XX"] {
        if responses.get(class).is_none() {
            responses[class] = json!({ "description": "A refusal" });
        }
    }
    for (status, response) in members(responses) {
        let is_refusal = status.starts_with(['4', '5']);
        if is_refusal && response.get("content").is_none() {
            response["content"] = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
        }
        if response["description"].as_str().is_none_or(str::is_empty) {
            response["description"] = json!("Done");
        }
    }
}

/// Adds a constraint that types cannot express: a request has exactly one of these members.
fn exclude_each_other(schemas: &mut Value) {
    schemas["NewJob"]["oneOf"] = json!([
        { "required": ["upstream"], "properties": { "upstream": { "type": "string" }, "url": { "type": "null" } } },
        { "required": ["url"], "properties": { "url": { "type": "string" }, "upstream": { "type": "null" }, "path": { "type": "null" } } },
    ]);
    schemas["NewReplay"]["oneOf"] = json!([
        { "required": ["ids"], "properties": { "ids": { "minItems": 1 }, "filter": { "type": "null" } } },
        { "required": ["filter"], "properties": { "filter": { "type": "object" }, "ids": { "maxItems": 0 } } },
    ]);
}

/// Marks response schemas as complete: all members are present. A member without a value is null, unless it may be omitted; then it is
/// never null.
fn require_all_members(schema: &mut Value) {
    merged(schema);
    let Value::Object(own) = schema else { return };
    own.values_mut().for_each(|part| match part {
        Value::Array(parts) => parts.iter_mut().for_each(require_all_members),
        part => require_all_members(part),
    });
    let Some(Value::Object(properties)) = own.get_mut("properties") else { return };
    properties.values_mut().for_each(require_all_members);
    let nullable: Vec<Value> = properties.iter().filter(|(_, schema)| is_nullable(schema)).map(|(name, _)| json!(name)).collect();
    let required = own.entry("required").or_insert_with(|| json!([]));
    if let Value::Array(required) = required {
        required.extend(nullable);
    }
    own.insert("additionalProperties".to_owned(), json!(false));
}

fn is_nullable(schema: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null" || kind["type"] == "null";
    ["type", "oneOf", "anyOf"].iter().any(|key| schema[key].as_array().is_some_and(|kinds| kinds.iter().any(is_null)))
}

/// Merges the members of flattened types into their parent.
fn merged(schema: &mut Value) {
    let Some(parts) = schema.get("allOf").and_then(Value::as_array) else { return };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    let mut whole = json!({ "type": "object", "properties": properties, "required": required });
    if let Some(description) = schema.get("description") {
        whole["description"] = description.clone();
    }
    *schema = whole;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_it_is_for() {
        let mut document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = BTreeSet::new();
        for operation in operations(&mut document["paths"]) {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{id}");
            assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{id}");
            assert!(operation["responses"]["4XX"]["content"]["application/problem+json"].is_object(), "{id}");
            assert!(ids.insert(id.clone()), "{id} is there twice");
        }
        assert!(ids.len() >= 44, "{ids:?}");
    }

    #[test]
    fn nothing_is_referred_to_that_is_not_there() {
        let document = document();
        let mut named = BTreeSet::new();
        names(&document, &mut named);
        let described: BTreeSet<String> = document["components"]["schemas"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(named, described);
    }

    #[test]
    fn answers_are_said_whole_and_requests_as_they_may_come() {
        let document = document();
        let schema = |name: &str| &document["components"]["schemas"][name];
        let required = |name: &str| schema(name)["required"].as_array().cloned().unwrap_or_default();
        assert!(required("Breaker").contains(&json!("retry_at")), "null, and there");
        assert_eq!(schema("Breaker")["additionalProperties"], false);
        assert!(!required("Event").contains(&json!("resolves")), "left out where there is nothing");
        assert!(schema("CallTimeline")["properties"]["id"].is_object(), "{}", schema("CallTimeline"));
        assert_eq!(schema("KeyWish")["required"], json!(["state"]), "what need not be asked for");
        assert!(schema("ExportedLetter").get("additionalProperties").is_none(), "what else an export has is passed over");
    }
}
