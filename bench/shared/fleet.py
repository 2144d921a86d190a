"""A fleet of instances under load. `bench/shared/run` calls it with the program to measure."""

import argparse
import http.client
import http.server
import os
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
        # A store of its own.
        os.makedirs(f"{directory}/{number}", exist_ok=True)
        path = f"{directory}/{number}/seawall.toml"
        with open(path, "w") as file:
            file.write(policy)
        self.log = open(f"{directory}/{number}/err", "w+")
        self.process = subprocess.Popen([binary, "serve", "--threads", "1", "-c", path],
                                        env=os.environ | {"A": "a", "B": "b", "C": "c"}, stdout=subprocess.DEVNULL, stderr=self.log)
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


def load(instance, stop, seen, pause, path):
    """One caller after the other on one connection, a little faster than its part of the limit."""
    connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=30)
    while not stop.is_set():
        begun = time.monotonic()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        seen.append((begun, answer.status, time.monotonic() - begun))
        time.sleep(pause)


def run(instances, seconds, during=lambda: None, path="/api/x"):
    stop, seen = threading.Event(), []
    # Three times the limit is asked for in all.
    pause = len(instances) * 2 / (3 * RATE)
    callers = [threading.Thread(target=load, args=(instance, stop, seen, pause, path)) for instance in instances for _ in range(2)]
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


def policy(port, api, patience="50ms"):
    """An instance's configuration: one Redis, how long it is waited for, and upstreams."""
    return f'[server]\nlisten = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\nshared = "redis://127.0.0.1:{port}"\nshared_timeout = "{patience}"\n{api}\n'


def limited(upstream):
    return f'[upstreams.api]\nurl = "http://127.0.0.1:{upstream}"\nlimits = [{{ name = "all", key = "upstream", rate = "{RATE}/s", burst = 5 }}]'


class Upstream(http.server.ThreadingHTTPServer):
    """An upstream that watches its callers: which keys they use while those are spent, how many probes are under way at once, how
    often a token is fetched."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.lock, self.port = threading.Lock(), self.server_address[1]
        self.quota, self.cool = 20, 2.0
        self.used, self.spent_at, self.while_cooling, self.keyed = {}, {}, 0, 0
        self.broken, self.now, self.most, self.tokens = False, 0, 0, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A gateway that is ended by force leaves its connections as they are."""

    def with_key(self, key):
        """Each key has a quota, and is not to be used for two seconds once the answer says that it is spent."""
        with self.lock:
            self.keyed += 1
            now = time.monotonic()
            told = self.spent_at.get(key)
            if told is not None and now < told + self.cool:
                # An attempt that was already under way when the quota ran out is nobody's fault.
                self.while_cooling += now > told + 0.1
                return False
            if told is not None:
                self.spent_at.pop(key)
                self.used[key] = 0
            self.used[key] = self.used.get(key, 0) + 1
            if self.used[key] > self.quota:
                self.spent_at[key] = now
                return False
            return True


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=b"{}"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.tokens += 1
        time.sleep(0.1)
        self.say(200, b'{"access_token":"t","expires_in":3600}')

    def do_GET(self):
        server = self.server
        if self.path.startswith("/keyed"):
            return self.say(200 if server.with_key(self.headers["x-key"]) else 403)
        if self.path.startswith("/probed"):
            with server.lock:
                server.now += 1
                server.most = max(server.most, server.now)
                broken = server.broken
            time.sleep(0 if broken else 0.2)
            with server.lock:
                server.now -= 1
            return self.say(500 if broken else 200)
        self.say(200)


def status(instance, path):
    connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=30)
    connection.request("GET", path)
    return connection.getresponse().status


def at_once(fleet, path, each):
    statuses = []
    callers = [threading.Thread(target=lambda i=instance: statuses.append(status(i, path))) for instance in fleet for _ in range(each)]
    [caller.start() for caller in callers]
    [caller.join() for caller in callers]
    return statuses


def together(binary, count, seconds):
    """What instances know together: cooling keys, probes, one token. They are patient, so that a busy machine is not taken for a Redis
    that is away."""
    directory, port, upstream = tempfile.mkdtemp(), free_port(), Upstream()
    store = redis(port, directory)
    url = f'url = "http://127.0.0.1:{upstream.port}'
    api = (f'[upstreams.keyed]\n{url}/keyed"\n[upstreams.keyed.auth]\ninject = "header:x-key"\npick = "round-robin"\n'
           'keys = [{ id = "a", secret = "env:A" }, { id = "b", secret = "env:B" }, { id = "c", secret = "env:C" }]\n'
           '[[upstreams.keyed.classify]]\nwhen = { status = [403] }\nas = "quota"\nscope = "key"\nwait = "2s"\n'
           f'[upstreams.probed]\n{url}/probed"\nretry.attempts = 1\nbreaker = {{ consecutive = 3, open = "1s", open_max = "1s", probes = 2, successes = 2 }}\n'
           f'[upstreams.token]\n{url}/token"\n[upstreams.token.auth]\nrefresh = {{ kind = "client-credentials", token_url = "http://127.0.0.1:{upstream.port}/fetch", client_id = "env:A", client_secret = "env:B" }}\n')
    fleet = [Instance(binary, directory, number, policy(port, api, "5s")) for number in range(count)]
    try:
        [instance.wait_for("seawall_shared_instances", count) for instance in fleet]
        statuses = at_once(fleet, "/token/x", 4)
        print(f"  one token: {upstream.tokens} fetched for {len(statuses)} calls at once, {statuses.count(200)} of them good")
        _, seen = run(fleet, seconds, path="/keyed/x")
        good = sum(status == 200 for _, status, _ in seen)
        print(f"  3 keys with quota, {seconds:.0f} s: {len(seen)} calls, {good} good, {upstream.keyed} sent; a key was used while it cooled {upstream.while_cooling} times")
        upstream.broken = True
        at_once(fleet, "/probed/x", 3)
        upstream.broken, upstream.most = False, 0
        time.sleep(1.1)
        statuses = at_once(fleet, "/probed/x", 8)
        print(f"  half-open: {upstream.most} probes at once of 2 allowed, {statuses.count(200)} of {len(statuses)} calls let through")
        lost = sum(instance.said().count("warning: shared") for instance in fleet)
        if lost:
            print(f"  Redis did not answer in time {lost} times meanwhile, so that instances rightly went on alone: this says nothing")
            return None
        return upstream.tokens == 1 and upstream.while_cooling == 0 and upstream.most <= 2
    finally:
        for process in [store, *(instance.process for instance in fleet)]:
            process.kill()
            process.wait()
        shutil.rmtree(directory)


def usual(fleet, count, seconds):
    _, seen = run(fleet, seconds)
    rate = sum(status == 200 for _, status, _ in seen) / seconds
    other = {status for _, status, _ in seen} - {200, 429}
    late = p99([took for *_, took in seen])
    print(f"{count} instances, {seconds:.0f} s: {len(seen) / seconds:.0f}/s asked, {rate:.1f}/s admitted of {RATE}/s; p99 {late:.1f} ms; other answers {sorted(other) or 'none'}")
    return abs(rate - RATE) <= RATE * TOLERANCE and not other, late


def trouble(name, fleet, seconds, during, late):
    """The same load while something happens to Redis, beside the quiet p99 of the same fleet."""
    _, seen = run(fleet, seconds, during)
    errors, times = sum(status >= 500 for _, status, _ in seen), [took for *_, took in seen]
    added = p99(times) - late
    print(f"  {name}: {errors} answers of 5xx, p99 {p99(times):.1f} ms ({added:+.1f}), longest {max(times) * 1000:.1f} ms, {sum(status == 200 for _, status, _ in seen) / seconds:.1f}/s admitted")
    return errors == 0 and added <= 50


def main():
    parser = argparse.ArgumentParser(prog="bench/shared/run")
    parser.add_argument("binary")
    parser.add_argument("--for", dest="seconds", type=float, default=30)
    arguments = parser.parse_args()
    held = True
    for count in (2, 5):
        directory, port, upstream = tempfile.mkdtemp(), free_port(), free_port()
        flaky = subprocess.Popen([arguments.binary, "flaky", "--listen", f"127.0.0.1:{upstream}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        store = [redis(port, directory)]
        fleet = [Instance(arguments.binary, directory, number, policy(port, limited(upstream))) for number in range(count)]

        def kill():
            time.sleep(1)
            store[0].send_signal(signal.SIGKILL)
            store[0].wait()

        def restart():
            kill()
            store[0] = redis(port, directory)

        def pause():
            time.sleep(1)
            with socket.create_connection(("127.0.0.1", port)) as pauser:
                pauser.sendall(b"CLIENT PAUSE 2000 ALL\r\n")

        def back():
            took = max(instance.wait_for("seawall_shared_state_up", 1) for instance in fleet)
            print(f"  every instance uses Redis again after {took:.2f} s")
            return took <= 2

        try:
            [instance.wait_for("seawall_shared_instances", count) for instance in fleet]
            fair, late = usual(fleet, count, arguments.seconds)
            held &= fair
            held &= trouble("CLIENT PAUSE of 2 s", fleet, 4, pause, late)
            [instance.wait_for("seawall_shared_state_up", 1) for instance in fleet]
            held &= trouble("restarted empty", fleet, 4, restart, late) & back()
            held &= trouble("kill -9, and away", fleet, 5, kill, late)
            store[0] = redis(port, directory)
            held &= back()
        finally:
            for process in [flaky, store[0], *(instance.process for instance in fleet)]:
                process.kill()
                process.wait()
            shutil.rmtree(directory)
        tries = (together(arguments.binary, count, min(arguments.seconds, 15)) for _ in range(4))
        held &= bool(next((told for told in tries if told is not None), False))
    print("held" if held else "NOT held")
    raise SystemExit(0 if held else 1)


main()
