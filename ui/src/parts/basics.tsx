// The small parts that every screen is made of: panels, badges, tiles, meters, empty states, copyable text.

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { Problem } from "../api";
import { Icon } from "../icons";
import { hue, type Hue } from "../words";

type Children = { children?: ComponentChildren };

/** Where something is, in one piece also where a row becomes a card. */
export function Place({ upstream, endpoint }: { upstream: string; endpoint: string }): JSX.Element {
  return (
    <span class="place" title={`${upstream}/${endpoint}`}>
      <span class="soft">{upstream}/</span>
      {endpoint}
    </span>
  );
}

export function Badge({ word, as, title }: { word: string; as?: Hue; title?: string | undefined }): JSX.Element {
  return (
    <span class={`badge ${as ?? hue(word)}`} title={title}>
      {word.replaceAll("_", " ")}
    </span>
  );
}

interface PanelProps extends Children {
  title?: string;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  flush?: boolean;
  id?: string;
  class?: string;
}

export function Panel({ title, note, actions, flush, id, class: more = "", children }: PanelProps): JSX.Element {
  return (
    <section class={`panel ${flush ? "flush" : ""} ${more}`} id={id}>
      {(title || actions) && (
        <header class="panel-head">
          <h2>{title}</h2>
          {note && <span class="note">{note}</span>}
          {actions && <div class="actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

interface TileProps {
  label: string;
  value: ComponentChildren;
  unit?: string;
  note?: ComponentChildren;
  hue?: Hue;
  href?: string;
  trend?: (number | null)[];
  pressed?: boolean;
}

export function Tile({ label, value, unit, note, hue: tone, href, trend, pressed }: TileProps): JSX.Element {
  const inside = (
    <>
      <span class="tile-label">{label}</span>
      <span class="tile-value">
        {value}
        {unit && <small>{unit}</small>}
      </span>
      {trend && <Spark values={trend} />}
      {note && <span class="tile-note">{note}</span>}
    </>
  );
  const name = `tile ${tone ?? ""} ${pressed ? "pressed" : ""}`;
  return href ? (
    <a class={name} href={href} aria-current={pressed ? "true" : undefined}>
      {inside}
    </a>
  ) : (
    <div class={name}>{inside}</div>
  );
}

/** A line without axes: the shape of the last minutes. */
export function Spark({ values }: { values: (number | null)[] }): JSX.Element {
  const known = values.filter((value): value is number => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  // What does not change is drawn in the middle: neither high nor low.
  const height = (value: number) => (high === low ? 0.5 : (value - low) / (high - low));
  const at = (value: number, index: number) =>
    `${((index / Math.max(1, values.length - 1)) * 100).toFixed(1)},${(22 - height(value) * 20).toFixed(1)}`;
  const line = values.flatMap((value, index) => (value === null ? [] : [at(value, index)])).join(" ");
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      {known.length > 1 && <polyline points={line} />}
    </svg>
  );
}

export function Meter({ value, label, hue: tone }: { value: number; label: string; hue?: Hue }): JSX.Element {
  const shown = Math.max(0, Math.min(1, value));
  const said = tone ?? (shown >= 0.9 ? "bad" : shown >= 0.7 ? "warn" : "info");
  return (
    <span class={`meter ${said}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(shown * 100)}>
      <span style={{ width: `${shown * 100}%` }} />
    </span>
  );
}

interface EmptyProps extends Children {
  icon: string;
  title: string;
  code?: string;
  good?: boolean;
}

/** Nothing to show is the moment to say how something would get here. */
export function Empty({ icon, title, code, good, children }: EmptyProps): JSX.Element {
  return (
    <div class={`empty ${good ? "good" : ""}`}>
      <span class="empty-icon">
        <Icon name={icon} size={24} />
      </span>
      <h3>{title}</h3>
      <p>{children}</p>
      {code && <Code text={code} />}
    </div>
  );
}

export function Code({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  return (
    <div class="code">
      <pre tabIndex={0}>{text}</pre>
      <Copy text={text} label={label} />
    </div>
  );
}

export function Copy({ text, label }: { text: string; label: string }): JSX.Element {
  const [done, set] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return (
    <button type="button" class="ghost small" onClick={() => void copy().catch(() => undefined)}>
      <Icon name={done ? "check" : "copy"} size={14} />
      {done ? "Copied" : label}
    </button>
  );
}

export function Failure({ error, again }: { error: Error; again?: () => void }): JSX.Element {
  const code = error instanceof Problem ? error.code : "error";
  return (
    <div class="failure" role="alert">
      <Icon name="alert" />
      <span>
        <strong>{code}</strong> {error.message}
      </span>
      {again && (
        <button type="button" class="ghost small" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Waits without jumping: grey bars where the rows will be. */
export function Loading({ rows = 4 }: { rows?: number }): JSX.Element {
  return (
    <div class="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <span key={index} />
      ))}
    </div>
  );
}

/** Pairs of a name and its value. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? "–"}</dd>
        </div>
      ))}
    </dl>
  );
}

interface SelectProps {
  label: string;
  value: string;
  options: (string | [string, string])[];
  onChange: (value: string) => void;
}

export function Select({ label, value, options, onChange }: SelectProps): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map((option) => {
          const [word, text] = typeof option === "string" ? [option, option || "any"] : option;
          return (
            <option key={word} value={word}>
              {text.replaceAll("_", " ")}
            </option>
          );
        })}
      </select>
    </label>
  );
}

interface SearchProps {
  value: string;
  onInput: (value: string) => void;
  hint: string;
}

/** The field that `/` goes to. */
export function Search({ value, onInput, hint }: SearchProps): JSX.Element {
  return (
    <label class="search">
      <Icon name="search" size={16} />
      <input type="search" data-search value={value} placeholder={hint} aria-label={hint} onInput={(event) => onInput(event.currentTarget.value)} />
      <kbd>/</kbd>
    </label>
  );
}
