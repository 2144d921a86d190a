//! The script of a faulty upstream: parses text into routes and a timeline, or reports every problem with its line.

use super::entry::{Latency, Mix, RetryAfter, TimelineEntry};
use super::{errors, shape};
use bytes::Bytes;
use seawall_core::config::endpoint::PathPattern;
use seawall_core::config::node::{ConfigValue, Node, Tree};
use seawall_core::config::{self, Diagnostic, Invalid};
use seawall_core::policy::{Rate, Share};
use seawall_core::time::{Mono, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest generated body.
const MAX_SIZE: u64 = 1 << 30;

#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub routes: Vec<Route>,
    pub timeline: Vec<Moment>,
    /// Token issuers, by path.
    pub issuers: Vec<Issuer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub name: String,
    pub matches: PathPattern,
    pub face: Face,
    pub body: ScriptBody,
    pub content_type: Option<String>,
    /// Complete header lines.
    pub headers: Arc<str>,
    pub quota: Option<Quota>,
    pub rate: Option<(Rate, CountedBy)>,
    pub capacity: Option<Capacity>,
    /// Index of the issuer whose tokens this route requires.
    pub token: Option<usize>,
}

/// The behaviour of a route, as far as the timeline may change it. Absent members change nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Face {
    pub mix: Option<Mix>,
    pub latency: Option<Latency>,
    pub slow: Option<(Share, Latency)>,
    pub retry_after: Option<RetryAfter>,
}

#[derive(Clone, Debug)]
pub(crate) enum ScriptBody {
    /// `{"ok":true,"path":…,"n":…}`
    Default,
    Text(Bytes),
    Size(u64),
    Echo,
}

#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub key: KeyAt,
    pub limit: u64,
    /// Limits of single keys.
    pub limits: BTreeMap<String, u64>,
    pub per: Nanos,
    pub error: Option<Arc<errors::ErrorAnswer>>,
}

/// The place of the key in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyAt {
    Query(String),
    Header(String),
    Bearer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBy {
    Everyone,
    Ip,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub workers: u32,
    pub service: Latency,
    pub queue: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issuer {
    pub path: String,
    pub expires: Nanos,
    /// The value of the form field.
    pub grant: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub at: Nanos,
    pub length: Nanos,
    pub every: Option<Nanos>,
    /// `None` changes all routes.
    pub route: Option<usize>,
    pub face: Face,
    pub workers: Option<u32>,
}

impl Moment {
    fn phase(&self, now: Mono) -> Option<Nanos> {
        let since = now.0.checked_sub(self.at.0)?;
        Some(Nanos(self.every.map_or(since, |every| since % every.0)))
    }

    pub(crate) fn covers(&self, route: usize, now: Mono) -> bool {
        self.route.is_none_or(|own| own == route) && self.phase(now).is_some_and(|phase| phase < self.length)
    }

    /// The next begin or end.
    pub(crate) fn edge(&self, now: Mono) -> Mono {
        match (self.phase(now), self.every) {
            (None, _) => Mono(self.at.0),
            (Some(phase), _) if phase < self.length => now + (self.length - phase),
            (Some(phase), Some(every)) => now + (every - phase),
            (Some(_), None) => Mono::MAX,
        }
    }
}

impl Script {
    /// # Errors
    /// With every problem of the file at once.
    pub(crate) fn load(file: &str, bytes: &[u8]) -> Result<Self, Invalid> {
        let (text, tree, problems) = config::read(file, bytes, &shape::SCRIPT)?;
        let mut reader = ScriptReader { problems, issuers: Vec::new() };
        let routes: Vec<Route> =
            tree.list("routes").iter().enumerate().filter_map(|(i, node)| reader.route(&format!("routes[{i}]"), node)).collect();
        let timeline = tree
            .list("timeline")
            .iter()
            .enumerate()
            .filter_map(|(i, node)| reader.moment(&format!("timeline[{i}]"), node, &routes))
            .collect();
        if reader.problems.is_empty() {
            Ok(Self { routes, timeline, issuers: reader.issuers })
        } else {
            Err(Invalid::new(file, text, reader.problems))
        }
    }
}

/// Converts checked values to a script and collects their problems.
struct ScriptReader {
    problems: Vec<Diagnostic>,
    issuers: Vec<Issuer>,
}

impl ScriptReader {
    fn refuse(&mut self, node: &Node, path: &str, why: impl Into<String>) {
        self.problems.push(Diagnostic::new(node.origin.span.clone(), path, why));
    }

    /// Parses a text with `read`, and reports its error at the key.
    fn parse<T>(&mut self, tree: &Tree, path: &str, key: &str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        match read(tree.text(key)?) {
            Ok(value) => Some(value),
            Err(why) => {
                self.refuse(tree.node(key)?, &format!("{path}.{key}"), why);
                None
            }
        }
    }

    fn route(&mut self, path: &str, node: &Node) -> Option<Route> {
        let ConfigValue::Table(tree) = &node.value else { return None };
        let matches = PathPattern::parse(tree.text("match")?).ok()?;
        let bodies = ["body", "size", "echo"].iter().filter(|key| tree.node(key).is_some()).count();
        if bodies > 1 {
            self.refuse(node, path, "an answer has one body: `body`, `size` or `echo`");
        }
        Some(Route {
            name: tree.text("name").map_or_else(|| matches.to_string(), str::to_owned),
            face: self.face(path, node, tree),
            body: self.body(path, tree),
            content_type: tree.text("content_type").map(str::to_owned),
            headers: self.headers(path, tree).into(),
            quota: tree.table("quota").and_then(|quota| self.quota(&format!("{path}.quota"), quota)),
            rate: tree.table("rate").and_then(rate),
            capacity: tree.table("capacity").and_then(|table| self.capacity(&format!("{path}.capacity"), table)),
            token: tree.node("token").and_then(|token| self.issuer(&format!("{path}.token"), token)),
            matches,
        })
    }

    fn face(&mut self, path: &str, node: &Node, tree: &Tree) -> Face {
        if tree.node("mix").is_some() && tree.node("error").is_some() {
            self.refuse(node, path, "write either `mix` or `error`; an error may be part of a mix");
        }
        let error = self.parse(tree, path, "error", |name| {
            errors::named(name)
                .map(|error| Mix::only(TimelineEntry { what: super::entry::What::Error(error), retry_after: None, latency: None }))
        });
        let slow = tree.table("slow").and_then(|slow| {
            let Some(ConfigValue::Share(share)) = slow.node("share").map(|node| &node.value) else { return None };
            Some((*share, self.latency(&format!("{path}.slow.latency"), slow.node("latency")?)?))
        });
        Face {
            mix: tree.node("mix").and_then(|mix| self.mix(&format!("{path}.mix"), mix)).or(error),
            latency: tree.node("latency").and_then(|latency| self.latency(&format!("{path}.latency"), latency)),
            slow,
            retry_after: self.parse(tree, path, "retry_after", RetryAfter::parse),
        }
    }

    fn mix(&mut self, path: &str, node: &Node) -> Option<Mix> {
        let ConfigValue::Table(table) = &node.value else { return None };
        let mut weights = Vec::new();
        for (name, weight) in &table.0 {
            match (TimelineEntry::parse(name), &weight.value) {
                (Ok(entry), ConfigValue::Int(count)) => weights.push((*count, entry)),
                (Err(why), _) => self.refuse(weight, &format!("{path}.{name}"), why),
                (Ok(_), _) => {}
            }
        }
        let read_all = weights.len() == table.0.len();
        let mix = Mix::weighted(weights);
        if mix.is_none() && read_all {
            self.refuse(node, path, "a mix needs at least one weight above zero");
        }
        mix
    }

    fn latency(&mut self, path: &str, node: &Node) -> Option<Latency> {
        let table = match &node.value {
            ConfigValue::Duration(length) => return Some(Latency::Fixed(*length)),
            ConfigValue::Table(table) => table,
            _ => return None,
        };
        let pair = |key| match table.list(key) {
            [Node { value: ConfigValue::Duration(a), .. }, Node { value: ConfigValue::Duration(b), .. }] => Some((*a, *b)),
            _ => None,
        };
        let found = match (table.0.len(), duration(table, "exp"), pair("uniform"), pair("normal")) {
            (1, Some(mean), _, _) => Some(Latency::Exponential(mean)),
            (1, _, Some((low, high)), _) if low <= high => Some(Latency::Uniform(low, high)),
            (1, _, _, Some((mean, deviation))) => Some(Latency::Normal(mean, deviation)),
            _ => None,
        };
        if found.is_none() {
            self.refuse(node, path, "write { uniform = [\"5ms\", \"50ms\"] }, { exp = \"20ms\" } or { normal = [\"20ms\", \"5ms\"] }");
        }
        found
    }

    fn body(&mut self, path: &str, tree: &Tree) -> ScriptBody {
        match (tree.text("body"), tree.node("size")) {
            (Some(text), _) => ScriptBody::Text(Bytes::copy_from_slice(text.as_bytes())),
            (None, Some(node)) => {
                let ConfigValue::Size(size) = node.value else { return ScriptBody::Default };
                if size > MAX_SIZE {
                    self.refuse(node, &format!("{path}.size"), "must be at most 1GiB");
                }
                ScriptBody::Size(size)
            }
            (None, None) if matches!(tree.node("echo").map(|node| &node.value), Some(ConfigValue::Bool(true))) => ScriptBody::Echo,
            (None, None) => ScriptBody::Default,
        }
    }

    fn headers(&mut self, path: &str, tree: &Tree) -> String {
        let mut lines = String::new();
        for (name, node) in tree.table("headers").iter().flat_map(|headers| &headers.0) {
            let ConfigValue::Text(value) = &node.value else { continue };
            let fine = http::HeaderName::try_from(name.as_str()).is_ok() && http::HeaderValue::try_from(value.as_str()).is_ok();
            if !fine {
                self.refuse(node, &format!("{path}.headers.{name}"), "not a header: names are tokens and values one line");
            } else if ["content-length", "transfer-encoding", "connection"].contains(&name.to_ascii_lowercase().as_str()) {
                self.refuse(node, &format!("{path}.headers.{name}"), "framing is not for headers; use a fault such as `lying-length`");
            }
            lines.push_str(&format!("{name}: {value}\r\n"));
        }
        lines
    }

    fn quota(&mut self, path: &str, tree: &Tree) -> Option<Quota> {
        let error = self.parse(tree, path, "error", errors::named);
        let key = self.parse(tree, path, "key", KeyAt::parse)?;
        let single = tree.table("limits").into_iter().flat_map(|limits| &limits.0).filter_map(|(key, node)| match node.value {
            ConfigValue::Int(limit) => Some((key.clone(), limit)),
            _ => None,
        });
        Some(Quota { key, limit: int(tree, "limit")?, limits: single.collect(), per: duration(tree, "per")?, error })
    }

    fn capacity(&mut self, path: &str, tree: &Tree) -> Option<Capacity> {
        let service = self.latency(&format!("{path}.service"), tree.node("service")?)?;
        let queue = int(tree, "queue").and_then(|queue| usize::try_from(queue).ok());
        Some(Capacity { workers: u32::try_from(int(tree, "workers")?).ok()?, service, queue })
    }

    fn issuer(&mut self, path: &str, node: &Node) -> Option<usize> {
        let ConfigValue::Table(tree) = &node.value else { return None };
        let url = tree.text("url")?.to_owned();
        if !url.starts_with('/') || url.contains(['?', '#', ' ']) {
            self.refuse(node, &format!("{path}.url"), "needs a path of this server, as in \"/token\"");
        }
        let grant = if tree.text("grant") == Some("refresh-token") { "refresh_token" } else { "client_credentials" };
        let issuer = Issuer { path: url, expires: duration(tree, "expires")?, grant };
        if let Some(at) = self.issuers.iter().position(|known| known.path == issuer.path) {
            if self.issuers[at] != issuer {
                self.refuse(node, path, format!("`{}` already issues other tokens", issuer.path));
            }
            return Some(at);
        }
        self.issuers.push(issuer);
        Some(self.issuers.len() - 1)
    }

    fn moment(&mut self, path: &str, node: &Node, routes: &[Route]) -> Option<Moment> {
        let ConfigValue::Table(tree) = &node.value else { return None };
        let route = self.parse(tree, path, "route", |name| {
            routes.iter().position(|route| route.name == name).ok_or_else(|| {
                let names: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
                format!("there is no route `{name}`; there are {}", names.join(", "))
            })
        });
        let (at, length, every) = (duration(tree, "at")?, duration(tree, "for")?, duration(tree, "every"));
        if every.is_some_and(|every| every < length) {
            self.refuse(node, path, "`every` must not be shorter than `for`");
        }
        let workers = int(tree, "workers").and_then(|workers| u32::try_from(workers).ok());
        Some(Moment { at, length, every, route, face: self.face(path, node, tree), workers })
    }
}

impl KeyAt {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "bearer" => Ok(Self::Bearer),
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            Some(("header", name)) if http::HeaderName::try_from(name).is_ok() => Ok(Self::Header(name.to_owned())),
            _ => Err("write \"query:NAME\", \"header:NAME\" or \"bearer\"".to_owned()),
        }
    }
}

fn int(tree: &Tree, key: &str) -> Option<u64> {
    if let ConfigValue::Int(number) = tree.node(key)?.value { Some(number) } else { None }
}

fn duration(tree: &Tree, key: &str) -> Option<Nanos> {
    if let ConfigValue::Duration(length) = tree.node(key)?.value { Some(length) } else { None }
}

fn rate(tree: &Tree) -> Option<(Rate, CountedBy)> {
    let ConfigValue::Rate(rate) = tree.node("limit")?.value else { return None };
    Some((rate, if tree.text("by") == Some("ip") { CountedBy::Ip } else { CountedBy::Everyone }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_found_at_once_with_its_line() {
        let text = r#"
[[routes]]
match = "GET /a"
mix = { "200" = 9, "reset-befor" = 1 }
latency = { uniform = ["50ms", "5ms"] }
retry_after = "soon"
speed = 3
headers = { "content-length" = "5" }

[[routes]]
match = "GET /b"
body = "x"
echo = true
quota = { key = "cookie:k", limit = 1, per = "1s" }

[[timeline]]
at = "1s"
for = "2s"
every = "1s"
route = "nowhere"
"#;
        let invalid = Script::load("s.toml", text.as_bytes()).unwrap_err();
        let found: Vec<String> =
            invalid.problems().iter().map(|problem| format!("{} {}", invalid.position(problem).0, problem.path)).collect();
        let expected = [
            "4 routes[0].mix.reset-befor",
            "5 routes[0].latency",
            "6 routes[0].retry_after",
            "7 routes[0].speed",
            "8 routes[0].headers.content-length",
            "10 routes[1]",
            "14 routes[1].quota.key",
            "16 timeline[0]",
            "20 timeline[0].route",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn moments_come_again() {
        let text = "[[timeline]]\nat = \"10s\"\nfor = \"5s\"\nevery = \"20s\"\nmix = { \"503\" = 1 }\n";
        let script = Script::load("s.toml", text.as_bytes()).unwrap();
        let moment = &script.timeline[0];
        let at = |s| Mono(Nanos::from_secs(s).0);
        let covered: Vec<u64> = (0..40).filter(|s| moment.covers(0, at(*s))).collect();
        assert_eq!(covered, [10, 11, 12, 13, 14, 30, 31, 32, 33, 34]);
        assert_eq!([0, 12, 15].map(|s| moment.edge(at(s))), [10, 15, 30].map(at));
    }
}
