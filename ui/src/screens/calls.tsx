// Calls: the recent ones, and for each its attempts on a time axis with the reason of every decision.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { query } from "../api";
import { ago, moment, ms, short, time } from "../format";
import { Icon } from "../icons";
import { Badge, Copy, Empty, Facts, Failure, Loading, Panel, Place, Search, Select } from "../parts/basics";
import { Dialog } from "../parts/dialog";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { go, link, place, refine } from "../route";
import type { Attempt, Call, Page, Upstream } from "../types";
import { DECISIONS, hue, REASONS } from "../words";

const OUTCOMES = ["", "success", "stale", "fallback", "enqueued", "transient", "permanent", "ambiguous", "quota", "auth", "rate_limited", "keys_exhausted", "overloaded", "circuit_open", "deadline_exceeded", "upstream_unreachable", "schema_mismatch", "stream_cut", "paused", "keys_rejected", "cancelled"];

const KINDS: [kind: string, title: string][] = [["", "All"], ["failed", "Failed"], ["refused", "Refused"], ["healed", "Healed"]];

export function Calls(): JSX.Element {
  const { filter, parts } = place.value;
  const paused = useSignal(false);
  const asked = query("/v1/calls", { upstream: filter.upstream, outcome: filter.outcome, caller: filter.caller, kind: filter.kind, limit: 100 });
  const { data, error, again } = useResource<Page<Call>>(asked, { every: 2, live: false, still: paused.value });
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 0, live: false }).data?.items ?? [];
  const words = (filter.q ?? "").toLowerCase();
  const rows = (data?.items ?? []).filter((call) => !words || `${call.id} ${call.upstream}/${call.endpoint} ${call.method ?? ""} ${call.path ?? ""} ${call.response_status ?? ""} ${call.caller} ${call.reason} ${call.outcome}`.toLowerCase().includes(words));
  const filtered = Boolean(filter.upstream || filter.outcome || filter.caller || filter.kind || filter.q);
  return (
    <>
      <div class="filters">
        <div class="segments" role="group" aria-label="Kind">
          {KINDS.map(([kind, title]) => (
            <button key={kind} type="button" aria-pressed={(filter.kind ?? "") === kind} onClick={() => refine({ kind })}>
              {title}
            </button>
          ))}
        </div>
        <Search value={filter.q ?? ""} onInput={(q) => refine({ q })} hint="Id, path, status, caller, reason" />
        <Select label="Upstream" value={filter.upstream ?? ""} options={["", ...upstreams.map((upstream) => upstream.name)]} onChange={(upstream) => refine({ upstream })} />
        <Select label="Outcome" value={filter.outcome ?? ""} options={OUTCOMES} onChange={(outcome) => refine({ outcome })} />
        <button type="button" aria-pressed={paused.value} onClick={() => (paused.value = !paused.value)}>
          <Icon name={paused.value ? "play" : "pause"} size={16} />
          {paused.value ? "Follow" : "Pause"}
        </button>
      </div>
      {error && <Failure error={error} again={again} />}
      <Panel flush>
        {!data && !error ? (
          <Loading rows={8} />
        ) : rows.length === 0 ? (
          filtered ? (
            <Empty icon="search" title="No recent call matches">The last 10 000 calls are kept. Loosen the filter, or look among dead letters.</Empty>
          ) : (
            <Empty icon="calls" title="No call yet" code="curl -i http://127.0.0.1:7329/UPSTREAM/path">
              Point a client at the gateway. The answer's <code>Seawall-Call</code> header is the id to look for here.
            </Empty>
          )
        ) : (
          <Rows
            label="Calls"
            rows={rows}
            id={(call) => call.id}
            href={(call) => link("calls", [call.id], filter)}
            open={parts[0]}
            columns={[
              { name: "Call", show: (call) => <span class="mono" title={call.id}>{short(call.id)}</span> },
              { name: "Time", show: (call) => <span class="soft" title={moment(call.at)}>{time(call.at)}</span> },
              { name: "Request", wide: true, show: (call) => <Request call={call} /> },
              { name: "Endpoint", minor: true, show: (call) => <Place upstream={call.upstream} endpoint={call.endpoint} /> },
              { name: "Status", number: true, show: (call) => <span class="mono">{call.response_status ?? "–"}</span> },
              { name: "Outcome", show: (call) => <Badge word={call.outcome} /> },
              { name: "Reason", minor: true, show: (call) => <span class="soft brief" title={`${call.reason.replaceAll("_", " ")}: ${REASONS[call.reason] ?? ""}`}>{call.reason.replaceAll("_", " ")}</span> },
              { name: "Attempts", number: true, show: (call) => <Tries count={call.attempts} /> },
              { name: "Elapsed", number: true, show: (call) => ms(call.elapsed_ms) },
              { name: "Caller", minor: true, show: (call) => <span class="brief" title={call.caller}>{call.caller}</span> },
            ]}
          />
        )}
      </Panel>
      {parts[0] && <Detail id={parts[0]} close={() => go("calls", [], filter)} />}
    </>
  );
}

/** What the caller asked for; the endpoint where a request never had one. */
function Request({ call }: { call: Call }): JSX.Element {
  if (!call.method) return <Place upstream={call.upstream} endpoint={call.endpoint} />;
  return (
    <>
      <b class="method">{call.method}</b> <span class="cut" title={`${call.upstream}${call.path ?? ""}`}>{call.path}</span>
    </>
  );
}

function Tries({ count }: { count: number }): JSX.Element {
  return <span class={count > 1 ? "warn-text" : ""}>{count}</span>;
}

function Detail({ id, close }: { id: string; close: () => void }): JSX.Element {
  const { data, error } = useResource<Call>(`/v1/calls/${encodeURIComponent(id)}`, { every: 0, live: false });
  return (
    <Dialog drawer title={`Call ${short(id)}`} onClose={close}>
      {error && <Failure error={error} />}
      {!data && !error && <Loading />}
      {data && (
        <>
          <div class="headline">
            <Badge word={data.outcome} />
            <strong>{data.method ? `${data.method} ${data.path ?? ""}` : `${data.upstream}/${data.endpoint}`}</strong>
            <span class="soft">{data.attempts === 1 ? "1 attempt" : `${data.attempts} attempts`} in {ms(data.elapsed_ms)}</span>
          </div>
          <p class="lead">{healed(data) ?? REASONS[data.reason] ?? data.reason}</p>
          <Timeline attempts={data.timeline ?? []} elapsed={data.elapsed_ms} />
          <Facts rows={[["Call", <span class="mono">{data.id} <Copy text={data.id} label="Copy" /></span>], ["Time", `${moment(data.at)} (${ago(data.at)})`], ["Endpoint", `${data.upstream}/${data.endpoint}${data.route ? ` (${data.route})` : ""}`], ["Caller got", data.response_status ? String(data.response_status) : "nothing: it left, or was cut off"], ["Caller", data.caller], ["Reason", data.reason]]} />
        </>
      )}
    </Dialog>
  );
}

/** What retries bought: the first answer alone would have been a failure. */
function healed(call: Call): string | undefined {
  if (call.outcome !== "success" || call.attempts < 2) return undefined;
  return `Healed: the first attempt failed, and ${call.attempts === 2 ? "one more" : `${call.attempts - 1} more`} made it a success.`;
}

/** Attempts as bars on one axis, waits as the gaps between them. */
function Timeline({ attempts, elapsed }: { attempts: Attempt[]; elapsed: number }): JSX.Element {
  if (attempts.length === 0) return <p class="quiet">Nothing was sent: the call was refused, or answered from the cache.</p>;
  const whole = Math.max(elapsed, ...attempts.map((attempt) => attempt.elapsed_ms), 1);
  return (
    <ol class="timeline">
      {attempts.map((attempt) => {
        const start = Math.max(0, attempt.elapsed_ms - attempt.latency_ms);
        return (
          <li key={attempt.attempt} class={hue(attempt.class)}>
            <div class="timeline-head">
              <span class="ordinal">{attempt.attempt}</span>
              <b class="mono">{attempt.status}</b>
              <Badge word={attempt.class} />
              <span class="soft">{ms(attempt.latency_ms)}</span>
              {attempt.key_id && <span class="soft mono">key {attempt.key_id}</span>}
              <span class="decision">
                <Icon name="right" size={14} />
                {DECISIONS[attempt.decision] ?? attempt.decision}
                {attempt.wait_ms ? ` after ${ms(attempt.wait_ms)}` : ""}
              </span>
            </div>
            <div class="lane" aria-hidden="true">
              <i class="took" style={{ left: `${(start / whole) * 100}%`, width: `${Math.max(0.6, (attempt.latency_ms / whole) * 100)}%` }} />
              {attempt.wait_ms ? <i class="waited" style={{ left: `${(attempt.elapsed_ms / whole) * 100}%`, width: `${Math.min(100 - (attempt.elapsed_ms / whole) * 100, (attempt.wait_ms / whole) * 100)}%` }} /> : null}
            </div>
            <p class="why">{REASONS[attempt.reason] ?? attempt.reason.replaceAll("_", " ")}</p>
          </li>
        );
      })}
    </ol>
  );
}
