"""What both programs of this directory need: servers in a temporary directory, stopped whatever happens."""

import glob
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")
BODY = ("seawall " * 16)[:128]
LARGE = 64 * 1024
KEYS = {"SEAWALL_BENCH_A": "bench-key-aaaa", "SEAWALL_BENCH_B": "bench-key-bbbb"}


def say(text=""):
    print(text, flush=True)


class Rig:
    """A temporary directory and the processes in it."""

    def __init__(self, binary):
        self.binary = os.path.abspath(binary)
        self.dir = tempfile.mkdtemp(prefix="seawall-bench-")
        os.chmod(self.dir, 0o755)  # nginx's workers are somebody else where its master is root
        self.running = []
        self.taken = set()
        self.cpus = sorted(os.sched_getaffinity(0))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for server in list(self.running):
            server.stop()
        shutil.rmtree(self.dir, ignore_errors=True)
        if kind is KeyboardInterrupt:
            print("interrupted; everything is stopped", file=sys.stderr)
            sys.exit(130)

    def port(self):
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            if port not in self.taken:
                self.taken.add(port)
                return port

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def on_core(self, index):
        """A prefix that keeps a process on one core; empty where there is only one."""
        if len(self.cpus) < 2 or not shutil.which("taskset"):
            return []
        return ["taskset", "-c", str(self.cpus[index % len(self.cpus)])]

    def start(self, server):
        self.running.append(server)
        server.launch()
        server.first_answer()
        return server


class Server:
    """A process that listens on a port, and what /proc knows of it and its children."""

    def __init__(self, rig, name, command, port, path="/", core=None, env=None, log=None):
        self.rig, self.name, self.command, self.port, self.path = rig, name, command, port, path
        self.core, self.env, self.log, self.process = core, env or {}, log, None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}{self.path}"

    def launch(self, wrapper=()):
        pin = self.rig.on_core(self.core) if self.core is not None else []
        out = open(self.log or os.devnull, "ab")
        err = open(self.rig.path(f"{self.name}.err"), "ab")
        self.process = subprocess.Popen(
            [*pin, *wrapper, *self.command], stdout=out, stderr=err, env={**os.environ, **self.env}, start_new_session=True
        )
        out.close()
        err.close()

    def first_answer(self, limit=60.0, path=None):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                if get(self.port, path or self.path) == 200:
                    return
            except OSError:
                time.sleep(0.0005)
        with open(self.rig.path(f"{self.name}.err"), encoding="utf-8", errors="replace") as file:
            sys.exit(f"{self.name} does not answer:\n{file.read()[-2000:]}")

    def pids(self):
        """The process and its children: master and workers."""
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            try:
                with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                    queue.extend(int(child) for child in file.read().split())
            except OSError:
                pass
        return found

    def cpu_us(self):
        ticks = 0
        for pid in self.pids():
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks * TICK_US

    def rss_mb(self):
        kilobytes = 0
        for pid in self.pids():
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
                kilobytes += int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))
        return kilobytes / 1024

    def fds(self):
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids())

    def stop(self, kind=signal.SIGTERM):
        if self in self.rig.running:
            self.rig.running.remove(self)
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(kind)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def get(port, path, headers="", timeout=5.0):
    """One request on a connection of its own; its status."""
    with socket.create_connection(("127.0.0.1", port), timeout) as peer:
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n{headers}\r\n".encode())
        head = peer.recv(4096)
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/") else 0


def upstream(rig, core):
    """nginx that answers by itself: 128 bytes, or a file of 64 KiB."""
    port = rig.port()
    os.makedirs(rig.path("www"), exist_ok=True)
    rig.write("www/large", "x" * LARGE)
    conf = rig.write("upstream.conf", nginx_conf(rig, "upstream", f"""
    server {{
      listen 127.0.0.1:{port} backlog=4096;
      location = /large {{ root {rig.path("www")}; }}
      location / {{ default_type text/plain; return 200 "{BODY}"; }}
    }}""", extra="sendfile on; open_file_cache max=10;"))
    return Server(rig, "upstream", ["nginx", "-p", rig.dir, "-c", conf], port, core=core)


def nginx_conf(rig, name, servers, extra="", single=False):
    master = "master_process off;" if single else ""
    return f"""daemon off; {master} worker_processes 1; worker_rlimit_nofile 60000;
pid {rig.path(name)}.pid; error_log {rig.path(name)}.log crit;
events {{ worker_connections 30000; }}
http {{
  access_log off; {extra}
  client_body_temp_path {rig.dir}/t1; proxy_temp_path {rig.dir}/t2; fastcgi_temp_path {rig.dir}/t3;
  uwsgi_temp_path {rig.dir}/t4; scgi_temp_path {rig.dir}/t5;
  keepalive_timeout 300s; keepalive_requests 1000000000;
  {servers}
}}
"""


def nginx(rig, up, core, single=False):
    port = rig.port()
    conf = rig.write("nginx.conf", nginx_conf(rig, "nginx", f"""
  upstream back {{ server 127.0.0.1:{up.port}; keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}""", single=single))
    return Server(rig, "nginx", ["nginx", "-p", rig.dir, "-c", conf], port, core=core)


def haproxy(rig, up, core):
    port = rig.port()
    conf = rig.write("haproxy.cfg", f"""global
  nbthread 1
  maxconn 12000
  no strict-limits
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  timeout http-keep-alive 300s
  option http-keep-alive
  http-reuse always
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server up 127.0.0.1:{up.port} pool-max-conn 1024
""")
    return Server(rig, "haproxy", ["haproxy", "-f", conf, "-db"], port, core=core)


def seawall(rig, up_port, core, policy=""):
    port, admin = rig.port(), rig.port()
    conf = rig.write("seawall.toml", f"""[server]
listen = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"

[upstreams.up]
url = "http://127.0.0.1:{up_port}"
{policy}
[upstreams.up.auth]
inject = "header:X-Api-Key"
keys = [
  {{ id = "a", secret = "env:SEAWALL_BENCH_A", group = "a" }},
  {{ id = "b", secret = "env:SEAWALL_BENCH_B", group = "b" }},
]
""")
    command = [rig.binary, "--quiet", "serve", "-c", conf, "--threads", "1"]
    server = Server(rig, "seawall", command, port, path="/up/", core=core, env=KEYS, log=rig.path("seawall.log"))
    server.admin = admin
    return server


def wrk(rig, url, seconds, connections, core, script=None, timeout="10s"):
    """A run of wrk: requests, requests a second, latencies in µs by percentile, errors, and its whole text."""
    command = [*rig.on_core(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", timeout]
    command += ["-s", script] if script else []
    text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in ([\d.]+)(\w+)", text)
    length = float(found.group(2)) * {"ms": 0.001, "s": 1, "m": 60}[found.group(3)]
    unit = {"us": 1, "ms": 1000, "s": 1_000_000}
    latency = {p: float(v) * unit[u] for p, v, u in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s)\b", text)}
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return {
        "requests": int(found.group(1)),
        "rate": int(found.group(1)) / length,
        "latency": latency,
        "bad": int(bad.group(1)) if bad else 0,
        "broken": sum(map(int, broken.groups())) if broken else 0,
        "text": text,
    }


def paced(rig, rate, connections, more=""):
    """A script for wrk whose connections think between requests, so that together they ask `rate` times a second."""
    mean = max(1.0, connections / rate * 1000)
    return rig.write("paced.lua", f"function delay() return math.random(0, {round(2 * mean)}) end\n{more}")


class Redis(Server):
    """A Redis of our own that keeps nothing on disk; it may be killed and comes back on its port."""

    def __init__(self, rig):
        port = rig.port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", rig.dir]
        super().__init__(rig, "redis", command, port)

    def first_answer(self, limit=30.0, path=None):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        sys.exit("redis-server does not listen")

    def kill(self):
        self.process.kill()
        self.process.wait()


class Postgres:
    """A PostgreSQL of our own behind a socket in its own folder. A server refuses to run as root, so that name is laid down."""

    def __init__(self, rig):
        self.rig, self.folder = rig, rig.path("pg")
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
        self.bin = os.path.dirname(found[-1]) if found else os.path.dirname(shutil.which("initdb") or sys.exit("PostgreSQL is not installed"))
        os.makedirs(self.folder)
        self.run_as = []
        if os.getuid() == 0:
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                user = pwd.getpwnam("nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.run_as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]

    def program(self, name, *arguments):
        command = [*self.run_as, f"{self.bin}/{name}", *arguments]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")

    def launch(self):
        data = f"{self.folder}/data"
        self.program("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = f"-k {self.folder} -c listen_addresses= -c max_connections=200"
        # Its own output goes to the log: a pipe would stay open with the server.
        command = [*self.run_as, f"{self.bin}/pg_ctl", "-D", data, "-l", f"{data}/log", "-w", "-o", settings, "start"]
        subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    def first_answer(self):
        self.sql("create database seawall")

    @property
    def url(self):
        return f"postgres://postgres@{self.folder.replace('/', '%2F')}/seawall"

    def sql(self, *statements, database="postgres"):
        for statement in statements:
            command = [f"{self.bin}/psql", "-h", self.folder, "-U", "postgres", "-d", database, "-qAtc", statement]
            env = {**os.environ, "PGOPTIONS": "-c default_transaction_read_only=off"}
            done = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/")
            if done.returncode:
                raise RuntimeError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def stop(self):
        if self in self.rig.running:
            self.rig.running.remove(self)
        command = [*self.run_as, f"{self.bin}/pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop"]
        subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def median(values):
    return statistics.median(values)


def conditions():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    load = os.getloadavg()[0]
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} × {model.group(1) if model else '?'}, kernel {os.uname().release}, load {load:.1f} before the run"
