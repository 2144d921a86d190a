// Real clients for Node: `node clients.mjs NAME BASE OWN RATE SECONDS` makes calls at a fixed rate and prints what became of them.
// OWN is 1 for a client with its own retries at their defaults, 0 for one without.

import http from "node:http";

const agent = new http.Agent({ keepAlive: true, maxSockets: 600 });
const TIMEOUT = 60_000;

const CLIENTS = {
  async "node openai"(base, own) {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "sk-test", ...(own ? {} : { maxRetries: 0 }) });
    return async () => {
      const reply = await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "hi" }] });
      if (reply.choices[0].message.content !== "hello") throw new Error("another answer");
    };
  },

  async "node stripe"(base, own) {
    const { default: Stripe } = await import("stripe");
    const { hostname, port } = new URL(base);
    const client = new Stripe("sk_test_1", { host: hostname, port, protocol: "http", httpAgent: agent, ...(own ? {} : { maxNetworkRetries: 0 }) });
    return async (n) => {
      if ((await client.customers.create({ name: `n${n}` })).id !== "cus_1") throw new Error("another answer");
    };
  },

  async axios(base, own) {
    const { default: axios } = await import("axios");
    const client = axios.create({ baseURL: base, httpAgent: agent, timeout: TIMEOUT });
    if (own) {
      const { default: retry } = await import("axios-retry");
      retry(client);
    }
    return async (n) => {
      if (!(await client.get(`/items/${n}`)).data.ok) throw new Error("another answer");
    };
  },

  async got(base, own) {
    const { default: got } = await import("got");
    const client = got.extend({ prefixUrl: base, agent: { http: agent }, timeout: { request: TIMEOUT }, ...(own ? {} : { retry: { limit: 0 } }) });
    return async (n) => {
      if (!(await client.get(`items/${n}`).json()).ok) throw new Error("another answer");
    };
  },

  async octokit(base, own) {
    const { Octokit } = await import("octokit");
    const obey = (_, __, ___, count) => own && count < 1;
    const client = new Octokit({
      baseUrl: base,
      auth: "ghp_test",
      retry: { enabled: own },
      throttle: { enabled: own, onRateLimit: obey, onSecondaryRateLimit: obey },
      log: { debug() {}, info() {}, warn() {}, error() {} },
    });
    return async (n) => {
      if (!(await client.request("GET /repos/o/r/issues/{n}", { n })).data.ok) throw new Error("another answer");
    };
  },
};

const [name, base, own, rate, seconds] = process.argv.slice(2);
const call = await CLIENTS[name](base, own === "1");
const total = Math.round(rate * seconds);
const latencies = [];
const failures = {};

async function one(n, due) {
  try {
    await call(n);
  } catch (error) {
    const why = `${error.constructor.name}: ${String(error.message).slice(0, 90)}`;
    failures[why] = (failures[why] ?? 0) + 1;
  }
  latencies.push((performance.now() - due) / 1000);
}

await fetch(`${process.env.UPSTREAM}/-/reset`, { method: "POST" });
const start = performance.now();
const running = [];
for (let n = 0; n < total; n += 1) {
  const due = start + (n * 1000) / rate;
  const wait = due - performance.now();
  if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
  running.push(one(n, due));
}
await Promise.all(running);
console.log(JSON.stringify({ latencies, failures }));
process.exit(0);
