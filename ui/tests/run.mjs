// Runs every story against the real program, each in a fresh page, and says which failed and why. An argument keeps those whose
// names have it in them, and takes no screenshots.

import { start } from "./browser.mjs";
import * as incident from "./incident.mjs";
import { LETTERS } from "./scene.mjs";
import { incidentShots, shots } from "./shots.mjs";
import { bare, stage } from "./stage.mjs";
import { json, stories } from "./stories.mjs";

/** Waits until the traffic has left something for every story. */
async function ripe(base) {
  for (let tries = 0; tries < 120; tries += 1) {
    const letters = await json(base, "v1/dead-letters?status=kept&class=transient&limit=200");
    const errors = await json(base, "v1/errors");
    if (letters.items.length === LETTERS && errors.items.length > 0) return;
    await new Promise((done) => setTimeout(done, 250));
  }
  throw new Error("the stage left no dead letters or no unnamed error");
}

/** As many as the alarm is set at, in the words of an export. */
const LETTERS_OF_AN_OUTAGE = Array.from({ length: 100 }, (_, n) => ({
  id: `01m7hxf4yjbcp34729${String(n).padStart(8, "0")}`,
  queue: "api",
  endpoint: "default",
  door: "jobs",
  original: { method: "GET", url: "http://127.0.0.1:9/x", path: "/x" },
  class: "transient",
  failure_reason: "attempts_exhausted",
  failure_code: "503",
  total_attempts: 3,
  caller: "operator",
  tenant: "",
  enqueued_at: "2026-11-16T10:00:00Z",
  dead_lettered_at: "2026-11-16T10:00:00Z",
  expires_at: "2100-01-01T00:00:00Z",
  severity: "pager",
  replayable: true,
}));

const server = await stage();
await ripe(server.base);
const { browser, open, faults } = await start(server.base);
const only = process.argv[2] ?? "";
let failed = 0;

async function story(name, tell, also) {
  if (!name.includes(only)) return;
  const page = await open({ also });
  page.setDefaultTimeout(20_000);
  faults.length = 0;
  const began = Date.now();
  try {
    await tell(page);
    if (faults.length > 0) throw new Error(faults.join("\n"));
    console.log(`ok    ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}\n${String(error.stack).replace(/^/gm, "      ")}`);
    await page.screenshot({ path: `artefacts/failed-${failed}.png` }).catch(() => undefined);
  }
  await page.context().close();
}

for (const [name, tell] of Object.entries(stories(server, open))) await story(name, tell);

const broken = await incident.begin();
for (const [name, tell] of Object.entries(incident.stories(broken))) await story(name, tell, broken.base);
if (!only) await incidentShots(broken.base, "artefacts", open);
broken.stop();

const closed = await bare('admin_token = "env:STAGE_TOKEN"');
await story("asks for the admin token and keeps it in this tab only", async (page) => {
  await page.goto(closed.base);
  const field = page.getByRole("textbox", { name: "Admin token" });
  await field.fill("wrong");
  await page.getByRole("button", { name: "Unlock" }).click();
  await page.getByText("That token was refused").waitFor();
  await field.fill("open-sesame");
  await page.getByRole("button", { name: "Unlock" }).click();
  await page.locator(".tiles").first().waitFor();
  await page.getByText("Live", { exact: true }).waitFor();
  const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, sessionStorage.getItem("seawall.token")]);
  if (kept[0].includes("sesame") || kept[1] || kept[2] !== "open-sesame") throw new Error(`the token is kept in ${kept}`);
  // The browser reports each refusal, and refusals are what this story is about.
  const others = faults.filter((fault) => !fault.includes("401"));
  faults.splice(0, Infinity, ...others);
}, closed.base);
closed.stop();

const empty = await bare();
await story("teaches where there is nothing to show", async (page) => {
  for (const [screen, text] of [["calls", "No call yet"], ["jobs", "No job yet"], ["dead-letters", "No dead letters"], ["schedules", "No schedule yet"], ["limits", "No pool"], ["errors", "Every failure has a name"], ["overview", "Waiting for the first call"]]) {
    await page.goto(`${empty.base}#/${screen}`);
    await page.getByRole("heading", { name: text, exact: true }).waitFor();
    if (!(await page.locator("main pre").first().isVisible())) throw new Error(`${screen} shows no example`);
  }
}, empty.base);

await story("shows what a reload could not apply, and what to do about it", async (page) => {
  empty.edit("seawall.db", "other.db");
  await page.goto(`${empty.base}#/policy`);
  await page.getByRole("button", { name: "Check and reload" }).click();
  await page.locator("dialog.dialog").getByText("Only a restart changes server.store").waitFor();
  await page.locator("dialog.dialog").getByRole("button", { name: "Reload", exact: true }).click();
  const notice = page.getByRole("region", { name: "A restart is needed" });
  await notice.getByText("server.store").waitFor();
  await notice.getByText("seawall check -c").waitFor();
  await page.getByRole("link", { name: "restart needed" }).waitFor();
  await page.screenshot({ path: "artefacts/policy-restart-dark-1440.png" });
  await page.goto(`${empty.base}#/overview`);
  await page.locator(".verdict").getByText("A restart is needed").click();
  await notice.waitFor();
}, empty.base);

await story("an alarm of dead letters is seen as it rises, and until it is over", async (page) => {
  await page.goto(`${empty.base}#/overview`);
  await page.getByText("Live", { exact: true }).waitFor();
  await fetch(`${empty.base}v1/dead-letters/import`, { method: "POST", body: LETTERS_OF_AN_OUTAGE.map((letter) => JSON.stringify(letter)).join("\n") });
  await page.locator('.toast[data-stays="true"]').getByText("100 dead letters of api wait").waitFor();
  const alarm = page.locator(".verdict").getByText("Dead letters of api have reached the alarm");
  await alarm.waitFor();
  for (const { id } of LETTERS_OF_AN_OUTAGE.slice(0, 20)) await fetch(`${empty.base}v1/dead-letters/${id}`, { method: "DELETE" });
  await alarm.waitFor({ state: "detached" });
  await page.locator(".healed").getByText("dead letters of api are below the alarm again").waitFor();
  await page.locator('.toast[data-stays="true"]').waitFor({ state: "detached" });
}, empty.base);
empty.stop();

if (!only) await shots(server.base, "artefacts", open);
await browser.close();
server.stop();
console.log(failed ? `${failed} failed` : only ? "they hold" : "all stories hold; screenshots are in ui/artefacts");
process.exit(failed ? 1 : 0);
