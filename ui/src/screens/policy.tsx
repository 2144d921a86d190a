// Policy: the checklist of every endpoint, what the worst case costs, warnings, the file, and who changed what.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { call, Problem } from "../api";
import { moment, ms, plural, ratio, share } from "../format";
import { Icon } from "../icons";
import { Badge, Code, Empty, Failure, Loading, Meter, Panel } from "../parts/basics";
import { confirm } from "../parts/dialog";
import { Rows } from "../parts/rows";
import { useResource } from "../resource";
import { say } from "../toasts";
import type { Audit, Config, Page, PolicyRow, Warning } from "../types";

export function Policy(): JSX.Element {
  const { data, error, again } = useResource<Config>("/v1/config", { every: 0 });
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={8} />;
  return (
    <>
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

interface Reloaded {
  ok: boolean;
  changes: (string | Record<string, unknown>)[];
}

const told = (change: string | Record<string, unknown>) => (typeof change === "string" ? change : JSON.stringify(change));

function Warnings({ warnings, file, again }: { warnings: Warning[]; file: string; again: () => void }): JSX.Element {
  const problems = useSignal<string[]>([]);
  const reload = async () => {
    problems.value = [];
    try {
      const { changes } = await call<Reloaded>("POST", "/v1/config/reload?dry_run=1", {});
      confirm({
        title: `Reload the policy: ${plural(changes.length, "change")}`,
        text: changes.length ? <ul class="held">{changes.map((change) => <li key={told(change)} class="mono">{told(change)}</li>)}</ul> : <p>The file says what is already in force. Breakers, keys, limits and jobs keep their state.</p>,
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
        <Empty icon="check" good title="No warning">The policy has an answer to every question that is asked of it.</Empty>
      ) : (
        <ul class="warnings">
          {warnings.map((warning) => (
            <li key={`${warning.code}${warning.path ?? warning.subject}${warning.message}`}>
              <Badge word={warning.code} as={warning.severity === "error" ? "bad" : "warn"} />
              <div>
                <p>{warning.message}</p>
                <span class="soft mono">{warning.path ?? warning.subject}{warning.line ? `, line ${warning.line}` : ""}</span>
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
          { name: "Endpoint", show: (row) => <><span class="soft">{row.upstream}/</span>{row.endpoint}</> },
          { name: "Longest wait", wide: true, show: (row) => <span class="worst"><Meter value={(row.worst_case?.elapsed_ms ?? 0) / most} label="Longest wait" hue="info" /><b>{ms(row.worst_case?.elapsed_ms)}</b></span> },
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
                  <span class="soft">{row.upstream}/</span>{row.endpoint}
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
