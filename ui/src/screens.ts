// The nine screens: name, title, the letter that leads there after `g`.

export interface Screen {
  name: string;
  title: string;
  letter: string;
}

export const SCREENS: Screen[] = [
  { name: "overview", title: "Overview", letter: "o" },
  { name: "upstreams", title: "Upstreams", letter: "u" },
  { name: "calls", title: "Calls", letter: "c" },
  { name: "jobs", title: "Jobs", letter: "j" },
  { name: "dead-letters", title: "Dead letters", letter: "d" },
  { name: "schedules", title: "Schedules", letter: "s" },
  { name: "limits", title: "Limits & pools", letter: "l" },
  { name: "errors", title: "Unnamed errors", letter: "e" },
  { name: "policy", title: "Policy", letter: "p" },
];
