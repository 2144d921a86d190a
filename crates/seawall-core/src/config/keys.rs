//! The tables of the configuration file (`shape` defines the entries).

use super::model::ForwardedHeader;
use super::shape::{KeyShape, TableShape, ValueKind, key, required};
use crate::policy::{
    Algorithm, BackoffKind, BreakerPer, Door, ErrorShape, Fail, IdempotencyMode, Mode, NotifyFormat, OnExhausted, Pick, Repeat, Severity,
    Unsafe,
};
use crate::record::{Class, Scope};

const COUNT: ValueKind = ValueKind::Int { min: 1, max: 1_000_000_000 };
const COUNT0: ValueKind = ValueKind::Int { min: 0, max: 1_000_000_000 };
const TIME: ValueKind = ValueKind::Duration { zero: false };
const TIME0: ValueKind = ValueKind::Duration { zero: true };
const RATE: ValueKind = ValueKind::Rate { zero: false };
const RATE0: ValueKind = ValueKind::Rate { zero: true };

pub static ROOT: TableShape = TableShape {
    what: "the file",
    keys: &[&[
        key("server", ValueKind::Table(&SERVER), "listeners, store, body limits"),
        key("log", ValueKind::Table(&LOG), "how log lines look"),
        key("callers", ValueKind::Map(&CALLER), "who may send requests, by token"),
        key("pools", ValueKind::Map(&POOL), "bulkheads: bounded concurrency shared by the endpoints that name them"),
        key("limits", ValueKind::Tables(&LIMIT), "rate limits that span upstreams"),
        key("defaults", ValueKind::Table(&DEFAULTS), "any key of an upstream; merged field by field"),
        key("upstreams", ValueKind::Map(&UPSTREAM), "the dependencies"),
        key("schedules", ValueKind::Tables(&SCHEDULE), "requests repeated for each subject"),
        key("notify", ValueKind::Tables(&NOTIFY), "who is told about what"),
    ]],
};

/// The embedded defaults use the same format, plus some tables of their own.
pub static BUILTIN: TableShape = TableShape {
    what: "the built-in defaults",
    keys: &[&[
        key("server", ValueKind::Table(&SERVER), ""),
        key("log", ValueKind::Table(&LOG), ""),
        key("defaults", ValueKind::Table(&DEFAULTS), ""),
        key("profiles", ValueKind::Map(&DEFAULTS), "named starting points for an upstream or endpoint"),
        key("each", ValueKind::Table(&EACH), "defaults of repeated tables"),
    ]],
};

static EACH: TableShape = TableShape {
    what: "defaults of repeated tables",
    keys: &[&[
        key("caller", ValueKind::Table(&CALLER), ""),
        key("pool", ValueKind::Table(&POOL), ""),
        key("limit", ValueKind::Table(&LIMIT), ""),
        key("auth", ValueKind::Table(&AUTH), ""),
        key("schedule", ValueKind::Table(&SCHEDULE), ""),
        key("notify", ValueKind::Table(&NOTIFY), ""),
        key("fallback", ValueKind::Table(&FALLBACK), ""),
        key("key", ValueKind::Table(&KEY), ""),
        key("refresh", ValueKind::Table(&REFRESH), ""),
        key("request", ValueKind::Table(&REQUEST), ""),
    ]],
};

/// The keys of a preset file.
pub static PRESET: TableShape = TableShape {
    what: "a preset",
    keys: &[
        &[
            key("description", ValueKind::Text, "what the preset knows"),
            key("docs_note", ValueKind::Text, "what is still to be confirmed"),
            key("aliases", ValueKind::List(&ValueKind::Text), "other names"),
            key("auth", ValueKind::Table(&AUTH), ""),
        ],
        POLICY,
    ],
};

static SERVER: TableShape = TableShape {
    what: "`[server]`",
    keys: &[&[
        key("listen", ValueKind::Listen, "address of the gateway"),
        key("admin", ValueKind::Listen, "address of API, dashboard and metrics; a token is required as soon as it is not loopback"),
        key("admin_token", ValueKind::Secret, "bearer token of the admin API"),
        key(
            "webhook_secret",
            ValueKind::Secret,
            "signs callbacks (Standard Webhooks); without it a key is made once and kept in the store",
        ),
        key(
            "store",
            ValueKind::Place(&["sqlite:", "postgres://", "postgresql://", "env:", "file:"]),
            "where jobs, dead letters and roll-ups live",
        ),
        key(
            "shared",
            ValueKind::Place(&["local", "redis://", "rediss://", "env:", "file:"]),
            "where limits, breakers, keys and idempotency keys are shared between instances",
        ),
        key("shared_timeout", TIME, "how long a call waits for shared state before it goes on without"),
        key("max_body", ValueKind::Size, "a larger request body is refused with 413"),
        key("replay_body", ValueKind::Size, "a larger body streams through once and is never retried"),
        key("drain", TIME0, "how long SIGTERM waits for calls in flight"),
        key("require_caller", ValueKind::Bool, "refuse requests without a caller's token"),
        key("default_upstream", ValueKind::Text, "takes requests that name no upstream"),
        key("trust_forwarded", ValueKind::List(&ValueKind::Cidr), "networks of proxies that are believed who calls"),
        key("forwarded_header", ValueKind::Word(ForwardedHeader::WORDS), "where those proxies say who calls; the other header is not read"),
        key("tls", ValueKind::Table(&TLS), "the gateway speaks TLS to its callers"),
        key("allow_private", ValueKind::List(&ValueKind::Cidr), "private networks that URLs handed in by users may reach"),
    ]],
};

static TLS: TableShape = TableShape {
    what: "`[server.tls]`",
    keys: &[&[
        required("cert", ValueKind::Text, "file with the certificate and those that lead to its authority, in PEM"),
        required("key", ValueKind::Secret, "where its private key is, in PEM"),
    ]],
};

static LOG: TableShape = TableShape {
    what: "`[log]`",
    keys: &[&[key("format", ValueKind::Word(&["json", "text"]), "one JSON object per line, or text for people")]],
};

pub static CALLER: TableShape = TableShape {
    what: "a caller",
    keys: &[&[
        required("token", ValueKind::Secret, "what the caller sends as bearer token"),
        key("tenant", ValueKind::Text, "who pays; a limit key"),
        key("user", ValueKind::Text, "a limit key"),
    ]],
};

pub static POOL: TableShape = TableShape {
    what: "a pool",
    keys: &[&[
        required("concurrent", COUNT, "calls in flight at once"),
        key("queue", COUNT0, "calls that may wait for a place"),
        key("queue_timeout", TIME0, "how long they may wait"),
        key("priority", COUNT0, "higher survives longer under shedding"),
        key("adaptive", ValueKind::Bool, "let the limit follow latency, up to `concurrent`"),
    ]],
};

pub static LIMIT: TableShape = TableShape {
    what: "a limit",
    keys: &[&[
        required("name", ValueKind::Label, "how it is called in answers and metrics"),
        key(
            "key",
            ValueKind::OneOrMany(&ValueKind::LimitKey),
            "what is counted apart: global, ip, caller, user, tenant, upstream, endpoint, key, header:NAME, or a list",
        ),
        required("rate", RATE, "how many in what time"),
        key("burst", COUNT, "how many at once; the rate's count where absent"),
        key("algorithm", ValueKind::Word(Algorithm::WORDS), "how it counts"),
        key("mode", ValueKind::Word(Mode::WORDS), "enforce, count only, or off"),
        key("fail", ValueKind::Word(Fail::WORDS), "what happens while shared state is unreachable"),
        key("max_wait", TIME0, "how long a call waits for room; where several limits apply, the shortest; 0s refuses it at once"),
    ]],
};

pub static DEFAULTS: TableShape = TableShape {
    what: "policy defaults",
    keys: &[
        POLICY,
        &[key("preset", ValueKind::Text, "error conventions of a real API"), key("auth", ValueKind::Table(&AUTH), "credentials")],
    ],
};

pub static UPSTREAM: TableShape = TableShape {
    what: "an upstream",
    keys: &[
        &[
            required("url", ValueKind::Url, "base URL"),
            key(
                "hosts",
                ValueKind::List(&ValueKind::Text),
                "requests with one of these Host names, or hosts and ports, go here with their whole path",
            ),
            key("listen", ValueKind::Listen, "address of a port of its own: all requests there go here with their whole path"),
            key(
                "seawall",
                ValueKind::Bool,
                "it is a Seawall itself: it is told which requests are repeats, and does not repeat those again",
            ),
            key("via", ValueKind::Bool, "requests to it say in `Via` that they came through here"),
            key("forwarded", ValueKind::Bool, "it gets the callers' own `Forwarded`, `X-Forwarded-*` and `X-Real-IP`; others do not"),
            key("preset", ValueKind::Text, "error conventions of a real API"),
            key("auth", ValueKind::Table(&AUTH), "credentials"),
            key("endpoints", ValueKind::Tables(&ENDPOINT), "named method and path patterns with their own policy"),
        ],
        POLICY,
    ],
};

pub static ENDPOINT: TableShape = TableShape {
    what: "an endpoint",
    keys: &[
        &[
            required("name", ValueKind::Text, "how it is called in logs and metrics"),
            required("match", ValueKind::Match, "METHOD PATH; `*` one segment, `**` the rest; first match wins"),
        ],
        POLICY,
    ],
};

static POLICY: &[KeyShape] = &[
    key("profile", ValueKind::Text, "a named starting point"),
    key("timeout", ValueKind::Table(&TIMEOUT), "how long things may take"),
    key("retry", ValueKind::Table(&RETRY), "when and how often to go again"),
    key("breaker", ValueKind::Table(&BREAKER), "when to stop asking"),
    key("limits", ValueKind::Tables(&LIMIT), "rate limits of this upstream or endpoint"),
    key("pool", ValueKind::Text, "the bulkhead it runs in"),
    key("cost", COUNT, "what a call takes from limits"),
    key("waiting", COUNT0, "calls that may wait for a key, a pause or a breaker at once, of the whole upstream; more are refused"),
    key(
        "repeat",
        ValueKind::Word(Repeat::WORDS),
        "which POST and PATCH requests may be sent again without a key: never, those that the preset declares, or all, at the cost of a second bill",
    ),
    key("repeatable", ValueKind::Table(&REPEATABLE), "the requests that `repeat = \"declared\"` is about"),
    key("max_body", ValueKind::Size, "a larger request body is refused with 413; absent: `server.max_body`"),
    key(
        "read_ahead",
        ValueKind::Size,
        "a response up to this size is read whole before the caller gets any of it, so that one that breaks off is retried; 0B: never",
    ),
    key("deadline_header", ValueKind::Header, "header that tells the upstream what remains of the deadline"),
    key("rewrite_links", ValueKind::Bool, "links of a response that point to the upstream point to the gateway"),
    key("error_shape", ValueKind::Word(ErrorShape::WORDS), "whose error format the gateway's own responses have; presets set it"),
    key("cache", ValueKind::Table(&CACHE), "keep answers for when the upstream fails"),
    key("fallback", ValueKind::Table(&FALLBACK), "static answer when everything else failed"),
    key("on_exhausted", ValueKind::Word(OnExhausted::WORDS), "what becomes of a call whose retries are used up"),
    key("idempotency", ValueKind::Table(&IDEMPOTENCY), "run a keyed call once"),
    key("dead_letter", ValueKind::Table(&DEAD_LETTER), "what is kept of calls that were given up"),
    key("schema", ValueKind::Text, "JSON Schema file for 2xx bodies"),
    key("classify", ValueKind::Rules(&RULE), "rules that come before the preset's; first match wins"),
];

static TIMEOUT: TableShape = TableShape {
    what: "`timeout`",
    keys: &[&[
        key("connect", TIME, "TCP and TLS"),
        key("attempt", TIME, "one send, up to the response's head, and to the end of a body that is read as a whole"),
        key("total", TIME, "the call up to the first byte that the caller gets, waits included"),
        key("first_byte", TIME, "silence between a response's head and the first byte of a body that is passed on as it comes"),
        key("idle", TIME, "silence inside a body, of an upload or of a response; what keeps moving is not cut"),
    ]],
};

static REPEATABLE: TableShape = TableShape {
    what: "`repeatable`",
    keys: &[&[
        key("paths", ValueKind::List(&ValueKind::Text), "globs of paths"),
        key("operations", ValueKind::List(&ValueKind::Text), "globs of `X-Amz-Target`"),
    ]],
};

static RETRY: TableShape = TableShape {
    what: "`retry`",
    keys: &[&[
        key("attempts", ValueKind::Int { min: 1, max: 1000 }, "sends in all, the first included"),
        key("backoff", ValueKind::Word(BackoffKind::WORDS), "how waits grow and spread"),
        key("base", TIME0, "first wait"),
        key("factor", ValueKind::Float { min: 1.0, max: 1e9 }, "growth per retry"),
        key("cap", TIME, "longest wait"),
        key("jitter", ValueKind::Share, "spread of percent-jitter"),
        key("ambiguous", COUNT0, "retries that ambiguous failures may use in one call"),
        key("retry_after_cap", TIME0, "longest server hint that is waited for"),
        key("budget", ValueKind::Share, "retries earned per success, shared by all calls to the upstream"),
        key("budget_floor", RATE0, "retries that are always allowed"),
        key("unsafe", ValueKind::Word(Unsafe::WORDS), "when POST, PATCH and the like may be sent again"),
    ]],
};

static BREAKER: TableShape = TableShape {
    what: "`breaker`",
    keys: &[&[
        key("mode", ValueKind::Word(Mode::WORDS), "enforce, count only, or off"),
        key("per", ValueKind::Word(BreakerPer::WORDS), "what shares one breaker"),
        key("window", TIME, "how far back rates look"),
        key("failure_rate", ValueKind::Share, "share of failures that opens"),
        key("min_calls", COUNT, "results needed before rates count"),
        key("consecutive", COUNT0, "failures in a row that open at once; 0 switches it off"),
        key("slow", TIME0, "a result this slow counts as slow; 0s switches it off"),
        key("slow_rate", ValueKind::Share, "share of slow results that opens"),
        key("open", TIME, "first open time; doubles with each failed probe"),
        key("open_max", TIME, "longest open time"),
        key("probes", ValueKind::Int { min: 1, max: 1000 }, "probes in flight while half-open"),
        key("successes", ValueKind::Int { min: 1, max: 1000 }, "probe successes that close"),
        key("ramp", TIME0, "after closing, let the admitted share grow over this time"),
        key("max_wait", TIME0, "how long a call waits for an open breaker to let it through; 0s refuses it at once"),
    ]],
};

static CACHE: TableShape = TableShape {
    what: "`cache`",
    keys: &[&[
        key("ttl", TIME0, "how long an answer without its own freshness stays fresh; 0s keeps it only for errors"),
        key("stale_if_error", TIME0, "how long a stale answer may stand in for a failing upstream"),
        key("stale_while_revalidate", TIME0, "how long a stale answer may be served while a new one is fetched"),
    ]],
};

pub static FALLBACK: TableShape = TableShape {
    what: "`fallback`",
    keys: &[&[
        key("status", ValueKind::Int { min: 200, max: 599 }, "status of the static answer"),
        key("content_type", ValueKind::HeaderValue, "its content type"),
        key("body", ValueKind::Text, "its body"),
    ]],
};

static IDEMPOTENCY: TableShape = TableShape {
    what: "`idempotency`",
    keys: &[&[
        key("mode", ValueKind::Word(IdempotencyMode::WORDS), "whether keys are honoured, demanded or made"),
        key("ttl", TIME, "how long a result is kept"),
        key("honoured", ValueKind::Bool, "the upstream executes a repeated key once: what is in doubt may be sent again"),
    ]],
};

static DEAD_LETTER: TableShape = TableShape {
    what: "`dead_letter`",
    keys: &[&[
        key("from", ValueKind::List(&ValueKind::Word(Door::WORDS)), "which doors leave dead letters"),
        key("severity", ValueKind::Word(Severity::WORDS), "queue they go to"),
        key("ttl", TIME, "how long they are kept"),
        key("alarm_depth", COUNT, "depth that raises an alarm"),
        key("replay_rate", RATE, "how fast they are replayed"),
        key("reevaluate", TIME0, "how often they are looked at again; 0s never"),
        key("instructions", ValueKind::Text, "what an operator should know before replaying"),
    ]],
};

pub static AUTH: TableShape = TableShape {
    what: "`auth`",
    keys: &[&[
        key("inject", ValueKind::Inject, "where the secret goes"),
        key("pick", ValueKind::Word(Pick::WORDS), "which viable key is taken; with `fewest-failures`, keys that are equal take turns"),
        key("reset", ValueKind::Reset, "when the provider's quota resets"),
        key("max_wait", TIME0, "how long a call waits for a key to become viable; absent: what is left of its deadline"),
        key("keys", ValueKind::Tables(&KEY), "the credentials"),
        key("refresh", ValueKind::Table(&REFRESH), "a token that is refreshed on 401"),
    ]],
};

pub static KEY: TableShape = TableShape {
    what: "a key",
    keys: &[&[
        required("id", ValueKind::Text, "how it is called"),
        required("secret", ValueKind::Secret, "where the secret is"),
        key("group", ValueKind::Text, "keys of one group share a quota; absent: a group of its own"),
    ]],
};

pub static REFRESH: TableShape = TableShape {
    what: "`refresh`",
    keys: &[&[
        required("kind", ValueKind::Word(&["client-credentials", "refresh-token"]), "OAuth 2 grant"),
        required("token_url", ValueKind::Url, "token endpoint"),
        required("client_id", ValueKind::Secret, "client id"),
        required("client_secret", ValueKind::Secret, "client secret"),
        key("refresh_token", ValueKind::Secret, "for the refresh-token grant"),
        key("scope", ValueKind::Text, "requested scope"),
        key("client_auth", ValueKind::Word(&["basic", "body"]), "where the client's id and secret go: a header (`basic`) or the form"),
    ]],
};

pub static RULE: TableShape = TableShape {
    what: "a classify rule",
    keys: &[&[
        key("name", ValueKind::Text, "how the rule is called in logs"),
        required("when", ValueKind::Table(&WHEN), "conditions that must all hold"),
        required("as", ValueKind::Word(Class::WORDS), "what such a result is"),
        key("scope", ValueKind::Word(Scope::WORDS), "what a wait applies to"),
        key(
            "wait",
            ValueKind::Text,
            "none, backoff, retry-after, until-reset, until-month, a duration, or a table naming a header, JSON pointer or body pattern with its unit",
        ),
        key("skew", TIME0, "added to what the server asks for"),
        key("unprocessed", ValueKind::Bool, "the server says it did not execute the request, so even an unsafe method may go again"),
    ]],
};

static WHEN: TableShape = TableShape {
    what: "`when`",
    keys: &[&[
        key("status", ValueKind::List(&ValueKind::Int { min: 100, max: 599 }), "statuses; also \"5xx\" and \"500-599\""),
        key("method", ValueKind::List(&ValueKind::Text), "methods"),
        key("header", ValueKind::Strings, "header name → values, `*` as wildcard, an empty list for absent"),
        key("json", ValueKind::Strings, "JSON pointer (with `*`) → values"),
        key("xml", ValueKind::Strings, "XML path → values"),
        key("body", ValueKind::Text, "regular expression over the body"),
        key("error", ValueKind::List(&ValueKind::Word(crate::record::ErrorKind::WORDS)), "how the attempt failed without an answer"),
        key("slower", TIME, "took at least this long"),
    ]],
};

pub static SCHEDULE: TableShape = TableShape {
    what: "a schedule",
    keys: &[&[
        required("name", ValueKind::Text, "how it is called"),
        required("upstream", ValueKind::Text, "where its requests go"),
        required("request", ValueKind::Table(&REQUEST), "what is sent; `{subject}` is replaced"),
        required("every", TIME, "interval for each subject"),
        key("backoff", ValueKind::Table(&SCHEDULE_BACKOFF), "interval while it fails"),
        key("subjects", ValueKind::List(&ValueKind::Text), "for whom"),
        key("deliver", ValueKind::UrlOrSecret, "callback that gets each result"),
        key("spread", ValueKind::Share, "share of the interval over which subjects' first runs are spread"),
        key("missed", ValueKind::Word(&["once", "skip"]), "after downtime: run once for what was missed, or wait for the next tick"),
    ]],
};

static SCHEDULE_BACKOFF: TableShape = TableShape {
    what: "`backoff`",
    keys: &[&[
        key("base", TIME, "first wait after a failure"),
        key("factor", ValueKind::Float { min: 1.0, max: 1e9 }, "growth"),
        key("cap", TIME, "longest wait"),
        key("jitter", ValueKind::Share, "spread"),
    ]],
};

pub static REQUEST: TableShape = TableShape {
    what: "`request`",
    keys: &[&[
        key("method", ValueKind::Method, "HTTP method"),
        required("path", ValueKind::Text, "path below the upstream's URL"),
        key("headers", ValueKind::Strings, "headers; a secret by reference, as in \"Bearer env:NAME\""),
        key("body", ValueKind::Text, "body"),
    ]],
};

pub static NOTIFY: TableShape = TableShape {
    what: "a notification",
    keys: &[&[
        required("url", ValueKind::UrlOrSecret, "where it is sent"),
        key("format", ValueKind::Word(NotifyFormat::WORDS), "shape of the message"),
        key("secret", ValueKind::Secret, "signing secret (Standard Webhooks)"),
        key("events", ValueKind::List(&ValueKind::Word(EVENTS)), "what is worth telling"),
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
