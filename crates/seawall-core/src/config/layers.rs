//! The layers of an endpoint's policy, and the order in which they are merged.

use super::at_cost::AtCost;
use super::fields::{self, boolean, count, duration, float, int, optional, rate, share, size, text, texts, word, words};
use super::keys;
use super::model::EndpointPolicy;
use super::node::{ConfigLayer, Tree};
use super::problem::Diagnostic;
use super::resolve;
use super::walk::Walker;
use crate::classify::RuleSet;
use crate::classify::pattern::Pattern;
use crate::classify::presets::Preset;
use crate::policy::{
    Backoff, BackoffKind, BreakerPer, BreakerPolicy, CachePolicy, DeadLetterPolicy, Door, ErrorShape, Fallback, Idempotency,
    IdempotencyMode, Mode, OnExhausted, Repeat, Retry, Severity, Timeout, Unsafe,
};
use crate::spelling::nearest;
use std::sync::{Arc, LazyLock, OnceLock};

/// The embedded defaults, read once.
pub(crate) fn builtin() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut walker = Walker::new(super::DEFAULT_TOML, ConfigLayer::BuiltIn, true);
        let tree = walker.document(&keys::BUILTIN);
        assert!(walker.problems.is_empty(), "default.toml is valid: {:?}", walker.problems);
        tree
    })
}

/// Defaults of a repeated table, such as `[each.pool]`.
pub(crate) fn each_defaults(name: &str) -> Tree {
    builtin().table("each").and_then(|each| each.table(name)).cloned().unwrap_or_default()
}

/// A shipped preset as a tree, read once; `None` for an unknown name.
pub(crate) fn preset(name: &str) -> Option<&'static Tree> {
    static TREES: LazyLock<Vec<OnceLock<Tree>>> = LazyLock::new(|| Preset::all().iter().map(|_| OnceLock::new()).collect());
    let preset = Preset::named(name)?;
    let at = Preset::all().iter().position(|other| other.name == preset.name)?;
    let tree = TREES[at].get_or_init(|| {
        let mut walker = Walker::new(preset.text, ConfigLayer::Preset(Arc::from(preset.name)), true);
        let tree = walker.document(&keys::PRESET);
        assert!(walker.problems.is_empty(), "preset {name} is valid: {:?}", walker.problems);
        tree
    });
    Some(tree)
}

/// A profile whose values name the profile as their origin.
fn profile(name: &str) -> Option<Tree> {
    let tree = builtin().table("profiles")?.table(name)?;
    Some(relabel(tree, &ConfigLayer::Profile(Arc::from(name))))
}

fn relabel(tree: &Tree, layer: &ConfigLayer) -> Tree {
    let relabelled = tree.0.iter().map(|(name, node)| {
        let mut node = node.clone();
        node.origin.layer = layer.clone();
        if let super::node::ConfigValue::Table(inner) = &node.value {
            node.value = super::node::ConfigValue::Table(relabel(inner, layer));
        }
        (name.clone(), node)
    });
    Tree(relabelled.collect())
}

pub(crate) fn profile_names() -> Vec<&'static str> {
    builtin().table("profiles").map(|profiles| profiles.0.keys().map(String::as_str).collect()).unwrap_or_default()
}

pub(crate) fn preset_names() -> Vec<&'static str> {
    Preset::all().iter().map(|preset| preset.name).collect()
}

/// The lowest layer: the built-in defaults and the generic rules.
pub(crate) fn builtin_defaults() -> Tree {
    let defaults = builtin().table("defaults").cloned().unwrap_or_default();
    let generic = preset("generic").map(|tree| tree.without(NOT_POLICY)).unwrap_or_default();
    generic.overlaid_with(&defaults)
}

/// A preset's keys that describe the preset and are not part of a policy.
const NOT_POLICY: &[&str] = &["description", "docs_note", "aliases", "auth"];

/// Merges one level (`[defaults]`, an upstream, an endpoint) over `below`: its profile, its preset, then its own keys.
pub(crate) fn level(below: &Tree, own: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> Tree {
    let mut merged = below.clone();
    if let Some(node) = own.node("profile") {
        let name = fields::as_text(node).unwrap_or_default();
        match profile(name) {
            Some(tree) => merged = merged.overlaid_with(&tree),
            None => problems.push(unknown(node.origin.span.clone(), format!("{path}.profile"), "profile", name, profile_names())),
        }
    }
    if let Some(node) = own.node("preset") {
        let name = fields::as_text(node).unwrap_or_default();
        match preset(name) {
            // The lowest layer contains the generic rules already.
            Some(_) if name == "generic" => {}
            Some(tree) => merged = merged.overlaid_with(&tree.without(NOT_POLICY)),
            None => problems.push(unknown(node.origin.span.clone(), format!("{path}.preset"), "preset", name, preset_names())),
        }
    }
    merged.overlaid_with(own)
}

pub(crate) fn unknown<'a>(
    span: std::ops::Range<usize>,
    path: String,
    what: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> Diagnostic {
    let problem = Diagnostic::new(span, path, format!("there is no {what} `{name}`"));
    match nearest(name, known.clone()) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => {
            let names: Vec<&str> = known.into_iter().collect();
            problem.help(if names.is_empty() { format!("no {what} is configured") } else { format!("there are {}", names.join(", ")) })
        }
    }
}

/// Converts a merged tree to typed values.
pub(crate) fn policy(tree: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> EndpointPolicy {
    let table = |name: &str| tree.table(name).cloned().unwrap_or_default();
    let (cache, idempotency) = (table("cache"), table("idempotency"));
    EndpointPolicy {
        profile: text(tree, "profile"),
        timeout: timeout(&table("timeout"), path, problems),
        retry: retry(&table("retry")),
        breaker: breaker(&table("breaker"), path, problems),
        limits: resolve::limits(tree.list("limits"), &format!("{path}.limits"), problems),
        pool: optional(tree, "pool"),
        cost: int(tree, "cost"),
        waiting: count(tree, "waiting"),
        at_cost: at_cost(tree),
        max_body: tree.node("max_body").map(|_| size(tree, "max_body")),
        read_ahead: read_ahead(tree, path, problems),
        deadline_header: optional(tree, "deadline_header"),
        rewrite_links: boolean(tree, "rewrite_links"),
        error_shape: word(tree, "error_shape", ErrorShape::from_word),
        cache: CachePolicy {
            ttl: duration(&cache, "ttl"),
            stale_if_error: duration(&cache, "stale_if_error"),
            stale_while_revalidate: duration(&cache, "stale_while_revalidate"),
        },
        fallback: tree.table("fallback").map(fallback),
        on_exhausted: word(tree, "on_exhausted", OnExhausted::from_word),
        idempotency: Idempotency {
            mode: word(&idempotency, "mode", IdempotencyMode::from_word),
            ttl: duration(&idempotency, "ttl"),
            honoured: boolean(&idempotency, "honoured"),
        },
        dead_letter: dead_letter(&table("dead_letter")),
        schema: optional(tree, "schema"),
        rules: Arc::new(RuleSet::new(tree.rules().iter().map(|rule| rule.as_ref().clone()).collect())),
    }
}

fn timeout(tree: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> Timeout {
    let timeout = Timeout {
        connect: duration(tree, "connect"),
        attempt: duration(tree, "attempt"),
        total: duration(tree, "total"),
        first_byte: duration(tree, "first_byte"),
        idle: duration(tree, "idle"),
    };
    check_order(tree, &format!("{path}.timeout"), ("attempt", "total"), problems);
    check_order(tree, &format!("{path}.timeout"), ("connect", "attempt"), problems);
    timeout
}

/// Each call in flight may hold this much in memory.
const MAX_READ_AHEAD: u64 = 16 << 20;

fn read_ahead(tree: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> u64 {
    let bytes = size(tree, "read_ahead");
    if let Some(node) = tree.node("read_ahead").filter(|_| bytes > MAX_READ_AHEAD) {
        let message = "each call in flight may hold that much in memory: at most \"16MiB\"".to_owned();
        problems.push(Diagnostic::new(node.origin.span.clone(), format!("{path}.read_ahead"), message));
    }
    bytes.min(MAX_READ_AHEAD)
}

/// `small` above `large` is an error if the user wrote both; an inherited value gives way.
fn check_order(tree: &Tree, path: &str, (small, large): (&str, &str), problems: &mut Vec<Diagnostic>) {
    let (Some(low), Some(high)) = (tree.node(small), tree.node(large)) else { return };
    if duration(tree, small) > duration(tree, large) && low.origin.is_explicit() && high.origin.is_explicit() {
        problems.push(Diagnostic::new(
            low.origin.span.clone(),
            format!("{path}.{small}"),
            format!("{} is longer than `{large}` = {}", low.value, high.value),
        ));
    }
}

fn retry(tree: &Tree) -> Retry {
    Retry {
        attempts: count(tree, "attempts"),
        backoff: Backoff {
            kind: word(tree, "backoff", BackoffKind::from_word),
            base: duration(tree, "base"),
            factor: float(tree, "factor"),
            cap: duration(tree, "cap"),
            jitter: share(tree, "jitter"),
        },
        ambiguous: count(tree, "ambiguous"),
        retry_after_cap: duration(tree, "retry_after_cap"),
        budget: share(tree, "budget"),
        budget_floor: rate(tree, "budget_floor"),
        unsafe_methods: word(tree, "unsafe", Unsafe::from_word),
    }
}

fn at_cost(tree: &Tree) -> AtCost {
    let declared = tree.table("repeatable").cloned().unwrap_or_default();
    let patterns = |name: &str| texts(&declared, name).iter().filter_map(|text| Pattern::parse(text).ok()).collect();
    AtCost { repeat: word(tree, "repeat", Repeat::from_word), paths: patterns("paths"), operations: patterns("operations") }
}

fn breaker(tree: &Tree, path: &str, problems: &mut Vec<Diagnostic>) -> BreakerPolicy {
    check_order(tree, &format!("{path}.breaker"), ("open", "open_max"), problems);
    let open = duration(tree, "open");
    BreakerPolicy {
        mode: word(tree, "mode", Mode::from_word),
        per: word(tree, "per", BreakerPer::from_word),
        window: duration(tree, "window"),
        failure_rate: share(tree, "failure_rate"),
        min_calls: count(tree, "min_calls"),
        consecutive: count(tree, "consecutive"),
        slow: duration(tree, "slow"),
        slow_rate: share(tree, "slow_rate"),
        open,
        open_max: duration(tree, "open_max").max(open),
        probes: count(tree, "probes"),
        successes: count(tree, "successes"),
        ramp: duration(tree, "ramp"),
        max_wait: duration(tree, "max_wait"),
    }
}

fn fallback(tree: &Tree) -> Fallback {
    let tree = each_defaults("fallback").overlaid_with(tree);
    Fallback {
        status: u16::try_from(int(&tree, "status")).unwrap_or(200),
        content_type: text(&tree, "content_type"),
        body: text(&tree, "body"),
    }
}

fn dead_letter(tree: &Tree) -> DeadLetterPolicy {
    DeadLetterPolicy {
        from: words(tree, "from", Door::from_word),
        severity: word(tree, "severity", Severity::from_word),
        ttl: duration(tree, "ttl"),
        alarm_depth: int(tree, "alarm_depth"),
        replay_rate: rate(tree, "replay_rate"),
        reevaluate: duration(tree, "reevaluate"),
        instructions: text(tree, "instructions"),
    }
}
