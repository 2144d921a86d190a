// A table whose rows can be walked with j and k and opened with Enter. On a narrow screen each row becomes a card.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

export interface Column<T> {
  name: string;
  show: (row: T) => ComponentChildren;
  /** Numbers stand right. */
  number?: boolean;
  /** Left out where there is no room. */
  minor?: boolean;
  wide?: boolean;
  /** Says its name where a row becomes a card; numbers always do. */
  named?: boolean;
}

interface Props<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string;
  href?: (row: T) => string;
  open?: string | undefined;
  chosen?: { ids: Set<string>; toggle: (id: string) => void; all: () => void };
}

export function Rows<T>({ label, rows, columns, id, href, open, chosen }: Props<T>): JSX.Element {
  const body = useRef<HTMLTableSectionElement>(null);
  useEffect(() => {
    const walk = (event: Event) => step(body.current, (event as CustomEvent<string>).detail);
    addEventListener("seawall-rows", walk);
    return () => removeEventListener("seawall-rows", walk);
  }, []);
  return (
    <div class="rows" tabIndex={-1}>
      <table aria-label={label}>
        <thead>
          <tr>
            {chosen && (
              <th class="choose" scope="col">
                <input
                  type="checkbox"
                  aria-label="Choose all that are shown"
                  checked={rows.length > 0 && rows.every((row) => chosen.ids.has(id(row)))}
                  onChange={chosen.all}
                />
              </th>
            )}
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classes(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {rows.map((row) => {
            const key = id(row);
            return (
              <tr
                key={key}
                data-id={key}
                class={`${href ? "opens" : ""} ${open === key ? "open" : ""} ${chosen?.ids.has(key) ? "chosen" : ""}`}
                onClick={(event) => {
                  const on = event.target as HTMLElement;
                  if (href && !on.closest("a,button,input,label") && !getSelection()?.toString()) location.hash = href(row);
                }}
              >
                {chosen && (
                  <td class="choose">
                    <input type="checkbox" aria-label={`Choose ${key}`} checked={chosen.ids.has(key)} onChange={() => chosen.toggle(key)} />
                  </td>
                )}
                {columns.map((column, index) => (
                  <td key={column.name} data-name={column.name} class={classes(column)}>
                    {href && index === 0 ? (
                      <a class="row-link" href={href(row)}>
                        {column.show(row)}
                      </a>
                    ) : (
                      column.show(row)
                    )}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function classes<T>(column: Column<T>): string {
  return `${column.number ? "number" : ""} ${column.minor ? "minor" : ""} ${column.wide ? "wide" : ""} ${column.named ? "named" : ""}`;
}

/** Moves the focus between the first links of rows; `x` chooses the row under it. */
function step(body: HTMLTableSectionElement | null, way: string): void {
  if (!body) return;
  const rows = [...body.rows];
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  if (way === "x") {
    rows[here]?.querySelector<HTMLInputElement>("td.choose input")?.click();
    return;
  }
  // The first table that can be walked takes the step; others hear that it was taken.
  if (here < 0 && document.activeElement?.closest(".rows tbody")) return;
  if (here < 0 && document.querySelector(".rows tbody a.row-link")?.closest("tbody") !== body) return;
  const next = rows[way === "j" ? here + 1 : Math.max(0, here - 1)] ?? rows[rows.length - 1];
  next?.querySelector<HTMLElement>("a.row-link, a, button, input")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
