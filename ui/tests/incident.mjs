// An incident with something of every kind in it, and what an operator must see who comes to it late.

import assert from "node:assert/strict";
import { visit } from "./browser.mjs";
import { incident } from "./stage.mjs";
import { json } from "./stories.mjs";

const SCRIPT = `
[[routes]]
match = "GET /down/**"
mix = { "503" = 1 }

[[routes]]
match = "GET /quota/**"
error = "google:quotaExceeded"

[[routes]]
match = "GET /seldom/**"
mix = { "500" = 1 }

[[routes]]
match = "GET /revoked/**"
mix = { "401" = 1 }
`;

const LONG = "everything-about-the-annual-reports-of-all-subsidiaries-and-of-their-suppliers";

const policy = (upstream) => `
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
store = "sqlite:seawall.db"

[upstreams.limited]
url = "http://${upstream}/limited"
limits = [{ name = "few", key = "upstream", rate = "1/m", burst = 1 }]

[[upstreams.limited.endpoints]]
name = "${LONG}"
match = "GET /long/**"

[upstreams.down]
url = "http://${upstream}/down"
retry = { attempts = 1 }
breaker = { per = "upstream", consecutive = 3, open = "1s", open_max = "1s", max_wait = "0s" }
endpoints = [{ name = "one", match = "GET /one" }, { name = "two", match = "GET /two" }]

[upstreams.quota]
url = "http://${upstream}/quota"
preset = "google"

[upstreams.quota.auth]
inject = "query:key"
max_wait = "0s"
keys = [{ id = "only", secret = "env:VIDEOS_A" }]

[upstreams.seldom]
url = "http://${upstream}/seldom"
retry = { attempts = 1 }
breaker = { mode = "off" }

[upstreams.revoked]
url = "http://${upstream}/revoked"
preset = "google"

[upstreams.revoked.auth]
inject = "header:x-api-key"
keys = [{ id = "main", secret = "env:PARTNER" }]

[[schedules]]
name = "sync"
upstream = "revoked"
request = { method = "GET", path = "/accounts/{subject}" }
every = "2s"
subjects = ["acme"]
`;

/** Starts it, and waits until everything is broken that is going to be. */
export async function begin() {
  const server = await incident(SCRIPT, policy);
  const round = () => Promise.all(["limited/x", `limited/long/${"y".repeat(20)}`, "down/one", "quota/x"].map(server.send));
  await server.send("seldom/x");
  for (let n = 0; n < 8; n += 1) await round();
  const traffic = setInterval(round, 500);
  const stop = () => {
    clearInterval(traffic);
    server.stop();
  };
  for (let tries = 0; tries < 120; tries += 1) {
    const { uptime_seconds } = await json(server.base, "v1/status");
    const { items } = await json(server.base, "v1/schedules");
    // Late enough for a call or two in a minute to be few, and for a breaker to have failed its probes.
    if (uptime_seconds > 8 && items[0].subjects[0].state === "stopped") return { ...server, stop };
    await new Promise((done) => setTimeout(done, 250));
  }
  throw new Error("no subject of the schedule was stopped");
}

export const stories = ({ base }) => {
  const trouble = (page, what) => page.locator(".verdict li").filter({ has: page.locator("strong").getByText(what, { exact: true }) });
  return {
    "an endpoint that fails is listed however few calls it has, while success is red": async (page) => {
      await visit(page, base, "overview");
      await trouble(page, "seldom/default").getByText(/0 % of .* succeed/).waitFor();
    },

    "an endpoint that a limit of ours refuses says so, and leads to the limits": async (page) => {
      await visit(page, base, "overview");
      const line = trouble(page, "limited/default");
      await line.getByText("a limit of ours refuses calls").waitFor();
      assert.match(await line.locator("a").getAttribute("href"), /^#\/limits/);
    },

    "a breaker for a whole upstream is one line that says since when": async (page) => {
      await visit(page, base, "overview");
      await trouble(page, "down").getByText(/breaker is (open|half-open) since \d\d:\d\d:\d\d/).waitFor();
      assert.equal(await page.locator(".verdict li").filter({ hasText: "down/" }).count(), 0);
    },

    "keys that are out say since when": async (page) => {
      await visit(page, base, "overview");
      await trouble(page, "quota/default").getByText(/no key since \d\d:\d\d:\d\d, until \d\d:\d\d:\d\d/).waitFor();
    },

    "a stopped schedule is listed on a page that is opened later": async (page) => {
      await visit(page, base, "overview");
      const line = trouble(page, "Schedule sync: 1 subject is stopped");
      await line.waitFor();
      assert.match(await line.locator("a").getAttribute("href"), /^#\/schedules/);
    },

    "calls that were refused are among the top errors of their upstream": async (page) => {
      await visit(page, base, "upstreams/quota");
      await page.locator('table[aria-label="Top errors"] tbody tr').filter({ hasText: "keys exhausted" }).first().waitFor();
      assert.equal(await page.getByText(/^No call failed/).count(), 0);
    },

    "one long name of an endpoint leaves the request room": async (page) => {
      await visit(page, base, "calls");
      const row = page.locator('table[aria-label="Calls"] tbody tr').filter({ hasText: "/long/" }).first();
      await row.waitFor();
      const { width } = await row.locator('td[data-name="Request"]').boundingBox();
      assert(width >= 180, `the request has ${width} px`);
      const wide = await page.evaluate(() => document.querySelector(".rows").scrollWidth > document.querySelector(".rows").clientWidth);
      assert(!wide, "the table scrolls sideways");
    },
  };
};
