// The frame around every screen: where one can go, whether we are live, and the theme.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { clock, count, plural } from "../format";
import { Icon, Mark } from "../icons";
import { bell, finder, help } from "../keys";
import { connection } from "../live";
import { useResource } from "../resource";
import { link, screen } from "../route";
import { SCREENS } from "../screens";
import { choice, rotate } from "../theme";
import { unseen } from "../toasts";
import type { Page, Status, UnnamedError } from "../types";

const open = signal(false);

export function Frame({ children }: { children: ComponentChildren }): JSX.Element {
  const status = useResource<Status>("/v1/status", { every: 5 }).data;
  const errors = useResource<Page<UnnamedError>>("/v1/errors", { every: 15 }).data;
  const counts: Record<string, number | undefined> = {
    "dead-letters": status?.dead_letters?.open,
    errors: errors?.items.filter((error) => !error.named_as).length,
    policy: status?.config?.warnings,
  };
  const main = useRef<HTMLElement>(null);
  const here = SCREENS.find((known) => known.name === screen.value) ?? SCREENS[0];
  useEffect(() => {
    document.title = `${here?.title} · Seawall`;
    open.value = false;
    main.current?.scrollTo(0, 0);
  }, [here]);
  return (
    <div class={`frame ${open.value ? "menu-open" : ""}`}>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>
        Skip to content
      </a>
      <aside class="side" onClick={() => (open.value = false)}>
        <a class="brand" href={link("overview")}>
          <Mark />
          <span>Seawall</span>
        </a>
        <nav aria-label="Screens">
          {SCREENS.map(({ name, title, letter }) => (
            <a key={name} href={link(name)} aria-current={screen.value === name ? "page" : undefined} title={`g ${letter}`}>
              <Icon name={name} />
              <span>{title}</span>
              {counts[name] ? <b class="pill">{count(counts[name])}</b> : null}
            </a>
          ))}
        </nav>
        <div class="side-foot">
          {status && (
            <span>
              {status.version} · {status.store?.kind} · {status.shared?.kind}
            </span>
          )}
        </div>
      </aside>
      <header class="top">
        <button type="button" class="ghost square menu" aria-label="Menu" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>
          <Icon name="menu" />
        </button>
        <h1>{here?.title}</h1>
        {status?.phase === "draining" && <span class="badge warn">draining</span>}
        {status && !status.store?.healthy && <span class="badge bad">store unavailable</span>}
        {status && !status.shared?.up && <span class="badge bad">shared state lost</span>}
        {(status?.config?.needs_restart?.length ?? 0) > 0 && <a class="badge warn" href={link("policy")}>restart needed</a>}
        <div class="top-right">
          <LinkState />
          <button type="button" class="ghost square bell" data-bell aria-label={unseen.value ? `News: ${plural(unseen.value, "event")}` : "News"} title="News" onClick={() => (bell.value = true)}>
            <Icon name="bell" />
            {unseen.value > 0 && <b class="pill">{count(Math.min(unseen.value, 99))}</b>}
          </button>
          <button type="button" class="ghost square" aria-label="Find" title="Find (f)" onClick={() => (finder.value = true)}>
            <Icon name="search" />
          </button>
          <button type="button" class="ghost square keys" aria-label="Keyboard shortcuts" title="Keyboard (?)" onClick={() => (help.value = true)}>
            <Icon name="keyboard" />
          </button>
          <button type="button" class="ghost square" data-theme-switch aria-label={`Theme: ${choice.value}`} title={`Theme: ${choice.value} (t)`} onClick={rotate}>
            <Icon name={choice.value === "dark" ? "moon" : choice.value === "light" ? "sun" : "auto"} />
          </button>
        </div>
      </header>
      <main id="content" ref={main} tabIndex={-1}>
        {children}
      </main>
    </div>
  );
}

function LinkState(): JSX.Element {
  const now = connection.value;
  if (now.state === "live") {
    return (
      <span class="link live" role="status">
        <i />
        Live
      </span>
    );
  }
  const wait = now.state === "lost" ? Math.max(0, Math.ceil((now.retryAt - clock.value) / 1000)) : 0;
  return (
    <span class={`link ${now.state}`} role="status">
      <i />
      {now.state === "lost" && wait > 0 ? `Lost, again in ${wait} s` : "Connecting"}
    </span>
  );
}
