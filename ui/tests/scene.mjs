// What the stage plays: a policy with something for every screen, the faulty upstream behind it, and the traffic between.

export const SECRETS = { VIDEOS_A: "stage-video-key-0001", VIDEOS_B: "stage-video-key-0002", PARTNER: "stage-partner-key-0003", ACME: "stage-acme-token-0004" };

/** The faulty upstream, in the language of `seawall flaky`. */
export const SCRIPT = `
[[routes]]
name = "search"
match = "GET /videos/search"
mix = { "200" = 970, "503" = 25, "reset-before" = 5 }
latency = { exp = "25ms" }

[[routes]]
name = "videos"
match = "GET /videos/**"
mix = { "200" = 990, "502" = 10 }
latency = { exp = "12ms" }

[[routes]]
name = "charges"
match = "POST /payments/**"
mix = { "201" = 985, "503" = 15 }
latency = { normal = ["60ms", "15ms"] }

[[routes]]
name = "exports"
match = "* /reports/exports/**"
mix = { "200" = 99, "503" = 1 }
latency = { exp = "80ms" }

[[routes]]
name = "odd"
match = "* /reports/odd"
mix = { "418" = 1 }

[[routes]]
name = "history"
match = "GET /partner/users/**"
mix = { "200" = 95, "503" = 5 }
latency = { exp = "15ms" }

[[routes]]
name = "revoked"
match = "GET /partner/revoked/**"
mix = { "401" = 1 }

[[timeline]]
at = "150s"
for = "20s"
every = "150s"
route = "charges"
mix = { "503" = 1 }
`;

/** The policy in front of it. Waits are short, so that what heals does so while somebody looks. */
export const policy = (upstream) => `
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
store = "sqlite:seawall.db"

[callers.importer]
token = "env:ACME"
tenant = "acme"

[[limits]]
name = "everyone"
key = "caller"
rate = "2000/s"
burst = 500

[[limits]]
name = "addresses"
key = "ip"
rate = "600/s"
burst = 60
mode = "shadow"

[pools.export]
concurrent = 5
queue = 20
queue_timeout = "500ms"

[upstreams.videos]
url = "http://${upstream}/videos"
preset = "google"
cache = { stale_if_error = "1h" }
retry = { base = "50ms", cap = "1s" }

[upstreams.videos.auth]
inject = "query:key"
reset = "00:00 America/Los_Angeles"
keys = [
  { id = "alpha", secret = "env:VIDEOS_A", group = "project-1" },
  { id = "bravo", secret = "env:VIDEOS_B", group = "project-2" },
]

[[upstreams.videos.limits]]
name = "quota"
key = "key"
rate = "1000/s"
burst = 200

[[upstreams.videos.endpoints]]
name = "search"
match = "GET /search"
cost = 20

[upstreams.payments]
url = "http://${upstream}/payments"
profile = "payment"
idempotency = { mode = "optional" }
retry = { base = "50ms", cap = "1s" }

[[upstreams.payments.endpoints]]
name = "charge"
match = "POST /charges"

[upstreams.reports]
url = "http://${upstream}/reports"
profile = "pipeline"
pool = "export"
timeout = { attempt = "2s", total = "3s" }
retry = { attempts = 2, base = "20ms", cap = "100ms" }
breaker = { mode = "off" }
dead_letter = { from = ["jobs", "gateway"], replay_rate = "20/s" }

[[upstreams.reports.endpoints]]
name = "export"
match = "* /exports/*"

[upstreams.partner]
url = "http://${upstream}/partner"
preset = "google"

[upstreams.partner.auth]
inject = "header:x-api-key"
keys = [{ id = "main", secret = "env:PARTNER" }]

[[schedules]]
name = "history"
upstream = "videos"
request = { method = "GET", path = "/users/{subject}/history" }
every = "10s"
subjects = ["alice", "bob", "carol"]

[[schedules]]
name = "statements"
upstream = "payments"
request = { method = "GET", path = "/statements/{subject}" }
every = "1h"
subjects = ["acct-118"]
`;

const WORDS = ["harbour", "lighthouse", "tide", "breakwater", "seawall", "storm"];
const word = (n) => WORDS[n % WORDS.length];

/** The upstream is out for as long as the first jobs have attempts; replayed later, they succeed. */
const OUT = { "x-flaky": "503,503,200" };
const LOST = 60;
/** So many letters the stage leaves of them, and none after that. */
export const LETTERS = LOST / 5;

/** What callers ask for at the n-th beat. */
export function beat(n) {
  const key = { "idempotency-key": `order-${n}`, "content-type": "application/json" };
  const asked = [{ path: `videos/search?q=${word(n)}` }, { path: `videos/items/${n % 50}` }];
  if (n % 3 === 0) asked.push({ path: "payments/charges", method: "POST", headers: key, body: JSON.stringify({ order: 8800 + n, amount: 4200, currency: "EUR" }) });
  if (n % 5 === 0) asked.push({ path: `reports/exports/${2200 + n}`, headers: { ...(n <= LOST ? OUT : {}), prefer: "respond-async", "x-correlation-id": `export-${n}` } });
  if (n <= LOST && n % 20 === 0) asked.push({ path: "reports/odd" });
  return asked;
}

/** A call that the provider refuses for its key: fatal, and somebody has to act. */
export const REFUSED = { path: "partner/revoked/account" };
