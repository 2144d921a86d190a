"""The comparison itself. `bench/gateway/run` calls it with the program to measure."""

import argparse
import asyncio
import re
import signal
import socket
import subprocess
import time

import rig as r
from rig import Rig, median, say

PROXY, LOAD = 0, 1  # cores: the proxy has one for itself, wrk and the upstream share the other


def parse():
    parser = argparse.ArgumentParser(prog="bench/gateway/run", description="Seawall beside nginx and HAProxy")
    parser.add_argument("binary")
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--connections", type=int, default=64)
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.seconds = args.seconds or (2 if args.quick else 5)
    return args


def servers(rig, up):
    return [r.nginx(rig, up, PROXY), r.haproxy(rig, up, PROXY), r.seawall(rig, up.port, PROXY)]


def loaded(rig, server, seconds, connections, script=None, path=""):
    before = server.cpu_us()
    result = r.wrk(rig, server.url + path, seconds, connections, LOAD, script)
    result["cpu"] = (server.cpu_us() - before) / result["requests"]
    if result["bad"] or result["broken"]:
        say(f"  {server.name}: {result['bad']} bad answers, {result['broken']} socket errors")
    if server.log:
        open(server.log, "w").close()
    return result


def rounds(rig, all_servers, args, what, script=None, path=""):
    results = {server.name: [] for server in all_servers}
    for number in range(args.rounds):
        order = all_servers[number % len(all_servers):] + all_servers[: number % len(all_servers)]
        for server in order:
            results[server.name].append(loaded(rig, server, args.seconds, args.connections, script, path))
        latest = ", ".join(f"{name} {runs[-1]['rate']:.0f}/s {runs[-1]['cpu']:.1f} µs" for name, runs in results.items())
        say(f"  {what}, round {number + 1}: {latest}")
    return results


def first_answers(rig, server, times):
    """Milliseconds from the start of the process to its first answer."""
    taken = []
    for _ in range(times):
        server.stop()
        start = time.perf_counter()
        rig.running.append(server)
        server.launch()
        server.first_answer()
        taken.append((time.perf_counter() - start) * 1000)
    return median(taken)


async def hold(server, count):
    """Opens connections, makes one request on each, and keeps them open while memory is read."""
    request = f"GET {server.path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    gate = asyncio.Semaphore(200)

    async def one():
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(size.group(1)))
            assert b" 200 " in head.split(b"\r\n", 1)[0]
            return writer

    writers = await asyncio.gather(*(one() for _ in range(count)))
    await asyncio.sleep(1)
    memory = server.rss_mb()
    for writer in writers:
        writer.close()
    return memory


def requests_on_one_connection(server, count):
    request = f"GET {server.path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), 60) as peer:
        for _ in range(count):
            peer.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < len(r.BODY):
                answer += peer.recv(65536)


def instructions(rig, make, few, many):
    """User-space instructions per request: the difference of two runs is free of start-up."""
    counts = []
    for count in (few, many):
        server = make()
        out = rig.path("callgrind.txt")
        rig.running.append(server)
        server.launch(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--log-file={out}"])
        server.first_answer()
        requests_on_one_connection(server, count)
        server.stop(signal.SIGTERM)
        with open(out, encoding="utf-8", errors="replace") as file:
            counts.append(int(re.findall(r"Collected : (\d+)", file.read())[-1]))
    return (counts[1] - counts[0]) / (many - few)


def versions(rig):
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr.split("/")[-1].strip()
    haproxy = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout.split()[2]
    own = subprocess.run([rig.binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return f"nginx {nginx}, HAProxy {haproxy}, seawall {own}"


def table(rows):
    say()
    say(f"{'':38} {'nginx':>10} {'haproxy':>10} {'seawall':>10} {'÷ nginx':>9} {'÷ haproxy':>10}")
    for name, (nginx, haproxy, seawall), digits in rows:
        ratios = [f"{seawall / other:.2f}" if other else "–" for other in (nginx, haproxy)]
        cells = [f"{value:,.{digits}f}".replace(",", " ") for value in (nginx, haproxy, seawall)]
        say(f"{name:38} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10} {ratios[0]:>9} {ratios[1]:>10}")


def main():
    args = parse()
    with Rig(args.binary) as rig:
        say(f"{r.conditions()}; {versions(rig)}; {args.rounds} rounds of {args.seconds} s, {args.connections} connections")
        up = rig.start(r.upstream(rig, LOAD))
        peers = servers(rig, up)
        names = [server.name for server in peers]
        for server in peers:
            rig.start(server)
        time.sleep(1)
        idle = [server.rss_mb() for server in peers]

        full = rounds(rig, peers, args, "full load")
        half_rate = min(median([run["rate"] for run in full[name]]) for name in names) / 2
        half = rounds(rig, peers, args, "half load", r.paced(rig, half_rate, args.connections))
        large = rounds(rig, peers, args, "64 KiB bodies", path="large")

        many = 2_000 if args.quick else 10_000
        started = [first_answers(rig, server, 3 if args.quick else 7) for server in peers]
        held = [asyncio.run(hold(server, many)) for server in peers]  # freshly started, so nothing is left of the load
        for server in peers:
            server.stop()

        say("  instructions under callgrind …")
        few, more = (300, 900) if args.quick else (1000, 15_000)
        makers = [lambda: r.nginx(rig, up, PROXY, single=True), lambda: r.haproxy(rig, up, PROXY), lambda: r.seawall(rig, up.port, PROXY)]
        counted = [instructions(rig, make, few, more) for make in makers]

        def of(results, pick):
            return [median([pick(run) for run in results[name]]) for name in names]

        reached = min(of(half, lambda run: run["rate"]))
        table([
            ("requests/s", of(full, lambda run: run["rate"]), 0),
            ("CPU µs per request", of(full, lambda run: run["cpu"]), 1),
            ("instructions per request", counted, 0),
            (f"p50 µs at {reached:.0f}/s", of(half, lambda run: run["latency"]["50"]), 0),
            (f"p99 µs at {reached:.0f}/s", of(half, lambda run: run["latency"]["99"]), 0),
            (f"CPU µs per request at {reached:.0f}/s", of(half, lambda run: run["cpu"]), 1),
            ("64 KiB bodies, MB/s", of(large, lambda run: run["rate"] * r.LARGE / 1e6), 0),
            ("64 KiB bodies, CPU µs per request", of(large, lambda run: run["cpu"]), 1),
            ("RSS idle, MB", idle, 1),
            (f"RSS with {many} idle connections, MB", held, 1),
            ("start to first answer, ms", started, 1),
        ])
        say("medians; nginx and HAProxy: plain proxy, keep-alive both sides, no log; seawall: retries, breaker, two keys, JSON log to a file")
        say("half load: wrk's connections think between requests (its delay()), a closed loop near that rate")


if __name__ == "__main__":
    main()
