"""Fifty listeners in one process, and somebody who makes it happen: events are counted as they are made and as they arrive.

Cheap on purpose, and last in line for a processor (`nice`): what is measured is the gateway, and not who reads it. Every socket is
read to its end every `PAUSE`; what has come until then waits in the kernel. Speaks JSON, one line for each line on its input.
"""

import json
import os
import select
import socket
import sys
import time

PAUSE = 0.05
MARK = b"event: breaker-"
ROOM = 1 << 20


class Ear:
    """One listener. An event's mark may fall between two reads."""

    def __init__(self, admin):
        self.peer = socket.create_connection(("127.0.0.1", admin), 5)
        self.peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.peer.setblocking(False)
        self.heard, self.bytes, self.rest = 0, 0, b""

    def read(self):
        while True:
            try:
                text = self.peer.recv(ROOM)
            except BlockingIOError:
                return
            if not text:
                sys.exit("the gateway hung up on a listener")
            self.bytes += len(text)
            text = self.rest + text
            self.heard += text.count(MARK)
            self.rest = text[max(text.rfind(MARK) + len(MARK), len(text) - len(MARK) + 1):] if MARK in text else text[-len(MARK) + 1:]
            if len(text) < ROOM // 2:
                return


class Hand:
    """Moves all breakers of an upstream there and back, which is an event of each of its endpoints."""

    def __init__(self, admin, upstream, endpoints, orders_per_second):
        self.peer = socket.create_connection(("127.0.0.1", admin), 5)
        self.upstream, self.endpoints, self.every = upstream, endpoints, 1 / orders_per_second
        self.due, self.made, self.is_open = time.monotonic(), 0, False

    def move(self):
        if time.monotonic() >= self.due:
            self.turn()
            self.due += self.every

    def turn(self):
        self.is_open = not self.is_open
        body = json.dumps({"state": "open" if self.is_open else "closed"})
        self.peer.sendall(
            f"PUT /v1/breakers/{self.upstream} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head, _, rest = self.some().partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"the breakers cannot be moved: {head[:200]}")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(rest) < length:
            rest += self.some()
        self.made += self.endpoints

    def some(self):
        text = self.peer.recv(ROOM)
        if not text:
            sys.exit("the gateway hung up")
        return text


def main():
    admin, listeners, upstream, endpoints, orders = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
    os.nice(10)
    ears = [Ear(admin) for _ in range(listeners)]
    hand = Hand(admin, upstream, endpoints, orders)
    poll = select.epoll()
    for ear in ears:
        poll.register(ear.peer, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    known = {ear.peer.fileno(): ear for ear in ears}
    over = False
    print(json.dumps({"ready": True}), flush=True)
    while True:
        began = time.monotonic()
        for number, _ in poll.poll(0):
            if number in known:
                known[number].read()
            elif sys.stdin.readline():
                over = True
        if over:
            break
        hand.move()
        time.sleep(max(0.0, min(PAUSE, began + PAUSE - time.monotonic())))
    # Left as it was found: an order that changes nothing makes no events, and the next round would count them.
    if hand.is_open:
        hand.turn()
    # What was made last is on its way.
    end = time.monotonic() + 5
    while time.monotonic() < end and any(ear.heard < hand.made for ear in ears):
        time.sleep(PAUSE)
        for ear in ears:
            ear.read()
    heard = [ear.heard for ear in ears]
    print(json.dumps({"made": hand.made, "least": min(heard), "most": max(heard), "bytes": sum(ear.bytes for ear in ears)}), flush=True)


if __name__ == "__main__":
    main()
