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
import { coalesced, heals, tone } from "../toasts";
import type { Endpoint, Happening, Page, Point, Schedule, Status, Upstream } from "../types";
import { REFUSALS } from "../words";

/** Below this share of success the figure is red, and something needs watching. */
const BAD = 0.95;

interface Trouble {
  hue: "bad" | "warn";
  what: string;
  /** How it fares, why, and since when. */
  why: string;
  /** What an operator can do about it, on the page behind it. */
  act: string;
  href: string;
  /** Calls that fail in a second: what hurts most comes first. */
  failing: number;
}

export function Overview(): JSX.Element {
  const status = useResource<Status>("/v1/status", { every: 2 });
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 2 });
  const schedules = useResource<Page<Schedule>>("/v1/schedules", { every: 15 });
  if (status.error && !status.data) return <Failure error={status.error} again={status.again} />;
  if (!status.data || !upstreams.data) return <Loading rows={6} />;
  const all = upstreams.data.items;
  return (
    <>
      <Verdict status={status.data} upstreams={all} schedules={schedules.data?.items ?? []} />
      <Tiles status={status.data} />
      {status.data.totals.calls === 0 ? <First upstream={all[0]?.name ?? ""} /> : <Traffic since={seconds(status.data.started_at)} />}
      <div class="split">
        <Endpoints upstreams={all} />
        <Feed />
      </div>
    </>
  );
}

/** Of fewer calls in a minute no share is worth a word, unless success as a whole is bad. */
const FEW = 20;

const since = (at: string | null | undefined) => (at ? ` since ${time(at)}` : "");

/** What is wrong with one endpoint, in the order in which a cause explains the others. */
function cause(upstream: Upstream, endpoint: Endpoint): { why: string; act: string; grave: boolean } | undefined {
  const { breaker, paused_until: paused } = endpoint;
  const ready = upstream.keys.filter((key) => key.state === "ready");
  if (upstream.keys.length > 0 && ready.length === 0) {
    const back = upstream.keys.flatMap((key) => (key.until ? [key.until] : [])).sort()[0];
    // There was none from when the last one went.
    const out = since(upstream.keys.map((key) => key.since ?? "").sort().pop());
    return { why: back ? `no key${out}${out && ","} until ${time(back)}` : `every key was rejected${out}`, act: "Restore a key", grave: true };
  }
  if (paused) return { why: `paused by its provider${since(endpoint.paused_since)}, ends ${ahead(paused)}`, act: "Lift the pause", grave: true };
  if (breaker.state === "closed") return undefined;
  if (breaker.forced === "open") return { why: `blocked by an operator${since(breaker.since)}`, act: "Release it", grave: true };
  const next = breaker.state === "open" ? `, next probe ${ahead(breaker.retry_at)}` : ", probing";
  return { why: `breaker is ${breaker.state}${since(breaker.since)}${next}`, act: "Look at it", grave: breaker.state === "open" };
}

/** The endpoints of an upstream; those behind one breaker that is not closed are one, without a name. */
function places({ endpoints }: Upstream): Endpoint[] {
  const behind = endpoints.filter(({ breaker }) => breaker.per === "upstream" && breaker.state !== "closed");
  const first = behind[0];
  if (!first || endpoints.length === 1) return endpoints;
  const sum = (of: (endpoint: Endpoint) => number) => behind.reduce((total, endpoint) => total + of(endpoint), 0);
  const calls = sum((endpoint) => endpoint.rate);
  const opened = behind.flatMap(({ breaker }) => (breaker.since ? [breaker.since] : [])).sort()[0] ?? null;
  const one: Endpoint = {
    ...first,
    name: "",
    rate: calls,
    success_share: calls > 0 ? sum((endpoint) => endpoint.rate * (endpoint.success_share ?? 1)) / calls : null,
    breaker: { ...first.breaker, since: opened },
  };
  return [one, ...endpoints.filter((endpoint) => !behind.includes(endpoint))];
}

/** Why calls of an endpoint do not succeed, where nothing that lasts explains it. */
function failures(upstream: Upstream, endpoint: Endpoint): { why: string; act: string; href: string } {
  const refusals = Object.entries(endpoint.refused ?? {}).sort((a, b) => b[1] - a[1]);
  const refused = refusals.reduce((sum, [, times]) => sum + times, 0);
  const code = refusals[0]?.[0];
  const to = (kind: string) => link("calls", [], { upstream: upstream.name, kind });
  if (code === undefined || refused < (endpoint.failed ?? 0)) return { why: `most often ${worst(upstream.classes) ?? "without a class"}`, act: "Failed calls", href: to("failed") };
  const why = REFUSALS[code] ?? code.replaceAll("_", " ");
  return code === "rate_limited" || code === "overloaded" ? { why, act: "Limits", href: link("limits") } : { why, act: "Refused calls", href: to("refused") };
}

function unhealthy(upstreams: Upstream[], isRed: boolean): Trouble[] {
  const found: Trouble[] = [];
  for (const upstream of upstreams) {
    const href = link("upstreams", [upstream.name]);
    places(upstream).forEach((endpoint, index) => {
      const { name, rate: calls, success_share: good } = endpoint;
      const known = cause(upstream, endpoint);
      const fails = (isRed || calls * 60 >= FEW) && calls > 0 && good !== null && good < BAD;
      // A key that is out serves nobody, also while nobody asks; without traffic one line for all endpoints is enough.
      if (!known && !fails) return;
      if (known && calls === 0 && upstream.keys.length > 0 && index > 0 && endpoint.breaker.state === "closed" && !endpoint.paused_until) return;
      const fares = calls > 0 && good !== null ? `${share(good)} of ${rate(calls)}/s succeed, ` : "";
      const { why, act, href: to } = known ? { ...known, href } : failures(upstream, endpoint);
      found.push({ hue: known?.grave || (good ?? 1) < 0.5 ? "bad" : "warn", what: name ? `${upstream.name}/${name}` : upstream.name, why: fares + why, act, href: to, failing: calls * (1 - (good ?? 1)) });
    });
    const resting = upstream.keys.filter((key) => key.state !== "ready");
    const only = resting.length === 1 ? resting[0] : undefined;
    if (resting.length > 0 && resting.length < upstream.keys.length) {
      const what = only ? `${upstream.name} key ${only.id} is ${only.state}${since(only.since)}` : `${upstream.name}: ${resting.length} keys resting`;
      found.push({ hue: "warn", what, why: `${upstream.keys.length - resting.length} of ${upstream.keys.length} still serve`, act: "Look at them", href, failing: 0 });
    }
  }
  return found;
}

function troubles(status: Status, upstreams: Upstream[], schedules: Schedule[]): Trouble[] {
  const minute = status.last_minute;
  const isRed = minute.calls > 0 && (minute.success_share ?? 1) < BAD;
  const found = unhealthy(upstreams, isRed);
  // Where no endpoint explains it, as with calls that name no upstream.
  if (isRed && !found.some((one) => one.failing > 0)) {
    found.push({ hue: "bad", what: "Calls do not succeed", why: `${share(minute.success_share)} of ${rate(minute.rate)}/s succeed`, act: "Calls", href: link("calls"), failing: minute.rate * (1 - (minute.success_share ?? 1)) });
  }
  const system = (hue: "bad" | "warn", what: string, why: string, act: string, href: string) => found.push({ hue, what, why, act, href, failing: hue === "bad" ? Infinity : 0 });
  for (const { queue, severity } of status.dead_letters.alarms ?? []) {
    found.push({ hue: severity === "pager" ? "bad" : "warn", what: `Dead letters of ${queue} have reached the alarm`, why: "they wait for somebody", act: "Replay or discard", href: link("dead-letters", [], { upstream: queue }), failing: 0 });
  }
  for (const { name, subjects } of schedules) {
    const stopped = subjects.filter((subject) => subject.state === "stopped");
    if (stopped.length === 0) continue;
    const what = `Schedule ${name}: ${plural(stopped.length, "subject")} ${stopped.length === 1 ? "is" : "are"} stopped`;
    found.push({ hue: "bad", what, why: stopped[0]?.last_error ?? "its credentials were refused", act: "Start again", href: link("schedules"), failing: 0 });
  }
  if (!status.store.healthy) system("bad", "The store does not answer", "jobs are refused until it does", "Jobs", link("jobs"));
  if (!status.shared.up) system("bad", "Shared state is lost", "limits and breakers hold for this instance only", "Limits", link("limits"));
  if (!status.config.last_reload_ok) system("warn", "The last reload was rejected", "the policy before it is in force", "Check it", link("policy"));
  const left = status.config.needs_restart ?? [];
  if (left.length > 0) system("warn", "A restart is needed", `${left.join(", ")}: no reload changes ${left.length === 1 ? "it" : "them"}`, "Look at it", link("policy"));
  return found.sort((a, b) => (a.failing === b.failing ? Number(a.hue === "warn") - Number(b.hue === "warn") : b.failing - a.failing));
}

/** The class that most failures of the last minute have. */
function worst(classes: Record<string, number>): string | undefined {
  const failed = Object.entries(classes).filter(([name, times]) => name !== "success" && times > 0);
  return failed.sort((a, b) => b[1] - a[1])[0]?.[0];
}

const RECENT_MS = 15 * 60_000;

function Verdict({ status, upstreams, schedules }: { status: Status; upstreams: Upstream[]; schedules: Schedule[] }): JSX.Element {
  const wrong = troubles(status, upstreams, schedules);
  const healed = events.value.filter((event) => heals(event) && Date.parse(status.now) - Date.parse(event.at) < RECENT_MS);
  const endpoints = upstreams.reduce((sum, upstream) => sum + upstream.endpoints.length, 0);
  const tint = wrong.some((trouble) => trouble.hue === "bad") ? "bad" : (wrong[0]?.hue ?? "good");
  const good = status.last_minute.calls > 0 ? status.last_minute.success_share : null;
  return (
    <div class="verdict-grid">
      <section class={`verdict ${tint}`} aria-live="polite">
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
            {wrong.map((trouble) => (
              <li key={trouble.what}>
                <a href={trouble.href} class={trouble.hue}>
                  <i />
                  <strong>{trouble.what}</strong>
                  <span>{trouble.why}</span>
                  <b>{trouble.act}</b>
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
            {coalesced(healed).slice(0, 4).map(([event, times]) => (
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
      <Tile label="Success" value={share(minute.calls > 0 ? minute.success_share : null)} hue={good < BAD ? "bad" : good < 0.995 ? "warn" : "good"} note={`of ${count(minute.calls)} in a minute`} trend={per((p) => (p.calls ? p.success / p.calls : null))} href={link("calls")} />
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
      <Panel title="Latency" note="of calls that got a response, waits included">
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
  const hue = value === null ? "" : value < BAD ? "bad-text" : value < 0.99 ? "warn-text" : "";
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
