// Upstreams: one card for each, and behind it the breaker's story, the keys, the classes of failures and the roll-ups.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { call, path, query } from "../api";
import { ago, ahead, clock, count, moment, ms, plural, rate, ratio, seconds, share, span } from "../format";
import { Icon } from "../icons";
import { Badge, Empty, Facts, Failure, Loading, Meter, Panel, Tile } from "../parts/basics";
import { Chart, type Line } from "../parts/chart";
import { confirm } from "../parts/dialog";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { link, place } from "../route";
import type { Breaker, Call, Endpoint, Key, Page, Point, Rollup, Series, Upstream } from "../types";
import { CAUSES, hue, REASONS } from "../words";
import { Good } from "./overview";

export function Upstreams(): JSX.Element {
  const { data, error, again } = useResource<Page<Upstream>>("/v1/upstreams", { every: 2 });
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={6} />;
  const name = place.value.parts[0];
  const one = data.items.find((upstream) => upstream.name === name);
  if (one) return <Detail upstream={one} again={again} />;
  if (name) return <Failure error={new Error(`There is no upstream ${name}.`)} />;
  return (
    <div class="cards">
      {data.items.map((upstream) => (
        <Card key={upstream.name} upstream={upstream} />
      ))}
    </div>
  );
}

function Card({ upstream }: { upstream: Upstream }): JSX.Element {
  const open = upstream.endpoints.filter((endpoint) => endpoint.breaker.state !== "closed");
  const resting = upstream.keys.filter((key) => key.state !== "ready");
  const none = resting.length > 0 && resting.length === upstream.keys.length;
  return (
    <a class={`panel card ${open.length || none ? "bad" : resting.length ? "warn" : ""}`} href={link("upstreams", [upstream.name])}>
      <header>
        <h2>{upstream.name}</h2>
        {open.length > 0 ? <Badge word={open[0]?.breaker.state ?? "open"} /> : none ? <Badge word="no key left" as="bad" /> : resting.length > 0 ? <Badge word={`${plural(resting.length, "key")} resting`} as="warn" /> : (upstream.success_share ?? 1) < 0.95 ? <Badge word="failing" as="warn" /> : <Badge word="healthy" as="good" />}
      </header>
      <p class="soft mono cut">{upstream.url}</p>
      <div class="card-figures">
        <span><b>{rate(upstream.rate)}</b>calls/s</span>
        <span><b><Good value={upstream.rate > 0 ? upstream.success_share : null} /></b>success</span>
        <span><b>{ms(upstream.p95_ms)}</b>p95</span>
        <span><b>{ratio(upstream.retries_per_success)}</b>retries/success</span>
      </div>
      <ul class="dots" aria-label="Success of the endpoints">
        {upstream.endpoints.map((endpoint) => (
          <li key={endpoint.name} class={health(endpoint)} title={endpoint.rate > 0 ? `${share(endpoint.success_share)} success` : "no call in the last minute"}>
            <i />
            {endpoint.name}
          </li>
        ))}
      </ul>
    </a>
  );
}

/** A dot is about success: grey where there was no call to judge by. */
function health({ rate, success_share: good }: Endpoint): string {
  if (rate === 0 || good === null) return "mute";
  return good < 0.95 ? "bad" : good < 0.99 ? "warn" : "good";
}

function Detail({ upstream, again }: { upstream: Upstream; again: () => void }): JSX.Element {
  const failed = Object.entries(upstream.classes).filter(([name]) => name !== "success");
  const most = Math.max(1, ...failed.map(([, count]) => count));
  return (
    <>
      <div class="crumbs">
        <a href={link("upstreams")}>Upstreams</a>
        <Icon name="right" size={14} />
        <strong>{upstream.name}</strong>
        <span class="soft mono cut">{upstream.url}</span>
        <div class="actions">
          <a class="button small" href={link("calls", [], { upstream: upstream.name })}>Its calls</a>
          <a class="button small" href={link("dead-letters", [], { upstream: upstream.name })}>Its dead letters</a>
        </div>
      </div>
      <Course name={upstream.name} />
      <TopErrors name={upstream.name} />
      <div class="tiles">
        <Tile label="Success" value={share(upstream.rate > 0 ? upstream.success_share : null)} />
        <Tile label="Calls per second" value={rate(upstream.rate)} />
        <Tile label="Retries per success" value={ratio(upstream.retries_per_success)} />
        <Tile label="p95 latency" value={ms(upstream.p95_ms)} note={`p50 ${ms(upstream.p50_ms)} · p99 ${ms(upstream.p99_ms)}`} />
        <Tile label="In flight" value={count(upstream.in_flight)} />
        <Tile label="Retry budget" value={count(Math.floor(upstream.budget_tokens))} note="retries it would pay for now" />
      </div>
      <Breakers upstream={upstream} again={again} />
      <div class="split even">
        <Keys upstream={upstream} again={again} />
        <Panel title="Classes of failures" note="last minute">
          {failed.length === 0 ? (
            <Empty icon="check" title="No failure yet" good>Every answer was good.</Empty>
          ) : (
            <ul class="bars">
              {failed.sort((a, b) => b[1] - a[1]).map(([name, value]) => (
                <li key={name}>
                  <span>{name}</span>
                  <Meter value={value / most} label={name} hue={hue(name)} />
                  <b>{count(value)}</b>
                </li>
              ))}
            </ul>
          )}
        </Panel>
      </div>
      <Rollups name={upstream.name} />
      <InForce upstream={upstream} />
    </>
  );
}

/** Success over time, first of all: the last hour of this upstream. */
function Course({ name }: { name: string }): JSX.Element {
  const { data, error } = useResource<Series>(query("/v1/status/series", { upstream: name, minutes: 60 }), { every: 10, live: false });
  // The last slot is not full and would look like a drop.
  const shown = useMemo(() => data?.points.slice(0, -1) ?? [], [data]);
  const times = useMemo(() => shown.map((point) => seconds(point.t)), [shown]);
  const width = data?.step_seconds ?? 1;
  const lines = useMemo((): Line[] => {
    const line = (title: string, colour: string, pick: (point: Point) => number): Line => ({ name: title, colour, values: shown.map((point) => pick(point) / width), stacked: true });
    return [line("success", "accent", (point) => point.success), line("failed", "bad", (point) => point.failed), line("refused", "mute", (point) => point.rejected)];
  }, [shown, width]);
  if (error) return <Failure error={error} />;
  return (
    <Panel title="Success over time" note="calls per second, last hour">
      <Chart title="Calls by result" times={times} lines={lines} show={rate} untitled />
    </Panel>
  );
}

/** What fails or is refused, by status and reason, each with a call to look at. */
function TopErrors({ name }: { name: string }): JSX.Element {
  const asked = (kind: string) => useResource<Page<Call>>(query("/v1/calls", { upstream: name, kind, limit: 200 }), { every: 5, live: false });
  const kinds = [["failed", asked("failed")], ["refused", asked("refused")]] as const;
  const error = kinds.find(([, { error }]) => error)?.[1].error;
  if (error) return <Failure error={error} />;
  const groups = new Map<string, { sample: Call; times: number; kind: string }>();
  for (const [kind, { data }] of kinds) {
    for (const one of data?.items ?? []) {
      const key = `${one.endpoint} ${one.response_status ?? ""} ${one.outcome} ${one.reason}`;
      const known = groups.get(key);
      if (known) known.times += 1;
      else groups.set(key, { sample: one, times: 1, kind });
    }
  }
  const top = [...groups.values()].sort((a, b) => b.times - a.times).slice(0, 5);
  return (
    <Panel title="Top errors" note="among the last 200 calls that failed and 200 that were refused" flush>
      {kinds.some(([, { data }]) => !data) ? (
        <Loading rows={2} />
      ) : top.length === 0 ? (
        <Empty icon="check" title="No call failed or was refused" good>Among the calls that are remembered, callers got what they asked for.</Empty>
      ) : (
        <Rows
          label="Top errors"
          rows={top}
          id={({ sample }) => sample.id}
          href={({ sample, kind }) => link("calls", [sample.id], { upstream: name, kind })}
          columns={[
            { name: "Calls", number: true, show: ({ times }) => count(times) },
            { name: "Status", number: true, show: ({ sample }) => <span class="mono">{sample.response_status ?? "–"}</span> },
            { name: "Outcome", show: ({ sample }) => <Badge word={sample.outcome} /> },
            { name: "Reason", wide: true, show: ({ sample }) => <span class="soft" title={REASONS[sample.reason]}>{sample.reason.replaceAll("_", " ")}</span> },
            { name: "For example", wide: true, show: ({ sample }) => <><b class="method">{sample.method}</b> <span class="cut">{sample.path ?? sample.endpoint}</span></> },
            { name: "Latest", show: ({ sample }) => <span class="soft" title={moment(sample.at)}>{ago(sample.at)}</span> },
          ]}
        />
      )}
    </Panel>
  );
}

const WINDOW_MS = 3_600_000;

function Breakers({ upstream, again }: { upstream: Upstream; again: () => void }): JSX.Element {
  const { data } = useResource<Page<Breaker>>("/v1/breakers", { every: 3 });
  const own = data?.items.filter((breaker) => breaker.upstream === upstream.name) ?? [];
  const set = (endpoint: string, state: "open" | "closed" | "auto") => {
    const what = { open: "Every call to it will be refused until you let it go.", closed: "Every call will be sent, however sick it is, until you let it go.", auto: "It decides for itself again." }[state];
    confirm({
      title: `${state === "auto" ? "Release" : state === "open" ? "Block" : "Let through"} 1 endpoint: ${upstream.name}/${endpoint}`,
      text: <p>{what}</p>,
      verb: state === "auto" ? "Release" : state === "open" ? "Block" : "Let through",
      danger: state === "open",
      act: async () => {
        await call("PUT", path("/v1/breakers", upstream.name, endpoint), { state });
        again();
      },
    });
  };
  const lift = () =>
    confirm({
      title: `Lift the pauses of ${upstream.name}`,
      text: <p>The provider asked everybody to stay away. Calls are sent again at once; the next refusal may begin another pause.</p>,
      verb: "Lift pause",
      act: async () => {
        await call("PUT", path("/v1/pauses", upstream.name), { state: "lifted" });
        again();
      },
    });
  return (
    <Panel title="Breakers" note="last hour" flush>
      <ul class="breakers">
        {upstream.endpoints.map((endpoint) => {
          const story = own.find((breaker) => breaker.endpoint === endpoint.name);
          const last = story?.changes.reduce((a, b) => (Date.parse(b.at) > Date.parse(a.at) ? b : a), story.changes[0]!);
          return (
            <li key={endpoint.name} data-breaker={`${upstream.name}/${endpoint.name}`}>
              <div class="breaker-name">
                <strong>{endpoint.name}</strong>
                <span class="soft mono">{endpoint.match}</span>
              </div>
              <div class="breaker-state">
                <Badge word={endpoint.breaker.state} />
                {endpoint.paused_until && <Badge word="paused" title="the provider asked everybody to stay away" />}
                {endpoint.breaker.forced && <Badge word="forced" as="info" title="held by an operator" />}
                <span class="soft">{endpoint.paused_until ? `pause ends ${ahead(endpoint.paused_until)}` : endpoint.breaker.retry_at ? `probe ${ahead(endpoint.breaker.retry_at)}` : last ? `${CAUSES[last.cause] ?? last.cause}, ${ago(last.at)}` : "never opened"}</span>
              </div>
              <Band changes={story?.changes ?? []} state={endpoint.breaker.state} />
              <span class="soft number breaker-open">{span(story?.open_seconds_total ?? endpoint.breaker.open_seconds)} open</span>
              <div class="actions">
                {endpoint.paused_until && <button type="button" class="small" onClick={lift}>Lift pause</button>}
                {endpoint.breaker.forced ? (
                  <button type="button" class="small" onClick={() => set(endpoint.name, "auto")}>Release</button>
                ) : (
                  <>
                    <button type="button" class="small" onClick={() => set(endpoint.name, "open")}>Block</button>
                    <button type="button" class="small" onClick={() => set(endpoint.name, "closed")}>Let through</button>
                  </>
                )}
              </div>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

/** The last hour as a strip: green closed, amber half-open, red open. */
function Band({ changes, state }: { changes: Breaker["changes"]; state: string }): JSX.Element {
  const now = clock.value;
  const since = now - WINDOW_MS;
  const sorted = [...changes].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  const parts: { from: number; state: string }[] = [{ from: since, state: sorted[0]?.from ?? state }];
  for (const change of sorted) {
    const at = Date.parse(change.at);
    if (at <= since) parts[0] = { from: since, state: change.to };
    else parts.push({ from: at, state: change.to });
  }
  return (
    <span class="band" aria-hidden="true">
      {parts.map((part, index) => {
        const until = parts[index + 1]?.from ?? now;
        return <i key={index} class={hue(part.state)} style={{ flexGrow: Math.max(0.001, (until - part.from) / WINDOW_MS) }} />;
      })}
    </span>
  );
}

function Keys({ upstream, again }: { upstream: Upstream; again: () => void }): JSX.Element {
  const set = (key: Key, state: "cooling" | "ready") =>
    confirm({
      title: `${state === "ready" ? "Restore" : "Cool"} 1 key: ${key.id} of ${upstream.name}`,
      text: <p>{state === "ready" ? "It will be used at once, whatever the provider said." : `It will not be used for an hour. ${plural(upstream.keys.filter((other) => other.state === "ready" && other.id !== key.id).length, "key")} of this upstream will be left.`}</p>,
      verb: state === "ready" ? "Restore" : "Cool it",
      danger: state === "cooling",
      act: async () => {
        const until = state === "cooling" ? { until: new Date(Date.now() + WINDOW_MS).toISOString() } : {};
        await call("PUT", path("/v1/keys", upstream.name, key.id), { state, ...until });
        again();
      },
    });
  return (
    <Panel title="Keys" note={upstream.keys.length ? `${upstream.keys.filter((key) => key.state === "ready").length} of ${upstream.keys.length} ready` : undefined} flush>
      {upstream.keys.length === 0 ? (
        <Empty icon="key" title="No key pool" code={`[upstreams.${upstream.name}.auth]\ninject = "header:Authorization: Bearer {secret}"\nkeys = [{ id = "a", secret = "env:KEY_A" }]`}>
          Give Seawall two keys and it changes to the second while the first one cools.
        </Empty>
      ) : (
        <Rows
          label="Keys"
          rows={upstream.keys}
          id={(key) => key.id}
          columns={[
            { name: "Key", show: (key) => <><strong>{key.id}</strong> <span class="soft mono">{key.tail}</span></> },
            { name: "State", show: (key) => <><Badge word={key.state} /> {key.until && <span class="soft" title={`${key.since ? `since ${moment(key.since)}, ` : ""}until ${moment(key.until)}`}>back {ahead(key.until)}</span>}</> },
            { name: "Group", minor: true, show: (key) => key.group ?? "–" },
            { name: "Uses", number: true, show: (key) => count(key.uses) },
            { name: "Failures", number: true, minor: true, show: (key) => count(key.failures) },
            {
              name: "Action",
              number: true,
              show: (key) => (
                <button type="button" class="small" aria-label={`${key.state === "ready" ? "Cool" : "Restore"} key ${key.id}`} onClick={() => set(key, key.state === "ready" ? "cooling" : "ready")}>
                  {key.state === "ready" ? "Cool" : "Restore"}
                </button>
              ),
            },
          ]}
        />
      )}
    </Panel>
  );
}

const DAY_MS = 86_400_000;

function Rollups({ name }: { name: string }): JSX.Element {
  const from = useMemo(() => new Date(Date.now() - DAY_MS).toISOString(), [name]);
  const { data, error } = useResource<Page<Rollup>>(query("/v1/rollups", { upstream: name, from }), { every: 60, live: false });
  const rows = useMemo(() => summed(data?.items ?? []), [data]);
  const times = useMemo(() => rows.map((row) => row.t), [rows]);
  const lines = useMemo(
    () => ({
      transient: [{ name: "transient failures", colour: "warn", values: rows.map((row) => (row.sends ? row.transient / row.sends : null)), bars: true }],
      retries: [{ name: "retries per success", colour: "accent", values: rows.map((row) => (row.success ? row.retries / row.success : null)), bars: true }],
      open: [{ name: "minutes open", colour: "bad", values: rows.map((row) => row.open), bars: true }],
    }),
    [rows],
  );
  if (error) return <Failure error={error} />;
  return (
    <Panel title="Roll-ups" note="15 minutes each, last day">
      {rows.length === 0 ? (
        <Empty icon="chart" title="The first row comes within 15 minutes">Rows are kept for 90 days and survive a restart.</Empty>
      ) : (
        <div class="thirds">
          <Chart title="Transient rate" times={times} lines={lines.transient} show={share} height={150} sync="rollups" />
          <Chart title="Leading indicator" times={times} lines={lines.retries} show={ratio} height={150} sync="rollups" />
          <Chart title="Circuit open" times={times} lines={lines.open} show={(value) => (value === null ? "–" : span(value * 60))} height={150} sync="rollups" />
        </div>
      )}
    </Panel>
  );
}

interface Slot {
  t: number;
  sends: number;
  success: number;
  transient: number;
  retries: number;
  open: number;
}

/** The rows of all endpoints as one for each quarter of an hour; rates are weighed by what they are rates of. */
function summed(items: Rollup[]): Slot[] {
  const slots = new Map<number, Slot>();
  for (const item of items) {
    const t = Date.parse(item.at) / 1000;
    const slot = slots.get(t) ?? { t, sends: 0, success: 0, transient: 0, retries: 0, open: 0 };
    slot.sends += Object.entries(item.attempts).reduce((sum, [outcome, times]) => (outcome === "circuit_open" ? sum : sum + times), 0);
    slot.success += item.success;
    slot.transient += item.attempts.transient ?? 0;
    slot.retries += item.retries_per_success * item.success;
    slot.open += item.circuit_open_minutes;
    slots.set(t, slot);
  }
  return padded([...slots.values()].sort((a, b) => a.t - b.t));
}

const QUARTER = 15 * 60;
/** A young roll-up stands at the end of some hours, not alone in the middle of nothing. */
const LEAST_ROWS = 24;

function padded(rows: Slot[]): Slot[] {
  const first = rows[0];
  if (!first) return rows;
  const missing = Math.max(0, LEAST_ROWS - rows.length);
  const before = Array.from({ length: missing }, (_, n): Slot => ({ t: first.t - (missing - n) * QUARTER, sends: 0, success: 0, transient: 0, retries: 0, open: 0 }));
  return [...before, ...rows];
}

function InForce({ upstream }: { upstream: Upstream }): JSX.Element | null {
  const shown = upstream.endpoints.filter((endpoint) => endpoint.policy?.checklist);
  if (shown.length === 0) return null;
  return (
    <Panel title="Policy in force" actions={<a class="button small" href={link("policy")}>Whole policy</a>}>
      <div class="in-force">
        {shown.map((endpoint) => (
          <div key={endpoint.name}>
            <h3>{endpoint.name}</h3>
            <Facts rows={Object.entries(endpoint.policy?.checklist ?? {}).filter(([name]) => ["deadline", "retry", "breaker", "concurrency", "degraded_answer"].includes(name)).map(([name, item]) => [name.replaceAll("_", " "), <span class={item.gap ? "warn-text" : ""}>{item.answer}</span>])} />
          </div>
        ))}
      </div>
    </Panel>
  );
}
