"""A cluster with the interface of `workers/pool.Pool`, using dask's workers.

dask schedules the variants, one task each, and repeats a variant whose worker died or does not
answer for too long (`distributed.scheduler.worker-ttl`). A variant whose reply the build rejects
goes to another worker.

Everything that a worker reports is checked as far as possible: each blob is hashed, the record is
parsed as untrusted input, and the sources that the compilation read must equal the local sources.
So a file that was needed but not sent is noticed. Whether a cubin comes from its source cannot be
checked without compiling, so a cluster must be trusted for that.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pallasc.cache.manifests import Manifest, manifest_from_json
from pallasc.compiler.inputs.lookup import Lookup, named_entries, place_of
from pallasc.compiler.inputs.manifest import counts, fields_text, joined
from pallasc.compiler.workers import messages
from pallasc.compiler.workers.diagnostics import store_for_action
from pallasc.compiler.workers.messages import REFUSED, Compile, Compiled, Failed, Reply, Task
from pallasc.compiler.workers.pool import Event
from pallasc.errors import CompileError, CorruptError, PallascError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact

if TYPE_CHECKING:
    from pallasc.compiler.workers.cluster_worker import BuildPlugin

LONGEST_BYTES = 256 << 20
_MOST_VALUES = 1_000_000
"""Maximum number of values in a reply: a value of three characters takes about 60 bytes of memory.
"""

_CONNECT_S = 5.0
_WAIT_S = 30.0
_SLOWEST_BYTES_PER_S = 1e6
_NOBODY_S = 15.0
_TICK_S = 0.5
_AHEAD = 16
"""Number of variants sent ahead, in addition to four per thread. So workers never wait, but a
worker that fails gets few variants."""
_MOST_FAILURES = 3
"""Number of workers that are tried for a variant."""
_GRACE_S = 180.0
"""Time for preparing a worker and for messages, in addition to the time limit of a variant."""


@dataclass(slots=True)
class _Sent:
    """A variant that was submitted.

    Attributes:
        task: the task.
        request: its request.
        future: dask's future.
        began_s: time when it started, None before.
        allowed: the workers that may compile it, None for all.
        worker: the worker that has it, "" until known.
        failures: reasons of its failures, by worker, or by "" if the worker is unknown.
    """

    task: Task
    request: messages.Request
    future: Any = None
    began_s: float | None = None
    allowed: list[str] | None = None
    worker: str = ""
    failures: dict[str, str] = field(default_factory=dict)


class ClusterPool(ExitStack):
    """The workers of a dask cluster; use it as a context manager.

    Args:
        address: the scheduler, as given to `--executor`.
        jobs: number of compiling processes in a local cluster; elsewhere, the cluster's threads.
        warn: shows a sentence to the user.

    Attributes:
        accept: verifies and publishes the reply to a request, or raises ValueError.

    Raises:
        SpecError: the address is not a scheduler's address.
    """

    def __init__(
        self, address: str, jobs: int, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__()
        self.jobs = jobs
        self.accept: Callable[[Any, Compiled], Compiled] = lambda asked, reply: reply
        self._address, self._url, self._warn = address, scheduler_url(address), warn
        self._name = f"pallasc-{secrets.token_hex(8)}"
        self._client: Any = None
        self._sent: dict[str, _Sent] = {}
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._workers: Mapping[str, int] = {}
        self._refused: dict[str, str] = {}
        self._silent_s: dict[str, float] = {}  # when a worker got work, or last answered
        self._limit_s = float("inf")

    def warm(self, count: int) -> None:
        """Connect to the scheduler.

        Raises:
            ToolError: dask is not installed, or no scheduler replies.
        """
        try:
            from distributed import Client, Security
        except ImportError as error:
            raise ToolError(
                "--executor compiles on a dask cluster, and dask.distributed is not installed.",
                hint='Install it with: pip install "pallasc[dask]"',
            ) from error
        # The build reports relevant errors itself.
        self.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        self.enter_context(warnings.catch_warnings(action="ignore"))
        here = {  # in this process; dask's HTTP servers listen on the loopback alone
            "n_workers": 1, "threads_per_worker": self.jobs, "processes": False, "memory_limit": 0,
            "dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0",
        }  # fmt: skip
        options: dict[str, Any] = {"address": self._url} if self._url else here
        try:
            is_tls = self._url.startswith("tls:")
            if is_tls and Security().get_connection_args("client")["ssl_context"] is None:
                raise ValueError("no certificates are set for it")
            client = Client(timeout=_CONNECT_S, set_as_default=False, **options)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ToolError(
                f"there is no scheduler that answers at {self._address}: {_text_of(error)}",
                hint="Start one with: dask scheduler; or compile here, without --executor. For "
                "TLS, the scheduler and this machine need certificates of one authority: set "
                "distributed.comm.tls.ca-file, .client.cert and .client.key in dask's settings.",
            ) from error
        self._client = self.enter_context(client)

    def describe(self, build: BuildPlugin) -> None:
        """Send the workers the toolchain, limits, and sources of the variants of `run`."""
        # A worker compiles a variant again if the compiling process has died.
        self._limit_s = 2 * build.timeout_s + _GRACE_S
        wait_s = _WAIT_S + sum(map(len, build.sources.files.values())) / _SLOWEST_BYTES_PER_S
        self._ask(wait_s, self._client.register_plugin, build, name=self._name)
        self.callback(self._ask, _WAIT_S, self._client.unregister_worker_plugin, self._name)

    def _ask(self, wait_s: float, method: Any, *arguments: Any, **names: Any) -> None:
        with suppress(Exception):  # variants of a worker that hangs go elsewhere
            self._client.sync(method, *arguments, callback_timeout=wait_s, **names)

    def running(self) -> list[tuple[Task, float]]:
        """Return the current tasks and their run times in seconds so far, longest first."""
        now_s, sent = time.monotonic(), self._sent.values()
        begun = [(each.task, now_s - each.began_s) for each in sent if each.began_s is not None]
        return sorted(begun, key=lambda each: -each[1])

    def run(self, tasks: Iterable[Task]) -> Iterator[Event]:
        """Run tasks; yields the events of `Pool.run`.

        Raises:
            ToolError: the connection to the scheduler is lost.
        """
        waiting = deque(tasks)
        looked_s = time.monotonic()
        nobody_s = looked_s + _NOBODY_S
        try:
            self._workers = self._client.ncores()
            while waiting or self._sent:
                while waiting and len(self._sent) < 4 * self.jobs + _AHEAD:
                    task = waiting.popleft()
                    try:
                        sent = _Sent(task, task.make_request())
                    except PallascError as error:
                        yield "done", task, Failed(error=error)
                    else:
                        yield from self._send(sent)
                with suppress(Empty):
                    left_s = max(0.0, looked_s + _TICK_S - time.monotonic())
                    yield from self._take(self._done.get(timeout=left_s))
                if time.monotonic() < looked_s + _TICK_S:
                    continue
                looked_s = time.monotonic()
                yield from self._look(looked_s)
                if not self._workers and looked_s > nobody_s:
                    self._warn(f"{self._address} has no workers yet: waiting for the first one")
                    nobody_s = float("inf")
                yield "tick", None, None
        except OSError as error:
            raise ToolError(
                f"the connection to {self._address} is lost: {_text_of(error)}",
                hint="Build again: finished variants are in the store.",
            ) from error

    # ---- variants out

    def _send(self, sent: _Sent) -> Iterator[Event]:
        """Submit a variant, to workers that have not failed at it."""
        from pallasc.compiler.workers.cluster_worker import compile_variant

        sent.allowed, sent.worker = None, ""
        if self._workers and (sent.failures or self._refused):
            allowed = [w for w in self._workers if w not in {**self._refused, **sent.failures}]
            if not allowed or sum(map(bool, sent.failures)) >= _MOST_FAILURES:
                yield "done", sent.task, Failed(error=self._refusal(sent), died=True)
                return
            # After a failure, choose the worker: dask does not report which one failed.
            sent.allowed = [secrets.choice(allowed)] if sent.failures else allowed
        sent.future = self._client.submit(
            compile_variant, self._name, sent.task.group, sent.request,
            key=f"{self._name}-{secrets.token_hex(8)}", workers=sent.allowed, pure=False,
        )  # fmt: skip
        self._sent[sent.future.key] = sent
        sent.future.add_done_callback(self._done.put)

    # ---- replies in

    def _take(self, future: Any) -> Iterator[Event]:
        """Process a task that dask has finished.

        Raises:
            OSError: the connection to the scheduler is lost.
        """
        if future.key not in self._sent:
            return  # the variant was moved to another worker
        if future.status == "cancelled":
            raise ConnectionError("the scheduler is gone")
        sent = self._sent.pop(future.key)
        yield from self._started(sent)
        try:
            reply = self._reply(sent, future)
        except Exception as error:  # noqa: BLE001 - whatever dask makes of what was sent
            if sent.worker not in self._refused:
                sent.failures[sent.worker] = _text_of(error)
            yield from self._send(sent)
        else:
            yield "done", sent.task, reply
        finally:
            self._silent_s.pop(sent.worker, None)
            future.release()

    def _reply(self, sent: _Sent, future: Any) -> Reply:
        """Fetch a reply, limited in size, verify it, and publish it.

        Raises:
            ValueError: the reply is rejected.
        """
        if future.status == "error":
            error = future.exception(timeout=_WAIT_S)
            if type(error).__name__ == "KilledWorker":
                text = f"workers of {self._address} died each time that they compiled it"
                hint = "If they are short of memory, give compiling processes less with --memory."
                return Failed(error=CompileError(text, hint=hint, kind="died"), died=True)
            if sent.allowed is not None and len(sent.allowed) == 1:
                sent.worker = sent.allowed[0]
            raise error
        sent.worker = next(iter(self._client.who_has([future])[future.key]), "")
        size = self._client.nbytes([future.key], summary=False).get(future.key, 0)
        if size > LONGEST_BYTES:
            raise ValueError(f"its answer has {size} bytes")
        reply = read_reply(sent.request, future.result(timeout=_WAIT_S))
        if isinstance(reply, Failed) and reply.error.kind == REFUSED:
            self._refused[sent.worker] = reply.error.message
            raise ValueError(reply.error.message)
        if isinstance(reply, Compiled):
            reply = self.accept(sent.request, reply)
        return reply

    # ---- workers

    def _look(self, now_s: float) -> Iterator[Event]:
        """Update the workers and their tasks; take variants from workers that are gone or bad."""
        self._workers = self._client.ncores()
        self.jobs = sum(self._workers.values()) or self.jobs
        for worker, keys in self._client.processing().items():
            own = [self._sent[key] for key in keys if key in self._sent]
            self._silent_s[worker] = self._silent_s.get(worker, now_s) if own else now_s
            if now_s > self._silent_s[worker] + self._limit_s:
                self._refused[worker] = f"it has not answered for {self._limit_s:.0f} s"
            for sent in own:
                sent.worker = worker
                yield from self._started(sent)
        for key, sent in list(self._sent.items()):
            is_gone = sent.allowed is not None and not {*sent.allowed} & {*self._workers}
            if is_gone or sent.worker in self._refused:
                self._sent.pop(key).future.cancel()
                yield from self._send(sent)

    def _started(self, sent: _Sent) -> Iterator[Event]:
        if sent.began_s is None:
            sent.began_s = time.monotonic()
            yield "started", sent.task, None

    def _refusal(self, sent: _Sent) -> ToolError:
        reasons = {**self._refused, **sent.failures}.items()
        shown = "; ".join(f"{worker}: {reason.rstrip('.')}" for worker, reason in reasons)
        return ToolError(
            f"no worker of {self._address} compiles it as this machine would: {shown}.",
            hint="Workers need the packages that are installed here, in the same versions, and "
            "room for the files of a build. Or compile here, without --executor.",
        )


def _text_of(error: BaseException) -> str:
    """Return the first line of an error's text, with its type unless it is pallasc's own error."""
    text = next(iter(str(error).splitlines()), "")[:500]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


# ---- verifying and publishing


def read_reply(request: messages.Request, data: object) -> Reply:
    """Return the reply to a request from the bytes of `reply_bytes`.

    Raises:
        ValueError: the reply is malformed.
    """
    if type(data) is not bytes or len(data) > LONGEST_BYTES:
        raise ValueError("not bytes, or too many")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError("too many values")
    return request.read_reply(data)


def publish(lookup: Lookup, asked: Compile, reply: Compiled) -> Compiled:
    """Publish an artifact that a worker compiled, as a local worker does.

    Args:
        lookup: the local store, and the look-up that compares sources with the local ones.
        asked: the request to the worker.
        reply: the worker's reply.

    Raises:
        ValueError: the reply is rejected.
    """
    try:
        _check_artifact(reply, asked)
        if reply.manifest is not None:
            manifest = _checked_manifest(reply, asked)
            if changes := lookup.changes(manifest, place_of(asked.variant)):
                raise ValueError(f"its sources are not those here: {changes[0].sentence}")
    except CorruptError as error:
        raise ValueError(f"its answer is damaged: {error.message}") from error
    store, doubt = lookup.store, asked.trusted_records is not None
    if reply.status == "compiled":
        store_for_action(store, reply.action, reply.diagnostics)
    put = store.put_artifact(reply.action, reply.record or {}, reply.blobs, replace=doubt)
    reply = replace(reply, put=put, status="hit" if put.existed else "compiled")
    return replace(reply, manifest=reply.manifest and {**reply.manifest, "record": reply.digest})


def _check_artifact(reply: Compiled, asked: Compile) -> None:
    if reply.record is None:
        raise ValueError("its answer has no artifact")
    artifact = Artifact(reply.record, lambda name: reply.blobs.get(name, b""))
    artifact.blobs()
    _ = artifact.kernels, artifact.plan  # these read the rest of the record
    target = {name: value for name, value in artifact.record["target"].items() if name != "name"}
    if target != asked.variant.target.figures():
        raise ValueError("its artifact is for another target")
    if {*reply.blobs} != {*artifact.record["blobs"]}:
        raise ValueError("its artifact comes with other files than it names")


def _checked_manifest(reply: Compiled, asked: Compile) -> Manifest:
    manifest = manifest_from_json(asked.request, reply.manifest or {})
    claimed = (manifest.action, manifest.variant, manifest.request)
    if claimed != (reply.action, asked.variant.id, fields_text(asked.fields)):
        raise ValueError("its manifest is for another variant")
    sealed = joined(manifest, manifest)
    if sealed is None or sealed.read != manifest.read:
        raise ValueError("its manifest has another digest than its sources")
    for entry in named_entries(asked.variant):
        label = f"{'file' if entry.is_file else 'module'}:{entry.source}"
        packaged = any(f"{entry.source}.".startswith(f"{name}.") for name in manifest.packages)
        is_needed = entry.is_file or (counts(entry.source) and not packaged)
        if is_needed and label not in manifest.files:
            raise ValueError(f"its manifest leaves out {label}")
    return manifest


# ---- addresses

_ADDRESS = re.compile(r"dask(\+tls)?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?")


def scheduler_url(address: str) -> str:
    """Return the dask URL of the scheduler that `--executor` names.

    It is "" for `dask:`, a cluster in the process of the build.

    Raises:
        SpecError: the address is not a scheduler's; the message shows no password.
    """
    if address.strip() == "dask:":
        return ""
    match = _ADDRESS.fullmatch(address.strip())
    port = int(match[3] or 8786) if match else 0
    if match is None or not 0 < port < 65536:
        shown = "a text with a user or a password" if "@" in address else repr(address)
        raise SpecError(
            f"{shown} is not the address of a scheduler.",
            hint="Write dask://HOST:8786, dask+tls://HOST:8786, or dask: for a cluster on this "
            "machine.",
        )
    return f"{'tls' if match[1] else 'tcp'}://{match[2]}:{port}"
