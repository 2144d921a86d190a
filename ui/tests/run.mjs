// Runs every story against a base URL, each in a fresh page, and says which failed and why.

import { spawn } from "node:child_process";
import { start } from "./browser.mjs";
import { shots } from "./shots.mjs";
import { stories } from "./stories.mjs";

/** Starts the pretend server on a free port. */
function pretend(more = {}) {
  return new Promise((ready, fail) => {
    const child = spawn(process.execPath, ["mock/server.mjs"], { env: { ...process.env, PORT: "0", ...more }, stdio: ["ignore", "pipe", "inherit"] });
    child.stdout.once("data", (line) => ready({ base: String(line).trim(), stop: () => child.kill() }));
    child.once("exit", () => fail(new Error("the pretend server ended")));
  });
}

const given = process.argv[2];
const server = given ? { base: given.replace(/\/?$/, "/"), stop: () => undefined } : await pretend();
const { browser, open, faults } = await start(server.base);
let failed = 0;

async function story(name, tell, also) {
  const page = await open({ also });
  page.setDefaultTimeout(20_000);
  faults.length = 0;
  try {
    await tell(page);
    if (faults.length > 0) throw new Error(faults.join("\n"));
    console.log(`ok    ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}\n${String(error.stack).replace(/^/gm, "      ")}`);
    await page.screenshot({ path: `artefacts/failed-${failed}.png` }).catch(() => undefined);
  }
  await page.context().close();
}

for (const [name, tell] of Object.entries(stories(server.base, open))) await story(name, tell);

if (!given) {
  const closed = await pretend({ MOCK_TOKEN: "open-sesame" });
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
  const bare = await pretend({ MOCK_EMPTY: "1" });
  await story("teaches where there is nothing to show", async (page) => {
    for (const [screen, text] of [["overview", "No upstream yet"], ["calls", "No call yet"], ["jobs", "No job yet"], ["dead-letters", "No dead letters"], ["schedules", "No schedule yet"], ["limits", "No pool"], ["errors", "Every failure has a name"]]) {
      await page.goto(`${bare.base}#/${screen}`);
      await page.getByRole("heading", { name: text, exact: true }).waitFor();
      if (!(await page.locator("main pre").first().isVisible())) throw new Error(`${screen} shows no example`);
    }
  }, bare.base);
  bare.stop();
}

await shots(server.base, "artefacts", open);
await browser.close();
server.stop();
console.log(failed ? `${failed} failed` : "all stories hold; screenshots are in ui/artefacts");
process.exit(failed ? 1 : 0);
