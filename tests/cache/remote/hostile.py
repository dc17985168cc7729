"""Hostile answers of an HTTP server and mutated files of a remote folder, against real builds.

Run it as `python tests/cache/remote/hostile.py --json`. Each row has the number of variants that a
build got, wrong ones among them, the time it took and lost, and the memory that it took, including
that of the process that makes its requests, beyond what this process needs without any answer. A
hostile answer replaces every answer, or the answers for packs alone. The server is a process of its
own, so that its memory is not counted.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent))

import variants

from pallasc.cache import packs
from pallasc.cache.pack_writer import PackWriter
from pallasc.cache.remote import session
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.remote.transfer import Catalog, PackRow, catalog_name, pack_name
from pallasc.cache.store import Store

VARIANTS, SIZE = 6, 60_000
MOST_GROWTH = 64 * 2**20
_BLOCK = b"x" * 65536
_CHUNK = b"%x\r\n" % len(_BLOCK) + _BLOCK + b"\r\n"
_DATE = "Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n"
Answer = Callable[[socket.socket, bytes, str], None]


def _head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, _DATE]).encode() + b"\r\n"


def _good_head(body: bytes, head: str) -> bytes:
    return head.encode() + _DATE.encode() + b"Content-Length: %d\r\n\r\n" % len(body)


def _flood(start: bytes, more: bytes = _CHUNK) -> Answer:
    def answer(connection: socket.socket, body: bytes, head: str) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(more)

    return answer


def _flood_body(connection: socket.socket, body: bytes, head: str) -> None:
    length = f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    _flood((head + _DATE + length).encode())(connection, body, head)


def _raw(data: bytes) -> Answer:
    return lambda connection, body, head: connection.sendall(data)


def _stall(connection: socket.socket, body: bytes, head: str) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass


def _slow_body(connection: socket.socket, body: bytes, head: str) -> None:
    connection.sendall(_good_head(body, head))
    for byte in body:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def _half(connection: socket.socket, body: bytes, head: str) -> None:
    connection.sendall(_good_head(body, head) + body[: len(body) // 2])


def _reset(connection: socket.socket, body: bytes, head: str) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _changed(connection: socket.socket, body: bytes, head: str) -> None:
    middle = len(body) // 2
    body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    connection.sendall(_good_head(body, head) + body)


def _other_range(connection: socket.socket, body: bytes, head: str) -> None:
    line = "Content-Range: bytes 7-99/100\r\n"
    connection.sendall(_good_head(body, f"HTTP/1.1 206 Partial Content\r\n{line}") + body)


ANSWERS: dict[str, Answer] = {
    "200 that never ends": _flood_body,
    "404 that never ends": _flood(_head("404 Not Found", "Transfer-Encoding: chunked")),
    "500 that never ends": _flood(_head("500 Error", "Transfer-Encoding: chunked")),
    "200 of a terabyte": _flood(_head("200 OK", "Content-Length: 1099511627776"), _BLOCK),
    "404 of an exabyte": _flood(_head("404 Not Found", f"Content-Length: {2**60}"), _BLOCK),
    "403 of a terabyte": _flood(_head("403 Forbidden", f"Content-Length: {2**40}"), _BLOCK),
    "503 of a gigabyte": _flood(_head("503 Busy", f"Content-Length: {2**30}"), _BLOCK),
    "headers that never end": _flood(b"HTTP/1.1 200 OK\r\n", b"X-Y: " + b"z" * 4000 + b"\r\n"),
    "one endless header": _flood(b"HTTP/1.1 200 OK\r\nX: ", _BLOCK),
    "100 Continue without end": _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "noise": _raw(random.Random(1).randbytes(5000)),
    "closed": _raw(b""),
    "no answer": _stall,
    "slow body": _slow_body,
    "half a body": _half,
    "reset": _reset,
    "changed body": _changed,
    "empty body": _raw(_head("200 OK", "Content-Length: 0")),
    "another range": _other_range,
    "429": _raw(_head("429 Too Many Requests", "Retry-After: 3600", "Content-Length: 0")),
    "401": _raw(_head("401 Unauthorized", "Content-Length: 0")),
    "503": _raw(_head("503 Service Unavailable", "Content-Length: 0")),
    "redirect to itself": _raw(_head("302 Found", "Location: /pallasc/v4/x", "Content-Length: 0")),
    "200 without length": _raw(_head("200 OK", "Connection: close") + b"x" * 100),
}


class Server:
    """Serves a folder, in a forked process; the answer for a kind comes from the URL's first part.

    `http://host:port/<kind number>.<p or a>`: p replaces the answers for packs, a all of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.pid = os.fork()
        if not self.pid:
            try:
                self._serve()
            finally:
                os._exit(0)

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self._listener.close()

    def _serve(self) -> None:
        parent = os.getppid()
        self._listener.settimeout(1)
        while os.getppid() == parent:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536) or b"\r\n\r\n"
            _, path, _ = request.decode("latin-1").split(" ", 2)
            kind, _, name = path.lstrip("/").partition("/")
            number, _, which = kind.partition(".")
            body, head = self._body(name, request.decode("latin-1").lower())
            if which == "a" or (which == "p" and "/packs/" in name):
                list(ANSWERS.values())[int(number)](connection, body, head)
            else:
                connection.sendall(_good_head(body, head) + body)
            connection.shutdown(socket.SHUT_RDWR)

    def _body(self, name: str, request: str) -> tuple[bytes, str]:
        place = self._folder / name
        if not place.is_file():
            return b"", "HTTP/1.1 404 Not Found\r\n"
        body = place.read_bytes()
        if "range: bytes=" not in request:
            return body, "HTTP/1.1 200 OK\r\nConnection: close\r\n"
        start, _, end = request.partition("range: bytes=")[2].split()[0].partition("-")
        part = body[int(start) : int(end) + 1]
        line = f"Content-Range: bytes {start}-{end}/{len(body)}\r\n"
        return part, f"HTTP/1.1 206 Partial Content\r\nConnection: close\r\n{line}"


def settings_of(url: str) -> RemoteSettings:
    settings = read_settings({}, url=url, write=True)
    assert settings is not None
    return settings


def _peak_bytes(process: int | str = "self") -> int:
    """Return the largest memory of a process so far, 0 if it has ended."""
    text = Path(f"/proc/{process}/status").read_text()
    return int((text.partition("VmHWM:")[2].split() or ["0"])[0]) * 1024


class Watched(subprocess.Popen[bytes]):
    """The process that makes a session's requests, with its memory."""

    peaks: ClassVar[list[int]] = []

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.peaks.append(_peak_bytes(self.pid))
        super().kill()


@functools.cache
def _idle_bytes() -> int:
    """Return the memory of a process that makes requests, without answers."""
    with session.Session(settings_of("file:///nowhere"), is_build=False) as idle:
        idle.result(idle.submit(session.Objects.listed, "x"))
    return Watched.peaks[-1]


@contextlib.contextmanager
def growth(row: dict[str, Any]) -> Iterator[None]:
    """Put the memory that the work took at its peak into a row."""
    idle_bytes = _idle_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_bytes()
    Watched.peaks.clear()
    yield
    other_bytes = max(0, max(Watched.peaks) - idle_bytes)
    row["growth_bytes"] = _peak_bytes() - before + other_bytes


def _built(settings: RemoteSettings, folder: Path, name: str) -> dict[str, Any]:
    """Do what a build does that lacks all variants; return a row."""
    row: dict[str, Any] = {"name": name}
    store = Store(folder)
    keys = [variants.request_key(number) for number in range(VARIANTS)]
    with growth(row):
        began_s = time.monotonic()
        found, stats = variants.download(settings, store, keys)
        row["took_s"] = time.monotonic() - began_s
    row |= {"hits": len(found), "wrong": 0, "lost_s": stats.lost_s, "tripped": stats.tripped}
    for number in range(VARIANTS):
        if variants.request_key(number) in found:
            try:
                variants.check(store, number, size=SIZE)
            except AssertionError:
                row["wrong"] += 1
    shutil.rmtree(folder, ignore_errors=True)
    return row


def _filled(folder: Path) -> Path:
    """Fill a remote in a folder; each variant has its own pack of more than 64 kB."""
    store = Store(folder / "source")
    for number in range(VARIANTS):
        key = variants.put(store, number, size=SIZE)
        variants.upload(settings_of(f"file://{folder}/there"), store, [key])
    return folder / "there"


def _least_of_three(settings: RemoteSettings, folder: Path, name: str) -> dict[str, Any]:
    """Measure again if memory grew too much: a busy machine may stop the watching thread."""
    for _ in range(3):
        row = _built(settings, folder, name)
        if row["growth_bytes"] < MOST_GROWTH:
            break
    return row


def answers(folder: Path, server: Server) -> Iterator[dict[str, Any]]:
    """Yield a row for each hostile answer."""
    for number, name in enumerate(ANSWERS):
        for which in "ap":
            settings = settings_of(f"http://u:secret@127.0.0.1:{server.port}/{number}.{which}")
            place = "everywhere" if which == "a" else "for packs"
            yield _least_of_three(settings, folder / "local", f"{name}, {place}")


def forged(folder: Path, there: Path) -> Iterator[dict[str, Any]]:
    """Yield rows for catalogs and packs that have the right digests and unpack to gigabytes."""
    wanted = [variants.request_key(number) for number in range(VARIANTS)]
    names, rng = b"".join(map(bytes.fromhex, wanted)), random.Random(1)
    dense = [packs.Entry("man", rng.randbytes(32).hex(), rng.randbytes(2**14) * 190)] * 200
    many = [packs.Entry("cas", rng.randbytes(32).hex(), b"") for _ in range(150_000)]
    for name, entries in (("forged pack of dense manifests", dense), ("pack of many files", many)):
        out = io.BytesIO()
        writer = PackWriter(out)
        for entry in entries:
            writer.add([entry._replace(name=rng.randbytes(32).hex())])
        writer.close()
        data = out.getvalue()[: 2**24]
        row = PackRow(hashlib.sha256(data).hexdigest(), len(data), 1, names)
        yield _with_catalog(there, folder, name, Catalog((row,)), {row: data})
    prefix = bytes.fromhex(wanted[0])[:16]
    rows = [
        PackRow(rng.randbytes(32).hex(), 4000, 1,
                b"".join(prefix + rng.randbytes(16) for _ in range(120)))
        for _ in range(1000)
    ]  # fmt: skip
    yield _with_catalog(there, folder, "catalog of 120,000 names", Catalog(tuple(rows)), {})


def _with_catalog(
    there: Path, folder: Path, name: str, catalog: Catalog, files: dict[PackRow, bytes]
) -> dict[str, Any]:
    copy = folder / name.replace(" ", "-")
    shutil.copytree(there, copy)
    (copy / catalog_name(variants.NAMESPACE)).write_bytes(catalog.encode())
    for row, data in files.items():
        (copy / pack_name(variants.NAMESPACE, row.pack)).write_bytes(data)
    row_ = _built(settings_of(f"file://{copy}"), folder / "local", name)
    shutil.rmtree(copy, ignore_errors=True)
    return row_


def mutations(folder: Path, there: Path, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each of many mutations of a remote folder's files."""
    rng = random.Random(seed)
    for number in range(count):
        copy = folder / f"mutated-{number}"
        shutil.copytree(there, copy)
        file = rng.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
        mutation = rng.choice(MUTATIONS)
        mutation(file, rng, copy)
        name = f"{number}: {mutation.__name__} of {file.name[:12]}"
        try:
            row = _built(settings_of(f"file://{copy}"), folder / "local", name)
        except Exception as error:
            row = {"name": name, "wrong": 1, "error": repr(error)}
        shutil.rmtree(copy, ignore_errors=True)  # a write that was given up may still end
        yield row


def flip(file: Path, rng: random.Random, root: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut(file: Path, rng: random.Random, root: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) + 1)])


def remove(file: Path, rng: random.Random, root: Path) -> None:
    file.unlink()


def swap(file: Path, rng: random.Random, root: Path) -> None:
    other = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)


def make_folder(file: Path, rng: random.Random, root: Path) -> None:
    file.unlink()
    file.mkdir()


def make_pipe(file: Path, rng: random.Random, root: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_link(file: Path, rng: random.Random, root: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/hostname")


MUTATIONS = (flip, cut, remove, swap, make_folder, make_pipe, make_link)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=session.PATIENCE_S)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    session.PATIENCE_S = options.patience
    session.subprocess.Popen = Watched  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HOME"] = name
        server = Server(folder / "there")
        there = _filled(folder)
        try:
            fine = _built(settings_of(f"file://{there}"), folder / "local", "nothing wrong")
            mutated = mutations(folder, there, options.mutations, options.seed)
            every = chain([fine], answers(folder, server), forged(folder, there), mutated)
            rows = []
            for row in every:
                rows.append(row)
                if not options.json:
                    print(row, flush=True)
        finally:
            server.close()
    if options.json:
        print(json.dumps(rows))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
