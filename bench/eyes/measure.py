"""Latency of the gateway while nobody watches and while fifty do, in turn. `bench/eyes/run` calls it with the programs to measure with.

Rounds are short and alternate, so that whatever else the machine does falls on both kinds alike. The load is an open loop well below
what the gateway can do: what is asked is what being watched adds to a call, and not how far a full machine gets. Besides the calls'
own times, the gateway's threads are asked what they did (`schedstat`): processor time, and time in which they could run and no
processor was free.
"""

import argparse
import glob
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "gateway"))
from rig import Rig, Server, say, upstream  # noqa: E402

ENDPOINTS = 50  # one order to their upstream's breakers is an event of each
ORDERS_PER_SECOND = 20
LISTENERS = 50
CONNECTIONS = 16
DRAWS = 500


def policy(rig, up, admin, port):
    endpoints = "".join(
        f'[[upstreams.noise.endpoints]]\nname = "e{n}"\nmatch = "GET /e{n}"\n' for n in range(ENDPOINTS - 1)
    )
    return rig.write("seawall.toml", f"""
[server]
listen = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
[upstreams.api]
url = "http://127.0.0.1:{up.port}"
[upstreams.noise]
url = "http://127.0.0.1:{up.port}"
{endpoints}""")


class Watchers:
    """The other process, for as long as it is wanted."""

    def __init__(self, admin):
        script = os.path.join(os.path.dirname(__file__), "listen.py")
        command = [sys.executable, script, str(admin), str(LISTENERS), "noise", str(ENDPOINTS), str(ORDERS_PER_SECOND)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()
        self.began = time.monotonic()
        self.told = None

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the listeners failed")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.process.stdin.write("over\n")
            self.process.stdin.flush()
            took = time.monotonic() - self.began
            self.told = self.read()
            self.told["rate"] = self.told["made"] / took
        else:
            self.process.kill()
        self.process.wait()


def threads(pid):
    """What each kind of thread has run and has waited for a processor, in nanoseconds."""
    sums = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        with open(f"{task}/comm", encoding="ascii") as file:
            kind = "callers" if file.read().startswith("worker-") else "others"
        with open(f"{task}/schedstat", encoding="ascii") as file:
            ran, waited, turns = (int(number) for number in file.read().split())
        known = sums.setdefault(kind, [0, 0, 0])
        for place, more in enumerate((ran, waited, turns)):
            known[place] += more
    return sums


class Round:
    """The calls' times in microseconds, sorted, and what the gateway did meanwhile, for each call."""

    def __init__(self, wanted, gateway):
        before = threads(gateway.process.pid)
        command = [wanted.load, f"127.0.0.1:{gateway.port}", gateway.path, str(CONNECTIONS), str(wanted.rate), str(wanted.seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        after = threads(gateway.process.pid)
        if done.returncode:
            sys.exit(f"calls failed: {done.stderr}")
        self.took = sorted(int(line) / 1000 for line in done.stdout.split())
        calls = len(self.took)
        units = (1000, 1000, 1)
        self.did = {kind: [(now - then) / unit / calls for now, then, unit in zip(after[kind], before[kind], units)] for kind in after}

    def quantile(self, per_cent):
        return quantile(self.took, per_cent)


def quantile(ordered, per_cent):
    return ordered[min(len(ordered) - 1, int(len(ordered) * per_cent / 100))]


def pooled(rounds, per_cent):
    """Of all calls of these rounds together."""
    return quantile(sorted(took for one in rounds for took in one.took), per_cent)


def ratio_with_interval(pairs, of):
    """Watched ÷ alone, and what it comes to in 95 of 100 draws of as many pairs."""
    draw = random.Random(1)
    ratio = lambda some: of([watched for _, watched in some]) / of([alone for alone, _ in some])  # noqa: E731
    drawn = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return ratio(pairs), drawn[int(DRAWS * 0.025)], drawn[int(DRAWS * 0.975)]


def report(pairs):
    say(f"\n{len(pairs)} pairs of rounds; watched / alone, and 95 % of bootstrap draws of pairs:")
    for per_cent in (50, 99):
        median = lambda rounds, q=per_cent: statistics.median(one.quantile(q) for one in rounds)  # noqa: E731
        value, low, high = ratio_with_interval(pairs, median)
        alone, watched = median([a for a, _ in pairs]), median([w for _, w in pairs])
        say(f"  median of the rounds' p{per_cent}: {value:.3f} ({low:.3f} to {high:.3f}); {alone:.0f} µs and {watched:.0f} µs")
    value, low, high = ratio_with_interval(pairs, lambda rounds: pooled(rounds, 99))
    say(f"  p99 of all calls together: {value:.3f} ({low:.3f} to {high:.3f})")
    say("what the gateway's own threads did for each call, median of the rounds, and watched / alone:")
    for kind, name in (("callers", "threads that serve callers"), ("others", "admin port, log, jobs")):
        for place, what in ((0, "µs of processor"), (1, "µs of waiting for one"), (2, "turns")):
            alone, watched = (statistics.median(pair[side].did[kind][place] for pair in pairs) for side in (0, 1))
            share = f", {watched / alone:.3f}" if alone else ""
            say(f"  {name}: {what} {alone:.2f} alone, {watched:.2f} watched{share}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("load")
    arguments.add_argument("--pairs", type=int, default=24)
    arguments.add_argument("--for", dest="seconds", type=int, default=3, help="seconds of a round")
    arguments.add_argument("--rate", type=int, default=2000, help="calls a second")
    wanted = arguments.parse_args()
    with Rig(wanted.binary) as rig:
        up = rig.start(upstream(rig, None))
        port, admin = rig.port(), rig.port()
        command = [rig.binary, "serve", "-c", policy(rig, up, admin, port)]
        gateway = rig.start(Server(rig, "seawall", command, port, path="/api/x"))
        Round(wanted, gateway)
        pairs, made, missed = [], 0, 0
        for number in range(wanted.pairs):
            def watched_round():
                with Watchers(admin) as watchers:
                    time.sleep(0.3)
                    return Round(wanted, gateway), watchers
            # Which goes first changes, so that neither profits from what the other left behind.
            if number % 2:
                watched, watchers = watched_round()
                alone = Round(wanted, gateway)
            else:
                alone = Round(wanted, gateway)
                watched, watchers = watched_round()
            told = watchers.told
            made, missed = made + told["made"], missed + told["made"] - told["least"]
            pairs.append((alone, watched))
            say(
                f"pair {number + 1}: p99 alone {alone.quantile(99):.0f} µs, watched {watched.quantile(99):.0f} µs; "
                f"{told['rate']:.0f} events/s, {told['made']} made, heard by each of {LISTENERS}: {told['least']} to {told['most']}"
            )
        report(pairs)
        say(f"{made} events were made; the listener that heard least of each round missed {missed} in all")


if __name__ == "__main__":
    main()
