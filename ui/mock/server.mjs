// A pretend Seawall: serves ui/dist with the real headers and answers the admin API from a story. For work on the
// dashboard and for its browser tests. PORT, MOCK_TOKEN and MOCK_EMPTY=1 change what it pretends.

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { Story } from "./story.mjs";

const dist = new URL("../dist/", import.meta.url);
const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const FILES = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/assets/app.js": ["assets/app.js", "text/javascript; charset=utf-8"],
  "/assets/app.css": ["assets/app.css", "text/css; charset=utf-8"],
};

const story = new Story(process.env.MOCK_EMPTY === "1");
const token = process.env.MOCK_TOKEN ?? "";

const problem = (status, code, detail, more = {}) => ({ status, body: { type: "about:blank", title: code, status, code, error: code, detail, ...more } });
const ok = (body, status = 200) => ({ status, body });

function page(items, url) {
  const limit = Number(url.searchParams.get("limit") ?? 50);
  const after = url.searchParams.get("cursor");
  const start = after ? items.findIndex((item) => item.id === after) + 1 : 0;
  const part = items.slice(start, start + limit);
  return { items: part, next_cursor: start + limit < items.length ? part[part.length - 1].id : null };
}

function matching(items, url, names) {
  return names.reduce((left, [name, pick]) => {
    const wanted = url.searchParams.get(name);
    return wanted ? left.filter((item) => pick(item) === wanted) : left;
  }, items);
}

const lettersOf = (filter) =>
  story.letters.filter(
    (letter) =>
      (!filter.status || letter.status === filter.status) &&
      (!filter.upstream || letter.queue === filter.upstream) &&
      (!filter.endpoint || letter.endpoint === filter.endpoint) &&
      (!filter.class || letter.class === filter.class) &&
      (!filter.code || letter.failure_code === filter.code) &&
      (!filter.severity || letter.severity === filter.severity) &&
      (!filter.q || JSON.stringify([letter.original.url, letter.error_detail, letter.correlation_id]).toLowerCase().includes(filter.q.toLowerCase())),
  );

function answer(method, url, body) {
  const parts = url.pathname.split("/").slice(2).map(decodeURIComponent);
  const [what, a, b, c] = parts;
  const key = `${method} ${what}`;
  switch (key) {
    case "GET status":
      return ok(a === "series" ? story.series(Number(url.searchParams.get("minutes") ?? 15)) : story.status());
    case "GET upstreams":
      return ok({ items: story.upstreams(), next_cursor: null });
    case "GET breakers":
      return ok({ items: story.breakers(), next_cursor: null });
    case "PUT breakers":
      return ok({ items: story.force(a, b, body.state) });
    case "GET keys":
      return ok({ items: story.upstreams().flatMap((upstream) => upstream.keys), next_cursor: null });
    case "PUT keys":
      return ok(story.setKey(a, b, body.state, body.until));
    case "GET limits":
      return ok(story.limits());
    case "GET calls": {
      if (!a) return ok(page(matching(story.calls, url, [["upstream", (x) => x.upstream], ["outcome", (x) => x.outcome], ["caller", (x) => x.caller]]).map(({ timeline, ...call }) => call), url));
      const found = story.calls.find((call) => call.id === a);
      return found ? ok(found) : problem(404, "not_found", "there is no such call among the last 10 000");
    }
    case "GET jobs": {
      if (!a) return ok(page(matching(story.jobs, url, [["state", (x) => x.state], ["upstream", (x) => x.upstream]]), url));
      const found = story.jobs.find((job) => job.id === a);
      return found ? ok(found) : problem(404, "not_found", "there is no such job");
    }
    case "DELETE jobs":
      return story.cancelJob(a) ? ok({ id: a, state: "cancelled" }) : problem(409, "job_over", "the job is over and cannot be cancelled");
    case "GET dead-letters": {
      if (a === "issues") return ok({ items: story.issues() });
      if (!a) return ok(page(lettersOf(Object.fromEntries(url.searchParams)), url));
      const found = story.letters.find((letter) => letter.id === a);
      return found ? ok(found) : problem(404, "not_found", "there is no such dead letter");
    }
    case "POST dead-letters":
      return ok(story.replay(body.ids ? story.letters.filter((letter) => body.ids.includes(letter.id)) : lettersOf({ ...body.filter, status: "kept" }), body), 202);
    case "DELETE dead-letters":
      story.letters = story.letters.filter((letter) => letter.id !== a);
      story.audit.unshift({ at: story.now(), who: "operator", action: "dead-letter discarded", detail: a });
      return ok({ id: a, discarded: true });
    case "GET replays":
      return ok({ items: story.replays, next_cursor: null });
    case "POST replays":
      return ok(story.steer(a, b));
    case "DELETE replays":
      return ok(story.steer(a, "cancel"));
    case "GET schedules":
      return ok({ items: story.schedules(), next_cursor: null });
    case "PUT schedules":
    case "DELETE schedules":
      return ok(story.subject(a, c, method === "PUT"));
    case "GET errors":
      return ok({ items: story.errors, next_cursor: null });
    case "POST errors":
      return ok(story.name(a, body.as));
    case "GET rollups":
      return ok({ items: story.rollups(url.searchParams.get("upstream")), next_cursor: null });
    case "GET config":
      return ok(story.config());
    case "POST config":
      return ok({ ok: true, changes: ["upstreams.videos.retry.attempts 4 → 6", "limits.everyone.rate 800/s → 1000/s"] });
    case "GET audit":
      return ok({ items: story.audit, next_cursor: null });
    case "GET events":
      return a === "recent" ? ok({ items: story.events, next_cursor: null }) : null;
    default:
      return problem(404, "not_found", "there is no such resource");
  }
}

function stream(request, response) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.flushHeaders();
  const send = (event) => response.write(`event: ${event.name}\nid: ${event.id ?? 0}\ndata: ${JSON.stringify(event)}\n\n`);
  story.listeners.add(send);
  request.on("close", () => story.listeners.delete(send));
}

const server = createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  const file = FILES[url.pathname];
  if (file) {
    response.writeHead(200, { "content-type": file[1], "content-security-policy": CSP, "cache-control": "no-cache" });
    response.end(readFileSync(new URL(file[0], dist)));
    return;
  }
  const send = ({ status, body }) => {
    response.writeHead(status, { "content-type": status < 400 ? "application/json" : "application/problem+json", "cache-control": "no-store" });
    response.end(JSON.stringify(body));
  };
  if (token && request.headers.authorization !== `Bearer ${token}`) return send(problem(401, "token_required", "send the admin token"));
  if (request.method === "GET" && url.pathname === "/v1/events") return stream(request, response);
  let text = "";
  for await (const chunk of request) text += chunk;
  try {
    send(url.pathname.startsWith("/v1/") ? answer(request.method, url, text ? JSON.parse(text) : {}) : problem(404, "not_found", "no such page"));
  } catch (error) {
    send(problem(500, "mock", String(error.stack)));
  }
});

server.listen(Number(process.env.PORT ?? 7399), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
