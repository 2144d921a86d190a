"""Asks once for each URL of a list, as a simple loop does, and says how many answers came whole."""

import http.client
import sys
import urllib.request

urls = open(sys.argv[1], encoding="utf-8").read().split()
good = 0
for url in urls:
    try:
        with urllib.request.urlopen(url) as answer:
            answer.read()
            good += 1
    except (OSError, http.client.HTTPException):
        pass
print(f"{good} of {len(urls)}: {good * 100 / len(urls):.2f} %")
