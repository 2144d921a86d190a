//! Arbitrary policies, requests and results.

use proptest::prelude::*;
use proptest::sample::select;
use seawall_core::record::ErrorKind;
use std::fmt::Write as _;

/// A policy, as far as the machine's behaviour depends on it.
#[derive(Clone, Debug)]
pub(super) struct Knobs {
    pub attempts: u32,
    pub total_ms: u64,
    pub floor: u32,
    backoff: &'static str,
    base_ms: u64,
    cap_ms: u64,
    ambiguous: u32,
    retry_after_cap_s: u64,
    pub budget: u32,
    unsafe_methods: &'static str,
    breaker: &'static str,
    pub probes: u32,
    auth: &'static str,
    extra: &'static str,
    rules: &'static str,
}

const AUTHS: &[&str] = &[
    "",
    "",
    "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }]\nmax_wait = \"2s\"\n",
    "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\" }, { id = \"b\", secret = \"env:B\" }]\nreset = \"00:00 America/Los_Angeles\"\n",
    "[upstreams.api.auth]\nkeys = [{ id = \"a\", secret = \"env:A\", group = \"g\" }, { id = \"b\", secret = \"env:B\", group = \"g\" }, { id = \"c\", secret = \"env:C\" }]\nmax_wait = \"30s\"\n",
    "[upstreams.api.auth.refresh]\nkind = \"client-credentials\"\ntoken_url = \"https://api.test/token\"\nclient_id = \"env:I\"\nclient_secret = \"env:S\"\n",
];

const EXTRAS: &[&str] = &[
    "",
    "",
    "pool = \"p\"\n",
    "limits = [{ name = \"qps\", rate = \"3/s\", burst = 2 }]\n",
    "pool = \"p\"\nlimits = [{ name = \"paced\", rate = \"5/s\", burst = 3, algorithm = \"leaky-bucket\" }]\n",
];

const RULES: &[&str] = &[
    "",
    "[[upstreams.api.classify]]\nwhen = { status = [403] }\nas = \"quota\"\nscope = \"group\"\nwait = \"1s\"\n",
    "[[upstreams.api.classify]]\nwhen = { status = [403] }\nas = \"quota\"\nscope = \"key\"\nwait = \"until-reset\"\n",
    "[[upstreams.api.classify]]\nwhen = { status = [503] }\nas = \"transient\"\nscope = \"upstream\"\nwait = \"retry-after\"\n",
    "[[upstreams.api.classify]]\nwhen = { status = [429] }\nas = \"transient\"\nscope = \"key\"\nwait = \"retry-after\"\n",
    "[[upstreams.api.classify]]\nwhen = { status = [500] }\nas = \"transient\"\nwait = \"none\"\n",
];

impl Knobs {
    pub(super) fn toml(&self) -> String {
        let mut text =
            String::from("[pools.p]\nconcurrent = 1\nqueue = 2\nqueue_timeout = \"300ms\"\n[upstreams.api]\nurl = \"https://api.test\"\n");
        writeln!(text, "timeout = {{ connect = \"100ms\", attempt = \"500ms\", total = \"{}ms\" }}", self.total_ms).unwrap();
        writeln!(
            text,
            "retry = {{ attempts = {}, backoff = \"{}\", base = \"{}ms\", cap = \"{}ms\", ambiguous = {}, retry_after_cap = \"{}s\", budget = \"{}%\", budget_floor = \"{}/s\", unsafe = \"{}\" }}",
            self.attempts, self.backoff, self.base_ms, self.cap_ms, self.ambiguous, self.retry_after_cap_s, self.budget, self.floor, self.unsafe_methods
        )
        .unwrap();
        writeln!(
            text,
            "breaker = {{ {}, open = \"1s\", open_max = \"4s\", probes = {}, successes = {} }}",
            self.breaker, self.probes, self.probes
        )
        .unwrap();
        text + self.extra + self.auth + self.rules
    }
}

pub(super) fn knobs() -> impl Strategy<Value = Knobs> {
    let retry =
        (1..6u32, 600..20_000u64, select(vec![0u32, 1, 10]), select(seawall_core::policy::BackoffKind::WORDS), 0..2_000u64, 1..5_000u64);
    let limits = (0..3u32, 0..8u64, 0..=100u32, select(seawall_core::policy::Unsafe::WORDS));
    let breaker = (select(vec!["mode = \"off\"", "consecutive = 1", "consecutive = 3", "mode = \"shadow\"", "min_calls = 2"]), 1..3u32);
    (retry, limits, breaker, select(AUTHS), select(EXTRAS), select(RULES)).prop_map(|(retry, limits, breaker, auth, extra, rules)| Knobs {
        attempts: retry.0,
        total_ms: retry.1,
        floor: retry.2,
        backoff: retry.3,
        base_ms: retry.4,
        cap_ms: retry.5,
        ambiguous: limits.0,
        retry_after_cap_s: limits.1,
        budget: limits.2,
        unsafe_methods: limits.3,
        breaker: breaker.0,
        probes: breaker.1,
        auth,
        extra,
        rules,
    })
}

/// A call: its request, its start, and when its caller leaves.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub start_ms: u64,
    pub method: &'static str,
    pub keyed: bool,
    pub replayable: bool,
    pub patient: bool,
    /// Deferred and resumed at each wait, as the worker of a durable queue does.
    pub restarts: bool,
    pub deadline_ms: Option<u64>,
    /// The caller leaves during this pause, counted from the first.
    pub leaves: Option<u32>,
}

pub(super) fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let what =
        (select(vec!["GET", "PUT", "POST", "PATCH"]), any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.25), any::<bool>());
    let when = (0..3_000u64, prop::option::weighted(0.2, 1..3_000u64), prop::option::weighted(0.2, 0..6u32));
    let job = (what, when).prop_map(|((method, keyed, replayable, patient, restarts), (start_ms, deadline_ms, leaves))| Job {
        start_ms,
        method,
        keyed,
        replayable,
        patient,
        restarts,
        deadline_ms,
        leaves,
    });
    prop::collection::vec(job, 1..12)
}

/// The fate of one send.
#[derive(Clone, Debug)]
pub(super) struct Fate {
    pub result: Result<u16, ErrorKind>,
    pub headers: Vec<(&'static str, String)>,
    pub latency_ms: u64,
}

pub(super) fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let status = select(vec![200u16, 200, 200, 500, 502, 503, 503, 429, 429, 403, 401, 404, 408, 409, 425]);
    let result = prop_oneof![4 => status.prop_map(Ok), 1 => select(ErrorKind::ALL).prop_map(Err)];
    let hint = prop_oneof![
        3 => Just(None),
        2 => (0..12u32).prop_map(|s| Some(s.to_string())),
        1 => (0..3_000u32).prop_map(|ms| Some(format!("{}", f64::from(ms) / 1e3))),
        1 => select(vec!["-3", "soon", "Wed, 01 Jul 2026 00:00:05 GMT", "Mon, 01 Jan 1990 00:00:00 GMT", "99999999999"]).prop_map(|text| Some(text.to_owned())),
    ];
    let fate = (result, hint, 0..800u64).prop_map(|(result, hint, latency_ms)| Fate {
        result,
        headers: hint.into_iter().map(|value| ("Retry-After", value)).collect(),
        latency_ms,
    });
    prop::collection::vec(fate, 1..20)
}
