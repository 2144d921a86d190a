// What an operator is told without looking for it: fatal events as toasts that stay, everything else behind the bell.

import { signal } from "@preact/signals";
import type { Happening } from "./types";

export type Tone = "good" | "info" | "warn" | "bad";

export interface Toast {
  key: string;
  tone: Tone;
  title: string;
  detail: string;
  stays: boolean;
  event?: Happening;
}

const MOST = 5;
const SHOWN_MS = 7000;

export const toasts = signal<Toast[]>([]);

/** Events that say that something is well again. */
const HEALED = new Set(["breaker-closed", "key-restored"]);

export const heals = (event: Happening) => HEALED.has(event.name) || event.resolves !== undefined;

export function tone(event: Happening): Tone {
  if (heals(event)) return "good";
  return event.severity === "fatal" ? "bad" : event.severity === "warning" ? "warn" : "info";
}

/** Single dead letters and probes are news for the feed only. */
const QUIET = new Set(["dead-letter", "breaker-half-open"]);

/** Events that have come since the bell was last opened. */
export const unseen = signal(0);

export function announce(event: Happening): void {
  if (event.resolves !== undefined) dismiss(`event-${event.resolves}`);
  if (QUIET.has(event.name)) return;
  if (event.severity === "fatal" && !heals(event)) push({ key: `event-${event.id}`, tone: tone(event), title: event.title, detail: event.detail, stays: true, event });
  else unseen.value += 1;
}

/** Events with one title as one entry: the latest of them, and how many there were. Keeps the order. */
export function coalesced(events: Happening[]): [Happening, number][] {
  const groups = new Map<string, [Happening, number]>();
  for (const event of events) {
    const known = groups.get(event.title);
    if (known) known[1] += 1;
    else groups.set(event.title, [event, 1]);
  }
  return [...groups.values()];
}

let said = 0;

/** What came of something the operator did. */
export function say(tone: Tone, title: string, detail = ""): void {
  said += 1;
  push({ key: `said-${said}`, tone, title, detail, stays: tone === "bad" });
}

function push(toast: Toast): void {
  const others = toasts.value.filter((known) => known.key !== toast.key);
  // Where there is no room, the oldest one that would have left by itself makes place.
  const crowded = others.length >= MOST ? others.findIndex((known) => !known.stays) : -1;
  toasts.value = [...others.filter((_, index) => index !== crowded), toast].slice(-MOST);
  if (!toast.stays) setTimeout(() => dismiss(toast.key), SHOWN_MS);
}

export function dismiss(key: string): void {
  toasts.value = toasts.value.filter((toast) => toast.key !== key);
}
