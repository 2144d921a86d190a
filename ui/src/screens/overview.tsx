// Overview: what is wrong now, what healed, and how much passes through.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { ago, ahead, count, ms, plural, rate, ratio, seconds, share, time } from "../format";
import { Icon } from "../icons";
import { events, inFlight, merge, points, step } from "../live";
import { Badge, Empty, Failure, Loading, Panel, Place, Tile } from "../parts/basics";
import { Chart, type Line } from "../parts/chart";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { link } from "../route";
import { heals, tone } from "../toasts";
import type { Endpoint, Happening, Page, Point, Status, Upstream } from "../types";

interface Trouble {
  hue: "bad" | "warn";
  what: string;
  why: string;
  href: string;
}

export function Overview(): JSX.Element {
  const status = useResource<Status>("/v1/status", { every: 2 });
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 2 });
  if (status.error && !status.data) return <Failure error={status.error} again={status.again} />;
  if (!status.data || !upstreams.data) return <Loading rows={6} />;
  const all = upstreams.data.items;
  return (
    <>
      <Verdict status={status.data} upstreams={all} />
      <Tiles status={status.data} />
      {status.data.totals.calls === 0 ? <First upstream={all[0]?.name ?? ""} /> : <Traffic since={seconds(status.data.started_at)} />}
      <div class="split">
        <Endpoints upstreams={all} />
        <Feed />
      </div>
    </>
  );
}

/** Of fewer calls in a minute no share is worth a word. */
const FEW = 20;

function troubles(status: Status, upstreams: Upstream[]): Trouble[] {
  const found: Trouble[] = [];
  for (const upstream of upstreams) {
    const href = link("upstreams", [upstream.name]);
    for (const { name, breaker, paused_until: paused, rate: calls, success_share: good } of upstream.endpoints) {
      if (paused) found.push({ hue: "bad", what: `${upstream.name}/${name} is paused by its provider`, why: `ends ${ahead(paused)}, or when you lift it`, href });
      if (breaker.state === "closed") {
        if (calls * 60 >= FEW && good !== null && good < 0.95) found.push({ hue: "warn", what: `${upstream.name}/${name} succeeds in ${share(good)} of its calls`, why: "over the last minute", href });
        continue;
      }
      const why = breaker.forced ? "held open by an operator" : breaker.state === "open" ? `next probe ${ahead(breaker.retry_at)}` : "probing";
      found.push({ hue: breaker.state === "open" ? "bad" : "warn", what: `${upstream.name}/${name} breaker is ${breaker.state}`, why, href });
    }
    const resting = upstream.keys.filter((key) => key.state !== "ready");
    if (resting.length > 0) {
      const none = resting.length === upstream.keys.length;
      const why = none ? "no key is left" : `${upstream.keys.length - resting.length} of ${upstream.keys.length} still serve`;
      const what = resting.length === 1 ? `${upstream.name} key ${resting[0]?.id} is ${resting[0]?.state}` : `${upstream.name}: ${resting.length} keys resting`;
      found.push({ hue: none ? "bad" : "warn", what, why, href });
    }
  }
  for (const { queue, severity } of status.dead_letters.alarms ?? []) {
    found.push({ hue: severity === "pager" ? "bad" : "warn", what: `Dead letters of ${queue} have reached the alarm`, why: "they wait for somebody", href: link("dead-letters", [], { upstream: queue }) });
  }
  if (!status.shared.up) found.push({ hue: "bad", what: "Shared state is lost", why: "limits and breakers hold for this instance only", href: link("limits") });
  if (!status.store.healthy) found.push({ hue: "bad", what: "The store does not answer", why: "jobs are refused until it does", href: link("jobs") });
  if (!status.config.last_reload_ok) found.push({ hue: "warn", what: "The last reload was rejected", why: "the policy before it is in force", href: link("policy") });
  const left = status.config.needs_restart ?? [];
  if (left.length > 0) found.push({ hue: "warn", what: "A restart is needed", why: `${left.join(", ")}: no reload changes ${left.length === 1 ? "it" : "them"}`, href: link("policy") });
  return found.sort((a, b) => (a.hue === b.hue ? 0 : a.hue === "bad" ? -1 : 1));
}

const RECENT_MS = 15 * 60_000;

function Verdict({ status, upstreams }: { status: Status; upstreams: Upstream[] }): JSX.Element {
  const wrong = troubles(status, upstreams);
  const healed = events.value.filter((event) => heals(event) && Date.parse(status.now) - Date.parse(event.at) < RECENT_MS);
  const endpoints = upstreams.reduce((sum, upstream) => sum + upstream.endpoints.length, 0);
  const worst = wrong[0]?.hue ?? "good";
  const good = status.last_minute.calls > 0 ? status.last_minute.success_share : null;
  return (
    <div class="verdict-grid">
      <section class={`verdict ${worst}`} aria-live="polite">
        <header>
          <span class="verdict-icon">
            <Icon name={wrong.length ? "alert" : "check"} size={22} />
          </span>
          <div>
            <h2>{wrong.length === 0 ? "All calm" : `${plural(wrong.length, "thing")} need${wrong.length === 1 ? "s" : ""} watching`}</h2>
            <p>
              {wrong.length === 0
                ? `${plural(endpoints, "endpoint")} behind ${plural(upstreams.length, "upstream")}, every breaker closed, every key ready.`
                : good === null
                  ? "Nobody called in the last minute."
                  : `Callers still see ${share(good)} success over the last minute.`}
            </p>
          </div>
        </header>
        {wrong.length > 0 && (
          <ul>
            {wrong.slice(0, 4).map((trouble) => (
              <li key={trouble.what}>
                <a href={trouble.href} class={trouble.hue}>
                  <i />
                  <strong>{trouble.what}</strong>
                  <span>{trouble.why}</span>
                </a>
              </li>
            ))}
          </ul>
        )}
      </section>
      <section class="healed">
        <header>
          <Icon name="heal" size={20} />
          <h2>Healed</h2>
          <span class="note">last 15 min</span>
        </header>
        {healed.length === 0 ? (
          <p class="quiet">No breaker or key had to recover. {count(status.totals.retries)} retries since the start.</p>
        ) : (
          <ul>
            {grouped(healed).slice(0, 4).map(([event, times]) => (
              <li key={event.title}>
                <strong>{event.title}</strong>
                {times > 1 && <Badge word={`× ${times}`} as="good" />}
                <span>{ago(event.at)}</span>
              </li>
            ))}
          </ul>
        )}
      </section>
    </div>
  );
}

/** What healed more than once is one line, with the latest time. */
function grouped(healed: Happening[]): [Happening, number][] {
  const groups = new Map<string, [Happening, number]>();
  for (const event of healed) {
    const known = groups.get(event.title);
    if (known) known[1] += 1;
    else groups.set(event.title, [event, 1]);
  }
  return [...groups.values()];
}

function Tiles({ status }: { status: Status }): JSX.Element {
  const minute = status.last_minute;
  const began = seconds(status.started_at);
  // A young process has its minutes drawn in finer slots.
  const width = step.value * Math.max(1, Math.floor(Math.min(15, status.uptime_seconds / 16) / step.value));
  const slots = useMemo(() => slotted(points.value, began, 15, width), [points.value, began, width]);
  const per = (pick: (point: Point) => number | null) => slots.map(pick);
  const good = minute.success_share ?? 1;
  return (
    <div class="tiles">
      <Tile label="Success" value={share(minute.calls > 0 ? minute.success_share : null)} hue={good < 0.95 ? "bad" : good < 0.995 ? "warn" : "good"} note={`of ${count(minute.calls)} in a minute`} trend={per((p) => (p.calls ? p.success / p.calls : null))} href={link("calls")} />
      <Tile label="Calls per second" value={rate(minute.rate)} note={`${count(status.totals.calls)} since start`} trend={per((p) => p.calls)} href={link("calls")} />
      <Tile label="Retries per success" value={ratio(minute.retries_per_success)} hue={(minute.retries_per_success ?? 0) > 0.3 ? "warn" : undefined} note={`${count(status.totals.retries)} since start`} trend={per((p) => (p.success ? p.retries / p.success : null))} href={link("upstreams")} />
      <Tile label="p95 latency" value={ms(minute.p95_ms)} note={`p99 ${ms(minute.p99_ms)}`} trend={per((p) => p.p95_ms)} href={link("calls")} />
      <Tile label="In flight" value={count(inFlight.value ?? status.in_flight)} note={`${count(status.totals.rejected)} refused in all`} href={link("limits")} />
      <Tile label="Jobs waiting" value={count(status.jobs.queued + status.jobs.waiting)} note={`${count(status.jobs.running)} running · lag ${ms(status.jobs.lag_seconds * 1000)}`} href={link("jobs")} />
      <Tile label="Dead letters" value={count(status.dead_letters.open)} hue={status.dead_letters.open > 0 ? "warn" : "good"} note={status.dead_letters.open > 0 ? "to look at" : "none given up"} href={link("dead-letters")} />
    </div>
  );
}

/** The last minutes in slots of so many seconds, oldest first; nothing is drawn of the time before the program began. */
function slotted(all: Point[], began: number, minutes: number, width: number): Point[] {
  const last = all[all.length - 1];
  if (!last) return [];
  const since = Math.max(began, seconds(last.t) - minutes * 60);
  const slots = new Map<number, Point>();
  for (const point of all) {
    if (seconds(point.t) < since) continue;
    const slot = Math.floor(seconds(point.t) / width) * width;
    const known = slots.get(slot);
    slots.set(slot, known ? merge(known, point) : { ...point, t: slot });
  }
  // The slots at both ends are not full and would look like a drop.
  return [...slots.values()].slice(1, -1);
}

const RANGES: [minutes: number, width: number][] = [[5, 2], [15, 5], [60, 20]];

function Traffic({ since }: { since: number }): JSX.Element {
  const range = useSignal(1);
  const [minutes, least] = RANGES[range.value] ?? [15, 5];
  const width = Math.max(least, step.value);
  const slots = useMemo(() => slotted(points.value, since, minutes, width), [points.value, since, minutes, width]);
  const times = useMemo(() => slots.map((point) => seconds(point.t)), [slots]);
  const flow = useMemo((): Line[] => {
    const line = (name: string, colour: string, pick: (point: Point) => number, more: Partial<Line> = { stacked: true }) => ({ name, colour, values: slots.map((point) => pick(point) / width), ...more });
    return [line("success", "accent", (p) => p.success), line("failed", "bad", (p) => p.failed), line("refused", "mute", (p) => p.rejected), line("retries", "warn", (p) => p.retries, {})];
  }, [slots]);
  const latency = useMemo((): Line[] => [
    { name: "p99", colour: "warn", values: slots.map((point) => point.p99_ms) },
    { name: "p95", colour: "accent", values: slots.map((point) => point.p95_ms) },
    { name: "p50", colour: "mute", values: slots.map((point) => point.p50_ms) },
  ], [slots]);
  const ranges = (
    <div class="segments" role="group" aria-label="Range">
      {RANGES.map(([minutes], index) => (
        <button key={minutes} type="button" aria-pressed={range.value === index} onClick={() => (range.value = index)}>
          {minutes === 60 ? "1 h" : `${minutes} min`}
        </button>
      ))}
    </div>
  );
  return (
    <div class="split even">
      <Panel title="Traffic" note="per second" actions={ranges}>
        <Chart title="Calls by result" times={times} lines={flow} show={rate} sync="overview" untitled />
      </Panel>
      <Panel title="Latency" note="of whole calls, waits included">
        <Chart title="Quantiles" times={times} lines={latency} show={ms} sync="overview" untitled />
      </Panel>
    </div>
  );
}

interface Row {
  upstream: Upstream;
  endpoint: Endpoint;
}

function Endpoints({ upstreams }: { upstreams: Upstream[] }): JSX.Element {
  const weight = { open: 0, "half-open": 1, closed: 2 };
  const rows: Row[] = upstreams.flatMap((upstream) => upstream.endpoints.map((endpoint) => ({ upstream, endpoint })));
  rows.sort((a, b) => weight[a.endpoint.breaker.state] - weight[b.endpoint.breaker.state] || b.endpoint.rate - a.endpoint.rate);
  return (
    <Panel title="Endpoints" note={plural(rows.length, "endpoint")} flush>
      <Rows
        label="Endpoints"
        rows={rows}
        id={(row) => `${row.upstream.name}/${row.endpoint.name}`}
        href={(row) => link("upstreams", [row.upstream.name])}
        columns={[
          { name: "Endpoint", wide: true, show: (row) => <Place upstream={row.upstream.name} endpoint={row.endpoint.name} /> },
          { name: "Breaker", show: (row) => <Badge word={row.endpoint.breaker.state} /> },
          { name: "Calls/s", number: true, show: (row) => rate(row.endpoint.rate) },
          { name: "Success", number: true, show: (row) => <Good value={row.endpoint.rate > 0 ? row.endpoint.success_share : null} /> },
          { name: "p95", number: true, show: (row) => ms(row.endpoint.p95_ms) },
          { name: "Retries/success", number: true, minor: true, show: (row) => ratio(row.endpoint.retries_per_success) },
          { name: "Keys", number: true, minor: true, show: (row) => keysOf(row.upstream) },
        ]}
      />
    </Panel>
  );
}

export function Good({ value }: { value: number | null }): JSX.Element {
  const hue = value === null ? "" : value < 0.95 ? "bad-text" : value < 0.99 ? "warn-text" : "";
  return <span class={hue}>{share(value)}</span>;
}

const keysOf = (upstream: Upstream) => (upstream.keys.length ? `${upstream.keys.filter((key) => key.state === "ready").length}/${upstream.keys.length}` : "–");

function Feed(): JSX.Element {
  const shown = events.value.slice(0, 14);
  return (
    <Panel title="Events" note="newest first" flush>
      {shown.length === 0 ? (
        <Empty icon="heal" title="Nothing happened yet" good>
          Breakers, keys, dead letters and reloads tell their story here.
        </Empty>
      ) : (
        <ol class="feed" tabIndex={0} aria-label="Events">
          {shown.map((event) => (
            <Item key={event.id} event={event} />
          ))}
        </ol>
      )}
    </Panel>
  );
}

function Item({ event }: { event: Happening }): JSX.Element {
  return (
    <li class={tone(event)}>
      <i />
      <time dateTime={event.at} title={event.at}>
        {time(event.at)}
      </time>
      <div>
        <strong>{event.title}</strong>
        <p>{event.detail}</p>
      </div>
    </li>
  );
}

/** What somebody sees who has just started the program. */
function First({ upstream }: { upstream: string }): JSX.Element {
  return (
    <Panel>
      <Empty icon="upstreams" title="Waiting for the first call" code={`curl -i http://127.0.0.1:7329/${upstream}/…`}>
        Point your client's base URL at the gateway, followed by the upstream's name; the address is in the program's first lines. <code>seawall demo</code> shows how this page looks when things go wrong.
      </Empty>
    </Panel>
  );
}
