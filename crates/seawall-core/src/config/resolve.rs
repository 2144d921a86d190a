//! Converts checked trees to a `Config`: merges layers, looks up every name, refuses contradictions.

use super::endpoint::PathPattern;
use super::fields::{as_table, as_text, boolean, count, duration, float, int, optional, rate, secret, share, size, text, texts, word};
use super::layers::{self, each_defaults, unknown};
use super::model::{
    Auth, CATCH_ALL, CallerConfig, Config, EndpointConfig, ForwardedHeader, KeyConfig, Notify, Refresh, Schedule, ServerConfig, Tls,
    UpstreamConfig, default_burst,
};
use super::node::{Node, Tree};
use super::place::{self, Inject};
use super::problem::Diagnostic;
use super::url::Base;
use crate::discretion;
use crate::lease::Reset;
use crate::policy::{Algorithm, Backoff, BackoffKind, BulkheadPolicy, Fail, LimitPolicy, Mode, NotifyFormat, Pick};
use crate::request_target::RequestTarget;
use std::sync::Arc;

/// Resolves as much as possible, so that semantic problems are reported together with misspelt keys.
pub(crate) fn config(tree: &Tree, problems: &mut Vec<Diagnostic>) -> Config {
    let builtin = layers::builtin();
    let table = |name: &str| builtin.table(name).cloned().unwrap_or_default().overlaid_with(tree.table(name).unwrap_or(&Tree::default()));
    let pools: Vec<BulkheadPolicy> = named(tree, "pools", |name, own| Some(pool(name, own)));
    let defaults = tree.table("defaults").cloned().unwrap_or_default();
    let ground = layers::level(&layers::builtin_defaults(), &defaults, "defaults", problems);
    let upstreams = named(tree, "upstreams", |name, own| upstream(name, own, &ground, &defaults, problems));
    let config = Config {
        server: server(&table("server")),
        log_json: text(&table("log"), "format") == "json",
        callers: named(tree, "callers", caller),
        limits: limits(tree.list("limits"), "limits", problems),
        schedules: tree.list("schedules").iter().filter_map(as_table).filter_map(schedule).collect(),
        notify: tree.list("notify").iter().filter_map(as_table).filter_map(notify).collect(),
        pools,
        upstreams,
    };
    references(tree, &config, problems);
    config
}

fn named<T>(tree: &Tree, key: &str, mut make: impl FnMut(&str, &Tree) -> Option<T>) -> Vec<T> {
    let Some(table) = tree.table(key) else { return Vec::new() };
    table.0.iter().filter_map(|(name, node)| make(name, as_table(node)?)).collect()
}

fn server(tree: &Tree) -> ServerConfig {
    ServerConfig {
        listen: text(tree, "listen"),
        admin: text(tree, "admin"),
        admin_token: secret(tree, "admin_token"),
        webhook_secret: secret(tree, "webhook_secret"),
        store: text(tree, "store"),
        shared: text(tree, "shared"),
        shared_timeout: duration(tree, "shared_timeout"),
        max_body: size(tree, "max_body"),
        replay_body: size(tree, "replay_body"),
        drain: duration(tree, "drain"),
        require_caller: boolean(tree, "require_caller"),
        default_upstream: optional(tree, "default_upstream"),
        trust_forwarded: networks(tree, "trust_forwarded"),
        forwarded_header: word(tree, "forwarded_header", ForwardedHeader::from_word),
        allow_private: networks(tree, "allow_private"),
        tls: tree.table("tls").and_then(|tls| Some(Tls { cert: tls.text("cert")?.to_owned(), key: secret(tls, "key")? })),
    }
}

fn networks(tree: &Tree, key: &str) -> Vec<ipnet::IpNet> {
    tree.list(key).iter().filter_map(as_text).filter_map(|text| place::cidr(text).ok()).collect()
}

fn caller(name: &str, own: &Tree) -> Option<CallerConfig> {
    let tree = each_defaults("caller").overlaid_with(own);
    Some(CallerConfig { name: name.to_owned(), token: secret(&tree, "token")?, tenant: text(&tree, "tenant"), user: text(&tree, "user") })
}

fn pool(name: &str, own: &Tree) -> BulkheadPolicy {
    let tree = each_defaults("pool").overlaid_with(own);
    BulkheadPolicy {
        name: name.to_owned(),
        concurrent: tree.node("concurrent").map_or(1, |_| count(&tree, "concurrent")),
        queue: count(&tree, "queue"),
        queue_timeout: duration(&tree, "queue_timeout"),
        priority: count(&tree, "priority"),
        adaptive: boolean(&tree, "adaptive"),
    }
}

pub(crate) fn limits(nodes: &[Node], path: &str, problems: &mut Vec<Diagnostic>) -> Vec<LimitPolicy> {
    let mut limits: Vec<LimitPolicy> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let Some(limit) = as_table(node).and_then(limit) else { continue };
        if limits.iter().any(|other| other.name == limit.name) {
            problems.push(Diagnostic::new(
                node.origin.span.clone(),
                format!("{path}[{i}].name"),
                format!("there are two limits named `{}`", limit.name),
            ));
        }
        limits.push(limit);
    }
    limits
}

fn limit(own: &Tree) -> Option<LimitPolicy> {
    let tree = each_defaults("limit").overlaid_with(own);
    tree.node("rate")?;
    let rate = rate(&tree, "rate");
    Some(LimitPolicy {
        name: tree.text("name")?.to_owned(),
        key: tree.list("key").iter().filter_map(as_text).filter_map(|text| place::limit_key(text).ok()).collect(),
        rate,
        burst: tree.node("burst").map_or_else(|| default_burst(rate), |_| int(&tree, "burst")),
        algorithm: word(&tree, "algorithm", Algorithm::from_word),
        mode: word(&tree, "mode", Mode::from_word),
        fail: word(&tree, "fail", Fail::from_word),
        max_wait: duration(&tree, "max_wait"),
    })
}

fn upstream(name: &str, own: &Tree, ground: &Tree, defaults: &Tree, problems: &mut Vec<Diagnostic>) -> Option<Arc<UpstreamConfig>> {
    let path = format!("upstreams.{name}");
    let policy_keys = own.without(&["url", "hosts", "listen", "seawall", "via", "forwarded", "auth", "endpoints"]);
    let merged = layers::level(&ground.without(&["auth"]), &policy_keys, &path, problems);
    let preset = optional(&merged, "preset");
    let auth = auth(own, defaults, preset.as_deref(), &path, problems);
    let endpoints = endpoints(own.list("endpoints"), &merged, &path, problems);
    let url = Base::parse(own.text("url")?).ok()?;
    let seawall = own.node("seawall").is_some() && boolean(own, "seawall");
    let via = own.node("via").is_none() || boolean(own, "via");
    let forwarded = own.node("forwarded").is_some() && boolean(own, "forwarded");
    let (name, hosts, listen) = (name.to_owned(), texts(own, "hosts"), optional(own, "listen"));
    Some(Arc::new(UpstreamConfig { name, url, hosts, listen, seawall, via, forwarded, preset, auth, endpoints }))
}

fn endpoints(nodes: &[Node], merged: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> Vec<Arc<EndpointConfig>> {
    let mut endpoints: Vec<Arc<EndpointConfig>> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let here = format!("{path}.endpoints[{i}]");
        let Some(own) = as_table(node) else { continue };
        let tree = layers::level(merged, &own.without(&["name", "match"]), &here, problems);
        let policy = layers::policy(&tree, &here, problems);
        let (Some(name), Some(matches)) = (own.text("name"), own.text("match").and_then(|text| PathPattern::parse(text).ok())) else {
            continue;
        };
        if let Some(why) = unreachable_reason(name, &matches, &endpoints) {
            let span = own.node("match").map_or_else(|| node.origin.span.clone(), |node| node.origin.span.clone());
            problems.push(Diagnostic::new(span, format!("{here}.match"), why));
        }
        endpoints.push(Arc::new(EndpointConfig { name: name.to_owned(), matches, policy, tree }));
    }
    let policy = layers::policy(merged, path, problems);
    endpoints.push(Arc::new(EndpointConfig {
        name: CATCH_ALL.to_owned(),
        matches: PathPattern::everything(),
        policy,
        tree: merged.clone(),
    }));
    endpoints
}

/// The reason why this endpoint conflicts with those before it.
fn unreachable_reason(name: &str, matches: &PathPattern, before: &[Arc<EndpointConfig>]) -> Option<String> {
    if name == CATCH_ALL {
        return Some(format!("`{CATCH_ALL}` is the name of the endpoint that takes what no other does; its policy is the upstream's own"));
    }
    if before.iter().any(|other| other.name == name) {
        return Some(format!("there are two endpoints named `{name}`"));
    }
    let cover = before.iter().find(|other| other.matches.covers(matches))?;
    Some(format!("never reached: endpoint `{}` ({}) comes first and takes everything that this one would", cover.name, cover.matches))
}

fn auth(own: &Tree, defaults: &Tree, preset: Option<&str>, path: &str, problems: &mut Vec<Diagnostic>) -> Option<Auth> {
    let written = own.table("auth").or_else(|| defaults.table("auth"))?;
    let preset = preset.and_then(layers::preset).and_then(|tree| tree.table("auth")).cloned().unwrap_or_default();
    let inherited = defaults.table("auth").cloned().unwrap_or_default();
    let tree = each_defaults("auth").overlaid_with(&preset).overlaid_with(&inherited).overlaid_with(written);
    let keys: Vec<KeyConfig> = tree.list("keys").iter().filter_map(as_table).filter_map(key).collect();
    let refresh = tree.table("refresh").map(|own| each_defaults("refresh").overlaid_with(own)).and_then(|tree| refresh(&tree));
    let span = own.node("auth").map_or(0..0, |node| node.origin.span.clone());
    for (i, key) in keys.iter().enumerate() {
        if keys[..i].iter().any(|other| other.id == key.id) {
            let span = tree.list("keys").get(i).map_or_else(|| span.clone(), |node| node.origin.span.clone());
            problems.push(Diagnostic::new(
                span,
                format!("{path}.auth.keys[{i}].id"),
                format!("there are two keys with the id `{}`", key.id),
            ));
        }
    }
    match (keys.is_empty(), refresh.is_some()) {
        (true, false) if tree.table("refresh").is_none() && tree.list("keys").is_empty() => {
            problems.push(Diagnostic::new(span, format!("{path}.auth"), "there is nothing to send: give `keys` or `refresh`"));
        }
        (false, true) => problems.push(Diagnostic::new(
            span,
            format!("{path}.auth"),
            "give `keys` or `refresh`, not both: a refreshed token is the only credential",
        )),
        _ => {}
    }
    if keys.len() > MAX_KEYS {
        problems.push(Diagnostic::new(
            0..0,
            format!("{path}.auth.keys"),
            format!("{} keys are more than the {MAX_KEYS} that one pool holds", keys.len()),
        ));
    }
    Some(Auth {
        inject: tree.text("inject").and_then(|text| Inject::parse(text).ok())?,
        pick: word(&tree, "pick", Pick::from_word),
        reset: tree.text("reset").and_then(|text| Reset::parse(text).ok())?,
        max_wait: tree.node("max_wait").map(|_| duration(&tree, "max_wait")),
        keys,
        refresh,
    })
}

/// A pool has at most as many keys as a call's set of tried keys can hold.
pub const MAX_KEYS: usize = crate::lease::KeySet::MAX_KEYS;

fn key(own: &Tree) -> Option<KeyConfig> {
    Some(KeyConfig { id: own.text("id")?.to_owned(), secret: secret(own, "secret")?, group: optional(own, "group") })
}

fn refresh(tree: &Tree) -> Option<Refresh> {
    Some(Refresh {
        kind: tree.text("kind")?.to_owned(),
        token_url: Base::parse(tree.text("token_url")?).ok()?,
        client_id: secret(tree, "client_id")?,
        client_secret: secret(tree, "client_secret")?,
        refresh_token: secret(tree, "refresh_token"),
        scope: text(tree, "scope"),
        client_in_body: tree.text("client_auth") == Some("body"),
    })
}

fn schedule(own: &Tree) -> Option<Schedule> {
    let tree = each_defaults("schedule").overlaid_with(own);
    let request = each_defaults("request").overlaid_with(tree.table("request")?);
    tree.node("every")?;
    let backoff = tree.table("backoff")?;
    let headers = request.table("headers").cloned().unwrap_or_default();
    Some(Schedule {
        name: tree.text("name")?.to_owned(),
        upstream: tree.text("upstream")?.to_owned(),
        method: text(&request, "method"),
        path: request.text("path")?.to_owned(),
        headers: headers.0.iter().filter_map(|(name, node)| Some((name.clone(), as_text(node)?.to_owned()))).collect(),
        body: text(&request, "body"),
        every: duration(&tree, "every"),
        backoff: Backoff {
            kind: BackoffKind::PercentJitter,
            base: duration(backoff, "base"),
            factor: float(backoff, "factor"),
            cap: duration(backoff, "cap"),
            jitter: share(backoff, "jitter"),
        },
        subjects: texts(&tree, "subjects"),
        deliver: optional(&tree, "deliver"),
        spread: share(&tree, "spread"),
        run_missed: text(&tree, "missed") == "once",
    })
}

fn notify(own: &Tree) -> Option<Notify> {
    let tree = each_defaults("notify").overlaid_with(own);
    Some(Notify {
        url: tree.text("url")?.to_owned(),
        format: word(&tree, "format", NotifyFormat::from_word),
        secret: secret(&tree, "secret"),
        events: texts(&tree, "events"),
    })
}

/// Checks that every referenced name exists.
fn references(tree: &Tree, config: &Config, problems: &mut Vec<Diagnostic>) {
    let upstreams: Vec<&str> = tree.table("upstreams").map(|table| table.0.keys().map(String::as_str).collect()).unwrap_or_default();
    let pools: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    if upstreams.is_empty() {
        problems.push(
            Diagnostic::new(0..0, "upstreams", "there is no upstream: a policy needs at least one `[upstreams.NAME]` with a `url`")
                .help("`seawall config init` writes a file to start from"),
        );
    }
    if let (Some(name), Some(node)) =
        (&config.server.default_upstream, tree.table("server").and_then(|server| server.node("default_upstream")))
        && !upstreams.contains(&name.as_str())
    {
        problems.push(unknown(node.origin.span.clone(), "server.default_upstream".to_owned(), "upstream", name, upstreams.iter().copied()));
    }
    for (i, node) in tree.list("schedules").iter().enumerate() {
        if let Some(path) = as_table(node).and_then(|tree| tree.table("request")?.node("path"))
            && let Some(Err(bad)) = as_text(path).map(|text| RequestTarget::new(text.replace("{subject}", "x")))
        {
            problems.push(Diagnostic::new(path.origin.span.clone(), format!("schedules[{i}].request.path"), bad.to_string()));
        }
        if let Some(upstream) = as_table(node).and_then(|tree| tree.node("upstream"))
            && let Some(name) = as_text(upstream).filter(|name| !upstreams.contains(name))
        {
            problems.push(unknown(
                upstream.origin.span.clone(),
                format!("schedules[{i}].upstream"),
                "upstream",
                name,
                upstreams.iter().copied(),
            ));
        }
    }
    schedule_secrets(tree, problems);
    super::entrances::check(tree, config, problems);
    for upstream in &config.upstreams {
        for endpoint in &upstream.endpoints {
            if let (Some(pool), Some(node)) = (&endpoint.policy.pool, endpoint.tree.node("pool"))
                && !pools.contains(&pool.as_str())
            {
                let path = format!("upstreams.{}.pool", upstream.name);
                problems.push(unknown(node.origin.span.clone(), path, "pool", pool, pools.iter().copied()));
            }
        }
    }
    callers(tree, config, problems);
    exposed(tree, config, problems);
}

/// Headers and parameters with a secret's name must be references, as every secret of the file. A path cannot hold one.
fn schedule_secrets(tree: &Tree, problems: &mut Vec<Diagnostic>) {
    for (i, node) in tree.list("schedules").iter().enumerate() {
        let path = as_table(node).and_then(|schedule| schedule.table("request")?.node("path"));
        let values =
            path.into_iter().flat_map(|node| as_text(node).into_iter().flat_map(discretion::secrets).map(move |value| (node, value)));
        for (node, _) in values.filter(|(_, value)| !value.contains("{subject}")) {
            let message = "inline secret: leave it out of the path, and let the upstream's `auth` add it, or send it in a header";
            problems.push(Diagnostic::new(node.origin.span.clone(), format!("schedules[{i}].request.path"), message));
        }
        let headers = as_table(node).and_then(|schedule| schedule.table("request")?.table("headers"));
        for (name, node) in headers.into_iter().flat_map(|headers| &headers.0) {
            let Some(value) = as_text(node) else { continue };
            let is_inline = place::header_secret(value).is_none() && !value.contains("{subject}");
            if is_inline && discretion::is_secret(name) {
                let path = format!("schedules[{i}].request.headers.{name}");
                let message = "inline secret: write where it is kept instead, as \"Bearer env:NAME\" or \"file:PATH\"";
                problems.push(Diagnostic::new(node.origin.span.clone(), path, message));
            }
        }
    }
}

/// A token identifies one caller, so two callers cannot share it.
fn callers(tree: &Tree, config: &Config, problems: &mut Vec<Diagnostic>) {
    let mut tokens = std::collections::BTreeMap::new();
    for caller in &config.callers {
        let node = tree.table("callers").and_then(|all| as_table(all.node(&caller.name)?)?.node("token"));
        if let (Some(other), Some(node)) = (tokens.insert(caller.token.to_string(), &caller.name), node) {
            let path = format!("callers.{}.token", caller.name);
            let message = format!("{} is the token of `callers.{other}` already, and a token says who is calling", caller.token);
            problems.push(Diagnostic::new(node.origin.span.clone(), path, message));
        }
    }
}

/// The dashboard shows every key's state, so it must not be open to the network.
fn exposed(tree: &Tree, config: &Config, problems: &mut Vec<Diagnostic>) {
    let server = |key| tree.table("server").and_then(|server| server.node(key));
    let node = server("admin");
    if let Some(node) = server("listen").or(node).filter(|_| place::is_same_listener(&config.server.listen, &config.server.admin)) {
        let message = format!("the gateway and the admin port cannot both listen on {}", config.server.listen);
        problems
            .push(Diagnostic::new(node.origin.span.clone(), "server.listen", message).help("give `listen` and `admin` ports of their own"));
    }
    if let Some(node) = node.filter(|_| !place::is_loopback(&config.server.admin) && config.server.admin_token.is_none()) {
        problems.push(
            Diagnostic::new(node.origin.span.clone(), "server.admin", "the admin address is not loopback, so `admin_token` is required")
                .help("add `admin_token = \"env:SEAWALL_ADMIN_TOKEN\"`, or listen on 127.0.0.1"),
        );
    }
}

#[cfg(test)]
mod tests {
    fn refused(text: &str) -> String {
        crate::config::load("t", format!("{text}\n[upstreams.a]\nurl = \"http://a.test\"\n").as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_schedules_path_can_be_sent() {
        let schedule =
            |path: &str| format!("[[schedules]]\nname = \"s\"\nupstream = \"a\"\nrequest = {{ path = \"{path}\" }}\nevery = \"5m\"");
        for path in ["users", "/a b", "/a#b", "/a\\r\\nx"] {
            let found = refused(&schedule(path));
            assert!(found.contains("schedules[0].request.path") && found.contains("t:4:20"), "{found}");
        }
    }

    #[test]
    fn a_token_belongs_to_one_caller() {
        let found = refused("[callers.x]\ntoken = \"env:T\"\n[callers.y]\ntoken = \"env:T\"");
        assert!(found.contains("t:4:9") && found.contains("env:T is the token of `callers.x` already"), "{found}");
    }

    #[test]
    fn gateway_and_admin_port_listen_apart() {
        for (listen, admin) in [("127.0.0.1:7400", "127.0.0.1:7400"), ("0.0.0.0:7400", "127.0.0.1:7400")] {
            let found = refused(&format!("[server]\nlisten = \"{listen}\"\nadmin = \"{admin}\""));
            assert!(found.contains("t:2:10") && found.contains("cannot both listen on"), "{found}");
        }
        assert!(refused("[server]\nlisten = \"127.0.0.1:7330\"").contains("cannot both listen on"), "the default counts as well");
        let fine = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[upstreams.a]\nurl = \"http://a.test\"\n";
        assert!(crate::config::load("t", fine.as_bytes()).is_ok());
    }

    #[test]
    fn what_goes_into_headers_fits_into_headers() {
        for name in ["a\\\"b", "a\\nb", "ü", "a\\\\b", "", &"x".repeat(65)] {
            let found = refused(&format!("[[limits]]\nname = \"{name}\"\nrate = \"1/s\""));
            assert!(found.contains("t:2:8") && found.contains("limits[0].name"), "{name}: {found}");
        }
        let found = refused("[defaults]\nfallback = { content_type = \"text/plain\\r\\nx: y\" }");
        assert!(found.contains("t:2:29") && found.contains("cannot be the value of a header: '\\r'"), "{found}");
    }
}
