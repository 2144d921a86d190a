// A part of the API that a screen shows: asked for at once, again every so often, and again when something happens.

import { useEffect, useState } from "preact/hooks";
import { get, locked } from "./api";
import { changes } from "./live";

export interface Resource<T> {
  data: T | undefined;
  error: Error | undefined;
  again: () => void;
}

interface Options {
  /** Seconds between two looks; 0 for once. */
  every?: number;
  /** Ask again when an event arrives. */
  live?: boolean;
  /** Keep what is shown as it is; what has not been shown yet is asked for once. */
  still?: boolean;
}

export function useResource<T>(path: string | null, { every = 5, live = true, still = false }: Options = {}): Resource<T> {
  const [state, set] = useState<{ path: string | null; data?: T; error?: Error }>({ path });
  const [turn, next] = useState(0);
  const change = live ? changes.value : 0;
  const lock = locked.value;
  const stays = still && state.path === path && state.data !== undefined && !state.error;
  useEffect(() => {
    if (path === null || lock !== "no" || stays) return undefined;
    const abort = new AbortController();
    const look = () => {
      get<T>(path, abort.signal).then(
        (data) => set({ path, data }),
        (error: Error) => {
          // What was seen before stays on the screen beside the error.
          if (!abort.signal.aborted) set((before) => ({ ...(before.path === path ? before : { path }), error }));
        },
      );
    };
    look();
    const timer = every > 0 && !still ? setInterval(() => document.visibilityState === "visible" && look(), every * 1000) : undefined;
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, [path, every, still, turn, change, lock]);
  const shown = state.path === path ? state : undefined;
  return { data: shown?.data, error: shown?.error, again: () => next((turn) => turn + 1) };
}
