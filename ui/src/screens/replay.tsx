// Replays: the question before one starts, with how many and how fast, and the progress of those that run.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { all, call, path } from "../api";
import { ago, count, plural, short } from "../format";
import { Badge, Failure, Loading, Meter, Panel } from "../parts/basics";
import { confirm, Dialog } from "../parts/dialog";
import { useResource } from "../resource";
import { say } from "../toasts";
import type { Letter, Page, Replay, ReplayAnswer } from "../types";

/** Chosen letters, or all that match. */
export type Wanted = { letters: Letter[] } | { filter: Record<string, string> };

const MOST_COUNTED = 10_000;

interface Props {
  wanted: Wanted;
  close: () => void;
  done: () => void;
}

export function ReplayDialog({ wanted, close, done }: Props): JSX.Element {
  const found = useSignal<{ items: Letter[]; more: boolean } | null>("letters" in wanted ? { items: wanted.letters, more: false } : null);
  const rate = useSignal("10/s");
  const name = useSignal("");
  const force = useSignal(false);
  const busy = useSignal(false);
  const problem = useSignal<Error | null>(null);
  const answer = useSignal<ReplayAnswer | null>(null);
  useEffect(() => {
    if (!("filter" in wanted)) return;
    all<Letter>("/v1/dead-letters", { ...wanted.filter, status: "kept" }, MOST_COUNTED).then(
      (letters) => (found.value = letters),
      (error: Error) => (problem.value = error),
    );
  }, []);
  const letters = found.value?.items ?? [];
  const held = force.value ? 0 : letters.filter((letter) => !letter.replayable).length;
  const many = letters.length - held;
  const more = found.value?.more ? "more than " : "";
  const start = async () => {
    busy.value = true;
    problem.value = null;
    const what = "letters" in wanted ? { ids: wanted.letters.map((letter) => letter.id) } : { filter: wanted.filter };
    try {
      const result = await call<ReplayAnswer>("POST", "/v1/dead-letters/replay", { ...what, rate: rate.value, force: force.value, ...(name.value ? { name: name.value } : {}) });
      done();
      if (result.held_back.length > 0) answer.value = result;
      else {
        say("good", `${plural(result.started, "letter")} on ${result.started === 1 ? "its" : "their"} way again`, `At ${rate.value}. They come back here if they fail again.`);
        close();
      }
    } catch (error) {
      problem.value = error as Error;
    }
    busy.value = false;
  };
  if (answer.value) return <HeldBack answer={answer.value} close={close} />;
  return (
    <Dialog
      title={found.value ? `Replay ${more}${plural(letters.length, "dead letter")}` : "Replay"}
      onClose={close}
      footer={
        <>
          <button type="button" onClick={close}>Cancel</button>
          <button type="button" class="primary" disabled={busy.value || many === 0} onClick={() => void start()}>
            Replay {more}{count(many)}
          </button>
        </>
      }
    >
      {problem.value && <Failure error={problem.value} />}
      {!found.value && !problem.value && <Loading rows={2} />}
      {found.value && (
        <div class="prose">
          <ul class="tally">
            {[...tally(letters)].map(([place, number]) => (
              <li key={place}><b>{count(number)}</b> {place}</li>
            ))}
          </ul>
          <p>
            {many === 1 ? "One request is" : `${more}${count(many)} requests are`} sent again through limits, breakers and keys as they are now, oldest first.
            {held > 0 && ` ${plural(held, "letter")} may have taken effect before and ${held === 1 ? "is" : "are"} held back.`}
          </p>
          <div class="fields">
            <label class="field"><span>Rate</span><input value={rate.value} onInput={(event) => (rate.value = event.currentTarget.value)} /></label>
            <label class="field grow"><span>Name (optional)</span><input placeholder="why, for the record" value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} /></label>
          </div>
          {letters.some((letter) => !letter.replayable) && (
            <label class="check">
              <input type="checkbox" checked={force.value} onChange={() => (force.value = !force.value)} />
              Replay those as well; I know that they may run twice
            </label>
          )}
        </div>
      )}
    </Dialog>
  );
}

function tally(letters: Letter[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const letter of letters) {
    const place = `${letter.queue}/${letter.endpoint}`;
    counts.set(place, (counts.get(place) ?? 0) + 1);
  }
  return counts;
}

function HeldBack({ answer, close }: { answer: ReplayAnswer; close: () => void }): JSX.Element {
  return (
    <Dialog title={`${plural(answer.started, "letter")} on the way, ${count(answer.held_back.length)} held back`} onClose={close} footer={<button type="button" class="primary" onClick={close}>Understood</button>}>
      <ul class="held">
        {answer.held_back.map((held) => (
          <li key={held.id}><span class="mono">{short(held.id)}</span> {held.reason}</li>
        ))}
      </ul>
    </Dialog>
  );
}

const MOST_SHOWN = 5;

export function Replays(): JSX.Element | null {
  const { data, again } = useResource<Page<Replay>>("/v1/replays", { every: 2 });
  const recent = (data?.items ?? []).filter((replay) => replay.state === "running" || replay.state === "paused" || Date.now() - Date.parse(replay.updated_at) < 3_600_000);
  if (recent.length === 0) return null;
  const act = (replay: Replay, verb: "pause" | "resume") =>
    confirm({
      title: `${verb === "pause" ? "Pause" : "Resume"} a replay with ${plural(replay.remaining, "letter")} to go`,
      text: <p>{verb === "pause" ? "Nothing more is sent until you resume it. What is on its way comes to its end." : `They are sent at ${replay.rate}, through the limits, breakers and keys of the moment.`}</p>,
      verb: verb === "pause" ? "Pause" : "Resume",
      act: async () => {
        await call("POST", path("/v1/replays", replay.id, verb), {});
        again();
      },
    });
  const cancel = (replay: Replay) =>
    confirm({
      title: `Cancel a replay with ${plural(replay.remaining, "letter")} to go`,
      text: <p>What was sent stays sent; {plural(replay.remaining, "letter")} stay dead letters.</p>,
      verb: "Cancel the replay",
      danger: true,
      act: async () => {
        await call("DELETE", path("/v1/replays", replay.id));
        again();
      },
    });
  return (
    <Panel title="Replays" note="last hour" flush>
      <ul class="replays">
        {recent.slice(0, MOST_SHOWN).map((replay) => {
          const settled = replay.ok + replay.failed;
          const whole = Math.max(1, settled + replay.remaining);
          return (
            <li key={replay.id}>
              <Badge word={replay.state} />
              <strong>{replay.name || short(replay.id)}</strong>
              <Meter value={settled / whole} label="Progress" hue={replay.failed ? "warn" : "good"} />
              <span class="number">{count(replay.ok)} ok · {count(replay.failed)} failed · {count(replay.remaining)} to go</span>
              <span class="soft">{replay.reason ?? `${replay.rate}, ${ago(replay.created_at)}`}</span>
              <span class="actions">
                {replay.state === "running" && <button type="button" class="small" onClick={() => act(replay, "pause")}>Pause</button>}
                {replay.state === "paused" && <button type="button" class="small" onClick={() => act(replay, "resume")}>Resume</button>}
                {(replay.state === "running" || replay.state === "paused") && <button type="button" class="small danger" onClick={() => cancel(replay)}>Cancel</button>}
              </span>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}
