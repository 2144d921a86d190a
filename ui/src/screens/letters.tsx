// Dead letters: grouped into issues, filtered, looked at, replayed, discarded, exported.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { all, call, path, query } from "../api";
import { ago, ahead, count, moment, plural, short } from "../format";
import { Icon } from "../icons";
import { Badge, Empty, Facts, Failure, Loading, Panel, Search, Select } from "../parts/basics";
import { confirm, Dialog } from "../parts/dialog";
import { Attempts, Message } from "../parts/exchange";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { go, link, place, refine } from "../route";
import { say } from "../toasts";
import type { Issue, Letter, Page, Upstream } from "../types";
import { ReplayDialog, Replays, type Wanted } from "./replay";

/** Letters that one export writes, and one discard takes. */
const MOST_EXPORTED = 10_000;
const FILTERS = ["upstream", "endpoint", "class", "code", "severity", "q"] as const;

export function Letters(): JSX.Element {
  const { filter, parts } = place.value;
  const chosen = useSignal<Set<string>>(new Set());
  const wanted = useSignal<Wanted | null>(null);
  const status = filter.status ?? "kept";
  const narrowed: Record<string, string> = Object.fromEntries(FILTERS.flatMap((name) => (filter[name] ? [[name, filter[name]]] : [])));
  const { data, error, again } = useResource<Page<Letter>>(query("/v1/dead-letters", { ...narrowed, status, limit: 200 }), { every: 3 });
  const issues = useResource<Page<Issue>>("/v1/dead-letters/issues", { every: 3 });
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 0, live: false }).data?.items ?? [];
  const refresh = () => {
    chosen.value = new Set();
    again();
    issues.again();
  };
  const rows = data?.items ?? [];
  const picked = rows.filter((letter) => chosen.value.has(letter.id));
  const toggle = (id: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(id)) next.add(id);
    chosen.value = next;
  };
  const toggleAll = () => {
    chosen.value = picked.length === rows.length ? new Set() : new Set(rows.map((letter) => letter.id));
  };
  const filtered = Object.keys(narrowed).length > 0;
  return (
    <>
      <Issues issues={issues.data?.items} filter={filter} />
      <Replays />
      <div class="filters">
        <Search value={filter.q ?? ""} onInput={(q) => refine({ q })} hint="URL, detail, correlation id" />
        <Select label="Upstream" value={filter.upstream ?? ""} options={["", ...new Set([...upstreams.map((upstream) => upstream.name), ...(issues.data?.items ?? []).map((issue) => issue.upstream)])]} onChange={(upstream) => refine({ upstream, endpoint: undefined })} />
        <Select label="Class" value={filter.class ?? ""} options={["", "transient", "permanent", "ambiguous", "quota", "auth"]} onChange={(value) => refine({ class: value })} />
        <Select label="Severity" value={filter.severity ?? ""} options={["", "review", "pager"]} onChange={(severity) => refine({ severity })} />
        <Select label="Status" value={status} options={["kept", "replaying", "replayed"]} onChange={(value) => refine({ status: value })} />
        {filtered && (
          <button type="button" class="ghost" onClick={() => go("dead-letters")}>
            <Icon name="close" size={14} /> Clear
          </button>
        )}
        <span class="filters-end">
          <button type="button" onClick={() => void exportAll({ ...narrowed, status })} disabled={rows.length === 0}>
            <Icon name="download" size={16} /> Export
          </button>
          {status === "kept" && (
            <button type="button" class="primary" disabled={rows.length === 0} onClick={() => (wanted.value = picked.length > 0 ? { letters: picked } : { filter: narrowed })}>
              <Icon name="replay" size={16} /> {picked.length > 0 ? `Replay ${picked.length}` : filtered ? "Replay matching" : "Replay all"}
            </button>
          )}
        </span>
      </div>
      {error && <Failure error={error} again={again} />}
      <Panel flush>
        {picked.length > 0 && (
          <div class="chosen-bar">
            <strong>{plural(picked.length, "letter")} chosen</strong>
            <button type="button" class="small" onClick={() => (wanted.value = { letters: picked })}>Replay</button>
            <button type="button" class="small danger" onClick={() => discard(picked, refresh)}>Discard</button>
            <button type="button" class="ghost small" onClick={() => (chosen.value = new Set())}>Choose none</button>
          </div>
        )}
        {!data && !error ? (
          <Loading rows={6} />
        ) : rows.length === 0 ? (
          <Empty icon={filtered ? "search" : "check"} good={!filtered} title={filtered ? "No letter matches" : status === "kept" ? "No dead letters" : `Nothing is ${status}`} code={filtered ? undefined : '[upstreams.payments]\ndead_letter = { from = ["jobs", "batch", "gateway"], alarm_depth = 100, ttl = "14d" }'}>
            {filtered ? "Loosen the filter, or look among those that were replayed." : "A call that was given up on is kept here with its request and its attempts, until somebody replays or discards it. Jobs and batches are kept by default; the gateway's calls when you say so."}
          </Empty>
        ) : (
          <Rows
            label="Dead letters"
            rows={rows}
            id={(letter) => letter.id}
            href={(letter) => link("dead-letters", [letter.id], filter)}
            open={parts[0]}
            {...(status === "kept" ? { chosen: { ids: chosen.value, toggle, all: toggleAll } } : {})}
            columns={[
              { name: "Letter", show: (letter) => <span class="mono" title={letter.id}>{short(letter.id)}</span> },
              { name: "Class", show: (letter) => <><Badge word={letter.class} /> {letter.severity === "pager" && <Badge word="pager" />}</> },
              { name: "Request", wide: true, show: (letter) => <><b class="method">{letter.original.method}</b> <span class="cut" title={letter.original.url}>{letter.original.url}</span></> },
              { name: "Failure", minor: true, wide: true, show: (letter) => <span class="soft cut" title={letter.error_detail}>{failure(letter)}</span> },
              { name: "Attempts", number: true, show: (letter) => letter.total_attempts },
              { name: "Died", show: (letter) => <span class="soft" title={moment(letter.dead_lettered_at)}>{ago(letter.dead_lettered_at)}</span> },
              { name: "Replayable", minor: true, show: (letter) => (letter.replayable ? <Badge word="yes" as="good" /> : <Badge word="no" as="mute" title={letter.replay_instructions} />) },
            ]}
          />
        )}
        {data?.next_cursor && <p class="quiet pad">The newest {rows.length} are shown. A replay or an export of what matches takes the rest, too.</p>}
      </Panel>
      {wanted.value && <ReplayDialog wanted={wanted.value} close={() => (wanted.value = null)} done={refresh} />}
      {parts[0] && <Detail id={parts[0]} close={() => go("dead-letters", [], filter)} replay={(letter) => (wanted.value = { letters: [letter] })} refresh={refresh} />}
    </>
  );
}

/** The code and the words that came with it, each once. */
function failure({ failure_code: code, error_detail: detail }: Letter): string {
  return detail.startsWith(code) ? detail : [code, detail].filter(Boolean).join(": ");
}

function Issues({ issues, filter }: { issues: Issue[] | undefined; filter: Record<string, string> }): JSX.Element | null {
  const open = (issues ?? []).filter((issue) => issue.open > 0);
  if (open.length === 0) return null;
  return (
    <Panel title="Issues" note="letters that failed the same way" flush>
      <ul class="issues">
        {open.map((issue) => {
          const own = { upstream: issue.upstream, endpoint: issue.endpoint, class: issue.class, code: issue.code };
          const on = Object.entries(own).every(([name, value]) => filter[name] === value);
          return (
            <li key={Object.values(own).join()}>
              <a class={`issue ${issue.severity}`} aria-current={on ? "true" : undefined} href={on ? link("dead-letters") : link("dead-letters", [], own)}>
                <b class="issue-count">{count(issue.open)}</b>
                <span class="issue-what">
                  <strong>{issue.upstream}/{issue.endpoint}</strong>
                  <Badge word={issue.class} />
                  {issue.severity === "pager" && <Badge word="pager" />}
                  <span class="mono soft">{issue.code}</span>
                </span>
                <span class="issue-detail soft">{issue.detail}</span>
                <span class="issue-when soft">first {ago(issue.first_at)} · last {ago(issue.last_at)} · {count(issue.total)} ever</span>
              </a>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

interface DetailProps {
  id: string;
  close: () => void;
  replay: (letter: Letter) => void;
  refresh: () => void;
}

function Detail({ id, close, replay, refresh }: DetailProps): JSX.Element {
  const { data: letter, error } = useResource<Letter>(path("/v1/dead-letters", id), { every: 5 });
  const footer = letter?.status === "kept" && (
    <>
      <button type="button" class="danger" onClick={() => discard([letter], () => { refresh(); close(); })}>Discard</button>
      <button type="button" class="primary" onClick={() => replay(letter)}>Replay</button>
    </>
  );
  return (
    <Dialog drawer title={`Dead letter ${short(id)}`} onClose={close} footer={footer}>
      {error && <Failure error={error} />}
      {!letter && !error && <Loading />}
      {letter && (
        <>
          <div class="headline">
            <Badge word={letter.class} />
            <Badge word={letter.severity} />
            <Badge word={letter.status} />
            <strong>{letter.queue}/{letter.endpoint}</strong>
          </div>
          <p class="lead">{letter.error_detail || letter.failure_reason}</p>
          {letter.replay_instructions && <p class="instructions"><Icon name="bolt" size={16} /> {letter.replay_instructions}</p>}
          <Facts
            rows={[
              ["Failure", `${letter.failure_code}: ${letter.failure_reason}`],
              ["Died", `${moment(letter.dead_lettered_at)} (${ago(letter.dead_lettered_at)})`],
              ["Expires", ahead(letter.expires_at)],
              ["Replayable", letter.replayable ? "yes" : "no, unless forced"],
              ["Replays", `${letter.replays}`],
              ["Door", `${letter.door}, by ${letter.caller}`],
              ["Correlation", letter.correlation_id],
              ["Idempotency key", letter.idempotency_key],
              ["Replay job", letter.replayed_by && <a href={link("jobs", [letter.replayed_by])}>{short(letter.replayed_by)}</a>],
            ]}
          />
          <Attempts history={letter.history} />
          <Message title={letter.original.body_cut ? "Request (body cut)" : "Request"} first={`${letter.original.method} ${letter.original.url}`} message={letter.original} />
        </>
      )}
    </Dialog>
  );
}

function discard(letters: Letter[], done: () => void): void {
  confirm({
    title: `Discard ${plural(letters.length, "dead letter")}`,
    text: <p>{letters.length === 1 ? "It is" : "They are"} deleted for good: request, attempts and reason. Export first if anybody may ask.</p>,
    verb: `Discard ${letters.length}`,
    danger: true,
    act: async () => {
      for (const letter of letters) await call("DELETE", path("/v1/dead-letters", letter.id));
      done();
      return `${plural(letters.length, "letter")} discarded`;
    },
  });
}

async function exportAll(parameters: Record<string, string>): Promise<void> {
  try {
    const { items, more } = await all<Letter>("/v1/dead-letters", parameters, MOST_EXPORTED);
    const text = items.map((letter) => `${JSON.stringify(letter)}\n`).join("");
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
    anchor.download = "dead-letters.ndjson";
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
    say("good", `${plural(items.length, "letter")} exported`, more ? `Only the newest ${count(MOST_EXPORTED)}: narrow the filter, or use seawall dlq export.` : "");
  } catch (error) {
    say("bad", "The export failed", (error as Error).message);
  }
}
