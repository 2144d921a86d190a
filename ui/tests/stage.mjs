// The real program on free ports in a folder of its own, a faulty upstream behind it and traffic through it.
// `node tests/stage.mjs` plays until Ctrl-C, for somebody who works on the dashboard.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beat, policy, SCRIPT, SECRETS } from "./scene.mjs";

const PROGRAM = process.env.SEAWALL ?? fileURLToPath(new URL("../../target/debug/seawall", import.meta.url));
const BEAT_MS = 40;

/** Starts the program and waits for what `ready` finds in its output. */
function start(args, ready, options = {}) {
  if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is missing: cargo build, or name another one in SEAWALL`);
  const child = spawn(PROGRAM, args, { stdio: ["ignore", "ignore", "pipe"], ...options });
  process.once("exit", () => child.kill("SIGKILL"));
  let text = "";
  return new Promise((done, fail) => {
    child.once("error", fail);
    child.once("exit", (code) => fail(new Error(`seawall ${args[0]} ended with ${code}: ${text}`)));
    child.stderr.on("data", (piece) => {
      text = (text + piece).slice(-8192);
      const found = ready(text);
      if (found) done({ found, stop: () => child.kill("SIGKILL") });
    });
  });
}

/** A gateway with this policy. */
async function serve(folder, text) {
  const file = join(folder, "seawall.toml");
  writeFileSync(file, text);
  const address = (text, name) => text.match(new RegExp(`^ *${name} +(http://[0-9.:]+)`, "m"))?.[1];
  const both = (text) => address(text, "gateway") && address(text, "admin") && { gateway: `${address(text, "gateway")}/`, base: `${address(text, "admin")}/` };
  return start(["serve", "-c", file], both, { cwd: folder, env: { ...process.env, ...SECRETS, STAGE_TOKEN: "open-sesame" } });
}

/** Sends one request and reads its answer; what comes of it is the dashboard's business. */
export async function send(gateway, { path, ...options }) {
  const headers = { authorization: `Bearer ${SECRETS.ACME}`, ...options.headers };
  await fetch(gateway + path, { ...options, headers }).then((answer) => answer.arrayBuffer(), () => undefined);
}

/** The whole stage, with traffic running. */
export async function stage() {
  const folder = mkdtempSync(join(tmpdir(), "seawall-stage-"));
  writeFileSync(join(folder, "flaky.toml"), SCRIPT);
  const flaky = await start(["flaky", "--listen", "127.0.0.1:0", "--script", join(folder, "flaky.toml")], (text) => text.match(/listens on http:\/\/([0-9.:]+)/)?.[1]);
  const seawall = await serve(folder, policy(flaky.found));
  let n = 0;
  const traffic = setInterval(() => beat((n += 1)).forEach((asked) => send(seawall.found.gateway, asked)), BEAT_MS);
  const stop = () => {
    clearInterval(traffic);
    seawall.stop();
    flaky.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  return { ...seawall.found, stop };
}

/** A gateway with this policy in front of a faulty upstream with this script; `send` is a request to it. */
export async function incident(script, policy) {
  const folder = mkdtempSync(join(tmpdir(), "seawall-incident-"));
  writeFileSync(join(folder, "flaky.toml"), script);
  const flaky = await start(["flaky", "--listen", "127.0.0.1:0", "--script", join(folder, "flaky.toml")], (text) => text.match(/listens on http:\/\/([0-9.:]+)/)?.[1]);
  const seawall = await serve(folder, policy(flaky.found));
  const stop = () => {
    seawall.stop();
    flaky.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  return { ...seawall.found, stop, send: (path) => send(seawall.found.gateway, { path }) };
}

/** A gateway that nothing passes through, with these keys of `[server]`. */
export async function bare(keys = "") {
  const folder = mkdtempSync(join(tmpdir(), "seawall-bare-"));
  const text = `[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nstore = "sqlite:seawall.db"\n${keys}\n[upstreams.api]\nurl = "http://127.0.0.1:9"\n`;
  const seawall = await serve(folder, text);
  const stop = () => {
    seawall.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  /** Changes its file, which it does not read before it is told to. */
  const edit = (from, to) => writeFileSync(join(folder, "seawall.toml"), text.replace(from, to));
  return { ...seawall.found, stop, edit };
}

if (process.argv[1]?.endsWith("stage.mjs")) {
  const { base, stop } = await stage();
  console.log(`${base} until Ctrl-C`);
  process.once("SIGINT", () => {
    stop();
    process.exit(0);
  });
}
