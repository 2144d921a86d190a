// The story that the pretend Seawall tells, once a minute: calm, an outage that opens a breaker, the recovery, a key that
// runs out of quota and comes back, a call that nobody has a name for, letters that die. One step a second, seeded.

import { CONFIG, checklist, ENDPOINTS, errors, letters, SCHEDULES } from "./facts.mjs";

const ROUND = 60;
const iso = (ms) => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");

function seeded(seed) {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}

export class Story {
  constructor(empty) {
    this.empty = empty;
    this.random = seeded(7);
    this.start = Date.now() - 3600_000;
    this.serial = 0;
    this.second = 0;
    this.listeners = new Set();
    this.events = [];
    this.points = [];
    this.calls = [];
    this.jobs = [];
    this.replays = [];
    this.audit = empty ? [] : [{ at: iso(Date.now() - 1800_000), who: "operator", action: "config reloaded", detail: "2 changes" }];
    this.letters = empty ? [] : letters(this, iso);
    this.errors = empty ? [] : errors(iso);
    this.state = new Map(ENDPOINTS.map((one) => [`${one.upstream}/${one.name}`, { state: "closed", forced: null, retry_at: null, open: one.open ?? 0, changes: [] }]));
    this.keys = [
      { upstream: "videos", id: "alpha", tail: "…9f2c", group: "project-1", state: "ready", until: null, uses: 48211, failures: 12 },
      { upstream: "videos", id: "bravo", tail: "…41d0", group: "project-2", state: "ready", until: null, uses: 31877, failures: 9 },
      { upstream: "videos", id: "delta", tail: "…77ab", group: "project-3", state: "rejected", until: null, uses: 210, failures: 14 },
      { upstream: "mail", id: "main", tail: "…c0de", group: null, state: "ready", until: null, uses: 9120, failures: 3 },
    ];
    this.totals = { calls: 0, success: 0, attempts: 0, retries: 0, rejected: 0 };
    this.subjects = structuredClone(SCHEDULES);
    if (empty) return;
    // An hour that has passed, then once a second.
    let at = Math.floor(Date.now() / 1000) * 1000 - 3600_000;
    for (; at < Date.now(); at += 1000) this.step(at, Date.now() - at > 120_000);
    setInterval(() => {
      for (; at < Date.now(); at += 1000) this.step(at, false);
    }, 200);
    for (let n = 0; n < 60; n += 1) this.job(n);
  }

  now() {
    return iso(Date.now());
  }

  id() {
    this.serial += 1;
    return `0${(Date.now() + this.serial).toString(32)}${Math.floor(this.random() * 1e15).toString(32).padStart(10, "0")}${(this.serial % 1000).toString().padStart(3, "0")}`.toUpperCase();
  }

  emit(at, name, severity, title, detail, more = {}) {
    const event = { id: this.events.length ? this.events[0].id + 1 : 1, at: iso(at), name, severity, title, detail, ...more };
    this.events.unshift(event);
    this.events.length = Math.min(this.events.length, 200);
    for (const send of this.listeners) send(event);
    return event.id;
  }

  move(at, place, to, cause) {
    const breaker = this.state.get(place);
    if (breaker.state === to) return;
    const [upstream, endpoint] = place.split("/");
    breaker.changes.unshift({ at: iso(at), from: breaker.state, to, cause });
    breaker.changes.length = Math.min(breaker.changes.length, 200);
    breaker.state = to;
    breaker.retry_at = to === "open" && !breaker.forced ? iso(at + 8000) : null;
    const where = { upstream, endpoint };
    if (to === "open") breaker.event = this.emit(at, "breaker-opened", "warning", `${place} breaker opened`, cause === "operator" ? "Held open by an operator." : "5 failures in a row. Calls are refused until a probe succeeds.", where);
    if (to === "half-open") this.emit(at, "breaker-half-open", "info", `${place} is being probed`, "One call may pass.", where);
    if (to === "closed") this.emit(at, "breaker-closed", "info", `${place} breaker closed`, cause === "operator" ? "Released by an operator." : "Probes succeeded. Traffic ramps up again.", { ...where, resolves: breaker.event });
  }

  step(at, quick) {
    const beat = Math.floor(at / 1000) % ROUND;
    const sick = beat >= 12 && beat < 26;
    const place = "payments/charge";
    const breaker = this.state.get(place);
    // In the hour that has passed only every fourth round was bad.
    const told = !quick || Math.floor(at / 1000 / ROUND) % 4 === 0;
    if (told && !breaker.forced) {
      if (beat === 14) this.move(at, place, "open", "consecutive");
      if (beat === 22) this.move(at, place, "half-open", "probe");
      if (beat === 26) this.move(at, place, "closed", "probes-succeeded");
    }
    const key = this.keys[0];
    if (told && beat === 32 && key.state === "ready") {
      Object.assign(key, { state: "cooling", until: iso(at + 14_000), failures: key.failures + 1 });
      key.event = this.emit(at, "key-cooling", "warning", "videos key alpha is out of quota", "Cooling until the provider's reset; bravo takes over.", { upstream: "videos" });
    }
    if (told && beat === 46 && key.state === "cooling" && Date.parse(key.until) <= at + 1000) {
      Object.assign(key, { state: "ready", until: null });
      this.emit(at, "key-restored", "info", "videos key alpha is back", "Its quota was reset.", { upstream: "videos", resolves: key.event });
    }
    if (!quick && beat === 50) this.emit(at, "auth-failed", "fatal", "videos refuses key delta", "The provider says: API key not valid. Please pass a valid API key.", { upstream: "videos" });
    if (!quick && beat === 54) {
      this.letters.unshift(...letters(this, iso).slice(0, 1));
      this.letters.length = Math.min(this.letters.length, 40);
      this.emit(at, "dead-letter", "warning", "A call to mail/send was given up", "permanent: 550 mailbox unavailable", { upstream: "mail" });
    }
    for (const one of this.state.values()) if (one.state === "open") one.open += 1;
    this.advance();
    this.tick(at, sick && told, quick);
  }

  tick(at, sick, quick) {
    const wave = 1 + 0.25 * Math.sin(at / 97_000) + 0.1 * (this.random() - 0.5);
    const calls = Math.round(42 * wave);
    const open = [...this.state.values()].some((one) => one.state === "open");
    const rejected = open ? Math.round(calls * 0.06) : this.random() < 0.04 ? 1 : 0;
    const failed = sick && !open ? Math.round(calls * 0.05) : this.random() < 0.06 ? 1 : 0;
    const retries = Math.round(calls * (sick ? 0.22 : 0.03) * (0.5 + this.random()));
    const p50 = 38 + 8 * this.random() + (sick ? 20 : 0);
    const point = { t: iso(at), calls, success: calls - failed - rejected, failed, retries, rejected, in_flight: Math.round(3 + this.random() * 5 + (sick ? 9 : 0)), p50_ms: p50, p95_ms: p50 * 3.1 + (sick ? 380 : 0) + 30 * this.random(), p99_ms: p50 * 6 + (sick ? 900 : 0) + 90 * this.random() };
    this.points.push(point);
    if (this.points.length > 3600) this.points.shift();
    this.totals.calls += calls;
    this.totals.success += point.success;
    this.totals.retries += retries;
    this.totals.attempts += calls + retries;
    this.totals.rejected += rejected;
    if (quick) return;
    for (let n = 0; n < 3; n += 1) this.call(at - n * 300, sick);
    for (const send of this.listeners) send({ name: "tick", ...point });
  }

  call(at, sick) {
    const one = ENDPOINTS[Math.floor(this.random() * ENDPOINTS.length)];
    const breaker = this.state.get(`${one.upstream}/${one.name}`);
    const base = { id: this.id(), at: iso(at), upstream: one.upstream, endpoint: one.name, caller: ["acme", "importer", "anonymous"][Math.floor(this.random() * 3)] };
    const timeline = [];
    let elapsed = 0;
    const attempt = (status, klass, decision, reason, wait_ms = 0) => {
      const latency_ms = 20 + 160 * this.random();
      elapsed += latency_ms;
      timeline.push({ attempt: timeline.length + 1, at: iso(at + elapsed), status, class: klass, decision, reason, wait_ms: wait_ms || null, latency_ms, elapsed_ms: elapsed, key_id: one.upstream === "videos" ? (reason === "quota_rotation" ? "…9f2c" : "…41d0") : null });
      elapsed += wait_ms;
    };
    const dice = this.random();
    let [outcome, reason] = ["success", "succeeded"];
    if (breaker.state === "open") [outcome, reason] = ["circuit_open", "circuit_open"];
    else if (one.upstream === "videos" && dice < 0.12) {
      attempt("403", "quota", "rotate_key", "quota_rotation");
      attempt("200", "success", "return", "succeeded");
    } else if (dice < (sick ? 0.5 : 0.16)) {
      attempt("503", "transient", "retry", "transient_failure", 180 + 200 * this.random());
      if (dice < 0.08) attempt("429", "transient", "retry", "server_hint", 1000);
      if (dice < 0.03) {
        attempt("timeout", "transient", "return", "attempts_exhausted");
        [outcome, reason] = ["transient", "attempts_exhausted"];
      } else attempt("200", "success", "return", "succeeded");
    } else if (dice > 0.97) {
      attempt("404", "permanent", "return", "permanent_failure");
      [outcome, reason] = ["permanent", "permanent_failure"];
    } else attempt("200", "success", "return", "succeeded");
    this.calls.unshift({ ...base, outcome, reason, attempts: timeline.length, elapsed_ms: elapsed, timeline });
    this.calls.length = Math.min(this.calls.length, 400);
  }

  job(n) {
    const state = ["done", "done", "waiting", "done", "queued", "running", "done", "dead", "done", "cancelled"][n % 10];
    const over = ["done", "dead", "cancelled"].includes(state);
    const created = Date.now() - n * 47_000 - 5000;
    const tries = state === "queued" ? 0 : state === "waiting" ? 3 : 1;
    const history = Array.from({ length: tries }, (_, index) => ({ attempt: index + 1, status: state === "done" ? "200" : "503", latency_ms: 84 + index * 20, outcome: state === "done" ? "success" : "transient", at: iso(created + index * 4000) }));
    this.jobs.push({
      id: this.id(), upstream: n % 3 ? "mail" : "reports", method: "POST", path: n % 3 ? "/v3/send" : `/exports/${2200 + n}`,
      headers: { "content-type": "application/json", authorization: "[redacted]" }, body: '{"to":"user@example.com","template":"welcome"}', body_encoding: "utf-8",
      state, attempts: tries, crashes: 0, priority: 0, tenant: "acme", caller: "importer", origin: n % 7 ? { kind: "caller" } : { kind: "schedule", schedule: "history", subject: "alice" },
      next_attempt_at: over ? null : iso(Date.now() + 30_000 + n * 1000), created_at: iso(created), finished_at: over ? iso(created + 4000) : null, expires_at: null, run_at: iso(created),
      response: state === "done" ? { status: 200, headers: { "content-type": "application/json" }, body: '{"queued":true}', body_encoding: "utf-8", truncated: false } : null,
      error: state === "dead" ? "attempts exhausted: status 503" : null, correlation_id: `order-${8800 + n}`, idempotency_key: `k-${n}`, callback: null, history,
    });
  }

  status() {
    const last = this.points.slice(-60);
    const sum = (pick) => last.reduce((total, point) => total + pick(point), 0);
    const calls = sum((p) => p.calls);
    const success = sum((p) => p.success);
    const latest = last[last.length - 1] ?? { in_flight: 0, p50_ms: null, p95_ms: null, p99_ms: null };
    const count = (state) => this.jobs.filter((job) => job.state === state).length;
    return {
      version: "0.1.0", started_at: iso(this.start), now: this.now(), uptime_seconds: Math.round((Date.now() - this.start) / 1000), instance: "sw-1", phase: "serving",
      store: { kind: "sqlite", healthy: true }, shared: { kind: "local", up: true },
      config: { file: "seawall.toml", loaded_at: iso(this.start), last_reload_ok: true, warnings: this.empty ? 0 : CONFIG.warnings.length },
      totals: this.totals,
      last_minute: { calls, success_share: calls ? success / calls : null, retries_per_success: success ? sum((p) => p.retries) / success : null, rate: calls / 60, p50_ms: latest.p50_ms, p95_ms: latest.p95_ms, p99_ms: latest.p99_ms },
      in_flight: latest.in_flight,
      jobs: { queued: count("queued"), running: count("running"), waiting: count("waiting"), done: count("done"), dead: count("dead"), cancelled: count("cancelled"), lag_seconds: this.empty ? 0 : 1.4 },
      dead_letters: { open: this.letters.filter((letter) => letter.status === "kept").length },
    };
  }

  series(minutes) {
    return { step_seconds: 1, from: iso(Date.now() - minutes * 60_000), points: this.points.slice(-minutes * 60) };
  }

  upstreams() {
    if (this.empty) return [];
    const names = [...new Set(ENDPOINTS.map((one) => one.upstream))];
    return names.map((name) => {
      const own = ENDPOINTS.filter((one) => one.upstream === name);
      const hurt = own.some((one) => this.state.get(`${name}/${one.name}`).state !== "closed");
      return {
        name, url: own[0].url, in_flight: hurt ? 9 : 2, success_share: hurt ? 0.941 : own[0].share, retries_per_success: hurt ? 0.34 : own[0].retries, rate: own.reduce((sum, one) => sum + one.rate, 0),
        p50_ms: own[0].p95 / 3, p95_ms: own[0].p95, p99_ms: own[0].p95 * 2.2, budget_tokens: hurt ? 12 : 96,
        classes: { success: 48_000, transient: own[0].transient, permanent: 31, ambiguous: 4, ...(name === "videos" ? { quota: 22, auth: 14 } : {}) },
        endpoints: own.map((one) => {
          const breaker = this.state.get(`${name}/${one.name}`);
          return { name: one.name, match: one.match, breaker: { state: breaker.state, forced: breaker.forced, retry_at: breaker.retry_at, open_seconds: breaker.open }, rate: one.rate, success_share: breaker.state === "closed" ? one.share : 0.912, p95_ms: one.p95, policy: checklist(one) };
        }),
        keys: this.keys.filter((key) => key.upstream === name).map(({ event, ...key }) => key),
      };
    });
  }

  breakers() {
    return [...this.state].map(([place, one]) => {
      const [upstream, endpoint] = place.split("/");
      return { upstream, endpoint, state: one.state, forced: one.forced, retry_at: one.retry_at, open_seconds_total: one.open, changes: one.changes };
    });
  }

  force(upstream, endpoint, state) {
    for (const [place, one] of this.state) {
      if (place !== `${upstream}/${endpoint}` && !(endpoint === undefined && place.startsWith(`${upstream}/`))) continue;
      one.forced = state === "auto" ? null : state;
      this.move(Date.now(), place, state === "auto" ? "closed" : state, "operator");
    }
    this.audit.unshift({ at: this.now(), who: "operator", action: `breaker ${state}`, detail: `${upstream}/${endpoint ?? "*"}` });
    return this.breakers().filter((one) => one.upstream === upstream && (!endpoint || one.endpoint === endpoint));
  }

  setKey(upstream, id, state, until) {
    const key = this.keys.find((one) => one.upstream === upstream && one.id === id);
    Object.assign(key, { state, until: state === "cooling" ? until : null });
    if (state === "cooling") key.event = this.emit(Date.now(), "key-cooling", "warning", `${upstream} key ${id} is cooling`, "Rested by an operator.", { upstream });
    else this.emit(Date.now(), "key-restored", "info", `${upstream} key ${id} is back`, "Restored by an operator.", { upstream, resolves: key.event });
    this.audit.unshift({ at: this.now(), who: "operator", action: `key ${state}`, detail: `${upstream}/${id}` });
    const { event, ...shown } = key;
    return shown;
  }

  limits() {
    if (this.empty) return { limits: [], pools: [] };
    const beat = 0.5 + 0.3 * Math.sin(Date.now() / 9000);
    return {
      limits: [
        { name: "everyone", key: "caller", rate: "1000/s", burst: 200, algorithm: "token-bucket", mode: "enforce", keys: 37, rejected: 412, shadow_rejected: 0, top: [{ key: "importer", used_share: 0.94 }, { key: "acme", used_share: beat }, { key: "web", used_share: 0.22 }] },
        { name: "qps", key: "upstream", rate: "50/s", burst: 10, algorithm: "sliding-window", mode: "enforce", keys: 4, rejected: 18, shadow_rejected: 0, top: [{ key: "videos", used_share: 0.71 }, { key: "mail", used_share: 0.12 }] },
        { name: "per-tenant", key: "tenant", rate: "5000/h", burst: 100, algorithm: "leaky-bucket", mode: "shadow", keys: 12, rejected: 0, shadow_rejected: 77, top: [{ key: "acme", used_share: 0.99 }] },
      ],
      pools: [
        { name: "export", concurrent: 5, limit: 5, running: 5, queue: 20, waiting: 13, saturation: 0.93, rejected: 6 },
        { name: "web", concurrent: 64, limit: 41, running: Math.round(41 * beat), queue: 100, waiting: 0, saturation: beat, rejected: 0 },
        { name: "mail", concurrent: 10, limit: 10, running: 2, queue: 50, waiting: 0, saturation: 0.2, rejected: 0 },
      ],
    };
  }

  cancelJob(id) {
    const job = this.jobs.find((one) => one.id === id);
    if (!job || ["done", "dead", "cancelled"].includes(job.state)) return false;
    Object.assign(job, { state: "cancelled", finished_at: this.now() });
    return true;
  }

  issues() {
    const found = new Map();
    for (const letter of this.letters) {
      const key = [letter.queue, letter.endpoint, letter.class, letter.failure_code].join();
      const issue = found.get(key) ?? { upstream: letter.queue, endpoint: letter.endpoint, class: letter.class, code: letter.failure_code, severity: letter.severity, open: 0, total: 0, first_at: letter.dead_lettered_at, last_at: letter.dead_lettered_at, detail: letter.error_detail };
      issue.total += 1;
      if (letter.status === "kept") issue.open += 1;
      if (letter.dead_lettered_at < issue.first_at) issue.first_at = letter.dead_lettered_at;
      if (letter.dead_lettered_at > issue.last_at) issue.last_at = letter.dead_lettered_at;
      found.set(key, issue);
    }
    return [...found.values()].sort((a, b) => b.open - a.open);
  }

  replay(wanted, { rate = "10/s", force = false, name }) {
    const going = wanted.filter((letter) => letter.status === "kept" && (letter.replayable || force));
    const held_back = wanted.filter((letter) => !going.includes(letter)).map((letter) => ({ id: letter.id, reason: letter.replay_instructions || "it may have taken effect; replay it with force" }));
    for (const letter of going) letter.status = "replaying";
    const replay = { id: this.id(), name: name ?? null, state: "running", reason: null, rate, started: going.length, ok: 0, failed: 0, held_back: held_back.length, remaining: going.length, created_at: this.now(), updated_at: this.now(), going };
    if (going.length > 0) this.replays.unshift(replay);
    this.audit.unshift({ at: this.now(), who: "operator", action: "replay", detail: `${going.length} letters at ${rate}` });
    const { going: _, ...shown } = replay;
    return { replay: going.length ? shown : null, started: going.length, held_back };
  }

  advance() {
    for (const replay of this.replays.filter((one) => one.state === "running")) {
      const letter = replay.going.find((one) => one.status === "replaying");
      if (letter) {
        letter.status = "replayed";
        replay.ok += 1;
        replay.remaining -= 1;
      }
      if (replay.remaining === 0) replay.state = "done";
      replay.updated_at = this.now();
    }
  }

  steer(id, verb) {
    const replay = this.replays.find((one) => one.id === id);
    replay.state = { pause: "paused", resume: "running", cancel: "cancelled" }[verb];
    if (verb === "cancel") for (const letter of replay.going) if (letter.status === "replaying") letter.status = "kept";
    return replay;
  }

  schedules() {
    const at = (ms) => (ms === null ? null : iso(Date.now() + ms));
    if (this.empty) return [];
    return this.subjects.map((schedule) => ({ ...schedule, subjects: schedule.subjects.map((one) => ({ ...one, last_ok_at: at(one.last_ok_at), next_at: at(one.next_at) })) }));
  }

  subject(name, subject, put) {
    const schedule = this.subjects.find((one) => one.name === name);
    schedule.subjects = schedule.subjects.filter((one) => one.subject !== subject);
    if (put) schedule.subjects.push({ subject, state: "waiting", last_ok_at: null, last_error: null, consecutive_failures: 0, next_at: 1000 });
    return { subject };
  }

  name(fingerprint, as) {
    const error = this.errors.find((one) => one.fingerprint === fingerprint);
    error.named_as = as;
    this.audit.unshift({ at: this.now(), who: "operator", action: "error named", detail: `${error.upstream}/${error.endpoint} ${error.status} as ${as}` });
    return { fingerprint, as, toml: `[[upstreams.${error.upstream}.classify]]\nwhen = { status = [${error.status}], json = { "/code" = ["E_BUSY"] } }\nas = "${as}"\n` };
  }

  rollups(upstream) {
    if (this.empty) return [];
    const random = seeded(11);
    const quarter = 900_000;
    const last = Math.floor(Date.now() / quarter) * quarter;
    return Array.from({ length: 96 }, (_, n) => {
      const bad = n > 60 && n < 66 ? 1 : n > 88 ? 0.35 : 0;
      const calls = Math.round(9000 * (1 + 0.4 * Math.sin(n / 14)) + 500 * random());
      return { at: iso(last - (96 - n) * quarter), upstream, endpoint: "default", attempts: { success: calls, transient: Math.round(calls * 0.02) }, calls, success: calls - 20, transient_rate: 0.01 + 0.01 * random() + bad * 0.12, retries_per_success: 0.02 + 0.02 * random() + bad * 0.4, circuit_open_minutes: bad === 1 ? 2 + 5 * random() : bad ? random() : 0, p50_ms: 40, p95_ms: 130, p99_ms: 300, rejects: 12 };
    });
  }

  config() {
    return this.empty ? { ...CONFIG, toml: "[server]\n", checklist: [], warnings: [] } : { ...CONFIG, checklist: ENDPOINTS.map(checklist) };
  }
}
