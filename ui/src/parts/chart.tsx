// A chart and its twin, a table with the same numbers. Colours come from the style sheet, so a theme changes both.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { Icon } from "../icons";
import { shade } from "../theme";

export interface Line {
  name: string;
  values: (number | null)[];
  /** Name of a colour in the style sheet, such as `ok`. */
  colour: string;
  /** Piled on the lines before it. */
  stacked?: boolean;
  bars?: boolean;
  dashed?: boolean;
}

interface Props {
  title: string;
  /** Seconds since the epoch. */
  times: number[];
  lines: Line[];
  show: (value: number | null) => string;
  height?: number;
  sync?: string;
  /** The panel around it says the title already. */
  untitled?: boolean;
}

export function Chart({ title, times, lines, show, height = 220, sync, untitled }: Props): JSX.Element {
  const table = useSignal(false);
  const under = useSignal<number | null>(null);
  const at = under.value ?? times.length - 1;
  return (
    <figure class="chart">
      <figcaption>
        <h3 class={untitled ? "visually-hidden" : ""}>{title}</h3>
        <ul class="legend">
          {lines.map((line) => (
            <li key={line.name}>
              <i class={`dot c-${line.colour}`} />
              {line.name} <b>{show(line.values[at] ?? null)}</b>
            </li>
          ))}
        </ul>
        <button type="button" class="ghost square small" aria-pressed={table.value} aria-label={`${title}: ${table.value ? "show as chart" : "show as table"}`} onClick={() => (table.value = !table.value)}>
          <Icon name={table.value ? "chart" : "table"} size={16} />
        </button>
      </figcaption>
      {table.value ? (
        <Twin title={title} times={times} lines={lines} show={show} height={height} />
      ) : (
        <Plot times={times} lines={lines} show={show} height={height} sync={sync} hover={(index) => (under.value = index)} />
      )}
    </figure>
  );
}

/** Rows of the table: enough to read a trend, few enough to read at all. */
const MOST_ROWS = 60;

function Twin({ title, times, lines, show, height }: Omit<Props, "sync">): JSX.Element {
  const every = Math.max(1, Math.ceil(times.length / MOST_ROWS));
  const picked = times.map((_, index) => index).filter((index) => (times.length - 1 - index) % every === 0);
  return (
    <div class="twin" tabIndex={0} style={{ maxHeight: `${(height ?? 220) + 8}px` }}>
      <table aria-label={title}>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {lines.map((line) => (
              <th key={line.name} scope="col" class="number">
                {line.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {picked.reverse().map((index) => (
            <tr key={index}>
              <th scope="row">{new Date((times[index] ?? 0) * 1000).toLocaleTimeString("en-GB")}</th>
              {lines.map((line) => (
                <td key={line.name} class="number">
                  {show(line.values[index] ?? null)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface PlotProps extends Omit<Props, "title" | "sync"> {
  sync?: string | undefined;
  hover: (index: number | null) => void;
}

/** How much larger than usual everything is: a wide display has larger letters. */
const scale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 14;

function Plot({ times, lines, show, height: usual = 220, sync, hover }: PlotProps): JSX.Element {
  const height = Math.round(usual * scale());
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = shade.value;
  const shape = lines.map((line) => `${line.name}${line.colour}${line.stacked}${line.bars}`).join();
  useEffect(() => {
    const host = box.current;
    if (!host) return undefined;
    const made = new uPlot(options(host, lines, show, height, sync, hover), pile(times, lines), host);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [theme, shape, height, sync]);
  useEffect(() => {
    plot.current?.setData(pile(times, lines));
  }, [times, lines]);
  return <div class="plot" ref={box} style={{ height: `${height}px` }} aria-hidden="true" />;
}

/** Stacked lines are drawn as sums; what is drawn last lies lowest. */
function pile(times: number[], lines: Line[]): uPlot.AlignedData {
  const sums = times.map(() => 0);
  const columns = lines.map((line) => {
    if (!line.stacked) return line.values;
    return line.values.map((value, index) => (sums[index] = (sums[index] ?? 0) + (value ?? 0)));
  });
  return [times, ...columns] as uPlot.AlignedData;
}

const SPLIT_UNITS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

function options(host: HTMLElement, lines: Line[], show: Props["show"], height: number, sync: string | undefined, hover: (index: number | null) => void): uPlot.Options {
  const style = getComputedStyle(host);
  const paint = (name: string) => (style.getPropertyValue(`--chart-${name}`) || style.getPropertyValue(`--${name}`)).trim();
  const faint = (name: string, alpha: number) => {
    const hex = paint(name);
    return `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
  };
  const axis: uPlot.Axis = {
    stroke: paint("text-2"),
    font: `${11 * scale()}px ${style.fontFamily}`,
    grid: { stroke: paint("line"), width: 1 },
    ticks: { show: false },
  };
  const stacked = lines.flatMap((line, index) => (line.stacked ? [index + 1] : []));
  return {
    width: host.clientWidth || 300,
    height,
    padding: [8 * scale(), 28 * scale(), 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, ...(sync ? { sync: { key: sync } } : {}) },
    scales: { y: { range: (_, __, most) => [0, ceiling(most)] } },
    axes: [
      { ...axis, grid: { show: false }, space: 72 * scale(), size: 32 * scale(), gap: 8 * scale(), values: (_, splits) => splits.map((value) => clockTime(value, (splits[1] ?? value) - (splits[0] ?? value))) },
      { ...axis, size: 56 * scale(), space: 36 * scale(), values: (_, splits) => once(splits.map((value) => show(value).replace(/\.0+(?=\D|$)/, ""))) },
    ],
    series: [
      {},
      ...lines.map((line, index): uPlot.Series => ({
        label: line.name,
        stroke: paint(line.colour),
        width: line.bars || (line.stacked && index + 1 !== stacked[0]) ? 0 : 1.5,
        ...(line.dashed ? { dash: [4, 4] } : {}),
        ...(line.stacked || line.bars ? { fill: faint(line.colour, line.bars || index + 1 !== stacked[0] ? 0.85 : 0.28) } : {}),
        ...(line.bars ? { paths: uPlot.paths.bars?.({ size: [0.7, 24], radius: 0.15 }) } : {}),
        points: { show: false },
        spanGaps: true,
      })),
    ],
    // Between two sums lies what the upper one adds.
    bands: stacked.slice(1).map((index, place) => ({ series: [index, stacked[place] ?? 1] as [number, number] })),
    hooks: { setCursor: [(made) => hover(made.cursor.idx ?? null)] },
  };
}

/** Steps finer than what numbers are rounded to would give two marks one label. */
const once = (labels: string[]) => labels.map((label, index) => (labels.indexOf(label) === index ? label : ""));

/** Seconds are told where the marks stand closer than a minute. */
const clockTime = (value: number, step: number) => new Date(value * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}) });

function ceiling(most: number): number {
  if (!(most > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return (SPLIT_UNITS.find((step) => step * unit >= most * 1.05) ?? 20) * unit;
}
