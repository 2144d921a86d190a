// Icons, drawn on a 24 × 24 grid with one stroke. Decorative: whatever they mean is also said in words.

import type { JSX } from "preact";

const PATHS: Record<string, string> = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  upstreams: "M5 5h14v5H5zM5 14h14v5H5zM8 7.5h.01M8 16.5h.01M12 7.5h4M12 16.5h4",
  calls: "M4 7h11M12 4l3 3-3 3M20 17H9M12 14l-3 3 3 3",
  jobs: "M4 6h16M4 12h16M4 18h10M18 16v4M16 18h4",
  "dead-letters": "M3 7l9 6 9-6M3 6h18v12H3zM9.5 15.5l-3 0",
  schedules: "M12 7v5l3 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  limits: "M5 18a8 8 0 1 1 14 0M12 14l4-4M12 14h.01",
  errors: "M9.5 9.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M12 17h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  policy: "M12 3l7 3v5c0 4.5-3 8-7 10-4-2-7-5.500-7-10V6zM9 12l2 2 4-4",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12.500l4.500 4.500L19 7.500",
  alert: "M12 4l9 16H3zM12 10v4M12 17h.01",
  heal: "M3 12h4l2.500-6 4 12 2.500-6h5",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M5 19l1.400-1.400M17.600 6.400L19 5",
  moon: "M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500z",
  auto: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 3v18M12 8h4.500M12 12h6M12 16h4.500",
  menu: "M4 7h16M4 12h16M4 17h16",
  table: "M4 5h16v14H4zM4 10h16M10 10v9",
  chart: "M4 19h16M5 15l4-5 4 3 6-7",
  copy: "M9 9h10v10H9zM5 15V5h10",
  replay: "M4 12a8 8 0 1 0 2.500-5.800M4 4v4.500h4.500",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  download: "M12 4v11M7.500 11l4.500 4.500 4.500-4.500M5 20h14",
  pause: "M9 6v12M15 6v12",
  play: "M8 5l11 7-11 7z",
  right: "M9 6l6 6-6 6",
  key: "M14.500 13a4.500 4.500 0 1 0-4.400-3.600L4 15.500V20h4v-2.500h2.500V15l1.100-1.100c.8.100 1.800-.2 2.900-.9zM15.500 8h.01",
  bolt: "M13 3L5 14h6l-1 7 8-11h-6z",
  bell: "M6 17h12l-1.500-2V11a4.500 4.500 0 0 0-9 0v4zM10.500 20h3M12 4v2",
  keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M8 14h8",
};

export function Icon({ name, size = 18 }: { name: string; size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}

/** A wave that meets a wall. */
export function Mark(): JSX.Element {
  return (
    <svg class="mark" width="28" height="28" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" />
      <path d="M21.500 7v18M26 10v12" />
      <path d="M5 20c3 0 3.500-2.500 6-2.500s3 2.500 6 2.500M5 14c3 0 3.500-2.500 6-2.500s3 2.500 6 2.500" />
    </svg>
  );
}
