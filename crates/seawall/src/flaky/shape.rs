//! The structure of a script, as data: every table, key and kind of value.

use seawall_core::config::shape::{KeyShape, TableShape, ValueKind, key, required};

const LENGTH: ValueKind = ValueKind::Duration { zero: true };
const PERIOD: ValueKind = ValueKind::Duration { zero: false };

static DISTRIBUTION: TableShape = TableShape {
    what: "a latency",
    keys: &[&[
        key("uniform", ValueKind::List(&LENGTH), "from and to, as in [\"5ms\", \"50ms\"]"),
        key("exp", LENGTH, "mean of an exponential distribution"),
        key("normal", ValueKind::List(&LENGTH), "mean and deviation, as in [\"20ms\", \"5ms\"]"),
    ]],
};

const LATENCY: ValueKind = ValueKind::Either(&LENGTH, &ValueKind::Table(&DISTRIBUTION));

static SLOW: TableShape = TableShape {
    what: "`slow`",
    keys: &[&[required("share", ValueKind::Share, "how many requests, as in \"1%\""), required("latency", LATENCY, "how long they take")]],
};

static QUOTA: TableShape = TableShape {
    what: "a quota",
    keys: &[&[
        required("key", ValueKind::Text, "query:NAME, header:NAME or bearer"),
        required("limit", ValueKind::Int { min: 0, max: 1_000_000_000 }, "requests of one key in a period"),
        key("limits", ValueKind::Counts, "other limits of single keys"),
        required("per", PERIOD, "the period; the count starts again with each"),
        key("error", ValueKind::Text, "what one too many gets, as in \"google:quotaExceeded\"; 429 without it"),
    ]],
};

static RATE: TableShape = TableShape {
    what: "a rate",
    keys: &[&[
        required("limit", ValueKind::Rate { zero: true }, "requests in each period, as in \"50/s\""),
        key("by", ValueKind::Word(&["global", "ip"]), "who shares it"),
    ]],
};

static CAPACITY: TableShape = TableShape {
    what: "a capacity",
    keys: &[&[
        required("workers", ValueKind::Int { min: 1, max: 100_000 }, "how many requests are worked on at once"),
        required("service", LATENCY, "how long one takes a worker"),
        key("queue", ValueKind::Int { min: 0, max: 1_000_000 }, "how many may wait; without it any number"),
    ]],
};

static TOKEN: TableShape = TableShape {
    what: "a token",
    keys: &[&[
        required("url", ValueKind::Text, "path that issues tokens"),
        required("expires", PERIOD, "how long one is good for"),
        key("grant", ValueKind::Word(&["client-credentials", "refresh-token"]), "the only grant that is served"),
    ]],
};

/// The keys that a moment of the timeline may change.
const FACE: &[KeyShape] = &[
    key("mix", ValueKind::Counts, "statuses, faults and errors of real APIs, by weight"),
    key("error", ValueKind::Text, "the one thing that every request meets, as in \"lastfm:29\""),
    key("latency", LATENCY, "how long an answer takes"),
    key("slow", ValueKind::Table(&SLOW), "a share of the answers that takes longer"),
    key("retry_after", ValueKind::Text, "how 429 and 503 say when to come back"),
];

static ROUTE: TableShape = TableShape {
    what: "a route",
    keys: &[
        FACE,
        &[
            required("match", ValueKind::Match, "METHOD PATH; `*` one segment, `**` the rest; first match wins"),
            key("name", ValueKind::Text, "for the timeline and the statistics; the pattern without it"),
            key("body", ValueKind::Text, "what a good answer says"),
            key("size", ValueKind::Size, "length of a good answer that says nothing"),
            key("echo", ValueKind::Bool, "answer what was received, as JSON"),
            key("content_type", ValueKind::Text, "of a good answer"),
            key("headers", ValueKind::Strings, "of every answer"),
            key("quota", ValueKind::Table(&QUOTA), "requests per key"),
            key("rate", ValueKind::Table(&RATE), "requests per second"),
            key("capacity", ValueKind::Table(&CAPACITY), "a crew of workers behind one queue"),
            key("token", ValueKind::Table(&TOKEN), "ask for a bearer token that expires"),
        ],
    ],
};

static MOMENT: TableShape = TableShape {
    what: "a moment of the timeline",
    keys: &[
        FACE,
        &[
            required("at", LENGTH, "since the start"),
            required("for", PERIOD, "how long it lasts"),
            key("every", PERIOD, "and again after each of these"),
            key("route", ValueKind::Text, "name of the route; all without it"),
            key("workers", ValueKind::Int { min: 1, max: 100_000 }, "capacity while it lasts"),
        ],
    ],
};

pub(super) static SCRIPT: TableShape = TableShape {
    what: "a script",
    keys: &[&[
        key("routes", ValueKind::Tables(&ROUTE), "what requests meet, by path"),
        key("timeline", ValueKind::Tables(&MOMENT), "what changes, and when"),
    ]],
};
