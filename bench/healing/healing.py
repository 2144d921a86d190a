"""The healing scoreboard. `bench/healing/run` calls it with the program.

Open loop: calls begin at a fixed rate, whatever became of those before. Each cell is one client, one kind of faults and one way: without
retries, with the client's own, or through Seawall with the client's own retries switched off. The same seed gives all three the same faults.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import clients

RATE, SECONDS = 40, 12
# Some faults are about how calls come: a rate and for how long.
PACE = {"burst at a limit": (1_200, 0.1), "errors inside 200": (4, 30)}
WAYS = ["none", "own", "seawall"]
# Nobody waits longer for a cell than for its slowest client's own time limit.
LIMIT = 300
THROTTLE = "429:retry-after=1"
RATE_LIMIT = 'rate = { limit = "30/s", by = "global" }\n'
QUOTA = 'quota = { key = "bearer", limit = 200, per = "120s", error = "openai:insufficient_quota" }\n'
# The route's mix in thousandths, what else the route has, what the timeline does, and the only clients that it is for.
FAULTS = {
    "mild": ({"200": 940, "503": 20, "500": 10, THROTTLE: 10, "reset-before": 10, "truncate": 10}, "", "", None),
    "hard": ({"200": 700, "503": 140, "500": 60, THROTTLE: 40, "reset-before": 60}, "", "", None),
    "throttled 5 %": ({"200": 950, THROTTLE: 50}, "", "", None),
    "throttled 5 %, no hint": ({"200": 950, "429": 50}, "", "", None),
    "limiter at 75 %": ({"200": 1}, RATE_LIMIT, "", None),
    "burst at a limit": ({"200": 1}, RATE_LIMIT, "", None),
    "blip 0.1 s": ({"200": 1}, "", '[[timeline]]\nat = "4s"\nfor = "100ms"\nmix = { "503" = 1 }', None),
    "outage 3 s": ({"200": 1}, "", '[[timeline]]\nat = "4s"\nfor = "3s"\nmix = { "503" = 1 }', None),
    "outage 10 s": ({"200": 1}, "", '[[timeline]]\nat = "1s"\nfor = "10s"\nmix = { "503" = 1 }', None),
    "flapping 1 s": ({"200": 1}, "", '[[timeline]]\nat = "1s"\nfor = "1s"\nevery = "2s"\nmix = { "503" = 1 }', None),
    "brown-out 6 s": ({"200": 1}, "", '[[timeline]]\nat = "3s"\nfor = "6s"\nmix = { "200" = 60, "503" = 40 }\nlatency = { exp = "300ms" }', None),
    "resets 5 %": ({"200": 950, "reset-before": 30, "reset-mid-body": 20}, "", "", None),
    "truncated 2 %": ({"200": 980, "truncate": 20}, "", "", None),
    "401 for 1 %": ({"200": 990, "401": 10}, "", "", None),
    "hangs 1 %": ({"200": 990, "hang": 10}, "", "", ["boto3", "stripe", "requests", "axios", "got"]),
    "200 a key": ({"200": 1}, QUOTA, "", ["openai"]),
    "errors inside 200": ({"200": 950, "lastfm:11": 50}, "", "", ["lastfm"]),
}
# This API allows five calls a second, which its preset keeps to: it is asked for its own fault only.
ONLY = {"requests, lastfm": ["errors inside 200"]}
QUICK = ["mild", "hard", "throttled 5 %", "outage 3 s", "outage 10 s", "flapping 1 s", "limiter at 75 %"]


def script(body, mix, route, timeline):
    weights = ", ".join(f'"{entry}" = {weight}' for entry, weight in mix.items())
    return (f'[[routes]]\nmatch = "* /**"\nmix = {{ {weights} }}\nlatency = {{ uniform = ["5ms", "40ms"] }}\n{route}'
            f'body = {json.dumps(body)}\n{timeline}\n')


class Program:
    """One of our programs, and the address it listens at."""

    def __init__(self, args, env=None):
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)

    def line(self):
        return self.process.stdout.readline()

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free_port():
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def await_health(url):
    for _ in range(200):
        try:
            return urllib.request.urlopen(url, timeout=1).read()
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing answers at {url}")


def cell(program, name, faults, way, seed):
    """One run: how many calls succeeded, how many requests the upstream saw, and the latencies of all calls."""
    make, body, policy = clients.CLIENTS[name]
    mix, route, timeline, _ = FAULTS[faults]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "flaky.toml")
        with open(path, "w") as out:
            out.write(script(body, mix, route, timeline))
        flaky = Program([program, "flaky", "--listen", "127.0.0.1:0", "--script", path, "--seed", str(seed), "--json"])
        upstream = "http://" + json.loads(flaky.line())["listening"]
        gateway, base = None, upstream
        if way == "seawall":
            listen, admin = free_port(), free_port()
            with open(os.path.join(folder, "seawall.toml"), "w") as out:
                out.write(f'[server]\nlisten = "127.0.0.1:{listen}"\nadmin = "127.0.0.1:{admin}"\nstore = "sqlite:{folder}/s.db"\n'
                          f'default_upstream = "api"\n[upstreams.api]\nurl = "{upstream}"\n{policy}\n')
            gateway = Program([program, "serve", "-c", os.path.join(folder, "seawall.toml")], dict(os.environ, KEY="sk-test", KEY_B="sk-test-b", KEY_C="sk-test-c"))
            threading.Thread(target=lambda: [None for _ in gateway.process.stdout], daemon=True).start()
            await_health(f"http://127.0.0.1:{admin}/readyz")
            base = f"http://127.0.0.1:{listen}"
        try:
            rate, seconds = PACE.get(faults, (RATE, SECONDS))
            if make is None:
                return measure_node(name, base, way == "own", upstream, rate, seconds)
            return measure(make(base, way == "own"), upstream, rate, round(rate * seconds))
        finally:
            if gateway:
                gateway.end()
            flaky.end()


def measure(call, upstream, rate, count):
    latencies, failures, lock = [], {}, threading.Lock()

    def one(n, due):
        why = None
        try:
            call(n)
        except Exception as error:  # noqa: BLE001 whatever a client raises is a failed call
            why = f"{type(error).__name__}: {str(error)[:90]}"
        with lock:
            latencies.append(time.monotonic() - due)
            if why:
                failures[why] = failures.get(why, 0) + 1

    # What a client does once, it does before the clock runs.
    with ThreadPoolExecutor(max_workers=count) as pool:
        urllib.request.urlopen(urllib.request.Request(upstream + "/-/reset", method="POST")).read()
        start = time.monotonic()
        waits = []
        for n in range(count):
            due = start + n / rate
            time.sleep(max(0, due - time.monotonic()))
            waits.append(pool.submit(one, n, due))
        for wait in waits:
            wait.result()
    return result(latencies, failures, upstream)


def measure_node(name, base, own, upstream, rate, seconds):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients.mjs")
    told = subprocess.run(["node", script, name, base, "1" if own else "0", str(rate), str(seconds)], stdout=subprocess.PIPE, check=True,
                          timeout=LIMIT, env=dict(os.environ, UPSTREAM=upstream)).stdout
    told = json.loads(told)
    return result(told["latencies"], told["failures"], upstream)


def result(latencies, failures, upstream):
    stats = json.load(urllib.request.urlopen(upstream + "/-/stats"))
    latencies.sort()
    count = len(latencies)
    return {
        "calls": count,
        "succeeded": count - sum(failures.values()),
        "requests": stats["requests"],
        "p50": latencies[count // 2],
        "p99": latencies[count * 99 // 100],
        "failures": failures,
    }


def main():
    program, args = sys.argv[1], sys.argv[2:]
    option = lambda name: args[args.index(name) + 1] if name in args else None  # noqa: E731
    quick = "--quick" in args
    names = [name for name in clients.CLIENTS if not option("--only") or any(part in name for part in option("--only").split(","))]
    kinds = option("--faults").split(",") if option("--faults") else QUICK if quick else list(FAULTS)
    seeds = [1] if quick else [1, 2, 3]
    jobs = int(option("--jobs") or 3)
    cells = [(kind, name) for kind in kinds for name in names if kind in ONLY.get(name, [kind]) and (not FAULTS[kind][3] or any(part in name for part in FAULTS[kind][3]))]
    todo = [(name, kind, way, seed) for kind, name in cells for way in WAYS for seed in seeds]
    found = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for one, measured in pool.map(lambda one: (one, in_its_own_process(program, one)), todo):
            found.setdefault(tuple(one[:3]), []).append(measured)
            if len(found) % len(WAYS) == 0:
                print(f"{len(found) // len(WAYS)} of {len(cells)} cells", end="\r", file=sys.stderr, flush=True)
    rows = [(kind, name, {way: summary(found[(name, kind, way)]) for way in WAYS}) for kind, name in cells]
    if option("--json"):
        with open(option("--json"), "w") as out:
            json.dump(rows, out, indent=1)
    lost = table(rows)
    print(f"\n{len(cells)} cells, {lost} lost; {RATE} calls/s for {SECONDS} s, {len(seeds)} seeds")
    sys.exit(1 if lost else 0)


def in_its_own_process(program, one):
    """Clients do not share an interpreter."""
    command = [sys.executable, __file__, program, "--cell", json.dumps(one)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def table(rows):
    print("| faults | client | none % | own % | Seawall % | requests per success: own | Seawall | p50 / p99 own | Seawall | |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|")
    lost = 0
    for kind, name, ways in rows:
        none, own, seawall = (ways[way] for way in WAYS)
        worse = seawall["share"] + 0.05 < max(none["share"], own["share"])
        lost += worse
        why = "; ".join(f"{count}× {text}" for text, count in sorted(seawall["failures"].items(), key=lambda pair: -pair[1])[:2])
        print(f"| {kind} | {name} | {none['share']:.1f} | {own['share']:.1f} | **{seawall['share']:.1f}** "
              f"| {own['cost']:.2f} | {seawall['cost']:.2f} | {own['times']} | {seawall['times']} | {'LOST ' if worse else ''}{why} |")
    return lost


def summary(results):
    calls, succeeded = sum(one["calls"] for one in results), sum(one["succeeded"] for one in results)
    failures = {}
    for one in results:
        for text, count in one["failures"].items():
            failures[text] = failures.get(text, 0) + count
    mean = lambda key: sum(one[key] for one in results) / len(results)  # noqa: E731
    return {
        "share": 100 * succeeded / calls,
        "cost": sum(one["requests"] for one in results) / max(1, succeeded),
        "times": f"{mean('p50') * 1000:.0f} / {mean('p99') * 1000:.0f} ms",
        "failures": failures,
    }


if __name__ == "__main__":
    if "--cell" in sys.argv:
        print(json.dumps(cell(sys.argv[1], *json.loads(sys.argv[sys.argv.index("--cell") + 1]))))
    else:
        main()
