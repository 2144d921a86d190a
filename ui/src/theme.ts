// Dark or light: the system's choice until the operator makes one, which is remembered.

import { computed, effect, signal } from "@preact/signals";

export type Choice = "system" | "dark" | "light";

const KEY = "seawall.theme";
const CHOICES: Choice[] = ["system", "dark", "light"];

const media = matchMedia("(prefers-color-scheme: dark)");
const dark = signal(media.matches);
media.addEventListener("change", (event) => {
  dark.value = event.matches;
});

const kept = localStorage.getItem(KEY) as Choice | null;
export const choice = signal<Choice>(kept && CHOICES.includes(kept) ? kept : "system");
export const shade = computed<"dark" | "light">(() => (choice.value === "system" ? (dark.value ? "dark" : "light") : choice.value));

export function choose(next: Choice): void {
  choice.value = next;
  if (next === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
}

export const rotate = () => choose(CHOICES[(CHOICES.indexOf(choice.value) + 1) % CHOICES.length] ?? "system");

effect(() => {
  document.documentElement.dataset.theme = shade.value;
});
