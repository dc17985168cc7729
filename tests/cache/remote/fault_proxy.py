"""A proxy between a client and a real server that breaks answers and requests, by a seed.

What it can do to an answer: cut it off in the middle of the body, or give half of it as if that
were all; flip a bit; replace it with noise, with a page of HTML, with nothing; give the answer to
an earlier request; answer 401, 403, 404, 429, 500, 503, 507 instead; send it or its header slowly,
half of it, or never; reset the connection. What it can do to a write: say that it was done without
doing it, do it without saying so, write half of it, write it with a flipped bit.

`"700 kB/s"` gives all bodies over one line of that speed, and `"noise 700 kB/s"` other bytes.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = (
    "cut", "half", "flip", "noise", "page", "empty", "earlier", "401", "403", "404", "429",
    "429 later", "500", "503", "507", "slow", "slow header", "stall", "stall in body", "reset",
)  # fmt: skip
WRITES = ("lost", "unsaid", "half written", "flip written")
FAULTS = (*ANSWERS, *WRITES)
_STALL_S = 20.0
_RATE = re.compile(r"(\d+) kB/s")
_STEP_BYTES = 8000
Choose = Callable[[str, str], str | None]
"""Returns the fault for a method and path, None for none."""


def seeded(seed: int, rate: float, faults: Sequence[str] = FAULTS) -> Choose:
    """Return a choice that breaks this part of all requests."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def choose(method: str, path: str) -> str | None:
        with lock:
            return rng.choice(faults) if rng.random() < rate else None

    return choose


class FaultProxy:
    """A proxy on a free port of 127.0.0.1 in front of one server; `with` ends it.

    Attributes:
        choose: decides what is broken; may be replaced at any time.
        injected: how often what was done.
        requests: method and path of each request.
        place: its `host:port`.
    """

    def __init__(self, upstream: str, choose: Choose, *, seed: int = 0) -> None:
        self.upstream, self.choose = upstream, choose
        self.injected: Counter[str] = Counter()
        self.requests: list[tuple[str, str]] = []
        self.rng = random.Random(seed)
        self.earlier: deque[tuple[int, list[tuple[str, str]], bytes]] = deque(maxlen=8)
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._free_s = 0.0
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def count(self) -> int:
        """Return the number of faults so far."""
        return sum(self.injected.values())

    def pace(self, size: int, rate: float) -> bool:
        """Wait until the line has room for so many bytes; tell whether the proxy ended before."""
        with self.lock:
            now = time.monotonic()
            at = max(now, self._free_s)
            self._free_s = at + size / rate
        return self.ended.wait(at - now)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away whenever they like."""


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *arguments: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        owner = self.owner
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with owner.lock:
            owner.requests.append((self.command, self.path))
            fault = owner.choose(self.command, self.path)
            if fault in WRITES and self.command != "PUT":
                fault = None
            if fault is not None:
                owner.injected[fault] += 1
            entropy = owner.rng.random()
        self._answer(fault, body, random.Random(entropy))

    def _answer(self, fault: str | None, body: bytes, rng: random.Random) -> None:
        owner = self.owner
        if fault == "stall":
            owner.ended.wait(_STALL_S)
            self._reset()
            return
        if fault == "reset":
            self._reset()
            return
        if fault is not None and fault[:3].isdigit() and not _RATE.search(fault):
            extra = [("Retry-After", "60" if "later" in fault else "1")] if "429" in fault else []
            self._send(int(fault[:3]), extra, b"<Error><Code>Broken</Code></Error>")
            return
        if fault == "lost":
            self._send(200, [("ETag", '"lost"')], b"")
            return
        if fault == "half written":
            body = body[: len(body) // 2]
        if fault == "flip written":
            body = _flipped(body, rng)
        status, headers, data = self._forward(body)
        if fault == "unsaid":
            self._reset()
            return
        with owner.lock:
            if self.command == "GET" and status in (200, 206):
                owner.earlier.append((status, headers, data))
            earlier = rng.choice(owner.earlier) if owner.earlier else (status, headers, data)
        if fault == "earlier":
            status, headers, data = earlier
        elif fault == "flip":
            data = _flipped(data, rng)
        elif fault is not None and fault.startswith("noise"):
            data = rng.randbytes(len(data))
        elif fault == "page":
            status, data = 200, b"<html><body>Please log in.</body></html>"
        elif fault == "empty":
            data = b""
        elif fault == "half":
            data = data[: len(data) // 2]
        self._send(status, headers, data, fault)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the server's own answer; the client's `Host` stays, as signatures cover it."""
        connection = http.client.HTTPConnection(self.owner.upstream, timeout=30)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in ("content-length", "connection"):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
            kept = ("etag", "last-modified", "content-range", "content-type", "accept-ranges")
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() in kept]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length") or "0"))
            return answer.status, headers, data
        except OSError:
            return 502, [], b""
        finally:
            connection.close()

    def _send(
        self,
        status: int,
        headers: Sequence[tuple[str, str]],
        data: bytes,
        fault: str | None = None,
    ) -> None:
        if fault == "slow header":
            self._slowly(b"HTTP/1.1 200 OK\r\n" + b"X-Padding: yes\r\n" * 500, 4)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD" or status in (204, 304):
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self._reset()
        elif fault == "slow":
            self._slowly(data, 64)
        elif fault == "stall in body":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.owner.ended.wait(_STALL_S)
            self._reset()
        elif fault is not None and (found := _RATE.search(fault)):
            self._at_rate(data, 1000.0 * int(found[1]))
        else:
            self.wfile.write(data)
            self.wfile.flush()

    def _slowly(self, data: bytes, step: int) -> None:
        for at in range(0, len(data), step):
            self.wfile.write(data[at : at + step])
            self.wfile.flush()
            if self.owner.ended.wait(0.02):
                break

    def _at_rate(self, data: bytes, rate: float) -> None:
        for at in range(0, len(data), _STEP_BYTES):
            if self.owner.pace(_STEP_BYTES, rate):
                break
            self.wfile.write(data[at : at + _STEP_BYTES])
            self.wfile.flush()

    def _reset(self) -> None:
        """End the connection at once, with RST."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()


def _flipped(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)
