// A kept request or response, and the attempts that were made with it, as jobs and dead letters show them.

import type { JSX } from "preact";
import { ms, pretty, time } from "../format";
import type { History } from "../types";
import { Badge, Code } from "./basics";

interface Message {
  headers: Record<string, string>;
  body: string | null;
  body_encoding: string | null;
}

export function Message({ title, first, message }: { title: string; first: string; message: Message }): JSX.Element {
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  const body = message.body === null ? "" : `\n\n${message.body_encoding === "base64" ? `(base64) ${message.body}` : pretty(message.body)}`;
  return (
    <section class="message">
      <h3>{title}</h3>
      <Code text={`${[first, ...headers].join("\n")}${body}`} />
    </section>
  );
}

export function Attempts({ history }: { history: History[] }): JSX.Element {
  if (!history?.length) return <p class="quiet">No attempt was made.</p>;
  return (
    <section>
      <h3>Attempts</h3>
      <ol class="tries">
        {history.map((attempt) => (
          <li key={`${attempt.attempt}${attempt.at}`}>
            <span class="ordinal">{attempt.attempt}</span>
            <b class="mono">{attempt.status}</b>
            <Badge word={attempt.outcome} />
            <span class="soft">{ms(attempt.latency_ms)}</span>
            <time class="soft" dateTime={attempt.at}>{time(attempt.at)}</time>
          </li>
        ))}
      </ol>
    </section>
  );
}
