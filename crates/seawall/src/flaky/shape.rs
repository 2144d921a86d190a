//! What a script may say, as data: every table, key and kind of value.

use seawall_core::config::shape::{Key, Kind, Table, key, required};

const LENGTH: Kind = Kind::Duration { zero: true };
const PERIOD: Kind = Kind::Duration { zero: false };

static DISTRIBUTION: Table = Table {
    what: "a latency",
    keys: &[&[
        key("uniform", Kind::List(&LENGTH), "from and to, as in [\"5ms\", \"50ms\"]"),
        key("exp", LENGTH, "mean of an exponential distribution"),
        key("normal", Kind::List(&LENGTH), "mean and deviation, as in [\"20ms\", \"5ms\"]"),
    ]],
};

const LATENCY: Kind = Kind::Either(&LENGTH, &Kind::Table(&DISTRIBUTION));

static SLOW: Table = Table {
    what: "`slow`",
    keys: &[&[required("share", Kind::Share, "how many requests, as in \"1%\""), required("latency", LATENCY, "how long they take")]],
};

static QUOTA: Table = Table {
    what: "a quota",
    keys: &[&[
        required("key", Kind::Text, "query:NAME, header:NAME or bearer"),
        required("limit", Kind::Int { min: 0, max: 1_000_000_000 }, "requests of one key in a period"),
        key("limits", Kind::Counts, "other limits of single keys"),
        required("per", PERIOD, "the period; the count starts again with each"),
        key("error", Kind::Text, "what one too many gets, as in \"google:quotaExceeded\"; 429 without it"),
    ]],
};

static RATE: Table = Table {
    what: "a rate",
    keys: &[&[
        required("limit", Kind::Rate { zero: true }, "requests in each period, as in \"50/s\""),
        key("by", Kind::Word(&["global", "ip"]), "who shares it"),
    ]],
};

static CAPACITY: Table = Table {
    what: "a capacity",
    keys: &[&[
        required("workers", Kind::Int { min: 1, max: 100_000 }, "how many requests are worked on at once"),
        required("service", LATENCY, "how long one takes a worker"),
        key("queue", Kind::Int { min: 0, max: 1_000_000 }, "how many may wait; without it any number"),
    ]],
};

static TOKEN: Table = Table {
    what: "a token",
    keys: &[&[
        required("url", Kind::Text, "path that issues tokens"),
        required("expires", PERIOD, "how long one is good for"),
        key("grant", Kind::Word(&["client-credentials", "refresh-token"]), "the only grant that is served"),
    ]],
};

/// What a moment of the timeline may change.
const FACE: &[Key] = &[
    key("mix", Kind::Counts, "statuses, faults and errors of real APIs, by weight"),
    key("error", Kind::Text, "the one thing that every request meets, as in \"lastfm:29\""),
    key("latency", LATENCY, "how long an answer takes"),
    key("slow", Kind::Table(&SLOW), "a share of the answers that takes longer"),
    key("retry_after", Kind::Text, "how 429 and 503 say when to come back"),
];

static ROUTE: Table = Table {
    what: "a route",
    keys: &[
        FACE,
        &[
            required("match", Kind::Match, "METHOD PATH; `*` one segment, `**` the rest; first match wins"),
            key("name", Kind::Text, "for the timeline and the statistics; the pattern without it"),
            key("body", Kind::Text, "what a good answer says"),
            key("size", Kind::Size, "length of a good answer that says nothing"),
            key("echo", Kind::Bool, "answer what was received, as JSON"),
            key("content_type", Kind::Text, "of a good answer"),
            key("headers", Kind::Strings, "of every answer"),
            key("quota", Kind::Table(&QUOTA), "requests per key"),
            key("rate", Kind::Table(&RATE), "requests per second"),
            key("capacity", Kind::Table(&CAPACITY), "a crew of workers behind one queue"),
            key("token", Kind::Table(&TOKEN), "ask for a bearer token that expires"),
        ],
    ],
};

static MOMENT: Table = Table {
    what: "a moment of the timeline",
    keys: &[
        FACE,
        &[
            required("at", LENGTH, "since the start"),
            required("for", PERIOD, "how long it lasts"),
            key("every", PERIOD, "and again after each of these"),
            key("route", Kind::Text, "name of the route; all without it"),
            key("workers", Kind::Int { min: 1, max: 100_000 }, "capacity while it lasts"),
        ],
    ],
};

pub(super) static SCRIPT: Table = Table {
    what: "a script",
    keys: &[&[
        key("routes", Kind::Tables(&ROUTE), "what requests meet, by path"),
        key("timeline", Kind::Tables(&MOMENT), "what changes, and when"),
    ]],
};
