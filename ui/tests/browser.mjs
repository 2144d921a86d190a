// A headless Chromium on a base URL, which notes console errors and requests to any other host.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export const SCREENS = ["overview", "upstreams", "calls", "jobs", "dead-letters", "schedules", "limits", "errors", "policy"];

export async function start(base) {
  const executablePath = PLACES.find((place) => existsSync(place));
  if (!executablePath) throw new Error("no Chromium: apt-get install -y chromium");
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  const faults = [];
  /** `also` is a second server that may be asked. */
  const open = async ({ also, ...options } = {}) => {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "dark", reducedMotion: "reduce", ...options });
    const page = await context.newPage();
    page.on("console", (message) => message.type() === "error" && faults.push(`console: ${message.text()}`));
    page.on("pageerror", (error) => faults.push(`page: ${error.message}`));
    page.on("request", (request) => {
      const url = request.url();
      if (!url.startsWith(base) && !url.startsWith(also ?? base) && !url.startsWith("data:") && !url.startsWith("blob:")) faults.push(`request to another host: ${url}`);
    });
    return page;
  };
  return { browser, open, faults };
}

/** Goes to a place of the dashboard and waits until it shows something. */
export async function visit(page, base, hash) {
  await page.goto(`${base}#/${hash}`);
  await page.locator("main > *").first().waitFor();
  await page.locator("main .loading").waitFor({ state: "detached", timeout: 10_000 }).catch(() => undefined);
}
