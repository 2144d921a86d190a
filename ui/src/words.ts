// The glossary for operators: what each reason, code, class and state means, in one sentence.

export const REASONS: Record<string, string> = {
  succeeded: "The upstream answered well.",
  transient_failure: "A failure that tends to pass, so it was tried again after a wait.",
  ambiguous_failure: "It may or may not have been executed; tried again only as often as the policy allows.",
  server_hint: "The server said how long to wait, and that long was waited.",
  quota_rotation: "This key is out of quota; the next one took over in the same call.",
  quota_exhausted: "Every key is out of quota until its reset.",
  token_expired: "The token had expired; a new one was fetched.",
  key_rejected: "The provider refused this key; another one took over.",
  permanent_failure: "Trying again would not help, so the answer was passed on.",
  attempts_exhausted: "All attempts the policy allows were used.",
  ambiguous_exhausted: "All attempts the policy allows for ambiguous failures were used.",
  budget_exhausted: "Too many retries at once: the retry budget kept this from becoming the outage.",
  deadline_exceeded: "No further attempt would have fitted into the deadline.",
  hint_too_long: "The server asked for a longer wait than the deadline allows, so the call ended at once.",
  not_idempotent: "The method may have side effects and there was no idempotency key, so it was not sent twice.",
  body_not_replayable: "The body was too large to keep, so it could not be sent again.",
  auth_failed: "The provider refused the credentials.",
  circuit_open: "The breaker is open: the upstream is being left alone until the next probe.",
  provider_pause: "The provider asked everybody to stay away for a while.",
  keys_cooling: "Every key is cooling down.",
  keys_dead: "Every key was rejected by the provider.",
  rate_limited: "A rate limit refused the call before anything was sent.",
  exceeds_capacity: "One call costs more than the limit ever holds.",
  pool_full: "The pool and its line were full.",
  queue_timeout: "The call stood in line for longer than the pool allows.",
  shed: "Load was shed, least important calls first.",
  draining: "The program was about to end while the call waited.",
  turned_away: "Refused before it became a call.",
  idempotency_replayed: "The kept answer of an earlier call with the same idempotency key.",
  idempotency_refused: "The idempotency key is missing, in use, or belongs to another request.",
  queued: "Became a durable job.",
  paced: "Held back to keep to the rate.",
  cancelled: "The caller went away.",
  cached: "Answered from the cache.",
  stream_cut: "The response broke off after the caller had its first byte; the connection was aborted.",
};

/** Why Seawall refuses calls of an endpoint, by code. */
export const REFUSALS: Record<string, string> = {
  rate_limited: "a limit of ours refuses calls",
  overloaded: "its pool and line are full",
  keys_exhausted: "no key was ready in time",
  keys_rejected: "every key was rejected",
  circuit_open: "its breaker refused calls",
  paused: "its provider asked for a pause",
};

/** Why a breaker changed. */
export const CAUSES: Record<string, string> = {
  "failure-rate": "too many calls failed",
  "slow-rate": "too many calls were slow",
  consecutive: "too many failures in a row",
  "open-elapsed": "its rest is over",
  "probe-failed": "the probe failed",
  "probes-succeeded": "its probes succeeded",
  forced: "by an operator",
  shared: "as another instance saw it",
};

export const DECISIONS: Record<string, string> = {
  return: "returned",
  retry: "retried",
  rotate_key: "next key",
  refresh_token: "new token",
  defer: "deferred",
  reject: "refused",
};

export const CLASSES: [name: string, meaning: string][] = [
  ["transient", "Passes by itself. Retry with backoff; counts against the breaker."],
  ["permanent", "Will not pass. Give the answer to the caller; never retry."],
  ["ambiguous", "May have been executed. Retry once or twice where it is safe."],
  ["quota", "This key is used up. Cool it and take the next one."],
  ["auth", "The credentials are refused. Refresh the token or retire the key."],
  ["success", "Not a failure at all."],
];

export type Hue = "good" | "warn" | "bad" | "info" | "mute";

export const HUES: Record<string, Hue> = {
  success: "good",
  stale: "warn",
  fallback: "warn",
  enqueued: "info",
  transient: "warn",
  ambiguous: "warn",
  permanent: "bad",
  quota: "warn",
  auth: "bad",
  closed: "good",
  "half-open": "warn",
  open: "bad",
  ready: "good",
  cooling: "warn",
  rejected: "bad",
  queued: "info",
  running: "info",
  waiting: "mute",
  done: "good",
  dead: "bad",
  cancelled: "mute",
  stream_cut: "bad",
  paused: "warn",
  failing: "warn",
  stopped: "bad",
  review: "mute",
  pager: "bad",
  kept: "mute",
  replaying: "info",
  replayed: "good",
  enforce: "info",
  shadow: "mute",
  off: "mute",
  return: "mute",
  retry: "warn",
  rotate_key: "info",
  refresh_token: "info",
  defer: "info",
  reject: "bad",
};

export const hue = (word: string): Hue => HUES[word] ?? "bad";
