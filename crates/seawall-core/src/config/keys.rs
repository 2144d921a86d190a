//! The tables of the configuration file (see `shape` for what an entry means).

use super::model::ForwardedHeader;
use super::shape::{Key, Kind, Table, key, required};
use crate::policy::{
    Algorithm, BackoffKind, BreakerPer, Door, ErrorShape, Fail, IdempotencyMode, Mode, OnExhausted, Pick, Repeat, Severity, Unsafe,
};
use crate::record::{Class, Scope};

const COUNT: Kind = Kind::Int { min: 1, max: 1_000_000_000 };
const COUNT0: Kind = Kind::Int { min: 0, max: 1_000_000_000 };
const TIME: Kind = Kind::Duration { zero: false };
const TIME0: Kind = Kind::Duration { zero: true };
const RATE: Kind = Kind::Rate { zero: false };
const RATE0: Kind = Kind::Rate { zero: true };

pub static ROOT: Table = Table {
    what: "the file",
    keys: &[&[
        key("server", Kind::Table(&SERVER), "listeners, store, body limits"),
        key("log", Kind::Table(&LOG), "how log lines look"),
        key("callers", Kind::Map(&CALLER), "who may send requests, by token"),
        key("pools", Kind::Map(&POOL), "bulkheads: bounded concurrency shared by the endpoints that name them"),
        key("limits", Kind::Tables(&LIMIT), "rate limits that span upstreams"),
        key("defaults", Kind::Table(&DEFAULTS), "any key of an upstream; merged field by field"),
        key("upstreams", Kind::Map(&UPSTREAM), "the dependencies"),
        key("schedules", Kind::Tables(&SCHEDULE), "requests repeated for each subject"),
        key("notify", Kind::Tables(&NOTIFY), "who is told about what"),
    ]],
};

/// The embedded defaults are written in the same language, plus the tables that only they may have.
pub static BUILTIN: Table = Table {
    what: "the built-in defaults",
    keys: &[&[
        key("server", Kind::Table(&SERVER), ""),
        key("log", Kind::Table(&LOG), ""),
        key("defaults", Kind::Table(&DEFAULTS), ""),
        key("profiles", Kind::Map(&DEFAULTS), "named starting points for an upstream or endpoint"),
        key("each", Kind::Table(&EACH), "defaults of repeated tables"),
    ]],
};

static EACH: Table = Table {
    what: "defaults of repeated tables",
    keys: &[&[
        key("caller", Kind::Table(&CALLER), ""),
        key("pool", Kind::Table(&POOL), ""),
        key("limit", Kind::Table(&LIMIT), ""),
        key("auth", Kind::Table(&AUTH), ""),
        key("schedule", Kind::Table(&SCHEDULE), ""),
        key("notify", Kind::Table(&NOTIFY), ""),
        key("fallback", Kind::Table(&FALLBACK), ""),
        key("key", Kind::Table(&KEY), ""),
        key("refresh", Kind::Table(&REFRESH), ""),
        key("request", Kind::Table(&REQUEST), ""),
    ]],
};

/// What a preset file may hold.
pub static PRESET: Table = Table {
    what: "a preset",
    keys: &[
        &[
            key("description", Kind::Text, "what the preset knows"),
            key("docs_note", Kind::Text, "what is still to be confirmed"),
            key("aliases", Kind::List(&Kind::Text), "other names"),
            key("auth", Kind::Table(&AUTH), ""),
        ],
        POLICY,
    ],
};

static SERVER: Table = Table {
    what: "`[server]`",
    keys: &[&[
        key("listen", Kind::Listen, "address of the gateway"),
        key("admin", Kind::Listen, "address of API, dashboard and metrics; a token is required as soon as it is not loopback"),
        key("admin_token", Kind::Secret, "bearer token of the admin API"),
        key("webhook_secret", Kind::Secret, "signs callbacks (Standard Webhooks); without it a key is made once and kept in the store"),
        key(
            "store",
            Kind::Place(&["sqlite:", "postgres://", "postgresql://", "env:", "file:"]),
            "where jobs, dead letters and roll-ups live",
        ),
        key(
            "shared",
            Kind::Place(&["local", "redis://", "rediss://", "env:", "file:"]),
            "where limits, breakers, keys and idempotency keys are shared between instances",
        ),
        key("shared_timeout", TIME, "how long a call waits for shared state before it goes on without"),
        key("max_body", Kind::Size, "a larger request body is refused with 413"),
        key("replay_body", Kind::Size, "a larger body streams through once and is never retried"),
        key("drain", TIME0, "how long SIGTERM waits for calls in flight"),
        key("require_caller", Kind::Bool, "refuse requests without a caller's token"),
        key("default_upstream", Kind::Text, "takes requests that name no upstream"),
        key("trust_forwarded", Kind::List(&Kind::Cidr), "networks of proxies that are believed who calls"),
        key("forwarded_header", Kind::Word(ForwardedHeader::WORDS), "where those proxies say who calls; the other header is not read"),
        key("tls", Kind::Table(&TLS), "the gateway speaks TLS to its callers"),
        key("allow_private", Kind::List(&Kind::Cidr), "private networks that URLs handed in by users may reach"),
    ]],
};

static TLS: Table = Table {
    what: "`[server.tls]`",
    keys: &[&[
        required("cert", Kind::Text, "file with the certificate and those that lead to its authority, in PEM"),
        required("key", Kind::Secret, "where its private key is, in PEM"),
    ]],
};

static LOG: Table =
    Table { what: "`[log]`", keys: &[&[key("format", Kind::Word(&["json", "text"]), "one JSON object per line, or text for people")]] };

pub static CALLER: Table = Table {
    what: "a caller",
    keys: &[&[
        required("token", Kind::Secret, "what the caller sends as bearer token"),
        key("tenant", Kind::Text, "who pays; a limit key"),
        key("user", Kind::Text, "a limit key"),
    ]],
};

pub static POOL: Table = Table {
    what: "a pool",
    keys: &[&[
        required("concurrent", COUNT, "calls in flight at once"),
        key("queue", COUNT0, "calls that may wait for a place"),
        key("queue_timeout", TIME0, "how long they may wait"),
        key("priority", COUNT0, "higher survives longer under shedding"),
        key("adaptive", Kind::Bool, "let the limit follow latency, up to `concurrent`"),
    ]],
};

pub static LIMIT: Table = Table {
    what: "a limit",
    keys: &[&[
        required("name", Kind::Label, "how it is called in answers and metrics"),
        key(
            "key",
            Kind::OneOrMany(&Kind::LimitKey),
            "what is counted apart: global, ip, caller, user, tenant, upstream, endpoint, key, header:NAME, or a list",
        ),
        required("rate", RATE, "how many in what time"),
        key("burst", COUNT, "how many at once; the rate's count where absent"),
        key("algorithm", Kind::Word(Algorithm::WORDS), "how it counts"),
        key("mode", Kind::Word(Mode::WORDS), "enforce, count only, or off"),
        key("fail", Kind::Word(Fail::WORDS), "what happens while shared state is unreachable"),
        key("max_wait", TIME0, "how long a call waits for room; where several limits apply, the shortest; 0s refuses it at once"),
    ]],
};

pub static DEFAULTS: Table = Table {
    what: "policy defaults",
    keys: &[POLICY, &[key("preset", Kind::Text, "error conventions of a real API"), key("auth", Kind::Table(&AUTH), "credentials")]],
};

pub static UPSTREAM: Table = Table {
    what: "an upstream",
    keys: &[
        &[
            required("url", Kind::Url, "base URL"),
            key(
                "hosts",
                Kind::List(&Kind::Text),
                "requests with one of these Host names, or hosts and ports, go here with their whole path",
            ),
            key("listen", Kind::Listen, "address of a port of its own: all requests there go here with their whole path"),
            key("seawall", Kind::Bool, "it is a Seawall itself: it is told which requests are repeats, and does not repeat those again"),
            key("via", Kind::Bool, "requests to it say in `Via` that they came through here"),
            key("forwarded", Kind::Bool, "it gets the callers' own `Forwarded`, `X-Forwarded-*` and `X-Real-IP`; others do not"),
            key("preset", Kind::Text, "error conventions of a real API"),
            key("auth", Kind::Table(&AUTH), "credentials"),
            key("endpoints", Kind::Tables(&ENDPOINT), "named method and path patterns with their own policy"),
        ],
        POLICY,
    ],
};

pub static ENDPOINT: Table = Table {
    what: "an endpoint",
    keys: &[
        &[
            required("name", Kind::Text, "how it is called in logs and metrics"),
            required("match", Kind::Match, "METHOD PATH; `*` one segment, `**` the rest; first match wins"),
        ],
        POLICY,
    ],
};

static POLICY: &[Key] = &[
    key("profile", Kind::Text, "a named starting point"),
    key("timeout", Kind::Table(&TIMEOUT), "how long things may take"),
    key("retry", Kind::Table(&RETRY), "when and how often to go again"),
    key("breaker", Kind::Table(&BREAKER), "when to stop asking"),
    key("limits", Kind::Tables(&LIMIT), "rate limits of this upstream or endpoint"),
    key("pool", Kind::Text, "the bulkhead it runs in"),
    key("cost", COUNT, "what a call takes from limits"),
    key("waiting", COUNT0, "calls that may wait for a key, a pause or a breaker at once, of the whole upstream; more are refused"),
    key(
        "repeat",
        Kind::Word(Repeat::WORDS),
        "which POST and PATCH requests may be sent again without a key: never, those that the preset declares, or all, at the cost of a second bill",
    ),
    key("repeatable", Kind::Table(&REPEATABLE), "the requests that `repeat = \"declared\"` is about"),
    key("max_body", Kind::Size, "a larger request body is refused with 413; absent: `server.max_body`"),
    key(
        "read_ahead",
        Kind::Size,
        "a response up to this size is read whole before the caller gets any of it, so that one that breaks off is retried; 0B: never",
    ),
    key("deadline_header", Kind::Header, "header that tells the upstream what remains of the deadline"),
    key("rewrite_links", Kind::Bool, "links of a response that point to the upstream point to the gateway"),
    key("error_shape", Kind::Word(ErrorShape::WORDS), "whose error format the gateway's own responses have; presets set it"),
    key("cache", Kind::Table(&CACHE), "keep answers for when the upstream fails"),
    key("fallback", Kind::Table(&FALLBACK), "static answer when everything else failed"),
    key("on_exhausted", Kind::Word(OnExhausted::WORDS), "what becomes of a call whose retries are used up"),
    key("idempotency", Kind::Table(&IDEMPOTENCY), "run a keyed call once"),
    key("dead_letter", Kind::Table(&DEAD_LETTER), "what is kept of calls that were given up"),
    key("schema", Kind::Text, "JSON Schema file for 2xx bodies"),
    key("classify", Kind::Rules(&RULE), "rules that come before the preset's; first match wins"),
];

static TIMEOUT: Table = Table {
    what: "`timeout`",
    keys: &[&[
        key("connect", TIME, "TCP and TLS"),
        key("attempt", TIME, "one send, up to the response's head, and to the end of a body that is read as a whole"),
        key("total", TIME, "the call up to the first byte that the caller gets, waits included"),
        key("first_byte", TIME, "silence between a response's head and the first byte of a body that is passed on as it comes"),
        key("idle", TIME, "silence inside a body, of an upload or of a response; what keeps moving is not cut"),
    ]],
};

static REPEATABLE: Table = Table {
    what: "`repeatable`",
    keys: &[&[
        key("paths", Kind::List(&Kind::Text), "globs of paths"),
        key("operations", Kind::List(&Kind::Text), "globs of `X-Amz-Target`"),
    ]],
};

static RETRY: Table = Table {
    what: "`retry`",
    keys: &[&[
        key("attempts", Kind::Int { min: 1, max: 1000 }, "sends in all, the first included"),
        key("backoff", Kind::Word(BackoffKind::WORDS), "how waits grow and spread"),
        key("base", TIME0, "first wait"),
        key("factor", Kind::Float { min: 1.0, max: 1e9 }, "growth per retry"),
        key("cap", TIME, "longest wait"),
        key("jitter", Kind::Share, "spread of percent-jitter"),
        key("ambiguous", COUNT0, "retries that ambiguous failures may use in one call"),
        key("retry_after_cap", TIME0, "longest server hint that is waited for"),
        key("budget", Kind::Share, "retries earned per success, shared by all calls to the upstream"),
        key("budget_floor", RATE0, "retries that are always allowed"),
        key("unsafe", Kind::Word(Unsafe::WORDS), "when POST, PATCH and the like may be sent again"),
    ]],
};

static BREAKER: Table = Table {
    what: "`breaker`",
    keys: &[&[
        key("mode", Kind::Word(Mode::WORDS), "enforce, count only, or off"),
        key("per", Kind::Word(BreakerPer::WORDS), "what shares one breaker"),
        key("window", TIME, "how far back rates look"),
        key("failure_rate", Kind::Share, "share of failures that opens"),
        key("min_calls", COUNT, "results needed before rates count"),
        key("consecutive", COUNT0, "failures in a row that open at once; 0 switches it off"),
        key("slow", TIME0, "a result this slow counts as slow; 0s switches it off"),
        key("slow_rate", Kind::Share, "share of slow results that opens"),
        key("open", TIME, "first open time; doubles with each failed probe"),
        key("open_max", TIME, "longest open time"),
        key("probes", Kind::Int { min: 1, max: 1000 }, "probes in flight while half-open"),
        key("successes", Kind::Int { min: 1, max: 1000 }, "probe successes that close"),
        key("ramp", TIME0, "after closing, let the admitted share grow over this time"),
        key("max_wait", TIME0, "how long a call waits for an open breaker to let it through; 0s refuses it at once"),
    ]],
};

static CACHE: Table = Table {
    what: "`cache`",
    keys: &[&[
        key("ttl", TIME0, "how long an answer without its own freshness stays fresh; 0s keeps it only for errors"),
        key("stale_if_error", TIME0, "how long a stale answer may stand in for a failing upstream"),
        key("stale_while_revalidate", TIME0, "how long a stale answer may be served while a new one is fetched"),
    ]],
};

pub static FALLBACK: Table = Table {
    what: "`fallback`",
    keys: &[&[
        key("status", Kind::Int { min: 200, max: 599 }, "status of the static answer"),
        key("content_type", Kind::HeaderValue, "its content type"),
        key("body", Kind::Text, "its body"),
    ]],
};

static IDEMPOTENCY: Table = Table {
    what: "`idempotency`",
    keys: &[&[
        key("mode", Kind::Word(IdempotencyMode::WORDS), "whether keys are honoured, demanded or made"),
        key("ttl", TIME, "how long a result is kept"),
        key("honoured", Kind::Bool, "the upstream executes a repeated key once: what is in doubt may be sent again"),
    ]],
};

static DEAD_LETTER: Table = Table {
    what: "`dead_letter`",
    keys: &[&[
        key("from", Kind::List(&Kind::Word(Door::WORDS)), "which doors leave dead letters"),
        key("severity", Kind::Word(Severity::WORDS), "queue they go to"),
        key("ttl", TIME, "how long they are kept"),
        key("alarm_depth", COUNT, "depth that raises an alarm"),
        key("replay_rate", RATE, "how fast they are replayed"),
        key("reevaluate", TIME0, "how often they are looked at again; 0s never"),
        key("instructions", Kind::Text, "what an operator should know before replaying"),
    ]],
};

pub static AUTH: Table = Table {
    what: "`auth`",
    keys: &[&[
        key("inject", Kind::Inject, "where the secret goes"),
        key("pick", Kind::Word(Pick::WORDS), "which viable key is taken; with `fewest-failures`, keys that are equal take turns"),
        key("reset", Kind::Reset, "when the provider's quota resets"),
        key("max_wait", TIME0, "how long a call waits for a key to become viable; absent: what is left of its deadline"),
        key("keys", Kind::Tables(&KEY), "the credentials"),
        key("refresh", Kind::Table(&REFRESH), "a token that is refreshed on 401"),
    ]],
};

pub static KEY: Table = Table {
    what: "a key",
    keys: &[&[
        required("id", Kind::Text, "how it is called"),
        required("secret", Kind::Secret, "where the secret is"),
        key("group", Kind::Text, "keys of one group share a quota; absent: a group of its own"),
    ]],
};

pub static REFRESH: Table = Table {
    what: "`refresh`",
    keys: &[&[
        required("kind", Kind::Word(&["client-credentials", "refresh-token"]), "OAuth 2 grant"),
        required("token_url", Kind::Url, "token endpoint"),
        required("client_id", Kind::Secret, "client id"),
        required("client_secret", Kind::Secret, "client secret"),
        key("refresh_token", Kind::Secret, "for the refresh-token grant"),
        key("scope", Kind::Text, "requested scope"),
        key("client_auth", Kind::Word(&["basic", "body"]), "where the client's id and secret go: a header (`basic`) or the form"),
    ]],
};

pub static RULE: Table = Table {
    what: "a classify rule",
    keys: &[&[
        key("name", Kind::Text, "how the rule is called in logs"),
        required("when", Kind::Table(&WHEN), "conditions that must all hold"),
        required("as", Kind::Word(Class::WORDS), "what such a result is"),
        key("scope", Kind::Word(Scope::WORDS), "what a wait applies to"),
        key(
            "wait",
            Kind::Text,
            "none, backoff, retry-after, until-reset, until-month, a duration, or a table naming a header, JSON pointer or body pattern with its unit",
        ),
        key("skew", TIME0, "added to what the server asks for"),
        key("unprocessed", Kind::Bool, "the server says it did not execute the request, so even an unsafe method may go again"),
    ]],
};

static WHEN: Table = Table {
    what: "`when`",
    keys: &[&[
        key("status", Kind::List(&Kind::Int { min: 100, max: 599 }), "statuses; also \"5xx\" and \"500-599\""),
        key("method", Kind::List(&Kind::Text), "methods"),
        key("header", Kind::Strings, "header name → values, `*` as wildcard, an empty list for absent"),
        key("json", Kind::Strings, "JSON pointer (with `*`) → values"),
        key("xml", Kind::Strings, "XML path → values"),
        key("body", Kind::Text, "regular expression over the body"),
        key("error", Kind::List(&Kind::Word(crate::record::ErrorKind::WORDS)), "how the attempt failed without an answer"),
        key("slower", TIME, "took at least this long"),
    ]],
};

pub static SCHEDULE: Table = Table {
    what: "a schedule",
    keys: &[&[
        required("name", Kind::Text, "how it is called"),
        required("upstream", Kind::Text, "where its requests go"),
        required("request", Kind::Table(&REQUEST), "what is sent; `{subject}` is replaced"),
        required("every", TIME, "interval for each subject"),
        key("backoff", Kind::Table(&SCHEDULE_BACKOFF), "interval while it fails"),
        key("subjects", Kind::List(&Kind::Text), "for whom"),
        key("deliver", Kind::UrlOrSecret, "callback that gets each result"),
        key("spread", Kind::Share, "share of the interval over which subjects' first runs are spread"),
        key("missed", Kind::Word(&["once", "skip"]), "after downtime: run once for what was missed, or wait for the next tick"),
    ]],
};

static SCHEDULE_BACKOFF: Table = Table {
    what: "`backoff`",
    keys: &[&[
        key("base", TIME, "first wait after a failure"),
        key("factor", Kind::Float { min: 1.0, max: 1e9 }, "growth"),
        key("cap", TIME, "longest wait"),
        key("jitter", Kind::Share, "spread"),
    ]],
};

pub static REQUEST: Table = Table {
    what: "`request`",
    keys: &[&[
        key("method", Kind::Method, "HTTP method"),
        required("path", Kind::Text, "path below the upstream's URL"),
        key("headers", Kind::Strings, "headers; a secret by reference, as in \"Bearer env:NAME\""),
        key("body", Kind::Text, "body"),
    ]],
};

pub static NOTIFY: Table = Table {
    what: "a notification",
    keys: &[&[
        required("url", Kind::UrlOrSecret, "where it is sent"),
        key("format", Kind::Word(&["json", "slack", "ntfy"]), "shape of the message"),
        key("secret", Kind::Secret, "signing secret (Standard Webhooks)"),
        key("events", Kind::List(&Kind::Word(EVENTS)), "what is worth telling"),
    ]],
};

pub const EVENTS: &[&str] = &[
    "auth-failed",
    "breaker-opened",
    "breaker-closed",
    "keys-exhausted",
    "dead-letter-alarm",
    "retry-spike",
    "schedule-stopped",
    "shared-state-lost",
    "config-rejected",
    "schema-mismatch",
];
