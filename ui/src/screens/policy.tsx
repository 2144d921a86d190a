// Policy: the checklist of every endpoint, what the worst case costs, warnings, the file, and who changed what.

import { useSignal } from "@preact/signals";
import { Fragment, type JSX } from "preact";
import { call, Problem } from "../api";
import { moment, ms, plural, ratio, share } from "../format";
import { Icon } from "../icons";
import { Badge, Code, Empty, Failure, Loading, Meter, Panel, Place } from "../parts/basics";
import { confirm } from "../parts/dialog";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { say } from "../toasts";
import type { Audit, Config, Page, PolicyRow, Status, Warning } from "../types";

export function Policy(): JSX.Element {
  const { data, error, again } = useResource<Config>("/v1/config", { every: 0 });
  const left = useResource<Status>("/v1/status", { every: 5 }).data?.config.needs_restart ?? [];
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={8} />;
  return (
    <>
      {left.length > 0 && <Restart keys={left} file={data.file} />}
      <Warnings warnings={data.warnings} file={data.file} again={again} />
      <Worst rows={data.checklist} />
      <Checklist rows={data.checklist} />
      <div class="split even">
        <Panel title="File" note={data.file}>
          <Code text={data.toml} />
        </Panel>
        <Audits />
      </div>
    </>
  );
}

/** What a reload could not apply, and how to apply it. */
function Restart({ keys, file }: { keys: string[]; file: string }): JSX.Element {
  return (
    <section class="notice" aria-label="A restart is needed">
      <Icon name="alert" size={20} />
      <div>
        <h2>A restart is needed</h2>
        <p>
          The file has {keys.length === 1 ? "another value" : "other values"} for <Keys keys={keys} />. No reload changes {keys.length === 1 ? "it" : "them"}: until the process is started again, what it was started with is in force. Everything else of the file is.
        </p>
        <p>
          Check the file first, then restart. SIGTERM lets what is in flight end within <code>server.drain</code>; open breakers, cooling keys, jobs and dead letters are still there afterwards.
        </p>
        <Code text={`seawall check -c ${file}`} />
      </div>
    </section>
  );
}

function Keys({ keys }: { keys: string[] }): JSX.Element {
  return <>{keys.map((key, index) => <Fragment key={key}>{index > 0 && (index === keys.length - 1 ? " and " : ", ")}<code>{key}</code></Fragment>)}</>;
}

interface Reloaded {
  ok: boolean;
  changes: (string | Record<string, unknown>)[];
  needs_restart?: string[];
}

const told = (change: string | Record<string, unknown>) => (typeof change === "string" ? change : JSON.stringify(change));

function Warnings({ warnings, file, again }: { warnings: Warning[]; file: string; again: () => void }): JSX.Element {
  const problems = useSignal<string[]>([]);
  const reload = async () => {
    problems.value = [];
    try {
      const { changes, needs_restart: left = [] } = await call<Reloaded>("POST", "/v1/config/reload?dry_run=1", {});
      confirm({
        title: `Reload the policy: ${plural(changes.length, "change")}`,
        text: (
          <>
            {changes.length > 0 && <ul class="held">{changes.map((change) => <li key={told(change)} class="mono">{told(change)}</li>)}</ul>}
            {changes.length + left.length === 0 && <p>The file says what is already in force.</p>}
            {left.length > 0 && <p>Only a restart changes <Keys keys={left} />; {left.length === 1 ? "it stays" : "they stay"} as {left.length === 1 ? "it is" : "they are"}.</p>}
            <p>Breakers, keys, limits and jobs keep their state.</p>
          </>
        ),
        verb: "Reload",
        act: async () => {
          await call("POST", "/v1/config/reload", {});
          again();
          return "The policy is reloaded";
        },
      });
    } catch (error) {
      const found = error instanceof Problem && Array.isArray(error.body.problems) ? (error.body.problems as Record<string, unknown>[]) : [];
      problems.value = found.map((problem) => `${problem.line ?? ""} ${problem.path ?? ""}: ${problem.message ?? ""}`);
      say("warn", "The file would be rejected", (error as Error).message);
    }
  };
  return (
    <Panel title="Warnings" note={`seawall check -c ${file}`} actions={<button type="button" class="small" onClick={() => void reload()}>Check and reload</button>} flush>
      {problems.value.map((problem) => <Failure key={problem} error={new Error(problem)} />)}
      {warnings.length === 0 ? (
        <Empty icon="check" good title="No warning">The file says nothing that would surprise you. What it leaves open is marked in the checklist.</Empty>
      ) : (
        <ul class="warnings">
          {warnings.map((warning) => (
            <li key={`${warning.code}${warning.path ?? warning.subject}${warning.message}`}>
              <Badge word={warning.code} as={warning.severity === "error" ? "bad" : "warn"} />
              <div>
                <p><strong>{warning.title ?? warning.message}</strong></p>
                {warning.help && <p class="soft">{warning.help}</p>}
                <p class="soft"><span class="mono">{warning.path ?? warning.subject}{warning.line ? `, line ${warning.line}` : ""}</span>{warning.title && `: ${warning.message}`}</p>
              </div>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Worst({ rows }: { rows: PolicyRow[] }): JSX.Element {
  const most = Math.max(1, ...rows.map((row) => row.worst_case?.elapsed_ms ?? 0));
  return (
    <Panel title="Worst cases" note="how long a caller may wait, how much an outage is amplified, how likely a call gives up" flush>
      <Rows
        label="Worst cases"
        rows={rows.filter((row) => row.worst_case)}
        id={(row) => `${row.upstream}/${row.endpoint}`}
        columns={[
          { name: "Endpoint", show: (row) => <Place upstream={row.upstream} endpoint={row.endpoint} /> },
          { name: "Longest wait", wide: true, show: (row) => <span class="worst"><span class="narrow soft">Longest wait</span><Meter value={(row.worst_case?.elapsed_ms ?? 0) / most} label="Longest wait" hue="info" /><b>{ms(row.worst_case?.elapsed_ms)}</b></span> },
          { name: "Attempts that fit", number: true, show: (row) => `${row.worst_case?.attempts_that_fit} of ${row.worst_case?.attempts}` },
          { name: "Amplification", number: true, show: (row) => `× ${ratio(row.amplification?.budgeted)}` },
          { name: "Gives up: 10 s outage", number: true, minor: true, show: (row) => share(row.gives_up?.["10s"]) },
          { name: "60 s", number: true, minor: true, show: (row) => share(row.gives_up?.["60s"]) },
          { name: "10 min", number: true, minor: true, show: (row) => share(row.gives_up?.["10m"]) },
        ]}
      />
    </Panel>
  );
}

function Checklist({ rows }: { rows: PolicyRow[] }): JSX.Element {
  const questions = [...new Set(rows.flatMap((row) => Object.keys(row.checklist)))];
  return (
    <Panel title="Checklist" note="what every endpoint must have an answer to" flush>
      <div class="matrix" tabIndex={0}>
        <table aria-label="Checklist">
          <thead>
            <tr>
              <th scope="col">Question</th>
              {rows.map((row) => (
                <th key={`${row.upstream}/${row.endpoint}`} scope="col">
                  <Place upstream={row.upstream} endpoint={row.endpoint} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {questions.map((question) => (
              <tr key={question}>
                <th scope="row">{question.replaceAll("_", " ")}</th>
                {rows.map((row) => {
                  const item = row.checklist[question];
                  return (
                    <td key={`${row.upstream}/${row.endpoint}`} class={item?.gap ? "gap" : ""}>
                      {item && <Icon name={item.gap ? "alert" : "check"} size={14} />}
                      {item?.answer ?? "–"}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function Audits(): JSX.Element {
  const { data, error } = useResource<Page<Audit>>("/v1/audit", { every: 10 });
  return (
    <Panel title="Operator actions" note="newest first" flush>
      {error && <Failure error={error} />}
      {data?.items.length === 0 && <Empty icon="policy" title="Nobody changed anything">Breakers held, keys cooled, replays, reloads: each is written down here.</Empty>}
      {data && data.items.length > 0 && (
        <Rows
          label="Operator actions"
          rows={data.items.slice(0, 50)}
          id={(entry) => `${entry.at}${entry.action}${entry.detail}`}
          columns={[
            { name: "Time", show: (entry) => <span class="soft">{moment(entry.at)}</span> },
            { name: "Who", show: (entry) => entry.who },
            { name: "Action", show: (entry) => <strong>{entry.action}</strong> },
            { name: "Detail", wide: true, show: (entry) => entry.detail },
          ]}
        />
      )}
    </Panel>
  );
}
