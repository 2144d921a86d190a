"""A fleet of instances under load. `bench/shared/run` calls it with the program to measure."""

import argparse
import http.client
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

RATE, TOLERANCE = 100, 0.05


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def redis(port, directory):
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.02)
    raise SystemExit("redis-server does not listen")


class Instance:
    def __init__(self, binary, directory, number, policy):
        path = f"{directory}/{number}.toml"
        with open(path, "w") as file:
            file.write(policy)
        self.log = open(f"{directory}/{number}.err", "w+")
        self.process = subprocess.Popen([binary, "serve", "--threads", "1", "-c", path], stdout=subprocess.DEVNULL, stderr=self.log)
        self.port, self.admin = self.address("gateway"), self.address("admin")

    def said(self):
        with open(self.log.name) as log:
            return log.read()

    def address(self, name):
        for _ in range(500):
            found = re.search(rf"{name} +http://127\.0\.0\.1:(\d+)", self.said())
            if found:
                return int(found[1])
            time.sleep(0.02)
        raise SystemExit(f"an instance did not start: {self.said()}")

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        connection.request("GET", "/metrics")
        found = re.search(rf"^{name} (\S+)$", connection.getresponse().read().decode(), re.M)
        return float(found[1])

    def wait_for(self, name, value):
        begun = time.monotonic()
        while self.metric(name) != value:
            if time.monotonic() - begun > 30:
                raise SystemExit(f"{name} never became {value}")
            time.sleep(0.02)
        return time.monotonic() - begun


def load(instance, stop, seen, pause):
    """One caller after the other on one connection, a little faster than its part of the limit."""
    connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=30)
    while not stop.is_set():
        begun = time.monotonic()
        connection.request("GET", "/api/x")
        answer = connection.getresponse()
        answer.read()
        seen.append((begun, answer.status, time.monotonic() - begun))
        time.sleep(pause)


def run(instances, seconds, during=lambda: None):
    stop, seen = threading.Event(), []
    # Three times the limit is asked for in all.
    pause = len(instances) * 2 / (3 * RATE)
    callers = [threading.Thread(target=load, args=(instance, stop, seen, pause)) for instance in instances for _ in range(2)]
    begun = time.monotonic()
    [caller.start() for caller in callers]
    during()
    time.sleep(max(0, seconds - (time.monotonic() - begun)))
    stop.set()
    [caller.join() for caller in callers]
    return begun, [row for row in seen if row[0] < begun + seconds]


def p99(times):
    times = sorted(times)
    return times[int(len(times) * 0.99)] * 1000


def main():
    parser = argparse.ArgumentParser(prog="bench/shared/run")
    parser.add_argument("binary")
    parser.add_argument("--for", dest="seconds", type=float, default=30)
    arguments = parser.parse_args()
    failed = False
    for count in (2, 5):
        directory, port, upstream = tempfile.mkdtemp(), free_port(), free_port()
        flaky = subprocess.Popen([arguments.binary, "flaky", "--listen", f"127.0.0.1:{upstream}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        store = redis(port, directory)
        policy = (f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nshared = "redis://127.0.0.1:{port}"\n'
                  f'[upstreams.api]\nurl = "http://127.0.0.1:{upstream}"\nlimits = [{{ name = "all", key = "upstream", rate = "{RATE}/s", burst = 5 }}]\n')
        fleet = [Instance(arguments.binary, directory, number, policy) for number in range(count)]
        try:
            [instance.wait_for("seawall_shared_instances", count) for instance in fleet]
            _, seen = run(fleet, arguments.seconds)
            rate = sum(status == 200 for _, status, _ in seen) / arguments.seconds
            usual = p99([took for *_, took in seen])
            other = {status for _, status, _ in seen} - {200, 429}
            failed |= abs(rate - RATE) > RATE * TOLERANCE or bool(other)
            print(f"{count} instances, {arguments.seconds:.0f} s: {len(seen) / arguments.seconds:.0f}/s asked, {rate:.1f}/s admitted of {RATE}/s; "
                  f"p99 {usual:.1f} ms; other answers {sorted(other) or 'none'}")

            def kill():
                time.sleep(3)
                store.send_signal(signal.SIGKILL)
                store.wait()

            begun, seen = run(fleet, 8, kill)
            errors = sum(status >= 500 for _, status, _ in seen)
            away = [row for row in seen if row[0] > begun + 3.5]
            admitted = sum(status == 200 for _, status, _ in away) / 4.5
            print(f"  Redis killed after 3 s of 8 s: {errors} answers of 5xx, {admitted:.1f}/s admitted without it; p99 {p99([took for *_, took in seen]):.1f} ms, "
                  f"longest {max(took for *_, took in seen) * 1000:.1f} ms; warnings {[instance.said().count('warning: shared') for instance in fleet]}")
            failed |= errors > 0
            store = redis(port, directory)
            back = max(instance.wait_for("seawall_shared_state_up", 1) for instance in fleet)
            print(f"  Redis is back: every instance uses it again after {back:.2f} s")
            failed |= back > 2
            pauser = socket.create_connection(("127.0.0.1", port))
            _, seen = run(fleet, 4, lambda: (time.sleep(1), pauser.sendall(b"CLIENT PAUSE 2000 ALL\r\n")))
            print(f"  Redis hangs for 2 s of 4 s: {sum(status >= 500 for _, status, _ in seen)} answers of 5xx; p99 {p99([took for *_, took in seen]):.1f} ms, "
                  f"longest {max(took for *_, took in seen) * 1000:.1f} ms")
        finally:
            for process in [flaky, store, *(instance.process for instance in fleet)]:
                process.kill()
                process.wait()
            shutil.rmtree(directory)
    raise SystemExit(1 if failed else 0)


main()
