// Where we are: `#/screen/part/part?name=value`. The hash keeps deep links independent of the path we are served under.

import { computed, signal } from "@preact/signals";

export interface Place {
  screen: string;
  parts: string[];
  filter: Record<string, string>;
}

function read(): Place {
  const [path = "", search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [screen = "", ...parts] = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { screen: screen || "overview", parts, filter: Object.fromEntries(new URLSearchParams(search)) };
}

export const place = signal<Place>(read());
export const screen = computed(() => place.value.screen);

addEventListener("hashchange", () => {
  place.value = read();
});

export function link(screen: string, parts: string[] = [], filter: Record<string, string | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(filter)) if (value) search.set(name, value);
  const text = search.toString();
  return `#/${[screen, ...parts].map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(screen: string, parts: string[] = [], filter: Record<string, string | undefined> = {}): void {
  location.hash = link(screen, parts, filter);
}

/** Changes the filter and stays where we are, without a step in the history for each letter typed. */
export function refine(change: Record<string, string | undefined>): void {
  const { screen, parts, filter } = place.value;
  history.replaceState(null, "", link(screen, parts, { ...filter, ...change }));
  place.value = read();
}
