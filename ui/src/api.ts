// The one door to the admin API: every request, the admin token, and failures as one type.

import { signal } from "@preact/signals";

const TOKEN = "seawall.token";

/** Set while the server wants a token that we do not have. */
export const locked = signal<"no" | "missing" | "wrong">("no");

/** A refusal of the API, in its own words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly body: Record<string, unknown>,
  ) {
    super(detail || code);
  }
}

/** The token lives as long as the tab: it is a key to production, not a preference. */
export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function unlock(value: string): void {
  sessionStorage.setItem(TOKEN, value);
  locked.value = "no";
}

export function headers(more: Record<string, string> = {}): Record<string, string> {
  return token() ? { ...more, authorization: `Bearer ${token()}` } : more;
}

/** Notes that a token is needed; true where that is what the answer says. */
export function refused(response: Response): boolean {
  if (response.status !== 401) return false;
  locked.value = token() ? "wrong" : "missing";
  return true;
}

/** Paths are relative, so that the dashboard also works below a prefix of a reverse proxy. */
export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = { method, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) init.body = JSON.stringify(body);
  if (signal) init.signal = signal;
  let response: Response;
  try {
    response = await fetch(path.replace(/^\//, ""), init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "Seawall does not answer. Is it still running?", {});
  }
  const text = await response.text();
  let document: unknown = {};
  try {
    document = text ? JSON.parse(text) : {};
  } catch {
    document = { detail: text.slice(0, 300) };
  }
  if (!response.ok) {
    refused(response);
    const problem = document as Record<string, unknown>;
    throw new Problem(response.status, String(problem.code ?? response.status), String(problem.detail ?? response.statusText), problem);
  }
  return document as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => call<T>("GET", path, undefined, signal);

/** A path with those parameters that have a value. */
export function query(path: string, parameters: Record<string, string | number | null | undefined>): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

/** Path segments, escaped. */
export const path = (...parts: string[]) => parts.map((part, index) => (index === 0 ? part : encodeURIComponent(part))).join("/");

/** Everything that a list holds, page by page, up to a bound; `more` says that the bound was met. */
export async function all<T>(path: string, parameters: Record<string, string>, most: number): Promise<{ items: T[]; more: boolean }> {
  const items: T[] = [];
  let cursor: string | null | undefined = "";
  do {
    const page: { items: T[]; next_cursor?: string | null } = await get(query(path, { ...parameters, cursor, limit: 500 }));
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return { items: items.slice(0, most), more: Boolean(cursor) || items.length > most };
}
