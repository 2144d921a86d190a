"""The same list of URLs through each program, one after the other: wall time, CPU seconds, peak memory, what arrived."""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

SCRIPT = """[[routes]]
match = "GET /**"
mix = { "200" = 95, "503" = 5 }
"""

AIOHTTP = '''
import asyncio, json, sys
import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

async def fetch(session, url):
    async for attempt in AsyncRetrying(stop=stop_after_attempt(8), wait=wait_random_exponential(multiplier=0.2, max=60),
                                       retry=retry_if_exception_type(aiohttp.ClientError), reraise=True):
        with attempt:
            async with session.get(url) as answer:
                answer.raise_for_status()
                return await answer.json()

async def main():
    urls = iter(open(sys.argv[1]).read().split())
    out = open(sys.argv[2], "w")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
        async def worker():
            for url in urls:
                try:
                    out.write(json.dumps({"url": url, "body": await fetch(session, url)}) + "\\n")
                except aiohttp.ClientError:
                    pass
        await asyncio.gather(*(worker() for _ in range(64)))

asyncio.run(main())
'''

SCRAPY = '''
import sys
import scrapy

class Spider(scrapy.Spider):
    name = "s"
    custom_settings = {"CONCURRENT_REQUESTS": 64, "CONCURRENT_REQUESTS_PER_DOMAIN": 64, "RETRY_TIMES": 7, "LOG_LEVEL": "ERROR",
                       "TELNETCONSOLE_ENABLED": False, "DOWNLOAD_DELAY": 0, "ROBOTSTXT_OBEY": False, "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"}

    async def start(self):
        for url in open(self.urls):
            yield scrapy.Request(url.strip())

    def parse(self, response):
        yield {"url": response.url, "body": response.json()}
'''


def good_lines(path):
    """Rows in a file of JSON lines that succeeded, each counted once."""
    seen = set()
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("outcome", "success") == "success":
                seen.add(row["url"])
    return len(seen)


def good_files(folder):
    """Files that hold an answer and not an error page."""
    count = 0
    for entry in os.scandir(folder):
        with open(entry.path, "rb") as file:
            count += b'"ok":true' in file.read(64)
    return count


def measured(command, cwd, limit):
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    too_long = threading.Timer(limit, process.kill)
    too_long.start()
    _, _, used = os.wait4(process.pid, 0)
    too_long.cancel()
    process.returncode = 0
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def peers(folder, seawall, venv, urls, names):
    python = os.path.join(venv, "bin/python")
    path = lambda name: os.path.join(folder, name)
    found = [("seawall fetch", [seawall, "fetch", urls, "-o", path("seawall.out"), "--store", "sqlite:" + path("seawall.db")], lambda: good_lines(path("seawall.out")))]
    if shutil.which("curl"):
        os.makedirs(path("curl"), exist_ok=True)
        with open(path("curl.cfg"), "w", encoding="utf-8") as file:
            for name, url in names:
                file.write(f"url = {url}\noutput = curl/{name}\n")
        command = ["curl", "-s", "--parallel", "--parallel-max", "64", "--retry", "7", "--fail", "-K", path("curl.cfg")]
        found.append(("curl --parallel --retry", command, lambda: good_files(path("curl"))))
    if shutil.which("aria2c"):
        os.makedirs(path("aria2"), exist_ok=True)
        command = ["aria2c", "-q", "-i", urls, "-d", path("aria2"), "-j", "64", "--max-tries=8", "--retry-wait=1", "--auto-file-renaming=false",
                   "--file-allocation=none", "--deferred-input=true", "--max-connection-per-server=16", "--allow-overwrite=true"]
        found.append(("aria2c", command, lambda: good_files(path("aria2"))))
    if shutil.which("wget2"):
        os.makedirs(path("wget2"), exist_ok=True)
        command = ["wget2", "-q", "-i", urls, "-P", path("wget2"), "--max-threads=64", "--tries=8", "--waitretry=1",
                   "--no-robots"]
        found.append(("wget2", command, lambda: good_files(path("wget2"))))
    if os.path.exists(python):
        for name, text in (("aiohttp.py", AIOHTTP), ("spider.py", SCRAPY)):
            with open(path(name), "w", encoding="utf-8") as file:
                file.write(text)
        found.append(("aiohttp + tenacity", [python, path("aiohttp.py").replace("aiohttp.py", "peer.py"), urls, path("aiohttp.out")], lambda: good_lines(path("aiohttp.out"))))
        os.rename(path("aiohttp.py"), path("peer.py"))  # its own name would hide the library
        scrapy = [os.path.join(venv, "bin/scrapy"), "runspider", "spider.py", "-a", f"urls={urls}", "-O", "scrapy.jsonl"]
        found.append(("Scrapy", scrapy, lambda: good_lines(path("scrapy.jsonl"))))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("seawall")
    parser.add_argument("venv")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a program is ended; what it has by then counts")
    parser.add_argument("--only", help="run only programs whose name has this")
    options = parser.parse_args()
    seawall = os.path.abspath(options.seawall)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="seawall-fetch-") as folder:
        with open(os.path.join(folder, "script.toml"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        server = subprocess.Popen([seawall, "flaky", "--json", "--listen", "127.0.0.1:0", "--script", os.path.join(folder, "script.toml")],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            address = json.loads(server.stdout.readline())["listening"]
            names = [(f"i{n}", f"http://{address}/i{n}") for n in range(options.rows)]
            urls = os.path.join(folder, "urls.txt")
            with open(urls, "w", encoding="utf-8") as file:
                file.writelines(url + "\n" for _, url in names)
            print(f"{options.rows} GETs, 5 % answered with 503, {os.cpu_count()} cores shared with the server, load {os.getloadavg()[0]:.1f}")
            print(f"{'':26}{'wall s':>9}{'CPU s':>9}{'RSS MB':>9}{'success %':>11}{'requests':>10}{'beside ours':>13}")
            ours = None
            for name, command, count in peers(folder, seawall, options.venv, urls, names):
                if options.only and options.only not in name:
                    continue
                urllib.request.urlopen(urllib.request.Request(f"http://{address}/-/reset", method="POST")).read()
                wall, cpu, memory = measured(command, folder, options.limit)
                stats = json.load(urllib.request.urlopen(f"http://{address}/-/stats"))
                try:
                    share = count() * 100 / options.rows
                except OSError:
                    share = 0.0
                ours = ours or wall
                print(f"{name:26}{wall:9.2f}{cpu:9.2f}{memory:9.1f}{share:11.3f}{stats['requests']:10}{wall / ours:12.2f}x", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
