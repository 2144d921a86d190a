// The keyboard. Nothing here fires while somebody types, or beside Ctrl, Alt and Meta.

import { signal } from "@preact/signals";
import { go, place } from "./route";
import { SCREENS } from "./screens";
import { rotate } from "./theme";

export const help = signal(false);
export const finder = signal(false);
export const bell = signal(false);

/** A chord must be finished within this time. */
const CHORD_MS = 1500;
let chordUntil = 0;

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape") return escape(event);
  if (typing(event.target) || document.querySelector("dialog[open]:not(.drawer)")) return;
  if (act(event.key)) event.preventDefault();
});

function escape(event: KeyboardEvent): void {
  if (typing(event.target)) (event.target as HTMLElement).blur();
  else if (!document.querySelector("dialog[open]") && place.value.parts.length > 0) go(place.value.screen, [], place.value.filter);
}

function act(key: string): boolean {
  const chord = Date.now() < chordUntil;
  chordUntil = 0;
  const screen = chord && SCREENS.find((known) => known.letter === key);
  if (screen) {
    go(screen.name);
    return true;
  }
  switch (key) {
    case "g":
      chordUntil = Date.now() + CHORD_MS;
      return true;
    case "/": {
      const field = document.querySelector<HTMLInputElement>("[data-search]");
      if (field) field.focus();
      else finder.value = true;
      return true;
    }
    case "f":
      finder.value = true;
      return true;
    case "?":
      help.value = true;
      return true;
    case "t":
      rotate();
      return true;
    case "j":
    case "k":
    case "x":
      dispatchEvent(new CustomEvent("seawall-rows", { detail: key }));
      return true;
    default:
      return false;
  }
}
