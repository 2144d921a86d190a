"""Surge and capacity dip, live: real programs, open-loop load. `bench/drills/run` calls it with the program to drill."""

import argparse
import asyncio
import collections
import json
import re
import subprocess
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

    def p99(self, begin, end, path):
        times = sorted(call[3] for call in self.calls if begin <= call[0] < end and call[1] == path)
        return times[int(len(times) * 0.99)] * 1000 if times else 0.0


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


async def surge(binary, quiet):
    """Three endpoints at 20/s each; one gets 200/s for ten seconds. The upstream has 20 workers of 50 ms."""
    rate, length = 20, 10
    with tempfile.TemporaryDirectory() as directory:
        upstream, port = flaky(binary, directory, '[[routes]]\nmatch = "GET /**"\ncapacity = { workers = 20, service = "50ms" }\n')
        gateway, at, _ = serve(binary, directory, SURGE_POLICY.format(port=port))
        load, start = Load(), time.monotonic()
        end = quiet + length
        await asyncio.gather(
            *(load.steady(at, path, rate, start, 0, end) for path in ("/api/hot", "/api/one", "/api/two")),
            load.steady(at, "/api/hot", rate * 9, start, quiet, end),
        )
        gateway.end()
        upstream.end()
        lines = [json.loads(line) for line in open(f"{directory}/serve.out") if line.startswith('{"ts"')]
        refused = collections.Counter((line["endpoint"], line["outcome"], line["reason"]) for line in lines if line["event"] == "call" and line["outcome"] != "success")
    print("\nsurge")
    for path in ("/api/hot", "/api/one", "/api/two"):
        before, during = load.p99(0, quiet, path), load.p99(quiet, end, path)
        print(f"  {path:<9} before {share(*load.good(0, quiet, path)):5.1f} % p99 {before:6.1f} ms   surge {share(*load.good(quiet, end, path)):5.1f} % p99 {during:6.1f} ms ({100 * (during / max(before, 0.001) - 1):+.0f} %)")
    print("  protected by:")
    for (endpoint, outcome, reason), count in refused.most_common():
        print(f"    {endpoint}: {count} × {outcome} ({reason})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("drill", nargs="?", choices=["surge", "dip"])
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    for drill in (surge, dip):
        if options.drill in (None, drill.__name__):
            asyncio.run(drill(options.binary, 5 if options.short else 10))
