"""Latency of the gateway while nobody watches and while fifty do. `bench/eyes/run` calls it with the program to measure."""

import argparse
import http.client
import os
import socket
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "gateway"))
from rig import Rig, Server, paced, say, upstream, wrk  # noqa: E402

ENDPOINTS = 50  # one order to their upstream's breakers is an event of each
ORDERS_PER_SECOND = 20
LISTENERS = 50
CONNECTIONS = 16


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
    """Fifty listeners that read all they are sent, and somebody who makes it happen."""

    def __init__(self, admin):
        self.admin, self.over, self.events, self.heard = admin, threading.Event(), 0, [0] * LISTENERS
        self.threads = [threading.Thread(target=self.listen, args=(n,)) for n in range(LISTENERS)]
        self.threads.append(threading.Thread(target=self.disturb))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def listen(self, number):
        with socket.create_connection(("127.0.0.1", self.admin), 5) as peer:
            peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not self.over.is_set():
                self.heard[number] += peer.recv(1 << 16).count(b"event: breaker-")

    def disturb(self):
        connection, state = http.client.HTTPConnection("127.0.0.1", self.admin), "closed"
        began = time.monotonic()
        while not self.over.is_set():
            state = "open" if state == "closed" else "closed"
            connection.request("PUT", "/v1/breakers/noise", f'{{"state":"{state}"}}')
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                sys.exit(f"the breakers cannot be moved: {answer.status}")
            self.events += ENDPOINTS
            time.sleep(max(0.0, began + self.events / ENDPOINTS / ORDERS_PER_SECOND - time.monotonic()))


def load(rig, gateway, wanted):
    """p50 and p99 in milliseconds of calls that come at a steady rate."""
    told = wrk(rig, gateway.url, wanted.seconds, CONNECTIONS, 1, script=paced(rig, wanted.rate, CONNECTIONS))
    if told["bad"] or told["broken"]:
        sys.exit(f"calls failed:\n{told['text']}")
    return told["latency"]["50"] / 1000, told["latency"]["99"] / 1000, told["rate"]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--for", dest="seconds", type=int, default=8)
    arguments.add_argument("--rate", type=int, default=1000, help="calls a second")
    wanted = arguments.parse_args()
    with Rig(wanted.binary) as rig:
        up = rig.start(upstream(rig, None))
        port, admin = rig.port(), rig.port()
        command = [rig.binary, "serve", "-c", policy(rig, up, admin, port)]
        gateway = rig.start(Server(rig, "seawall", command, port, path="/api/x"))
        load(rig, gateway, wanted)
        rounds = []
        for number in range(wanted.rounds):
            alone = load(rig, gateway, wanted)
            with Watchers(admin) as watchers:
                began, before = time.monotonic(), (watchers.events, sum(watchers.heard))
                watched = load(rig, gateway, wanted)
                took = time.monotonic() - began
                events = (watchers.events - before[0]) / took
                heard = (sum(watchers.heard) - before[1]) / took / LISTENERS
            rounds.append((alone, watched, events))
            say(
                f"round {number + 1}: p99 alone {alone[1]:.2f} ms, watched {watched[1]:.2f} ms; "
                f"{events:.0f} events/s, of which each of {LISTENERS} listeners heard {heard:.0f}"
            )
        for name, place in (("p50", 0), ("p99", 1)):
            ratios = [watched[place] / alone[place] for alone, watched, _ in rounds]
            say(f"{name}: watched / alone {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
