"""The upstream of the storm: does what a request's path says, breaks off now and then, and writes down every request that it read to its
end. `python3 upstream.py PORT LEDGER SEED`. A line of the ledger is `method kind id`, or `BAD` and what was wrong with a body."""

import asyncio
import hashlib
import random
import socket
import struct
import sys

FAULTS = [
    ("fine", 900), ("503", 25), ("reset-before", 20), ("reset-body", 15), ("half-head", 10), ("close", 10), ("hang", 6), ("drip", 8),
    ("garbage", 3), ("close-idle", 40),
]
LARGE = 4 << 20


class Upstream:
    def __init__(self, ledger, seed):
        self.ledger, self.dice, self.open, self.counts = ledger, random.Random(seed), set(), {}

    def note(self, line):
        self.ledger.write(line + "\n")
        self.ledger.flush()

    def reset(self, writer):
        sock = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    def reset_all(self):
        for writer in list(self.open):
            self.reset(writer)

    async def serve(self, reader, writer):
        self.open.add(writer)
        try:
            while await self.turn(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def body(self, reader, headers):
        if "chunked" in headers.get("transfer-encoding", ""):
            pieces = []
            while size := int((await reader.readline()).split(b";")[0], 16):
                pieces.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readline()
            return b"".join(pieces)
        return await reader.readexactly(int(headers.get("content-length", 0)))

    async def turn(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {}
        for line in head[1:-2]:
            name, value = line.split(":", 1)
            if name.lower() in headers and name.lower() in ("content-length", "host", "transfer-encoding"):
                self.note(f"BAD twice {name}")
            headers[name.lower()] = value.strip()
        _, kind, number = target.split("/", 2)
        if kind == "control":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            await writer.drain()
            asyncio.get_running_loop().call_soon(self.reset_all)
            return False
        fault = self.dice.choices([name for name, _ in FAULTS], [weight for _, weight in FAULTS])[0] if kind != "plain" else "fine"
        if kind == "upload" and self.dice.random() < 0.08:
            return await self.early(reader, writer)
        body = await self.body(reader, headers)
        wanted = headers.get("x-sha")
        if wanted and hashlib.sha256(body).hexdigest() != wanted:
            self.note(f"BAD body of {kind} {number}: {len(body)} bytes")
        self.note(f"{method} {kind} {number}")
        return await self.answer(writer, kind, number, fault)

    async def early(self, reader, writer):
        """An answer before the body has ended, or none."""
        if self.dice.random() < 0.5:
            self.reset(writer)
            return False
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")
        await writer.drain()
        if self.dice.random() < 0.5:
            # As a good server does: what still comes is read.
            await asyncio.wait_for(reader.read(1 << 20), 0.2)
        return False

    async def answer(self, writer, kind, number, fault):
        turn = self.counts[number] = self.counts.get(number, 0) + 1
        text = f"ok {number} {turn}\n".encode()
        if kind == "large":
            text += b"x" * LARGE
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n\r\n".encode()
        if fault == "503":
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")
        elif fault in ("reset-before", "close"):
            if fault == "reset-before":
                self.reset(writer)
            return False
        elif fault == "half-head":
            writer.write(head[:25])
        elif fault == "garbage":
            writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        elif fault == "hang":
            await asyncio.sleep(3)
            return False
        elif fault == "reset-body":
            writer.write(head + text[: len(text) // 2])
            await writer.drain()
            await asyncio.sleep(0.02)
            self.reset(writer)
            return False
        elif fault == "drip":
            for at in range(0, len(head), 16):
                writer.write(head[at : at + 16])
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.write(text)
        else:
            writer.write(head + text)
        await writer.drain()
        if fault == "close-idle":
            await asyncio.sleep(0.005)
        return fault in ("fine", "503", "drip")


async def main():
    port, path, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with open(path, "a", encoding="utf-8") as ledger:
        upstream = Upstream(ledger, seed)
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", port, limit=1 << 20, backlog=1024)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
