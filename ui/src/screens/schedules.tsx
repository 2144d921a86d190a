// Schedules: what runs by itself, for whom, and how each subject fares.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { call, path } from "../api";
import { ago, ahead, plural } from "../format";
import { Badge, Empty, Failure, Loading, Panel, Search } from "../parts/basics";
import { confirm } from "../parts/dialog";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { place, refine } from "../route";
import type { Page, Schedule, Subject } from "../types";

const EXAMPLE = `[[schedules]]
name = "history"
upstream = "spotify"
request = { method = "GET", path = "/users/{subject}/history" }
every = "5m"
subjects = ["alice", "bob"]`;

export function Schedules(): JSX.Element {
  const { data, error, again } = useResource<Page<Schedule>>("/v1/schedules", { every: 3 });
  const words = (place.value.filter.q ?? "").toLowerCase();
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={6} />;
  if (data.items.length === 0) {
    return (
      <Panel>
        <Empty icon="schedules" title="No schedule yet" code={EXAMPLE}>
          A schedule sends one request for each subject every so often. A subject that fails backs off by itself and disturbs no other.
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <div class="filters">
        <Search value={place.value.filter.q ?? ""} onInput={(q) => refine({ q })} hint="Subject or error" />
      </div>
      {data.items.map((schedule) => (
        <One key={schedule.name} schedule={schedule} words={words} again={again} />
      ))}
    </>
  );
}

const WEIGHT = { stopped: 0, failing: 1, running: 2, waiting: 3 };

function request(schedule: Schedule): string {
  const asked = schedule.request as { method?: string; path?: string } | string | null;
  return typeof asked === "string" ? asked : `${asked?.method ?? "GET"} ${asked?.path ?? ""}`;
}

function One({ schedule, words, again }: { schedule: Schedule; words: string; again: () => void }): JSX.Element {
  const added = useSignal("");
  const rows = schedule.subjects.filter((subject) => `${subject.subject} ${subject.last_error}`.toLowerCase().includes(words)).sort((a, b) => WEIGHT[a.state] - WEIGHT[b.state]);
  const put = (subject: string, verb: "Add" | "Start again") =>
    confirm({
      title: `${verb === "Add" ? "Add 1 subject" : "Start 1 subject again"}: ${subject}`,
      text: <p>{verb === "Add" ? `${schedule.name} runs for it every ${schedule.every} from now on.` : "It was stopped because the provider refused its credentials. It is asked for again with what is in force now."}</p>,
      verb,
      act: async () => {
        await call("PUT", path("/v1/schedules", schedule.name, "subjects", subject), {});
        added.value = "";
        again();
        return `${subject} is on the schedule`;
      },
    });
  const remove = (subject: Subject) =>
    confirm({
      title: `Remove 1 subject: ${subject.subject}`,
      text: <p>{schedule.name} no longer runs for it. A subject that the policy file names comes back with the next reload.</p>,
      verb: "Remove",
      danger: true,
      act: async () => {
        await call("DELETE", path("/v1/schedules", schedule.name, "subjects", subject.subject));
        again();
        return `${subject.subject} removed`;
      },
    });
  const form = (
    <form class="inline" onSubmit={(event) => { event.preventDefault(); if (added.value.trim()) put(added.value.trim(), "Add"); }}>
      <input aria-label={`New subject of ${schedule.name}`} placeholder="subject" value={added.value} onInput={(event) => (added.value = event.currentTarget.value)} />
      <button type="submit" class="small">Add</button>
    </form>
  );
  return (
    <Panel title={schedule.name} note={<><span class="mono">{request(schedule)}</span> of {schedule.upstream}, every {schedule.every}, {plural(schedule.subjects.length, "subject")}</>} actions={form} flush>
      <Rows
        label={schedule.name}
        rows={rows}
        id={(subject) => subject.subject}
        columns={[
          { name: "Subject", show: (subject) => <strong>{subject.subject}</strong> },
          { name: "State", show: (subject) => <Badge word={subject.state} /> },
          { name: "Next", named: true, show: (subject) => <span class="soft">{subject.state === "stopped" ? "not by itself" : ahead(subject.next_at)}</span> },
          { name: "Last good", named: true, show: (subject) => <span class="soft">{subject.last_ok_at ? ago(subject.last_ok_at) : "never"}</span> },
          { name: "Failures in a row", number: true, show: (subject) => <span class={subject.consecutive_failures ? "warn-text" : ""}>{subject.consecutive_failures}</span> },
          { name: "Last error", wide: true, minor: true, show: (subject) => <span class="soft cut" title={subject.last_error ?? ""}>{subject.last_error ?? "–"}</span> },
          {
            name: "Action",
            number: true,
            show: (subject) => (
              <span class="actions">
                {subject.state === "stopped" && <button type="button" class="small" aria-label={`Start ${subject.subject} again`} onClick={() => put(subject.subject, "Start again")}>Start again</button>}
                <button type="button" class="small" aria-label={`Remove ${subject.subject}`} onClick={() => remove(subject)}>Remove</button>
              </span>
            ),
          },
        ]}
      />
    </Panel>
  );
}
