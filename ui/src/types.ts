// The shapes of the admin API, as far as the dashboard reads them. A field that an older server lacks is optional.

export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

export interface Status {
  version: string;
  started_at: string;
  now: string;
  uptime_seconds: number;
  instance: string;
  phase: "serving" | "draining";
  store: { kind: string; healthy: boolean };
  shared: { kind: string; up: boolean };
  config: { file: string; loaded_at: string; last_reload_ok: boolean; warnings: number; needs_restart?: string[] };
  totals: { calls: number; success: number; attempts: number; retries: number; rejected: number };
  last_minute: {
    calls: number;
    success_share: number | null;
    retries_per_success: number | null;
    rate: number;
    p50_ms: number | null;
    p95_ms: number | null;
    p99_ms: number | null;
  };
  in_flight: number;
  jobs: Record<JobState, number> & { lag_seconds: number };
  dead_letters: { open: number; alarms?: { queue: string; severity: string }[] };
}

export interface Point {
  t: string | number;
  calls: number;
  success: number;
  failed: number;
  retries: number;
  rejected: number;
  in_flight?: number;
  p50_ms: number | null;
  p95_ms: number | null;
  p99_ms: number | null;
}

export interface Series {
  step_seconds: number;
  from: string;
  points: Point[];
}

export type BreakerState = "closed" | "half-open" | "open";

export interface Endpoint {
  name: string;
  match: string;
  breaker: { state: BreakerState; forced: "open" | "closed" | null; since?: string | null; retry_at: string | null; open_seconds: number; per?: string };
  paused_since?: string | null;
  paused_until: string | null;
  rate: number;
  success_share: number | null;
  failed?: number;
  refused?: Record<string, number>;
  retries_per_success: number | null;
  p95_ms: number | null;
  policy?: PolicyRow;
}

export interface Key {
  upstream: string;
  id: string;
  tail: string;
  group: string | null;
  state: "ready" | "cooling" | "rejected";
  since?: string | null;
  until: string | null;
  uses: number;
  failures: number;
}

export interface Upstream {
  name: string;
  url: string;
  in_flight: number;
  success_share: number | null;
  retries_per_success: number | null;
  rate: number;
  p50_ms: number | null;
  p95_ms: number | null;
  p99_ms: number | null;
  budget_tokens: number;
  classes: Record<string, number>;
  endpoints: Endpoint[];
  keys: Key[];
}

export interface BreakerChange {
  at: string;
  from: BreakerState;
  to: BreakerState;
  cause: string;
}

export interface Breaker {
  upstream: string;
  endpoint: string;
  state: BreakerState;
  forced: "open" | "closed" | null;
  retry_at: string | null;
  open_seconds_total: number;
  changes: BreakerChange[];
}

export interface Limit {
  name: string;
  of?: string | null;
  key: string;
  rate: string;
  burst: number;
  algorithm: string;
  mode: string;
  keys: number;
  rejected: number;
  shadow_rejected: number;
  top: { key: string; used_share: number }[];
}

export interface Pool {
  name: string;
  concurrent: number;
  limit: number;
  running: number;
  queue: number;
  waiting: number;
  saturation: number;
  rejected: number;
}

export interface Call {
  id: string;
  at: string;
  upstream: string;
  endpoint: string;
  caller: string;
  outcome: string;
  reason: string;
  attempts: number;
  elapsed_ms: number;
  method?: string | null;
  route?: string | null;
  path?: string | null;
  response_status?: number | null;
  timeline?: Attempt[];
}

export interface Attempt {
  attempt: number;
  at: string;
  status: string;
  class: string;
  decision: string;
  reason: string;
  wait_ms: number | null;
  latency_ms: number;
  elapsed_ms: number;
  key_id: string | null;
}

export type JobState = "queued" | "running" | "waiting" | "done" | "dead" | "cancelled";

export interface History {
  attempt: number;
  status: string;
  latency_ms: number;
  outcome: string;
  at: string;
}

export interface Job {
  id: string;
  upstream: string | null;
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | null;
  body_encoding: string | null;
  state: JobState;
  attempts: number;
  crashes: number;
  priority: number;
  tenant: string;
  caller: string;
  origin: { kind: string; schedule?: string; subject?: string; letter?: string; job?: string };
  next_attempt_at: string | null;
  created_at: string;
  finished_at: string | null;
  expires_at: string | null;
  run_at: string;
  response: { status: number; headers: Record<string, string>; body: string | null; body_encoding: string | null; truncated: boolean } | null;
  error: unknown;
  correlation_id: string | null;
  idempotency_key: string | null;
  callback: string | null;
  history: History[];
}

export interface Letter {
  id: string;
  queue: string;
  endpoint: string;
  door: string;
  original: {
    method: string;
    url: string;
    headers: Record<string, string>;
    body: string | null;
    body_encoding: string | null;
    body_cut?: boolean;
  };
  class: string;
  failure_reason: string;
  failure_code: string;
  error_detail: string;
  last_attempt_at: string | null;
  total_attempts: number;
  correlation_id: string | null;
  idempotency_key: string | null;
  caller: string;
  tenant: string;
  enqueued_at: string;
  dead_lettered_at: string;
  expires_at: string;
  severity: "review" | "pager";
  replayable: boolean;
  replay_instructions: string;
  status: "kept" | "replaying" | "replayed";
  replays: number;
  replayed_by: string | null;
  history: History[];
}

export interface Issue {
  upstream: string;
  endpoint: string;
  class: string;
  code: string;
  severity: "review" | "pager";
  open: number;
  total: number;
  first_at: string;
  last_at: string;
  detail: string;
}

export interface Replay {
  id: string;
  name: string | null;
  state: "running" | "paused" | "done" | "cancelled";
  reason: string | null;
  rate: string;
  started: number;
  ok: number;
  failed: number;
  held_back: number;
  remaining: number;
  created_at: string;
  updated_at: string;
}

export interface ReplayAnswer {
  replay: Replay | null;
  started: number;
  held_back: { id: string; reason: string }[];
}

export interface Subject {
  subject: string;
  state: "waiting" | "running" | "failing" | "stopped";
  last_ok_at: string | null;
  last_error: string | null;
  consecutive_failures: number;
  next_at: string | null;
}

export interface Schedule {
  name: string;
  upstream: string;
  every: string;
  request: unknown;
  subjects: Subject[];
}

export interface UnnamedError {
  fingerprint: string;
  upstream: string;
  endpoint: string;
  status: string;
  count: number;
  first_at: string;
  last_at: string;
  sample: string;
  named_as: string | null;
  toml?: string | null;
}

export interface Rollup {
  at: string;
  upstream: string;
  endpoint: string;
  attempts: Record<string, number>;
  calls: number;
  success: number;
  transient_rate: number;
  retries_per_success: number;
  circuit_open_minutes: number;
  p50_ms: number | null;
  p95_ms: number | null;
  p99_ms: number | null;
  rejects: number;
}

export interface PolicyRow {
  upstream: string;
  endpoint: string;
  match: string;
  profile?: string | null;
  preset?: string | null;
  checklist: Record<string, { answer: string; gap: boolean }>;
  worst_case?: { elapsed_ms: number; unbounded_ms: number; attempts: number; attempts_that_fit: number };
  amplification?: { attempts: number; budgeted: number; layers: number; calls_per_second: number };
  gives_up?: Record<string, number>;
}

export interface Warning {
  code: string;
  severity?: string;
  title?: string;
  message: string;
  help?: string;
  path?: string;
  subject?: string;
  line?: number | null;
}

export interface Config {
  file: string;
  toml: string;
  checklist: PolicyRow[];
  warnings: Warning[];
}

export interface Happening {
  id: number | string;
  at: string;
  name: string;
  severity: "info" | "warning" | "fatal";
  title: string;
  detail: string;
  upstream?: string;
  endpoint?: string;
  resolves?: number | string;
}

export interface Audit {
  at: string;
  who: string;
  action: string;
  detail: string;
}
