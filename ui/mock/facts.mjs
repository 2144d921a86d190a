// What the pretend Seawall is configured with, and the letters and errors it begins with.

export const ENDPOINTS = [
  { upstream: "payments", name: "charge", match: "POST /v1/charges", url: "https://api.payments.example/v1", rate: 6.2, share: 0.9991, retries: 0.02, p95: 210, transient: 214, open: 412 },
  { upstream: "payments", name: "refund", match: "POST /v1/refunds", url: "https://api.payments.example/v1", rate: 0.4, share: 1, retries: 0.02, p95: 260, transient: 4 },
  { upstream: "videos", name: "search", match: "GET /search", url: "https://videos.example/v3", rate: 14.8, share: 0.9978, retries: 0.06, p95: 148, transient: 388 },
  { upstream: "videos", name: "default", match: "* /**", url: "https://videos.example/v3", rate: 8.1, share: 0.9994, retries: 0.06, p95: 96, transient: 90 },
  { upstream: "mail", name: "send", match: "POST /v3/send", url: "https://mail.example", rate: 3.3, share: 0.9962, retries: 0.04, p95: 182, transient: 61 },
  { upstream: "reports", name: "export", match: "POST /exports/*", url: "https://reports.internal.example", rate: 1.1, share: 0.988, retries: 0.11, p95: 2240, transient: 44, open: 31 },
];

export function checklist(one) {
  const slow = one.upstream === "reports";
  const item = (answer, gap = false) => ({ answer, gap });
  return {
    upstream: one.upstream, endpoint: one.name, match: one.match, profile: slow ? "pipeline" : one.upstream === "payments" ? "payment" : "external-api", preset: one.upstream === "videos" ? "google" : null,
    checklist: {
      caller_key: slow ? item("no limit: callers are not told apart", true) : item("everyone: caller"),
      cost: item("1 per call"),
      burst: slow ? item("no limit", true) : item("everyone: 200"),
      sustained: slow ? item("no limit", true) : item("everyone: 1000/s"),
      deadline: item(`${slow ? "3m" : "20s"} in all, shortened by Seawall-Timeout-Ms`),
      downstream_timeouts: item(`connect 2s, attempt ${slow ? "30s" : "4s"}`),
      retry: item(`${slow ? 6 : 4} attempts, decorrelated from 100ms to 5s, budget 20% + 10/s; POST only with an Idempotency-Key`),
      idempotency: one.upstream === "mail" ? item("off: a repeated POST runs twice", true) : item("keys optional, results kept for 1d"),
      concurrency: item(`pool ${slow ? "export: 5 at once, 20 in line" : "web: 64 at once, 100 in line"} for up to 500ms`),
      degraded_answer: one.name === "search" ? item("cached answer up to 1h old") : item("none: the failure is passed on", true),
      overload_answer: item("429 rate_limited or 503 overloaded, with Retry-After and problem+json"),
      breaker: item("per endpoint: opens at 5 in a row or 50% of ≥ 20 in 30s, for 5s up to 1m"),
      dashboard: item(`endpoint "${one.name}" of upstream "${one.upstream}" in logs and metrics`),
    },
    worst_case: { elapsed_ms: slow ? 180_000 : 20_000, unbounded_ms: slow ? 186_000 : 20_000, attempts: slow ? 6 : 4, attempts_that_fit: slow ? 5 : 4 },
    amplification: { layers: 1, calls_per_second: 100, attempts: slow ? 6 : 4, budgeted: slow ? 1.3 : 1.1 },
    gives_up: { "10s": slow ? 0.004 : 0.041, "60s": slow ? 0.21 : 0.72, "10m": 0.967 },
    breaker_trips: { consecutive: true, failure_rate: true, slow_rate: true },
  };
}

export const CONFIG = {
  file: "seawall.toml",
  toml: `[server]
admin = "127.0.0.1:7330"

[upstreams.payments]
url = "https://api.payments.example/v1"
profile = "payment"

[upstreams.videos]
url = "https://videos.example/v3"
preset = "google"

[upstreams.videos.auth]
inject = "query:key"
keys = [
  { id = "alpha", secret = "env:VIDEOS_A", group = "project-1" },
  { id = "bravo", secret = "env:VIDEOS_B", group = "project-2" },
]

[upstreams.reports]
url = "https://reports.internal.example"
profile = "pipeline"
pool = "export"
`,
  checklist: [],
  warnings: [
    { code: "SW001", severity: "warning", message: "5 of 6 attempts fit into the deadline: in a slow outage the last one is never sent", path: "upstreams.reports.timeout.total", line: 21 },
    { code: "SW017", severity: "warning", message: "the idempotency window is shorter than two attempts", path: "upstreams.mail.idempotency.ttl", line: 34 },
  ],
};

const KINDS = [
  { queue: "mail", endpoint: "send", door: "jobs", method: "POST", url: "https://mail.example/v3/send", class: "permanent", code: "550", reason: "permanent_failure", detail: "550 mailbox unavailable: user unknown", severity: "review", replayable: true, attempts: 1, instructions: "" },
  { queue: "payments", endpoint: "charge", door: "gateway", method: "POST", url: "https://api.payments.example/v1/charges", class: "ambiguous", code: "timeout", reason: "ambiguous_exhausted", detail: "no answer within 4 s; the charge may have gone through", severity: "pager", replayable: false, attempts: 2, instructions: "Look the charge up by its idempotency key before you force a replay." },
  { queue: "reports", endpoint: "export", door: "jobs", method: "POST", url: "https://reports.internal.example/exports/2209", class: "transient", code: "503", reason: "attempts_exhausted", detail: "503 upstream connect error or disconnect/reset before headers", severity: "review", replayable: true, attempts: 6, instructions: "" },
];

export function letters(story, iso) {
  return Array.from({ length: 14 }, (_, n) => {
    const kind = KINDS[n % 7 === 3 ? 1 : n % 2 ? 2 : 0];
    const dead = Date.now() - 40_000 - n * 271_000;
    return {
      id: story.id(), queue: kind.queue, endpoint: kind.endpoint, door: kind.door,
      original: { method: kind.method, url: kind.url, headers: { "content-type": "application/json", authorization: "[redacted]" }, body: `{"order":${8800 + n},"amount":4200,"currency":"EUR"}`, body_encoding: "utf-8", body_cut: false },
      class: kind.class, failure_reason: kind.reason, failure_code: kind.code, error_detail: kind.detail, last_attempt_at: iso(dead), total_attempts: kind.attempts,
      message_id: "", correlation_id: `order-${8800 + n}`, idempotency_key: kind.class === "ambiguous" ? `charge-${8800 + n}` : null, caller: "importer", tenant: "acme",
      enqueued_at: iso(dead - 60_000), dead_lettered_at: iso(dead), expires_at: iso(dead + 14 * 86_400_000), severity: kind.severity, replayable: kind.replayable, replay_instructions: kind.instructions,
      status: "kept", replays: 0, replayed_by: null,
      history: Array.from({ length: kind.attempts }, (_, m) => ({ attempt: m + 1, status: kind.code, latency_ms: kind.code === "timeout" ? 4000 : 120 + m * 30, outcome: kind.class, at: iso(dead - (kind.attempts - m) * 5000) })),
    };
  });
}

export function errors(iso) {
  const at = (seconds) => iso(Date.now() - seconds * 1000);
  return [
    { fingerprint: "b41d77aa90c2", upstream: "reports", endpoint: "export", status: "409", count: 37, first_at: at(5400), last_at: at(40), sample: '{"code":"E_BUSY","message":"export [redacted] is locked by another worker","retry":true}', named_as: null },
    { fingerprint: "09ce12f8e7d4", upstream: "videos", endpoint: "search", status: "418", count: 3, first_at: at(86_000), last_at: at(1900), sample: "<html><body>Checking your browser before accessing videos.example</body></html>", named_as: null },
  ];
}

const MINUTE = 60_000;
export const SCHEDULES = [
  {
    name: "history", upstream: "videos", every: "5m", request: { method: "GET", path: "/users/{subject}/history" },
    subjects: [
      { subject: "alice", state: "waiting", last_ok_at: -2 * MINUTE, last_error: null, consecutive_failures: 0, next_at: 3 * MINUTE },
      { subject: "bob", state: "failing", last_ok_at: -64 * MINUTE, last_error: "503 Service Unavailable, backing off", consecutive_failures: 4, next_at: 11 * MINUTE },
      { subject: "carol", state: "stopped", last_ok_at: -30 * 60 * MINUTE, last_error: "401: the user revoked access", consecutive_failures: 1, next_at: null },
      { subject: "dave", state: "running", last_ok_at: -5 * MINUTE, last_error: null, consecutive_failures: 0, next_at: 0 },
    ],
  },
  {
    name: "invoices", upstream: "payments", every: "1h", request: { method: "GET", path: "/v1/invoices?account={subject}" },
    subjects: [{ subject: "acct-118", state: "waiting", last_ok_at: -22 * MINUTE, last_error: null, consecutive_failures: 0, next_at: 38 * MINUTE }],
  },
];
