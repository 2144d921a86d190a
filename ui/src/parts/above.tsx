// What lies above every screen: toasts, the finder, the list of keys, the question for the admin token.

import { useSignal, useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { locked, unlock } from "../api";
import { ago, moment } from "../format";
import { Icon } from "../icons";
import { bell, finder, help } from "../keys";
import { events } from "../live";
import { useResource } from "../resource";
import { go, link } from "../route";
import { SCREENS } from "../screens";
import { coalesced, dismiss, toasts, tone, unseen } from "../toasts";
import type { Page, Upstream } from "../types";
import { Badge } from "./basics";
import { Dialog } from "./dialog";

const SIGNS = { good: "heal", info: "bolt", warn: "alert", bad: "alert" };

export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="log" aria-live="polite" aria-label="Notifications">
      {toasts.value.map((toast) => (
        <div key={toast.key} class={`toast ${toast.tone}`} data-stays={toast.stays}>
          <Icon name={SIGNS[toast.tone]} />
          <div>
            <strong>{toast.title}</strong>
            {toast.detail && <p>{toast.detail}</p>}
            {toast.event?.upstream && <a href={link("upstreams", [toast.event.upstream])}>{toast.event.upstream}</a>}
          </div>
          <button type="button" class="ghost square small" aria-label={`Dismiss: ${toast.title}`} onClick={() => dismiss(toast.key)}>
            <Icon name="close" size={16} />
          </button>
        </div>
      ))}
    </div>
  );
}

/** What happened, each title once, newest first. Opening it marks all of it as seen. */
export function News(): JSX.Element | null {
  useSignalEffect(() => {
    if (bell.value) unseen.value = 0;
  });
  if (!bell.value) return null;
  const shown = coalesced(events.value);
  return (
    <Dialog drawer title="News" onClose={() => (bell.value = false)}>
      {shown.length === 0 && <p class="quiet">Nothing has happened yet.</p>}
      <ol class="feed" aria-label="News">
        {shown.map(([event, times]) => (
          <li key={event.title} class={tone(event)}>
            <i />
            <time dateTime={event.at} title={moment(event.at)}>{ago(event.at)}</time>
            <div>
              <strong>{event.title}</strong> {times > 1 && <Badge word={`× ${times}`} as="mute" />}
              <p>{event.detail}</p>
              {event.upstream && <a href={link("upstreams", [event.upstream])} onClick={() => (bell.value = false)}>{event.upstream}</a>}
            </div>
          </li>
        ))}
      </ol>
    </Dialog>
  );
}

const KEYS: [string, string][] = [
  ["/", "filter this list, or find anything"],
  ["f", "find a screen, an upstream or a call"],
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "choose the row"],
  ["Esc", "close, leave a field, go back up"],
  ["t", "theme: system, dark, light"],
  ["?", "this list"],
];

export function Help(): JSX.Element | null {
  if (!help.value) return null;
  const row = (keys: string, text: string) => (
    <div key={keys}>
      <dt>
        {keys.split(" ").map((key) => (
          <kbd key={key}>{key}</kbd>
        ))}
      </dt>
      <dd>{text}</dd>
    </div>
  );
  return (
    <Dialog title="Keyboard" onClose={() => (help.value = false)} wide>
      <div class="columns">
        <dl class="keylist">{SCREENS.map(({ letter, title }) => row(`g ${letter}`, title))}</dl>
        <dl class="keylist">{KEYS.map(([keys, text]) => row(keys, text))}</dl>
      </div>
    </Dialog>
  );
}

export function Finder(): JSX.Element | null {
  return finder.value ? <Find /> : null;
}

function Find(): JSX.Element {
  const text = useSignal("");
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 0, live: false }).data?.items ?? [];
  const close = () => {
    finder.value = false;
  };
  const wanted = text.value.trim().toLowerCase();
  const targets: { label: string; kind: string; go: () => void }[] = [
    ...SCREENS.map((screen) => ({ label: screen.title, kind: "screen", go: () => go(screen.name) })),
    ...upstreams.map((upstream) => ({ label: upstream.name, kind: "upstream", go: () => go("upstreams", [upstream.name]) })),
    ...upstreams.flatMap((upstream) =>
      upstream.endpoints.map((endpoint) => ({ label: `${upstream.name}/${endpoint.name}`, kind: "endpoint", go: () => go("upstreams", [upstream.name]) })),
    ),
  ].filter((target) => target.label.toLowerCase().includes(wanted));
  if (wanted.length > 7) targets.push({ label: text.value.trim(), kind: "call", go: () => go("calls", [text.value.trim()]) });
  const shown = targets.slice(0, 12);
  return (
    <Dialog title="Find" onClose={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          close();
          shown[0]?.go();
        }}
      >
        <input class="big" autofocus placeholder="Screen, upstream, endpoint or call id" aria-label="Find" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      </form>
      <ul class="found">
        {shown.map((target) => (
          <li key={`${target.kind}${target.label}`}>
            <button
              type="button"
              class="ghost"
              onClick={() => {
                close();
                target.go();
              }}
            >
              <span>{target.label}</span>
              <small>{target.kind}</small>
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

export function Unlock(): JSX.Element | null {
  const value = useSignal("");
  if (locked.value === "no") return null;
  return (
    <Dialog title="This Seawall wants its admin token" onClose={() => undefined}>
      <form
        class="prose"
        onSubmit={(event) => {
          event.preventDefault();
          if (value.value) unlock(value.value);
          value.value = "";
        }}
      >
        <p>
          It is the value that <code>[server] admin_token</code> in the policy file refers to. It is kept until this tab closes and goes nowhere else.
        </p>
        {locked.value === "wrong" && <p class="wrong" role="alert">That token was refused.</p>}
        <input class="big" type="password" autocomplete="off" autofocus aria-label="Admin token" value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} />
        <div class="form-end">
          <button type="submit" class="primary">
            Unlock
          </button>
        </div>
      </form>
    </Dialog>
  );
}
