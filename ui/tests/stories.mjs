// What an operator does with the dashboard, and what must then be seen.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { SCREENS, visit } from "./browser.mjs";
import { REFUSED } from "./scene.mjs";
import { send } from "./stage.mjs";

const AXE = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

export const json = async (base, path) => (await fetch(`${base}${path}`)).json();

/** Answers the question that is on the screen. */
const confirm = (page, verb) => page.locator("dialog.dialog").getByRole("button", { name: verb, exact: true }).click();

export const stories = ({ base, gateway }, open) => ({
  "a breaker that opens and closes is seen live, on another page": async (page) => {
    const { items } = await json(base, "v1/breakers");
    const calm = items.find((one) => one.state === "closed" && !one.forced && !(one.changes ?? []).length) ?? items[0];
    const place = `${calm.upstream}/${calm.endpoint}`;
    const other = await open();
    await visit(other, base, "overview");
    const row = other.locator(`tr[data-id="${place}"]`);
    await row.getByText("closed").waitFor();
    await visit(page, base, `upstreams/${calm.upstream}`);
    const line = page.locator(`[data-breaker="${place}"]`);
    await line.getByRole("button", { name: "Block", exact: true }).click();
    await page.getByText(`Block 1 endpoint: ${place}`).waitFor();
    await confirm(page, "Block");
    await line.getByText("open", { exact: true }).waitFor();
    await row.getByText("open", { exact: true }).waitFor();
    const trouble = other.locator(".verdict li").filter({ hasText: place }).filter({ hasText: "blocked by an operator" });
    await trouble.getByText("Release it").waitFor();
    await line.getByRole("button", { name: "Release" }).click();
    await confirm(page, "Release");
    await row.getByText("closed", { exact: true }).waitFor();
    await trouble.waitFor({ state: "detached" });
    await other.context().close();
  },

  "a key cools with a countdown and is restored": async (page) => {
    const { items } = await json(base, "v1/upstreams");
    const upstream = items.find((one) => one.keys.filter((key) => key.state === "ready").length >= 1 && one.keys.length > 1);
    assert(upstream, "an upstream with a pool of keys is needed");
    const key = upstream.keys.filter((one) => one.state === "ready").pop();
    await visit(page, base, `upstreams/${upstream.name}`);
    const row = page.locator(`tr[data-id="${key.id}"]`);
    await page.getByRole("button", { name: `Cool key ${key.id}` }).click();
    await confirm(page, "Cool it");
    await row.getByText("cooling").waitFor();
    await row.getByText(/back in (59 min|1 h)/).waitFor();
    await page.getByRole("button", { name: `Restore key ${key.id}` }).click();
    await confirm(page, "Restore");
    await row.getByText("ready", { exact: true }).waitFor();
  },

  "dead letters are filtered by text and by issue, and the filter is a deep link": async (page) => {
    await visit(page, base, "dead-letters");
    const rows = page.locator('table[aria-label="Dead letters"] tbody tr');
    await rows.first().waitFor();
    const before = await rows.count();
    const issue = page.locator(".issue").first();
    const open = Number(await issue.locator(".issue-count").innerText());
    await issue.click();
    await page.waitForFunction((n) => document.querySelectorAll('table[aria-label="Dead letters"] tbody tr').length === n, Math.min(open, 200));
    assert(new URL(page.url()).hash.includes("upstream="));
    const link = page.url();
    const again = await sameIn(page, link);
    assert.equal(await again.locator('table[aria-label="Dead letters"] tbody tr').count(), Math.min(open, 200));
    await again.close();
    await page.getByRole("button", { name: "Clear" }).click();
    await page.waitForFunction((n) => document.querySelectorAll('table[aria-label="Dead letters"] tbody tr').length >= n, before);
    await page.keyboard.press("/");
    await page.keyboard.type("no-such-letter-anywhere");
    await page.getByText("No letter matches").waitFor();
  },

  "two dead letters are replayed after a question that says how many, and leave": async (page) => {
    const { items } = await json(base, "v1/dead-letters?status=kept&class=transient&limit=200");
    const [one, two] = items.filter((letter) => letter.replayable);
    assert(two, "two replayable letters are needed");
    await visit(page, base, "dead-letters");
    for (const { id } of [one, two]) await page.getByLabel(`Choose ${id}`).check();
    await page.getByRole("button", { name: "Replay 2", exact: true }).click();
    await page.getByRole("heading", { name: "Replay 2 dead letters" }).waitFor();
    await confirm(page, "Replay 2");
    for (const { id } of [one, two]) await page.locator(`tr[data-id="${id}"]`).waitFor({ state: "detached" });
    await page.locator(".replays").waitFor();
    for (const { id } of [one, two]) assert.match((await json(base, `v1/dead-letters/${id}`)).status, /^replay/);
  },

  "a letter is inspected, discarded and gone; the rest is exported": async (page) => {
    const { items } = await json(base, "v1/dead-letters?status=kept&limit=200");
    const letter = items[items.length - 1];
    await visit(page, base, `dead-letters/${letter.id}`);
    await page.locator("dialog.drawer").getByText(letter.original.url).first().waitFor();
    await page.locator("dialog.drawer").getByRole("button", { name: "Discard" }).click();
    await page.getByRole("heading", { name: "Discard 1 dead letter" }).waitFor();
    await confirm(page, "Discard 1");
    await page.locator(`tr[data-id="${letter.id}"]`).waitFor({ state: "detached" });
    assert.equal((await fetch(`${base}v1/dead-letters/${letter.id}`)).status, 404);
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).click();
    const lines = readFileSync(await (await download).path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    assert(lines.length > 0 && lines.every((line) => line.status === "kept" && line.id !== letter.id));
  },

  "an unnamed error is named and its rule shown": async (page) => {
    const { items } = await json(base, "v1/errors");
    const error = items.find((one) => !one.named_as);
    assert(error, "an unnamed error is needed");
    await visit(page, base, "errors");
    const card = page.locator(`[data-fingerprint="${error.fingerprint}"]`);
    await card.getByRole("button", { name: /^transient/ }).click();
    await page.getByText("Name 1 error transient").waitFor();
    await confirm(page, "Name it");
    await card.getByText("named transient").waitFor();
    await card.getByText(`[[upstreams.${error.upstream}.classify]]`).waitFor();
    await page.reload();
    await card.getByText(`[[upstreams.${error.upstream}.classify]]`).waitFor();
  },

  "a subject is added to a schedule and removed, each after a question": async (page) => {
    await visit(page, base, "schedules");
    await page.getByLabel("New subject of history").fill("dave");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Add 1 subject: dave" }).waitFor();
    await confirm(page, "Add");
    const row = page.locator('table[aria-label="history"] tr[data-id="dave"]');
    await row.waitFor();
    await page.getByRole("button", { name: "Remove dave" }).click();
    await confirm(page, "Remove");
    await row.waitFor({ state: "detached" });
  },

  "limits are shown with whom they hold back, those of keys too": async (page) => {
    await visit(page, base, "limits");
    const limit = (name) => page.locator("article").filter({ has: page.getByRole("heading", { name, exact: true }) });
    await limit("everyone").getByText("importer").waitFor();
    await limit("videos/quota").getByRole("meter", { name: "videos/alpha" }).waitFor();
    await limit("addresses").getByText("shadow").waitFor();
    await limit("export").getByText("of 5 running").waitFor();
  },

  "a toast arrives and is dismissed; a fatal one stays": async (page) => {
    await visit(page, base, "overview");
    await page.getByText("Live", { exact: true }).waitFor();
    await send(gateway, REFUSED);
    const fatal = page.locator('.toast[data-stays="true"]').first();
    await fatal.waitFor();
    await page.waitForTimeout(8000);
    const toasts = page.locator(".toast");
    const before = await toasts.count();
    assert(await fatal.isVisible(), "a fatal toast stays");
    const title = await fatal.locator("strong").innerText();
    await fatal.getByRole("button", { name: /^Dismiss/ }).click();
    await toasts.filter({ hasText: title }).waitFor({ state: "detached" });
    assert.equal(await toasts.count(), before - 1);
  },

  "what is not fatal waits behind the bell, each title once": async (page) => {
    const { items } = await json(base, "v1/breakers");
    const place = `${items[0].upstream}/${items[0].endpoint}`;
    await visit(page, base, "overview");
    await page.getByText("Live", { exact: true }).waitFor();
    const set = (state) => fetch(`${base}v1/breakers/${place}`, { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ state }) });
    for (let turn = 0; turn < 2; turn += 1) {
      await set("open");
      await set("auto");
    }
    await page.locator("[data-bell] .pill").waitFor();
    assert.equal(await page.locator(".toast").filter({ hasText: items[0].endpoint }).count(), 0, "no toast for what is not fatal");
    await page.locator("[data-bell]").click();
    const news = page.locator("dialog.drawer ol.feed li strong");
    await news.first().waitFor();
    const titles = await news.allInnerTexts();
    assert.equal(new Set(titles).size, titles.length, "each title once");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("[data-bell] .pill").count(), 0, "what was looked at is not new");
  },

  "calls are narrowed to those that failed, were refused or healed": async (page) => {
    await visit(page, base, "calls");
    for (const [title, kind] of [["Healed", "healed"], ["Failed", "failed"], ["Refused", "refused"]]) {
      await page.getByRole("button", { name: title, exact: true }).click();
      await page.waitForFunction((word) => location.hash.includes(`kind=${word}`), kind);
      const { items } = await json(base, `v1/calls?kind=${kind}&limit=200`);
      assert(items.every((call) => (kind === "healed" ? call.outcome === "success" && call.attempts > 1 : call.outcome !== "success")), kind);
    }
    await page.getByRole("button", { name: "Healed", exact: true }).click();
    const row = page.locator('table[aria-label="Calls"] tbody tr').first();
    await row.locator(".method").waitFor();
    assert.match(await row.innerText(), /GET|POST|PUT/);
  },

  "an upstream's page begins with its success and its top errors": async (page) => {
    const { items } = await json(base, "v1/calls?kind=failed&limit=200");
    const upstream = items.find((call) => call.method)?.upstream;
    assert(upstream, "a failed call is needed");
    await visit(page, base, `upstreams/${upstream}`);
    assert.equal(await page.locator("main .panel h2").first().innerText(), "Success over time");
    await page.locator('table[aria-label="Top errors"] tbody tr').first().click();
    await page.locator("dialog.drawer .timeline, dialog.drawer .quiet").first().waitFor();
  },

  "a call is opened by its address and tells the reason of every decision": async (page) => {
    const { items } = await json(base, "v1/calls?limit=200");
    const call = items.find((one) => one.attempts > 1) ?? items[0];
    await visit(page, base, `calls/${call.id}`);
    await page.locator("dialog.drawer .timeline li").first().waitFor();
    assert.equal(await page.locator("dialog.drawer .timeline li").count(), call.attempts);
    assert.equal(await page.locator("dialog.drawer .timeline .why").count(), call.attempts);
    await page.keyboard.press("Escape");
    await page.locator("dialog.drawer").waitFor({ state: "detached" });
    assert(new URL(page.url()).hash.startsWith("#/calls"));
  },

  "the keyboard leads everywhere": async (page) => {
    await visit(page, base, "overview");
    for (const [letter, title] of [["u", "Upstreams"], ["c", "Calls"], ["j", "Jobs"], ["d", "Dead letters"], ["s", "Schedules"], ["l", "Limits & pools"], ["e", "Unnamed errors"], ["p", "Policy"], ["o", "Overview"], ["c", "Calls"]]) {
      await page.keyboard.press("g");
      await page.keyboard.press(letter);
      await page.getByRole("heading", { level: 1, name: title }).waitFor();
    }
    // Just after a look, so that the next is two seconds away.
    const isList = (request) => request.url().includes("/v1/calls?");
    await page.waitForResponse(isList);
    const asked = [];
    page.on("request", (request) => isList(request) && asked.push(request.url()));
    await page.getByRole("button", { name: "Pause" }).click();
    const rows = page.locator('table[aria-label="Calls"] tbody tr');
    await rows.nth(2).waitFor();
    const second = await rows.nth(1).getAttribute("data-id");
    for (const key of ["j", "j", "j", "k"]) await page.keyboard.press(key);
    await page.keyboard.press("Enter");
    await page.locator("dialog.drawer").waitFor();
    assert(page.url().includes(second), "Enter opens the row that j and k led to");
    assert.deepEqual(asked, [], "a list that is paused stays as it is");
    await page.keyboard.press("Escape");
    await page.locator("dialog.drawer").waitFor({ state: "detached" });
    await page.keyboard.press("?");
    await page.getByRole("heading", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("/");
    assert(await page.locator("[data-search]").evaluate((field) => field === document.activeElement));
  },

  "the theme follows the system, can be chosen and is remembered": async (page) => {
    await visit(page, base, "overview");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    assert.equal(await theme(), "dark");
    await page.emulateMedia({ colorScheme: "light" });
    await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
    await page.keyboard.press("t");
    assert.equal(await theme(), "dark");
    await page.reload();
    await page.locator("main > *").first().waitFor();
    assert.equal(await theme(), "dark");
  },

  "every chart has a table twin": async (page) => {
    await visit(page, base, "overview");
    const charts = page.locator("figure.chart");
    for (let index = 0; index < (await charts.count()); index += 1) {
      await charts.nth(index).getByRole("button", { name: /show as table/ }).click();
      assert((await charts.nth(index).locator("tbody tr").count()) > 2);
    }
  },

  "nothing is wider than a phone": async (page) => {
    await page.setViewportSize({ width: 360, height: 780 });
    for (const screen of SCREENS) {
      await visit(page, base, screen);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth > 360 || document.querySelector("main").scrollWidth > 360);
      assert(!wide, `${screen} scrolls sideways`);
    }
    await page.getByRole("button", { name: "Menu" }).click();
    await page.getByRole("link", { name: "Jobs" }).click();
    await page.getByRole("heading", { level: 1, name: "Jobs" }).waitFor();
  },

  "axe finds nothing serious on any screen, dark or light": async (page) => {
    const found = [];
    for (const colorScheme of ["dark", "light"]) {
      const own = await open({ colorScheme, bypassCSP: true });
      for (const screen of [...SCREENS, "upstreams/" + (await json(base, "v1/upstreams")).items[0].name]) {
        await visit(own, base, screen);
        await own.evaluate(AXE);
        const { violations } = await own.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"] }));
        const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
        found.push(...serious.map(({ id, nodes }) => `${screen} ${colorScheme}: ${id}: ${nodes[0].html.slice(0, 160)} ${nodes[0].any?.[0]?.message ?? ""}`));
      }
      await own.context().close();
    }
    assert.deepEqual(found, []);
    await page.close();
  },
});

/** The same address in another tab. */
async function sameIn(page, link) {
  const again = await page.context().newPage();
  await again.goto(link);
  await again.locator('table[aria-label="Dead letters"] tbody tr').first().waitFor();
  return again;
}
