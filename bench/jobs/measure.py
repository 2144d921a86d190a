"""Runs each queue on the same jobs and the same upstream, nine times in turn, and prints medians and ratios. The clock runs from the
end of the first job to the end of the last: nobody's start counts."""

import json, os, pathlib, shutil, signal, socket, sqlite3, statistics, subprocess, sys, tempfile, time, urllib.request

seawall, count = os.path.abspath(sys.argv[1]), int(sys.argv[2])
here = pathlib.Path(__file__).parent
work = pathlib.Path(tempfile.mkdtemp(prefix="seawall-bench-jobs-"))
work.chmod(0o755)
started = []
ROUNDS = 9


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def spawn(*command, **options):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    started.append(process)
    return process


def wait_for(at):
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", at), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {at}")


def nginx():
    at = port()
    conf = work / "nginx.conf"
    conf.write_text(
        f"worker_processes 1; daemon off; pid {work}/nginx.pid; error_log /dev/null; events {{ worker_connections 8192; }}\n"
        f"http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{at}; location / {{ return 200 'ok'; }} location = /status {{ stub_status; }} }} }}\n"
    )
    spawn("nginx", "-c", str(conf), "-p", str(work))
    wait_for(at)
    return at


def redis():
    at, folder = port(), work / "redis"
    folder.mkdir()
    spawn("redis-server", "--port", str(at), "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "")
    wait_for(at)
    return at


def as_postgres(*command):
    # PostgreSQL refuses to run as root.
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command] if os.geteuid() == 0 else list(command)


def postgres():
    at, folder = port(), work / "postgres"
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    subprocess.run(as_postgres("initdb", "-D", str(folder), "-A", "trust", "-U", "bench", "--no-sync"), check=True, stdout=subprocess.DEVNULL)
    spawn(*as_postgres("postgres", "-D", str(folder), "-p", str(at), "-k", str(folder), "-c", "listen_addresses=127.0.0.1",
                       "-c", "max_connections=200", "-c", "synchronous_commit=on", "-c", "fsync=on"))
    wait_for(at)
    time.sleep(1)
    return at


def order(at, *commands):
    each = [part for command in commands for part in ("-c", command)]
    subprocess.run(["psql", "-q", "-h", "127.0.0.1", "-p", str(at), "-U", "bench", "postgres", *each], check=True, stderr=subprocess.DEVNULL)


def database(at):
    """A new one in the place of the last."""
    order(at, "drop database if exists bench_jobs with (force)", "create database bench_jobs")
    return f"postgres://bench@127.0.0.1:{at}/bench_jobs"


def settle(db, cache):
    """Before each run: what the one before left to vacuum or to flush is gone or on disk."""
    order(db, "drop database if exists bench_jobs with (force)", "checkpoint")
    subprocess.run(["redis-cli", "-p", str(cache), "flushall"], check=True, stdout=subprocess.DEVNULL)
    os.sync()


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answered(upstream):
    """How many requests the upstream has had, this one included."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{upstream}/status").read().decode()
    return int(page.splitlines()[2].split()[2])


def make_ready(store, folder):
    """Puts jobs that wait for their time in line, as the peers' are when their workers start."""
    queue = "INSERT INTO queue (upstream, priority, turn, row, due) SELECT upstream, priority, row, row, run_at FROM jobs WHERE waits = 1"
    ready = "UPDATE jobs SET waits = 0, turn = row, due = run_at WHERE waits = 1"
    if store.startswith("sqlite:"):
        with sqlite3.connect(folder / store.removeprefix("sqlite:")) as db:
            db.execute(queue)
            db.execute(ready)
        db.close()
        return
    statements = ["SET search_path = seawall", queue, ready, "VACUUM ANALYZE jobs, queue"]
    subprocess.run(["psql", "-q", store, *(word for statement in statements for word in ("-c", statement))], check=True)


def ours(store, upstream, round):
    """Loads jobs for another day, stops, makes them ready, and works them off, as the peers do."""
    gateway, admin = port(), port()
    folder = work / f"seawall-{round}-{store.split(':')[0]}"
    folder.mkdir()
    (folder / "seawall.toml").write_text(
        f'[server]\nlisten = "127.0.0.1:{gateway}"\nadmin = "127.0.0.1:{admin}"\nstore = "{store}"\n'
        f'[upstreams.api]\nurl = "http://127.0.0.1:{upstream}"\n'
    )
    serve = [seawall, "serve", "-q", "-c", str(folder / "seawall.toml")]
    process = spawn(*serve)
    wait_for(admin)
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
    lines = "".join(json.dumps({"upstream": "api", "path": "/", "run_at": tomorrow}) + "\n" for _ in range(count)).encode()
    asked = time.time()
    request = urllib.request.Request(f"http://127.0.0.1:{admin}/v1/jobs", lines, {"Content-Type": "application/x-ndjson"})
    answers = urllib.request.urlopen(request).read().decode().splitlines()
    assert len(answers) == count and all('"id"' in line for line in answers), answers[:2]
    enqueue = count / (time.time() - asked)
    process.send_signal(signal.SIGTERM)
    process.wait()
    make_ready(store, folder)

    before = answered(upstream)
    process = spawn(*serve)
    looks = 1
    while answered(upstream) - before - looks < count:
        looks += 1
        time.sleep(0.25)
    ends, cursor = [], ""
    for _ in range(100):
        rest = [state for state in ("queued", "running", "waiting") if listed(admin, f"state={state}&limit=1")["items"]]
        if not rest:
            break
        time.sleep(0.05)
    cpu = ticks(process.pid) / count * 1e6
    while True:
        page = listed(admin, f"state=done&limit=500{cursor}")
        for job in page["items"]:
            head, _, ms = job["finished_at"].rstrip("Z").partition(".")
            ends.append(time.mktime(time.strptime(head, "%Y-%m-%dT%H:%M:%S")) + int(ms or 0) / 1000)
        if not page["next_cursor"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(ends) == count, f"{len(ends)} of {count} are done"
    process.send_signal(signal.SIGTERM)
    process.wait()
    return {"seconds": max(ends) - min(ends), "cpu_us": cpu, "enqueue": enqueue}


def listed(admin, query):
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{admin}/v1/jobs?{query}"))


def peer(name, upstream, server):
    out = subprocess.run(["node", "peers.mjs", name, str(count), f"http://127.0.0.1:{upstream}", str(server)], cwd=here, check=True,
                         stdout=subprocess.PIPE)
    return json.loads(out.stdout.decode().strip().splitlines()[-1])


try:
    upstream, cache, db = nginx(), redis(), postgres()
    results = {}
    for round in range(ROUNDS):
        runs = {
            "seawall, SQLite": lambda: ours("sqlite:jobs.db", upstream, round),
            "seawall, PostgreSQL": lambda: ours(database(db), upstream, round),
            "BullMQ": lambda: peer("bullmq", upstream, cache),
            "pg-boss": lambda: peer("pg-boss", upstream, database(db)),
            "graphile-worker": lambda: peer("graphile-worker", upstream, database(db)),
        }
        for name, run in runs.items():
            try:
                settle(db, cache)
                result = run()
                results.setdefault(name, []).append(result)
            except (Exception, SystemExit) as error:
                print(f"{name}: {error}", file=sys.stderr)
    rate = {name: count / statistics.median(run["seconds"] for run in all) for name, all in results.items()}
    best = max((value for name, value in rate.items() if not name.startswith("seawall")), default=None)
    print(f"{count} durable jobs, each one GET to the same loopback upstream, median of {ROUNDS}")
    print(f"{'':22}{'jobs/s':>10}{'CPU µs/job':>12}{'of the best peer':>18}{'enqueue/s':>12}   each round's jobs/s")
    for name, all in results.items():
        cpu = statistics.median(run["cpu_us"] for run in all)
        ratio = f"{rate[name] / best:.2f} ×" if best else "–"
        enqueue = f"{statistics.median(run['enqueue'] for run in all):.0f}" if "enqueue" in all[0] else ""
        each = " ".join(f"{count / run['seconds']:.0f}" for run in all)
        print(f"{name:22}{rate[name]:10.0f}{cpu:12.1f}{ratio:>18}{enqueue:>12}   {each}")
    print("CPU is the worker's own process; the peers' servers (Redis, PostgreSQL) come on top of theirs and of ours on PostgreSQL.")
finally:
    for process in reversed(started):
        process.terminate()
    for process in started:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    shutil.rmtree(work, ignore_errors=True)
