// Numbers and times as people read them. No number is wider than its column: units carry the magnitude.

import { signal } from "@preact/signals";

const DASH = "–";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Ticks once a second, so that ages and countdowns move without asking the server. */
export const clock = signal(Date.now());
setInterval(() => {
  clock.value = Date.now();
}, 1000);

type Number_ = number | null | undefined;

export function count(value: Number_): string {
  if (value === null || value === undefined) return DASH;
  if (value >= 10_000_000) return `${(value / 1_000_000).toFixed(1)}M`;
  if (value >= 100_000) return `${(value / 1000).toFixed(0)}k`;
  return grouped.format(value);
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A share never rounds up to 100 % while something failed. */
export function share(value: Number_, digits = 1): string {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  const percent = value * 100;
  if (value < 1 && percent > 99.9) return `${(Math.floor(percent * 100) / 100).toFixed(2)} %`;
  return `${percent === 100 || percent === 0 ? percent.toFixed(0) : percent.toFixed(digits)} %`;
}

export function ratio(value: Number_): string {
  if (value === null || value === undefined) return DASH;
  return value >= 10 ? value.toFixed(0) : value.toFixed(2);
}

export function rate(value: Number_): string {
  if (value === null || value === undefined) return DASH;
  return value >= 1000 ? `${(value / 1000).toFixed(1)}k` : value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function ms(value: Number_): string {
  if (value === null || value === undefined) return DASH;
  if (value >= 60_000) return span(value / 1000);
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 10 || value === 0 ? `${value.toFixed(0)} ms` : `${value.toFixed(1)} ms`;
}

/** Seconds in at most two units. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

const two = (value: number) => String(value).padStart(2, "0");

export function time(text: string | null | undefined): string {
  if (!text) return DASH;
  const at = new Date(text);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function moment(text: string | null | undefined): string {
  if (!text) return DASH;
  const at = new Date(text);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time(text)}`;
}

export function ago(text: string | null | undefined, now = clock.value): string {
  if (!text) return DASH;
  const seconds = (now - Date.parse(text)) / 1000;
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

export function ahead(text: string | null | undefined, now = clock.value): string {
  if (!text) return DASH;
  const seconds = (Date.parse(text) - now) / 1000;
  return seconds <= 0 ? "any moment" : `in ${span(seconds)}`;
}

/** Seconds since the epoch, whichever way a point tells its time. */
export function seconds(t: string | number): number {
  if (typeof t === "string") return Date.parse(t) / 1000;
  return t > 1e11 ? t / 1000 : t;
}

export const short = (id: string) => (id.length > 12 ? `…${id.slice(-8)}` : id);

/** Text of a body, indented where it is JSON. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
