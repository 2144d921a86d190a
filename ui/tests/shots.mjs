// Screenshots of every screen, dark and light, and of some on a phone and on a large display: `node shots.mjs BASE FOLDER`.

import { mkdirSync } from "node:fs";
import { SCREENS, start, visit } from "./browser.mjs";

export async function shots(base, folder, open) {
  mkdirSync(folder, { recursive: true });
  const sizes = [
    [1440, 1000, SCREENS],
    [360, 780, SCREENS],
    [3840, 2160, ["overview", "limits"]],
  ];
  for (const colorScheme of ["dark", "light"]) {
    for (const [width, height, screens] of sizes) {
      const page = await open({ viewport: { width, height }, colorScheme });
      for (const screen of [...screens, "upstreams/videos", ...(width === 1440 ? ["upstreams/partner"] : [])]) {
        await visit(page, base, screen);
        await page.waitForTimeout(300);
        await page.screenshot({ path: `${folder}/${screen.replace("/", "-")}-${colorScheme}-${width}.png` });
      }
      await page.context().close();
    }
  }
}

/** The overview in the middle of an incident. */
export async function incidentShots(base, folder, open) {
  mkdirSync(folder, { recursive: true });
  for (const colorScheme of ["dark", "light"]) {
    for (const [width, height] of [[1440, 1000], [390, 1400]]) {
      const page = await open({ viewport: { width, height }, colorScheme, also: base });
      await visit(page, base, "overview");
      await page.waitForTimeout(300);
      await page.screenshot({ path: `${folder}/incident-${colorScheme}-${width}.png` });
      await page.context().close();
    }
  }
}

if (process.argv[1]?.endsWith("shots.mjs")) {
  const base = (process.argv[2] ?? "http://127.0.0.1:7399").replace(/\/?$/, "/");
  const { browser, open, faults } = await start(base);
  await shots(base, process.argv[3] ?? "artefacts", open);
  await browser.close();
  if (faults.length) console.log(faults.join("\n"));
}
