// Jobs: durable calls by state, each with its story; those that are not over can be cancelled.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { call, path, query } from "../api";
import { ago, ahead, count, moment, short, span } from "../format";
import { Badge, Empty, Facts, Failure, Loading, Panel, Search, Select, Tile } from "../parts/basics";
import { confirm, Dialog } from "../parts/dialog";
import { Attempts, Message } from "../parts/exchange";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { go, link, place, refine } from "../route";
import type { Job, JobState, Page, Status, Upstream } from "../types";
import { hue } from "../words";

const STATES: JobState[] = ["queued", "running", "waiting", "done", "dead", "cancelled"];

export function Jobs(): JSX.Element {
  const { filter, parts } = place.value;
  const limit = useSignal(50);
  const status = useResource<Status>("/v1/status", { every: 2 }).data;
  const asked = query("/v1/jobs", { state: filter.state, upstream: filter.upstream, limit: limit.value });
  const { data, error, again } = useResource<Page<Job>>(asked, { every: 3 });
  const upstreams = useResource<Page<Upstream>>("/v1/upstreams", { every: 0, live: false }).data?.items ?? [];
  const words = (filter.q ?? "").toLowerCase();
  const rows = (data?.items ?? []).filter((job) => !words || `${job.id} ${job.method} ${job.path} ${job.upstream} ${job.correlation_id} ${job.caller}`.toLowerCase().includes(words));
  return (
    <>
      <div class="tiles six">
        {STATES.map((state) => (
          <Tile key={state} label={state} value={count(status?.jobs?.[state])} hue={state === "dead" && status?.jobs?.dead ? "bad" : undefined} pressed={filter.state === state} href={link("jobs", [], { ...filter, state: filter.state === state ? undefined : state })} note={state === "queued" && status ? `oldest waits ${span(status.jobs.lag_seconds)}` : undefined} />
        ))}
      </div>
      <div class="filters">
        <Search value={filter.q ?? ""} onInput={(q) => refine({ q })} hint="Id, path, correlation id" />
        <Select label="State" value={filter.state ?? ""} options={["", ...STATES]} onChange={(state) => refine({ state })} />
        <Select label="Upstream" value={filter.upstream ?? ""} options={["", ...upstreams.map((upstream) => upstream.name)]} onChange={(upstream) => refine({ upstream })} />
      </div>
      {error && <Failure error={error} again={again} />}
      <Panel flush>
        {!data && !error ? (
          <Loading rows={8} />
        ) : rows.length === 0 ? (
          <Empty icon="jobs" title={filter.state || filter.q || filter.upstream ? "No job matches" : "No job yet"} code={`curl ${location.origin}/v1/jobs -H 'content-type: application/json' \\\n  -d '{"upstream":"UPSTREAM","method":"POST","path":"/things","body":"{}"}'`}>
            A job is a call that survives a restart. Submit one here, or send <code>Prefer: respond-async</code> with any call through the gateway.
          </Empty>
        ) : (
          <Rows
            label="Jobs"
            rows={rows}
            id={(job) => job.id}
            href={(job) => link("jobs", [job.id], filter)}
            open={parts[0]}
            columns={[
              { name: "Job", show: (job) => <span class="mono" title={job.id}>{short(job.id)}</span> },
              { name: "State", show: (job) => <Badge word={job.state} /> },
              { name: "Request", wide: true, show: (job) => <><b class="method">{job.method}</b> <span class="soft">{job.upstream ?? "ad hoc"}</span> <span class="cut">{job.path}</span></> },
              { name: "Attempts", number: true, show: (job) => job.attempts },
              { name: "Next or end", named: true, show: (job) => <span class="soft">{job.next_attempt_at && !job.finished_at ? ahead(job.next_attempt_at) : job.finished_at ? ago(job.finished_at) : "–"}</span> },
              { name: "Created", minor: true, show: (job) => <span class="soft">{ago(job.created_at)}</span> },
              { name: "From", minor: true, show: (job) => job.origin.schedule ? `${job.origin.schedule}/${job.origin.subject}` : job.origin.kind },
            ]}
          />
        )}
        {data?.next_cursor && limit.value < 500 && (
          <div class="more">
            <button type="button" onClick={() => (limit.value = 500)}>Show more</button>
          </div>
        )}
      </Panel>
      {parts[0] && <Detail id={parts[0]} close={() => go("jobs", [], filter)} again={again} />}
    </>
  );
}

function Detail({ id, close, again }: { id: string; close: () => void; again: () => void }): JSX.Element {
  const { data: job, error } = useResource<Job>(path("/v1/jobs", id), { every: 2 });
  const over = job && ["done", "dead", "cancelled"].includes(job.state);
  const cancel = () =>
    confirm({
      title: "Cancel 1 job",
      text: <p>{job?.state === "running" ? "Its attempt is under way and may still take effect upstream; no further one is made." : "It will not be sent."}</p>,
      verb: "Cancel the job",
      danger: true,
      act: async () => {
        await call("DELETE", path("/v1/jobs", id));
        again();
        return "The job is cancelled";
      },
    });
  return (
    <Dialog drawer title={`Job ${short(id)}`} onClose={close} footer={job && !over && <button type="button" class="danger" onClick={cancel}>Cancel job</button>}>
      {error && <Failure error={error} />}
      {!job && !error && <Loading />}
      {job && (
        <>
          <div class="headline">
            <Badge word={job.state} as={hue(job.state)} />
            <strong>{job.method} {job.path}</strong>
          </div>
          <Facts
            rows={[
              ["Upstream", job.upstream ?? "ad hoc"],
              ["Created", `${moment(job.created_at)} by ${job.caller}`],
              ["Next attempt", job.next_attempt_at && !over ? ahead(job.next_attempt_at) : "none"],
              ["Attempts", `${job.attempts}${job.crashes ? `, ${job.crashes} cut off by a crash` : ""}`],
              ["Correlation", job.correlation_id],
              ["Idempotency key", job.idempotency_key],
              ["Callback", job.callback],
              ["Error", job.error ? <span class="bad-text">{typeof job.error === "string" ? job.error : JSON.stringify(job.error)}</span> : "none"],
            ]}
          />
          <Attempts history={job.history} />
          <Message title="Request" first={`${job.method} ${job.path}`} message={job} />
          {job.response && <Message title="Response" first={String(job.response.status)} message={job.response} />}
        </>
      )}
    </Dialog>
  );
}
