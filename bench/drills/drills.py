"""Surge, capacity dip and outages, live: real programs, open-loop load. `bench/drills/run` calls it with the program to drill."""

import argparse
import asyncio
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

CALLER_TIMEOUT, NAIVE_SENDS = 1.0, 4


class Program:
    """`seawall serve` or `seawall flaky`, ended with the drill."""

    def __init__(self, arguments, log):
        self.out, self.err = open(f"{log}.out", "w+"), open(f"{log}.err", "w+")
        self.process = subprocess.Popen(arguments, stdout=self.out, stderr=self.err)

    def find(self, pattern):
        for _ in range(500):
            text = open(self.out.name).read() + open(self.err.name).read()
            if found := re.search(pattern, text):
                return int(found[1])
            time.sleep(0.02)
        raise SystemExit(f"the program did not start: {open(self.err.name).read()}")

    def end(self):
        self.process.terminate()
        self.process.wait()


def flaky(binary, directory, script):
    path = f"{directory}/flaky.toml"
    with open(path, "w") as file:
        file.write(script)
    program = Program([binary, "flaky", "--listen", "127.0.0.1:0", "--script", path, "--seed", "7", "--json"], f"{directory}/flaky")
    return program, program.find(r'"listening":"127\.0\.0\.1:(\d+)"')


def serve(binary, directory, policy):
    path = f"{directory}/seawall.toml"
    with open(path, "w") as file:
        file.write('[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n' + policy)
    program = Program([binary, "serve", "-c", path], f"{directory}/serve")
    return program, program.find(r"gateway +http://127\.0\.0\.1:(\d+)"), program.find(r"admin +http://127\.0\.0\.1:(\d+)")


async def send(port, path, timeout):
    """One GET over a connection of its own; its status, or 0."""
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: drill\r\nConnection: close\r\n\r\n".encode())
            head = await reader.readline()
            await reader.read()
            return int(head[9:12] or 0)
    except (OSError, TimeoutError, ValueError):
        return 0
    finally:
        if writer:
            writer.close()


class Load:
    """Calls at a steady rate, whether or not the ones before have been answered."""

    def __init__(self):
        self.calls, self.sends = [], 0

    async def call(self, port, path, start, sends, timeout):
        began = time.monotonic()
        for _ in range(sends):
            self.sends += 1
            status = await send(port, path, timeout)
            if status == 200:
                break
        self.calls.append((began - start, path, status, time.monotonic() - began))

    async def steady(self, port, path, rate, start, begin, end, sends=1, timeout=10.0):
        tasks, number = [], 0
        while (at := begin + number / rate) < end:
            await asyncio.sleep(max(0, start + at - time.monotonic()))
            tasks.append(asyncio.create_task(self.call(port, path, start, sends, timeout)))
            number += 1
        await asyncio.gather(*tasks)

    def good(self, begin, end, path=None):
        """How many calls that began then were good, of how many."""
        some = [call for call in self.calls if begin <= call[0] < end and path in (None, call[1])]
        return sum(call[2] == 200 for call in some), len(some)


def share(good, all_):
    return 100 * good / max(all_, 1)


def requests_seen(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/stats") as answer:
        return json.load(answer)["requests"]


DIP_POLICY = """
[upstreams.api]
url = "http://127.0.0.1:{port}"
timeout = {{ attempt = "1s", total = "3s" }}
retry = {{ attempts = 4, base = "100ms", cap = "1s", budget = "5%", budget_floor = "1/s" }}
breaker = {{ open = "1s", open_max = "4s" }}
pool = "api"
[pools.api]
concurrent = 40
queue = 40
queue_timeout = "500ms"
"""


async def dip(binary, quiet):
    """20 workers of 100 ms are 200 calls/s; the load is 160/s; for ten seconds there are 4 workers."""
    rate, length, after = 160, 10, 15
    verdicts = []
    for arm in ("seawall", "naive"):
        with tempfile.TemporaryDirectory() as directory:
            script = f'[[routes]]\nmatch = "GET /**"\ncapacity = {{ workers = 20, service = "100ms" }}\n[[timeline]]\nat = "{quiet}s"\nfor = "{length}s"\nworkers = 4\n'
            upstream, port = flaky(binary, directory, script)
            load, start, gateway = Load(), time.monotonic(), None
            if arm == "seawall":
                gateway, at, _ = serve(binary, directory, DIP_POLICY.format(port=port))
                await load.steady(at, "/api/x", rate, start, 0, quiet + length + after)
            else:
                await load.steady(port, "/x", rate, start, 0, quiet + length + after, NAIVE_SENDS, CALLER_TIMEOUT)
            seen, calls = requests_seen(port), len(load.calls)
            end = quiet + length
            marks = {"before": (0, quiet), "dip": (quiet, end), "0-5 s after": (end, end + 5), "5-10 s after": (end + 5, end + 10), "10-15 s after": (end + 10, end + 15)}
            print(f"\n{arm}: {calls} calls, {seen} reached the upstream, amplification {seen / calls:.2f}")
            for name, (begin, stop) in marks.items():
                print(f"  {name:<14} goodput {share(*load.good(begin, stop)):6.1f} %")
            verdicts.append((share(*load.good(end + 10, end + 15)), seen / calls))
            for program in filter(None, (gateway, upstream)):
                program.end()
    (ours, amplified), (naive, _) = verdicts
    print(f"\nrecovered within 10 s: {'yes' if ours >= 90 else 'NO'} ({ours:.1f} %); amplification ≤ 1.1: {'yes' if amplified <= 1.1 else 'NO'} ({amplified:.2f}); the naive arm recovered: {'YES' if naive >= 90 else 'no'} ({naive:.1f} %)")


SURGE_POLICY = """
[upstreams.api]
url = "http://127.0.0.1:{port}"
timeout = {{ attempt = "2s", total = "3s" }}
pool = "rest"
[[upstreams.api.endpoints]]
name = "hot"
match = "GET /hot"
pool = "hot"
[pools.hot]
concurrent = 8
queue = 8
queue_timeout = "200ms"
priority = 1
[pools.rest]
concurrent = 40
queue = 40
queue_timeout = "500ms"
priority = 9
"""


OTHERS, QUIET, SURGE, ELSEWHERE = ("/api/one", "/api/two"), "quiet", "surge", "elsewhere"


def quantile(times, part):
    return sorted(times)[min(int(len(times) * part), len(times) - 1)] * 1000


def pin(program, core, cores):
    """Gateways have one core, callers and upstreams the other, where there are two."""
    os.sched_setaffinity(program, {sorted(cores)[core % len(cores)]})


async def only(port, path, rate, seconds):
    """The body of a process that does nothing but call."""
    await Load().steady(port, path, rate, time.monotonic(), 0, seconds)


async def surge(binary, quiet):
    """Three endpoints at 20/s each; one gets 200/s for a while. The upstream has 20 workers of 50 ms.

    Quiet times and surges take turns, so that whatever else the machine does is in both. In every third phase the same surge goes
    to another gateway before another upstream: what that does to the others is the machine's doing, not the gateway's. The surge
    comes from a process of its own, so that the callers who are measured do not wait for it."""
    rate, phase = 20, quiet
    script = '[[routes]]\nmatch = "GET /**"\ncapacity = { workers = 20, service = "50ms" }\n'
    calls, refused = {QUIET: [], SURGE: [], ELSEWHERE: []}, collections.Counter()
    everywhere = os.sched_getaffinity(0)
    pin(0, 1, everywhere)
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        pairs = []
        for directory in (here, there):
            upstream, port = flaky(binary, directory, script)
            gateway, at, _ = serve(binary, directory, SURGE_POLICY.format(port=port))
            # Its threads are there already, and each has its own affinity.
            for thread in os.listdir(f"/proc/{gateway.process.pid}/task"):
                pin(int(thread), 0, everywhere)
            pairs.append((gateway, upstream, at))
        at, other = pairs[0][2], pairs[1][2]
        for round_ in range(5):
            for kind in (QUIET, SURGE, ELSEWHERE) if round_ % 2 == 0 else (ELSEWHERE, SURGE, QUIET):
                load, extra = Load(), None
                if kind != QUIET:
                    target = at if kind == SURGE else other
                    extra = subprocess.Popen([sys.executable, __file__, binary, "only", "--port", str(target), "--rate", str(rate * 9), "--seconds", str(phase)])
                    await asyncio.sleep(0.5)
                await asyncio.gather(*(load.steady(at, path, rate, time.monotonic(), 0, phase - 1) for path in ("/api/hot", *OTHERS)))
                if extra:
                    await asyncio.to_thread(extra.wait)
                calls[kind] += load.calls
        for gateway, upstream, _ in pairs:
            gateway.end()
            upstream.end()
        for line in open(f"{here}/serve.out"):
            if line.startswith('{"ts"') and (line := json.loads(line))["event"] == "call" and line["outcome"] != "success":
                refused[(line["endpoint"], line["outcome"], line["reason"])] += 1
    os.sched_setaffinity(0, everywhere)
    print(f"\nsurge: five rounds of {phase - 1} s each, in turn")
    late = {}
    for kind, name in ((QUIET, "quiet"), (SURGE, "surge on the same gateway"), (ELSEWHERE, "the same surge on another one")):
        others = [call for call in calls[kind] if call[1] in OTHERS]
        hot = [call for call in calls[kind] if call[1] == "/api/hot"]
        times = [call[3] for call in others]
        late[kind] = quantile(times, 0.99)
        print(f"  {name:<30} others {share(sum(call[2] == 200 for call in others), len(others)):5.1f} % of {len(others)}, p50 {quantile(times, 0.5):5.1f}, p90 {quantile(times, 0.9):5.1f}, p99 {late[kind]:5.1f} ms; "
              f"hot {share(sum(call[2] == 200 for call in hot), len(hot)):5.1f} % of {len(hot)}")
    for kind, name in ((QUIET, "quiet"), (ELSEWHERE, "the same surge elsewhere")):
        print(f"  p99 of the others in a surge beside {name}: {100 * (late[SURGE] / late[kind] - 1):+.1f} %")
    print("  protected by:")
    for (endpoint, outcome, reason), count in refused.most_common():
        print(f"    {endpoint}: {count} × {outcome} ({reason})")


# Each has something else that decides: the line of those who wait, the end of their patience, attempts, the budget, refusals at once.
OUTAGE_POLICIES = {
    "defaults": "",
    "waits for 1 s": 'breaker = { consecutive = 5, max_wait = "1s" }',
    "refuses for 2 s": 'breaker = { consecutive = 5, open = "2s", open_max = "2s", max_wait = "0s" }',
    "no breaker, 6 attempts": 'breaker.mode = "off"\nretry = { attempts = 6, base = "200ms", factor = 2.0, cap = "2s" }',
    "no breaker, no earned budget": 'breaker.mode = "off"\nretry = { attempts = 8, base = "200ms", cap = "1s", budget = "0%", budget_floor = "20/s" }',
    "profile internal": 'profile = "internal"',
}
# Seconds, and how often: a short outage meets few calls.
OUTAGES = ((0.5, 8), (2.0, 3), (5.0, 2))


async def outages(binary, quiet):
    """What `check` says of an outage beside what callers get: six policies side by side, 40 calls/s each, three outages."""
    rate, calm, worst = 40, 20, 0
    for length, times in OUTAGES:
        starts = [calm + n * (length + 6) for n in range(times)]
        with tempfile.TemporaryDirectory() as directory:
            script = '[[routes]]\nmatch = "GET /**"\n' + "".join(f'[[timeline]]\nat = "{int(at * 1000)}ms"\nfor = "{int(length * 1000)}ms"\nmix = {{ "503" = 1 }}\n' for at in starts)
            upstream, port = flaky(binary, directory, script)
            start = time.monotonic()
            policy = "".join(f'[upstreams.p{n}]\nurl = "http://127.0.0.1:{port}"\n{keys}\n' for n, keys in enumerate(OUTAGE_POLICIES.values()))
            gateway, at, _ = serve(binary, directory, policy)
            told = subprocess.run([binary, "check", "--json", "--load", str(rate), "--outage", f"{int(length * 1000)}ms", "-c", f"{directory}/seawall.toml"], capture_output=True, check=True)
            told = [100 * next(iter(endpoint["gives_up"].values())) for endpoint in json.loads(told.stdout)["endpoints"]]
            load, down = Load(), {at: [] for at in starts}
            # A long calm earns a full retry budget.
            await asyncio.gather(*(Load().steady(at, f"/p{n}/x", 28, start, 1, calm - 2) for n in range(len(OUTAGE_POLICIES))))

            async def watch():
                while (now := time.monotonic() - start) < starts[-1] + length + 0.5:
                    if await send(port, "/x", 1.0) == 503:
                        down[max(at for at in starts if at <= now + 0.5)].append(now)
                    await asyncio.sleep(0.005)

            end = starts[-1] + length + 6
            await asyncio.gather(watch(), *(load.steady(at, f"/p{n}/x", rate, start, calm - 1, end, timeout=60.0) for n in range(len(OUTAGE_POLICIES))))
            print(f"\n{length} s of 503, {rate} calls/s, {times} times; given up of those that began in it")
            for n, name in enumerate(OUTAGE_POLICIES):
                good, all_ = map(sum, zip(*(load.good(seen[0], seen[-1], f"/p{n}/x") for seen in down.values())))
                lived = 100 - share(good, all_)
                worst = max(worst, abs(lived - told[n]))
                print(f"  {name:<30} check says {told[n]:5.1f} %   callers {lived:5.1f} % of {all_}   {lived - told[n]:+5.1f}")
            gateway.end()
            upstream.end()
    print(f"\nwithin 5 points: {'yes' if worst <= 5 else 'NO'} (at most {worst:.1f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("drill", nargs="?", choices=["surge", "dip", "outages", "only"])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--port", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    if options.drill == "only":
        asyncio.run(only(options.port, "/api/hot", options.rate, options.seconds))
        sys.exit()
    for drill in (surge, dip, outages):
        if options.drill in (None, drill.__name__):
            asyncio.run(drill(options.binary, 5 if options.short else 10))
