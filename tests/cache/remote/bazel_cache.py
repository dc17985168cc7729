"""A cache of Bazel that believes nothing, as bazel-remote: a hit is complete, or there is none.

It checks what bazel-remote's documentation promises: what is put under `/cas/` has the SHA-256 of
its name; what lies under `/ac/` is an `ActionResult`, and is given only while every blob that it
names is there with the size that it names.
"""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pallasc.cache.remote.action_result import decode_result
from pallasc.errors import CorruptError

_PATH = re.compile(r"(?:/[^/]+)*/(ac|cas)/([0-9a-f]{64})")


class BazelCache:
    """A server on a free port of 127.0.0.1; `with` ends it.

    Attributes:
        blobs, actions: what it holds, by name.
        refused: requests that broke the protocol.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.actions: dict[str, bytes] = {}
        self.refused: list[str] = []
        cache = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(*cache.get(self.path))

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(cache.put(self.path, data), b"")

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: self._answer(405, b"")
                raise AttributeError(name)

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> BazelCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str) -> tuple[int, bytes]:
        match = _PATH.fullmatch(path)
        if match is None:
            return self._refuse(path), b""
        table = self.blobs if match[1] == "cas" else self.actions
        data = table.get(match[2])
        if data is None or (match[1] == "ac" and not self.is_complete(data)):
            return 404, b""
        return 200, data

    def put(self, path: str, data: bytes) -> int:
        match = _PATH.fullmatch(path)
        if match is None:
            return self._refuse(path)
        if match[1] == "cas":
            if hashlib.sha256(data).hexdigest() != match[2]:
                return self._refuse(path)
            self.blobs[match[2]] = data
            return 200
        try:
            decode_result(data)
        except CorruptError:
            return self._refuse(path)
        self.actions[match[2]] = data
        return 200

    def is_complete(self, data: bytes) -> bool:
        return all(
            len(self.blobs.get(output.digest, b"")) == output.size and output.digest in self.blobs
            for output in decode_result(data).outputs
        )

    def _refuse(self, path: str) -> int:
        self.refused.append(path)
        return 400
