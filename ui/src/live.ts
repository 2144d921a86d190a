// What happens as it happens: the event stream, read through fetch so that the admin token can be sent along, and the
// series of figures that its ticks extend.

import { effect, signal } from "@preact/signals";
import { get, headers, locked, refused } from "./api";
import { seconds } from "./format";
import { announce } from "./toasts";
import type { Happening, Page, Point, Series } from "./types";

/** A silent stream is a dead one: ticks come once a second. */
const SILENCE_MS = 15_000;
const STIR_MS = 300;
const LONGEST_WAIT_MS = 10_000;
const MOST_EVENTS = 200;
const MOST_POINTS = 3600;

export type Link = { state: "connecting" } | { state: "live" } | { state: "lost"; retryAt: number };

export const connection = signal<Link>({ state: "connecting" });
export const events = signal<Happening[]>([]);
export const points = signal<Point[]>([]);
export const step = signal(1);
export const inFlight = signal<number | null>(null);
/** Grows with everything that happens but ticks; lists that show what happened ask again when it does. */
export const changes = signal(0);

let lastId = "";
let stirring = false;

/** A burst of events makes lists ask again once, not once each: nobody's dashboard may become a load. */
function stir(): void {
  if (stirring) return;
  stirring = true;
  setTimeout(() => {
    stirring = false;
    changes.value += 1;
  }, STIR_MS);
}

function take(name: string, data: string): void {
  const parsed: unknown = JSON.parse(data);
  if (name === "tick") {
    extend(parsed as Point);
    return;
  }
  const event = { ...(parsed as Happening), name: (parsed as Happening).name ?? name };
  if (events.value.some((known) => known.id === event.id)) return;
  events.value = [event, ...events.value].slice(0, MOST_EVENTS);
  stir();
  announce(event);
}

/** Adds a tick to the slot of the series it falls into. */
function extend(tick: Point): void {
  const slot = Math.floor(seconds(tick.t) / step.value) * step.value;
  if (tick.in_flight !== undefined) inFlight.value = tick.in_flight;
  const before = points.value;
  const last = before[before.length - 1];
  if (last && seconds(last.t) > slot) return;
  if (last && seconds(last.t) === slot) {
    points.value = [...before.slice(0, -1), merge(last, tick)];
    return;
  }
  points.value = [...before, { ...tick, t: slot }].slice(-MOST_POINTS);
}

/** Two points as one: counts add up; of quantiles the worse is kept, since they cannot be added. */
export function merge(a: Point, b: Point): Point {
  const worse = (x: number | null, y: number | null) => (x === null ? y : y === null ? x : Math.max(x, y));
  return {
    t: a.t,
    calls: a.calls + b.calls,
    success: a.success + b.success,
    failed: a.failed + b.failed,
    retries: a.retries + b.retries,
    rejected: a.rejected + b.rejected,
    p50_ms: worse(a.p50_ms, b.p50_ms),
    p95_ms: worse(a.p95_ms, b.p95_ms),
    p99_ms: worse(a.p99_ms, b.p99_ms),
  };
}

/** Reads `event:`, `id:` and `data:` lines until the stream ends. */
async function read(body: ReadableStream<Uint8Array>, heard: () => void): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let [name, data] = ["message", ""];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r?\n/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (data) take(name, data);
        [name, data] = ["message", ""];
      } else if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("id:")) lastId = line.slice(3).trim();
      else if (line.startsWith("data:")) data += line.slice(5).trim();
    }
  }
}

async function listen(): Promise<boolean> {
  const abort = new AbortController();
  let silence = setTimeout(() => abort.abort(), SILENCE_MS);
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => abort.abort(), SILENCE_MS);
    if (connection.value.state !== "live") connection.value = { state: "live" };
  };
  let was = false;
  try {
    const more: Record<string, string> = { accept: "text/event-stream" };
    if (lastId) more["last-event-id"] = lastId;
    const response = await fetch("v1/events", { headers: headers(more), signal: abort.signal, cache: "no-store" });
    if (refused(response) || !response.ok || !response.body) return false;
    was = true;
    heard();
    await read(response.body, heard);
  } catch {
    // The connection ended; the loop below opens the next.
  } finally {
    clearTimeout(silence);
  }
  return was;
}

async function history(): Promise<void> {
  const [series, recent] = await Promise.all([
    get<Series>("/v1/status/series?minutes=60"),
    get<Page<Happening>>("/v1/events/recent"),
  ]);
  step.value = Math.max(1, series.step_seconds);
  points.value = series.points.slice(-MOST_POINTS);
  const sorted = [...recent.items].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
  events.value = sorted.slice(0, MOST_EVENTS);
}

/** Connects, and connects again, for as long as the page is open. */
export async function follow(): Promise<never> {
  let wait = 500;
  for (;;) {
    if (locked.value !== "no") await unlocked();
    // What was missed while we were away is asked for, so that no gap looks like calm.
    await history().catch(() => undefined);
    if (await listen()) wait = 500;
    if (locked.value !== "no") continue;
    const pause = wait * (0.5 + Math.random() / 2);
    connection.value = { state: "lost", retryAt: Date.now() + pause };
    await new Promise((done) => setTimeout(done, pause));
    connection.value = { state: "connecting" };
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

function unlocked(): Promise<void> {
  return new Promise((done) => {
    const stop = effect(() => {
      if (locked.value === "no") {
        queueMicrotask(() => {
          stop();
          done();
        });
      }
    });
  });
}
