"""The long run. `bench/gateway/soak` calls it with the program and the number of seconds."""

import http.client
import json
import re
import signal
import sys
import threading
import time
import urllib.request

import rig as r
from rig import Rig, Server, say

PROXY, LOAD = 0, 1
CONNECTIONS = 256

SCRIPT = """[[routes]]
match = "GET /slow"
latency = "200ms"

[[routes]]
match = "GET /**"
mix = { "200" = 9600, "503" = 200, "503:retry-after=1" = 5, "reset-before" = 100, "garbage" = 20, "hang" = 5 }
body = "%s"
"""

POLICY = """timeout = { connect = "500ms", attempt = "500ms", total = "5s" }
retry = { attempts = 5, base = "10ms", cap = "200ms", budget = "20%" }
"""

# What this policy may answer while the script above runs: the status and Seawall-Outcome of every response.
EXPLAINED = {
    "200 success": "the upstream's answer, healed or not",
    "503 transient": "the upstream's own 503: attempts or retry budget used up",
    "502 upstream_unreachable": "resets until attempts or budget were used up, or garbage, which is permanent",
    "504 deadline_exceeded": "hangs until attempts, budget or five seconds were used up",
    "503 circuit_open": "the breaker was open",
}

COUNT = """
counts = {}
function setup(thread) worker = thread end
function response(status, headers, body)
  local key = status .. " " .. (headers["seawall-outcome"] or "-")
  counts[key] = (counts[key] or 0) + 1
  text = ""
  for k, n in pairs(counts) do text = text .. k .. "=" .. n .. ";" end
end
function done() io.write("COUNTS " .. (worker:get("text") or "") .. "\\n") end
"""


class Load(threading.Thread):
    """wrk in the background, near a fixed rate, telling apart what came back."""

    def __init__(self, rig, url, seconds, rate):
        super().__init__(daemon=True)
        script = r.paced(rig, rate, CONNECTIONS, COUNT)
        self.run_wrk = lambda: r.wrk(rig, url, seconds, CONNECTIONS, LOAD, script, "30s")

    def run(self):
        self.result = self.run_wrk()
        text = re.search(r"COUNTS (.*)", self.result["text"]).group(1)
        self.counts = {key: int(n) for key, n in (pair.split("=") for pair in text.split(";") if pair)}


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def changes(log, seen):
    """Counts what breakers did, and empties the log."""
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            if '"event":"breaker"' in line and line.endswith("}\n"):
                record = json.loads(line)
                key = f"{record['from']} → {record['to']} ({record['cause']})"
                seen[key] = seen.get(key, 0) + 1
    open(log, "w").close()


def soak(rig, gateway, seconds):
    most = r.wrk(rig, gateway.url, 5, CONNECTIONS, LOAD, timeout="30s")["rate"]
    rate = 0.7 * most
    say(f"at most {most:.0f}/s with faults on; {seconds} s at {rate:.0f}/s")
    load = Load(rig, gateway.url, seconds, rate)
    breaker = {}
    changes(gateway.log, {})
    load.start()
    samples = []
    every = max(2, seconds // 12)
    start = time.monotonic()
    while load.is_alive():
        load.join(every)
        if load.is_alive():
            samples.append((time.monotonic() - start, gateway.rss_mb(), gateway.fds()))
            say(f"  {samples[-1][0]:6.0f} s   RSS {samples[-1][1]:6.1f} MB   fds {samples[-1][2]:5}")
        changes(gateway.log, breaker)
    say(f"the breaker: {breaker or 'stayed closed'}")
    return load, samples


def judge(load, samples):
    say(f"{load.result['requests']} requests, {load.result['rate']:.0f}/s, {load.result['broken']} socket errors")
    unexplained = load.result["broken"]
    for key, count in sorted(load.counts.items(), key=lambda pair: -pair[1]):
        unexplained += 0 if key in EXPLAINED else count
        say(f"  {count:9}  {key}: {EXPLAINED.get(key, 'UNEXPLAINED')}")
    middle = len(samples) // 2
    (rss, later_rss), (fds, later_fds) = [
        (max(sample[field] for sample in samples[:middle]), max(sample[field] for sample in samples[middle:])) for field in (1, 2)
    ]
    say(f"most in the first half and in the second: RSS {rss:.1f} and {later_rss:.1f} MB, fds {fds} and {later_fds}")
    return {
        "RSS flat (at most 2 MB more in the second half)": later_rss <= rss + 2,
        "fds bounded (one for each connection, one for its call, and twenty)": max(fds, later_fds) <= 2 * CONNECTIONS + 20,
        "no unexplained answer": unexplained == 0,
    }


class Caller(threading.Thread):
    """Asks for something slow, again and again, with a kept-alive or a new connection each time."""

    def __init__(self, port, keep, stop):
        super().__init__(daemon=True)
        self.port, self.keep, self.stop, self.calls = port, keep, stop, []

    def run(self):
        connection = None
        while not self.stop.is_set():
            sent = None
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
                    connection.connect()
                connection.request("GET", "/up/slow")
                sent = time.monotonic()
                answer = connection.getresponse()
                answer.read()
                ok = answer.status == 200
                if not self.keep or answer.will_close:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                if sent is None:  # nobody listens any more, or an idle connection was closed
                    return
                ok = repr(error)
                connection = None
            self.calls.append((sent, time.monotonic(), ok))


def drain(rig, gateway):
    """SIGTERM while requests are in flight; every one that was sent before it must be answered."""
    stop = threading.Event()
    callers = [Caller(gateway.port, number % 2 == 0, stop) for number in range(100)]
    for caller in callers:
        caller.start()
    time.sleep(3)
    signalled = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    code = gateway.process.wait(40)
    ended = time.monotonic() - signalled
    stop.set()
    for caller in callers:
        caller.join(10)
    calls = [call for caller in callers for call in caller.calls]
    flying = [call for call in calls if call[0] < signalled < call[1]]
    failed = [call for call in flying if call[2] is not True]
    late = [call for call in calls if call[0] >= signalled and call[2] is not True]
    say(f"SIGTERM with {len(flying)} requests in flight: {len(failed)} failed; exit code {code} after {ended * 1000:.0f} ms")
    for sent, done, why in failed[:5]:
        say(f"  sent {(signalled - sent) * 1000:.1f} ms before the signal, ended {(done - signalled) * 1000:.1f} ms after: {why}")
    say(f"  {len(late)} requests sent after the signal were not answered (their connections were closing)")
    return {"no request in flight failed": bool(flying) and not failed, "exit code 0": code == 0}


def main():
    if "--storm" in sys.argv:
        import storm

        sys.argv.remove("--storm")
        storm.main()
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with Rig(sys.argv[1]) as rig:
        say(r.conditions())
        port = rig.port()
        script = rig.write("flaky.toml", SCRIPT % r.BODY)
        command = [rig.binary, "--quiet", "flaky", "--listen", f"127.0.0.1:{port}", "--script", script, "--seed", "7"]
        up = Server(rig, "flaky", command, port, core=LOAD)
        rig.running.append(up)
        up.launch()
        up.first_answer(path="/-/stats")
        gateway = rig.start(r.seawall(rig, port, PROXY, POLICY))
        load, samples = soak(rig, gateway, seconds)
        faults = json.loads(fetch(f"http://127.0.0.1:{port}/-/stats"))
        say(f"the upstream saw {faults['requests']} requests: statuses {faults['statuses']}, faults {faults['faults']}")
        sent = re.findall(r'seawall_attempts_total{.*status="(\w+)".*} (\d+)', fetch(f"http://127.0.0.1:{gateway.admin}/metrics"))
        say(f"the gateway counted {dict(sent)}")
        verdict = judge(load, samples)
        verdict |= drain(rig, gateway)
        for what, held in verdict.items():
            say(f"{'holds ' if held else 'BROKEN'}  {what}")
        sys.exit(0 if all(verdict.values()) else 1)


if __name__ == "__main__":
    main()
