//! The error responses of real APIs, by name: `google:quotaExceeded`, `lastfm:29`. The data is `errors.toml`.

use seawall_core::config::node::{ConfigValue, Node, Tree};
use seawall_core::config::shape::{TableShape, ValueKind, key, required};
use seawall_core::config::{self};
use seawall_core::spelling::nearest;
use seawall_core::time::Wall;
use std::sync::{Arc, LazyLock};

const STATUS: ValueKind = ValueKind::Int { min: 100, max: 599 };

static CODE: TableShape = TableShape {
    what: "a code",
    keys: &[&[
        key("status", STATUS, ""),
        key("headers", ValueKind::Strings, ""),
        key("content_type", ValueKind::Text, ""),
        key("body", ValueKind::Text, ""),
    ]],
};

static FAMILY: TableShape = TableShape {
    what: "an API",
    keys: &[CODE.keys[0], &[required("code", ValueKind::Text, "the usual code"), key("codes", ValueKind::Map(&CODE), "codes that differ")]],
};

static ROOT: TableShape = TableShape { what: "the list of errors", keys: &[&[required("errors", ValueKind::Map(&FAMILY), "by API")]] };

static SHIPPED: LazyLock<Tree> = LazyLock::new(|| {
    let read = config::read("errors.toml", include_bytes!("errors.toml"), &ROOT);
    read.ok().and_then(|(_, tree, _)| tree.table("errors").cloned()).unwrap_or_default()
});

/// One error response, complete except for its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorAnswer {
    pub name: Arc<str>,
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub content_type: String,
    pub body: String,
}

/// `API:CODE`, or `API` for its usual code.
///
/// # Errors
/// When there is no such API; the error names the nearest one.
pub(crate) fn named(name: &str) -> Result<Arc<ErrorAnswer>, String> {
    let (api, code) = name.split_once(':').map_or((name, None), |(api, code)| (api, Some(code)));
    let Some(family) = SHIPPED.table(api) else {
        let apis = || SHIPPED.0.keys().map(String::as_str);
        let near = nearest(api, apis()).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(format!("`{api}` is not one of {}{near}", apis().collect::<Vec<_>>().join(", ")));
    };
    let code = code.or_else(|| family.text("code")).unwrap_or_default();
    if code.is_empty() || !code.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(format!("`{code}` cannot be a code: use letters, digits, `-`, `_` and `.`"));
    }
    let own = family.table("codes").and_then(|codes| codes.table(code));
    let node = |key: &str| own.and_then(|own| own.node(key)).or_else(|| family.node(key));
    let fill = |text: &str| text.replace("{code}", code);
    let status = node("status").and_then(|node| if let ConfigValue::Int(status) = node.value { u16::try_from(status).ok() } else { None });
    Ok(Arc::new(ErrorAnswer {
        name: format!("{api}:{code}").into(),
        status: status.unwrap_or(500),
        headers: node("headers").map(|node| strings(node, fill)).unwrap_or_default(),
        content_type: node("content_type").and_then(text).unwrap_or("application/json").to_owned(),
        body: node("body").and_then(text).map(fill).unwrap_or_default(),
    }))
}

fn text(node: &Node) -> Option<&str> {
    if let ConfigValue::Text(text) = &node.value { Some(text) } else { None }
}

fn strings(node: &Node, fill: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let ConfigValue::Table(table) = &node.value else { return Vec::new() };
    table.0.iter().filter_map(|(name, node)| Some((name.clone(), fill(text(node)?)))).collect()
}

/// Replaces `{epoch+60}` by the time.
pub(crate) fn timed(text: &str, wall: Wall) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{epoch+") {
        let (seconds, tail) = after.split_once('}').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(&(wall.0.div_euclid(1000) + seconds.parse::<i64>().unwrap_or(0)).to_string());
        rest = tail;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_error_can_be_asked_for() {
        let (_, _, problems) = config::read("errors.toml", include_bytes!("errors.toml"), &ROOT).unwrap();
        assert_eq!(problems, []);
        for (api, node) in &SHIPPED.0 {
            let ConfigValue::Table(family) = &node.value else { panic!("{api}") };
            let codes = family.table("codes").map(|codes| codes.0.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
            for name in codes.iter().map(|code| format!("{api}:{code}")).chain([api.clone()]) {
                let answer = named(&name).unwrap();
                assert!(!answer.body.is_empty() && !answer.body.contains("{code}"), "{name}");
                if answer.content_type.contains("json") {
                    serde_json::from_str::<serde_json::Value>(&answer.body).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_code_differs_from_its_family_only_in_what_it_names() {
        let quota = named("google:dailyLimitExceeded").unwrap();
        assert_eq!(quota.status, 403);
        assert!(quota.body.contains(r#""reason": "dailyLimitExceeded""#));
        assert_eq!(named("anthropic:rate_limit_error").unwrap().status, 429);
        assert!(named("gogle").unwrap_err().contains("did you mean `google`?"));
        assert!(named("google:\r\n").is_err());
        assert_eq!(timed("reset {epoch+60}!", Wall(1_000_500)), "reset 1060!");
    }
}
