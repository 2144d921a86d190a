"""The storm: everything that goes wrong at once, for minutes. `bench/gateway/soak --storm SECONDS` calls it.

Two gateways share a PostgreSQL and a Redis. While callers read, upload, use idempotency keys and hand in jobs, and others break off in
every way, configurations are reloaded, Redis is killed, PostgreSQL is read-only or loses its connections, and the upstream resets all of
its own. At the end every response has to be in the table of what the policy explains, every job that was acknowledged has ended, nothing
that may not be repeated was sent twice, no body was changed on its way, and memory and open files are where they were."""

import collections
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.request

import rig as r
from rig import Postgres, Redis, Rig, Server, say

CALLERS, HOSTILE = 16, 6
PAUSE = 0.08
REST = 75
UPLOAD = 300 * 1024

POLICY = """[server]
listen = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
store = "env:STORM_STORE"
shared = "redis://127.0.0.1:{redis}"
replay_body = "32KiB"
drain = "10s"

[upstreams.up]
url = "http://127.0.0.1:{up}"
timeout = {{ connect = "500ms", attempt = "{attempt}", total = "5s" }}
retry = {{ attempts = 4, base = "10ms", cap = "200ms", budget = "50%" }}
breaker = {{ consecutive = 20, open = "500ms", open_max = "2s" }}
limits = [{{ name = "all", key = "upstream", rate = "{rate}/s", burst = 10000 }}]
dead_letter = {{ from = ["jobs"] }}

[[upstreams.up.endpoints]]
name = "keyed"
match = "POST /keyed/*"
idempotency = {{ mode = "required" }}
"""

# Status and Seawall-Outcome of every response that this policy may give while the storm lasts.
EXPLAINED = {
    "200 success": "the upstream's answer, healed or not",
    "202 enqueued": "the job is kept",
    "502 upstream_unreachable": "resets, closes or half heads until attempts or budget were used up or the request may not be repeated; or garbage",
    "503 transient": "the upstream's own 503, where attempts or budget are used up or the request may not be repeated",
    "503 circuit_open": "the breaker was open",
    "503 store_unavailable": "PostgreSQL could not be written to, so a key or a job was not kept",
    "504 deadline_exceeded": "the upstream hung",
    "413 permanent": "the upstream's own answer to an upload, before its end",
    "409 outcome_unknown": "a repeated key whose first call was sent and never answered",
    "409 idempotency_key_in_flight": "a repeated key whose first call is not settled yet",
    "200 success, cut off": "the upstream broke off in the middle of its answer, after the first bytes had been passed on",
}
# How a job may end, besides well.
ENDS = {
    "outcome_unknown": "it may not be repeated, and nobody knows what came of its send",
    "reset": "resets until its attempts were used up, or it may not be repeated",
    "timeout": "the upstream hung, and it may not be repeated",
    "connect": "the upstream reset everything while it was connected to",
    "malformed": "garbage, which is permanent",
    "503": "the upstream's own 503, and it may not be repeated or its attempts were used up",
}


class Books:
    """What was seen, by everybody."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts, self.odd, self.jobs, self.posts, self.keys = collections.Counter(), [], {}, set(), {}
        self.chaos, self.number, self.started = [], 0, time.monotonic()

    def next(self):
        with self.lock:
            self.number += 1
            return f"r{self.number}"

    def count(self, kind, key, more=""):
        with self.lock:
            self.counts[key] += 1
            if key not in EXPLAINED and len(self.odd) < 40:
                self.odd.append(f"{self.at()} s: {kind}: {key} {more}; last: {self.chaos[-2:]}")

    def at(self):
        return round(time.monotonic() - self.started, 1)

    def event(self, text):
        with self.lock:
            self.chaos.append(f"{self.at()} s {text}")


class Connection:
    """One caller's connection. An upload that is answered early is cut off while it is sent, and its answer is read all the same."""

    def __init__(self, port):
        self.port, self.socket = port, None

    def ask(self, method, path, headers, body=b""):
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), 20)
        lines = [f"{method} {path} HTTP/1.1", "Host: storm", *(f"{name}: {value}" for name, value in headers.items())]
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        try:
            self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = http.client.HTTPResponse(self.socket, method=method)
        is_cut, text = False, b""
        try:
            answer.begin()
            try:
                text = answer.read()
            except (http.client.IncompleteRead, ConnectionResetError) as error:
                is_cut, text = True, getattr(error, "partial", b"")
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if is_cut or answer.will_close:
            self.close()
        return answer, text, is_cut

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Caller(threading.Thread):
    """Asks in turn for everything that a gateway does, now here, now there."""

    def __init__(self, books, gateways, stop, seed):
        super().__init__(daemon=True)
        self.books, self.stop, self.dice = books, stop, random.Random(seed)
        self.connections = [Connection(gateway.port) for gateway in gateways]

    def run(self):
        while not self.stop.is_set():
            kind = self.dice.choices(["get", "post", "upload", "keyed", "job", "large"], [40, 15, 12, 10, 18, 3])[0]
            getattr(self, kind)(self.books.next())
            time.sleep(PAUSE * self.dice.uniform(0.5, 1.5))
        for connection in self.connections:
            connection.close()

    def ask(self, kind, method, path, headers=None, body=b"", connection=None):
        connection = connection or self.dice.choice(self.connections)
        began = time.monotonic()
        try:
            answer, text, is_cut = connection.ask(method, f"/up{path}", headers or {}, body)
        except (OSError, http.client.HTTPException) as error:
            self.books.count(kind, f"no response: {type(error).__name__}", f"{path} after {time.monotonic() - began:.1f} s")
            return None, b"", {}
        key = f"{answer.status} {answer.headers.get('Seawall-Outcome', '-')}" + (", cut off" if is_cut else "")
        self.books.count(kind, key, path)
        number = path.rsplit("/", 1)[1]
        if answer.status == 200 and not is_cut and not text.startswith(f"ok {number} ".encode()):
            self.books.count(kind, "somebody else's response", f"{path}: {text[:60]}")
        return (None if is_cut else answer.status), text, answer.headers

    def get(self, number):
        self.ask("get", "GET", f"/get/{number}")

    def large(self, number):
        self.ask("large", "GET", f"/large/{number}")

    def post(self, number):
        self.books.posts.add(number)
        self.ask("post", "POST", f"/post/{number}", *signed(f"body of {number} ".encode() * 20))

    def upload(self, number):
        self.books.posts.add(number)
        self.ask("upload", "POST", f"/upload/{number}", *signed((number.encode() + b" ") * (UPLOAD // (len(number) + 1))))

    def keyed(self, number):
        """Twice under one key, as a caller does who is not sure: two good answers are one."""
        headers, body = signed(f"body of {number}".encode())
        headers["Idempotency-Key"] = f"key-{number}"
        texts = [self.ask("keyed", "POST", f"/keyed/{number}", headers, body) for _ in range(2)]
        if all(status == 200 for status, *_ in texts) and texts[0][1] != texts[1][1]:
            self.books.count("keyed", "two answers under one key", f"{number}: {texts[0][1]} {texts[1][1]}")

    def job(self, number):
        method = self.dice.choice(["POST", "PUT"])
        headers, body = signed(f"job {number} ".encode() * self.dice.choice([5, 2000]))
        headers["Prefer"] = "respond-async"
        status, _, said = self.ask("job", method, f"/job/{number}", headers, body)
        if status == 202:
            with self.books.lock:
                self.books.jobs[number] = (said["Location"].rsplit("/", 1)[1], method)


def signed(body):
    return {"X-Sha": hashlib.sha256(body).hexdigest()}, body


class Hostile(threading.Thread):
    """Half heads, slow readers, resets in the middle of bodies, early closes. What it is told counts for nothing."""

    def __init__(self, gateways, stop, seed):
        super().__init__(daemon=True)
        self.gateways, self.stop, self.dice = gateways, stop, random.Random(seed)

    def run(self):
        while not self.stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self.dice.choice(self.gateways).port), 5) as peer:
                    self.dice.choice([self.half_head, self.slow_reader, self.broken_upload, self.leaver, self.garbage, self.preface])(peer)
            except OSError:
                pass
            time.sleep(0.1)

    def reset(self, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def half_head(self, peer):
        peer.sendall(b"GET /up/get/hostile HTTP/1.1\r\nHost: st")
        self.stop.wait(self.dice.choice([0.1, 3]))

    def slow_reader(self, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(b"GET /up/large/hostile HTTP/1.1\r\nHost: storm\r\n\r\n")
        for _ in range(self.dice.choice([5, 30])):
            peer.recv(1024)
            if self.stop.wait(0.1):
                break
        self.reset(peer)

    def broken_upload(self, peer):
        peer.sendall(b"POST /up/upload/hostile HTTP/1.1\r\nHost: storm\r\nContent-Length: 500000\r\n\r\n" + b"x" * 100_000)
        self.stop.wait(self.dice.choice([0, 0.05, 1]))
        if self.dice.random() < 0.5:
            self.reset(peer)

    def leaver(self, peer):
        peer.sendall(b"GET /up/get/hostile HTTP/1.1\r\nHost: storm\r\n\r\n" * self.dice.choice([1, 5]))

    def garbage(self, peer):
        peer.sendall(self.dice.randbytes(300) + b"\r\n\r\n")
        peer.recv(1024)

    def preface(self, peer):
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: self.dice.choice([10, 24])])
        self.stop.wait(1)


class Chaos(threading.Thread):
    """One thing after another goes wrong, and comes back."""

    def __init__(self, books, gateways, redis, postgres, upstream, stop):
        super().__init__(daemon=True)
        self.books, self.gateways, self.redis, self.postgres, self.upstream, self.stop = books, gateways, redis, postgres, upstream, stop
        self.dice, self.done, self.failed = random.Random(5), collections.Counter(), None

    def run(self):
        try:
            order = [self.reload, self.kill_redis, self.read_only, self.terminate, self.reset_upstream]
            while not self.stop.wait(self.dice.uniform(1, 4)):
                self.dice.shuffle(order)
                for act in order:
                    self.books.event(act.__name__)
                    act()
                    self.done[act.__name__] += 1
                    if self.stop.wait(self.dice.uniform(1, 4)):
                        break
        except Exception as error:  # noqa: BLE001: told at the end
            self.failed = repr(error)

    def reload(self):
        for gateway in self.gateways:
            gateway.configure(attempt=self.dice.choice(["1s", "700ms", "2s"]), rate=self.dice.choice([5000, 20000]))
            gateway.process.send_signal(signal.SIGHUP)

    def kill_redis(self):
        self.redis.kill()
        self.stop.wait(self.dice.uniform(0.5, 4))
        self.redis.launch()
        self.redis.first_answer()

    def read_only(self):
        self.postgres.sql("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
        self.stop.wait(self.dice.uniform(1, 6))
        self.postgres.sql("alter system set default_transaction_read_only = off", "select pg_reload_conf()")

    def terminate(self):
        self.postgres.sql("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = 'seawall'")

    def reset_upstream(self):
        r.get(self.upstream.port, "/control/reset")


def gateway(rig, name, ports):
    """One instance, its configuration to be written anew."""
    port, admin = rig.port(), rig.port()
    file = rig.path(f"{name}.toml")

    def configure(attempt="1s", rate=20000):
        rig.write(f"{name}.new", POLICY.format(port=port, admin=admin, attempt=attempt, rate=rate, **ports))
        os.replace(rig.path(f"{name}.new"), file)

    configure()
    command = [rig.binary, "--quiet", "serve", "-c", file, "--threads", "1"]
    server = Server(rig, name, command, port, path="/-/health", env={"STORM_STORE": ports["store"]}, log=rig.path(f"{name}.log"))
    server.admin, server.configure = admin, configure
    return rig.start(server)


def admin(server, path):
    for _ in range(20):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.admin}{path}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
        except OSError:
            pass
        time.sleep(0.5)
    sys.exit(f"the admin port of {server.name} does not answer {path}")


def load(books, gateways, seconds, chaos=None, hostile=0):
    stop, ended = threading.Event(), threading.Event()
    peers = [Caller(books, gateways, stop, seed) for seed in range(CALLERS)]
    peers += [Hostile(gateways, stop, 1000 + seed) for seed in range(hostile)]
    if chaos:
        chaos.stop = ended
    for peer in [*peers, *([chaos] if chaos else [])]:
        peer.start()
    start, every = time.monotonic(), max(10, seconds // 10)
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(every, left))
        if chaos:
            sizes = [f"RSS {one.rss_mb():.1f} MB, fds {one.fds()}" for one in gateways]
            say(f"  {time.monotonic() - start:6.0f} s   {sum(books.counts.values()):7} responses   {'; '.join(sizes)}")
    # First the faults end, so that the last calls do not meet half of one.
    ended.set()
    if chaos:
        chaos.join(30)
    stop.set()
    hung = 0
    for peer in peers:
        peer.join(30)
        hung += peer.is_alive()
    return hung


def settled(books, gateways, seconds=120):
    """How every acknowledged job ended. They may wait for their next attempt or for a lease that nobody holds."""
    open_jobs, ends, end = dict(books.jobs), {}, time.monotonic() + seconds
    while open_jobs and time.monotonic() < end:
        for number, (job, method) in list(open_jobs.items()):
            seen = admin(gateways[0], f"/v1/jobs/{job}")
            state = "lost" if seen is None else seen["state"]
            if state in ("done", "dead", "cancelled", "lost"):
                ends[number] = (method, state, (seen or {}).get("error"))
                del open_jobs[number]
        time.sleep(0.5)
    for number, (job, method) in open_jobs.items():
        ends[number] = (method, "still " + admin(gateways[0], f"/v1/jobs/{job}")["state"], None)
    return ends


def judge_jobs(ends, sent):
    verdict, counts, odd = {}, collections.Counter(), []
    for number, (method, state, error) in ends.items():
        times = sent[number]
        word = state if state == "done" else f"{state} {error}"
        counts[f"{method} {word}"] += 1
        if state != "done" and not (state == "dead" and error in ENDS):
            odd.append(f"{number}: {method} {word}")
        if (state == "done" and times == 0) or (method == "POST" and times > 1):
            odd.append(f"{number}: {method} {word}, and sent {times} times")
    for key, count in sorted(counts.items()):
        say(f"  {count:7}  {key}: {ENDS.get(key.rsplit(' ', 1)[1], '')}")
    for line in odd[:20]:
        say(f"  UNEXPLAINED {line}")
    verdict["every acknowledged job ended, and in a way that is explained; a POST without a key was sent once at most"] = not odd
    return verdict


def judge(books, ends, ledger):
    say(f"{sum(books.counts.values())} responses")
    for key, count in books.counts.most_common():
        say(f"  {count:7}  {key}: {EXPLAINED.get(key, 'UNEXPLAINED')}")
    for line in books.odd:
        say(f"  UNEXPLAINED {line}")
    bad = [line for line in ledger if line.startswith("BAD") and "hostile" not in line]
    sent = collections.Counter(line.split(" ")[2] for line in ledger if not line.startswith("BAD"))
    twice = [number for number in books.posts if sent[number] > 1]
    say(f"the upstream read {sum(sent.values())} requests to their end; {len(books.posts)} POSTs without a key, {len(books.jobs)} jobs acknowledged")
    for line in [*bad[:10], *(f"POST {number} was sent {sent[number]} times" for number in twice[:10])]:
        say(f"  UNEXPLAINED {line}")
    verdict = judge_jobs(ends, sent)
    return verdict | {
        "every response is explained": all(key in EXPLAINED for key in books.counts),
        "no body was changed on its way": not bad,
        "no POST without a key was sent twice": not twice,
    }


def rest(gateways):
    """What a gateway has when nobody asks it anything, once idle connections are closed."""
    time.sleep(REST)
    return [(one.rss_mb(), one.fds()) for one in gateways]


def stop_all(gateways, books):
    """SIGTERM while some callers hold half a request and others are being served."""
    halves = [socket.create_connection(("127.0.0.1", one.port), 5) for one in gateways for _ in range(20)]
    for half in halves:
        half.sendall(b"POST /up/upload/hostile HTTP/1.1\r\nHost: storm\r\nContent-Length: 500000\r\n\r\nxx")
    time.sleep(0.5)
    verdict = {}
    for one in gateways:
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        try:
            code = one.process.wait(40)
        except Exception:  # noqa: BLE001
            code = "none: it hangs"
        say(f"{one.name} ended with {code} after {time.monotonic() - began:.1f} s")
        verdict[f"{one.name} ends at SIGTERM within its drain"] = code == 0
    for half in halves:
        half.close()
    return verdict


def main():
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    with Rig(sys.argv[1]) as rig:
        say(r.conditions())
        redis, postgres = rig.start(Redis(rig)), rig.start(Postgres(rig))
        port, ledger = rig.port(), rig.path("ledger")
        here = os.path.dirname(os.path.abspath(__file__))
        upstream = Server(rig, "upstream", [sys.executable, f"{here}/upstream.py", str(port), ledger, "7"], port, path="/plain/start")
        rig.start(upstream)
        ports = {"redis": redis.port, "up": port, "store": postgres.url}
        gateways = [gateway(rig, name, ports) for name in ("first", "second")]
        books = Books()
        load(books, gateways, 15)
        before = rest(gateways)
        say(f"at rest after a little load: {', '.join(f'RSS {rss:.1f} MB, fds {fds}' for rss, fds in before)}")
        chaos = Chaos(books, gateways, redis, postgres, upstream, None)
        say(f"{seconds} s of {CALLERS} callers, {HOSTILE} hostile ones, and faults")
        hung = load(books, gateways, seconds, chaos, HOSTILE)
        say(f"faults: {dict(chaos.done)}")
        ends = settled(books, gateways)
        after = rest(gateways)
        say(f"at rest after the storm: {', '.join(f'RSS {rss:.1f} MB, fds {fds}' for rss, fds in after)}")
        with open(ledger, encoding="utf-8") as lines:
            verdict = judge(books, ends, lines.read().splitlines())
        verdict |= {
            "the faults went on to the end": chaos.failed is None or chaos.failed,
            "no caller hangs": hung == 0,
            "open files are where they were (ten more at most)": all(late[1] <= soon[1] + 10 for soon, late in zip(before, after)),
            "memory is where it was (32 MB more at most)": all(late[0] <= soon[0] + 32 for soon, late in zip(before, after)),
        }
        verdict |= stop_all(gateways, books)
        for what, held in verdict.items():
            say(f"{'holds ' if held is True else 'BROKEN'}  {what}{'' if held in (True, False) else f': {held}'}")
        sys.exit(0 if all(held is True for held in verdict.values()) else 1)
