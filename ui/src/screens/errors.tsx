// Unnamed errors: failures that only a default rule caught. Naming one applies at once and shows the rule to keep.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { call, path } from "../api";
import { ago, plural } from "../format";
import { Badge, Code, Empty, Failure, Loading, Panel, Search } from "../parts/basics";
import { confirm } from "../parts/dialog";
import { useResource } from "../resource";
import { place, refine } from "../route";
import type { Page, UnnamedError } from "../types";
import { CLASSES } from "../words";

export function Errors(): JSX.Element {
  const { data, error, again } = useResource<Page<UnnamedError>>("/v1/errors", { every: 5 });
  const words = (place.value.filter.q ?? "").toLowerCase();
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={6} />;
  const rows = data.items.filter((item) => `${item.upstream}/${item.endpoint} ${item.status} ${item.sample}`.toLowerCase().includes(words));
  if (data.items.length === 0) {
    return (
      <Panel>
        <Empty icon="check" good title="Every failure has a name" code={'[[upstreams.videos.classify]]\nwhen = { status = [403], json = { "/error/errors/0/reason" = ["quotaExceeded"] } }\nas = "quota"'}>
          When an upstream fails in a way that no rule knows, it is grouped here with a redacted sample. Rules look like this.
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <p class="intro">Only a default rule caught these. Give each a class: it applies at once and is kept; the rule to paste puts it into the policy file.</p>
      <div class="filters">
        <Search value={place.value.filter.q ?? ""} onInput={(q) => refine({ q })} hint="Upstream, status, text" />
      </div>
      <div class="stack">
        {rows.map((item) => (
          <One key={item.fingerprint} item={item} again={again} />
        ))}
      </div>
    </>
  );
}

function One({ item, again }: { item: UnnamedError; again: () => void }): JSX.Element {
  const named = useSignal<{ as: string; toml: string } | null>(null);
  const name = (word: string, meaning: string) =>
    confirm({
      title: `Name 1 error ${word}: ${item.upstream}/${item.endpoint} ${item.status}`,
      text: <p>Every answer of {item.upstream} that looks like this one is {word} from now on, here and on instances with the same store. {meaning} It was seen {plural(item.count, "time")} so far.</p>,
      verb: "Name it",
      act: async () => {
        named.value = await call("POST", path("/v1/errors", item.fingerprint), { as: word });
        again();
        return `Named ${word}: it applies to ${item.upstream} from now on`;
      },
    });
  const word = named.value?.as ?? item.named_as;
  const rule = named.value?.toml ?? item.toml;
  return (
    <section class="panel unnamed" data-fingerprint={item.fingerprint}>
      <header class="panel-head">
        <h2>{item.upstream}/{item.endpoint}</h2>
        <b class="mono status">{item.status}</b>
        {word ? <Badge word={`named ${word}`} as="good" /> : <Badge word="unnamed" as="warn" />}
        <span class="note">{plural(item.count, "time")}, last {ago(item.last_at)}, first {ago(item.first_at)}</span>
      </header>
      <pre class="sample" tabIndex={0}>{item.sample}</pre>
      <div class="classes" role="group" aria-label={`Class of ${item.upstream}/${item.endpoint} ${item.status}`}>
        {CLASSES.map(([name_, meaning]) => (
          <button key={name_} type="button" aria-pressed={word === name_} onClick={() => name(name_, meaning)} title={meaning}>
            <strong>{name_}</strong>
            <span>{meaning}</span>
          </button>
        ))}
      </div>
      {rule && (
        <>
          <p class="soft">In force, also after a restart. To have it in the policy file, paste this:</p>
          <Code text={rule} label="Copy rule" />
        </>
      )}
    </section>
  );
}
