"""Requests to a remote store, the time a build waits for them, and credentials.

A separate process makes the requests, through obstore (`serve`). To cancel them, a session kills
this process, which also ends their downloads. If a server's answer ends the process, the build
continues without the remote. This happens, for example, if an error response announces more bytes
than the machine has: obstore allocates this size, and Rust ends a process that gets no memory.

A build has a budget: it may lose `PATIENCE_S` seconds of waiting. Each variant that is downloaded
or sent restores up to `VARIANT_S` seconds, less than it takes to compile the variant. No more
requests are made when the budget is used up, after `MOST_FAILURES` bad objects, or when the whole
remote fails.

obstore reads the body of an error response without a limit. So the process watches its memory
during requests, and a request that makes it grow by `MOST_GROWTH_BYTES` ends the session.

obstore's messages quote addresses, headers, and responses, which may contain credentials. An error
raised here consists of words from this module, numbers, and known names, and has no other exception
attached. Credentials come from the environment variables that obstore reads; for HTTP, from the
user and password of the URL, else from PALLASC_REMOTE_TOKEN, a bearer token.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import math
import os
import pickle
import re
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from datetime import timedelta
from enum import Enum
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pallasc.cache.remote.settings import CLOUDS, Address, RemoteSettings, RemoteStats
from pallasc.errors import PallascError, ToolError

if TYPE_CHECKING:
    import asyncio

PATIENCE_S = 1.8
VARIANT_S = 0.1
MOST_FAILURES = 8
MOST_GROWTH_BYTES = 32 * 2**20
REQUEST_S = 10.0
TOKEN = "PALLASC_REMOTE_TOKEN"
_SERVE = """
import sys
descriptor, *sys.path = sys.argv[1:]
from pallasc.cache.remote.session import serve
serve(int(descriptor))
"""
_END_S = 1.0
_WATCH_S = 0.004
_CHUNK_BYTES = 256 * 2**10
_VERSION = ("e_tag", "version")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
P = ParamSpec("P")
T = TypeVar("T")

Version = Mapping[str, str]
"""The version of an object as returned by obstore; {} if there is none."""


class Failure(Enum):
    """The kinds of failures, with their hints."""

    MISSING = "Check the address; `pallasc cache push` makes what is missing."
    DAMAGED = "Check the address, the objects there, and any proxy."
    TORN = "Try again; if it keeps failing, check the network and any proxy."
    REFUSED = "Check the address, the credentials, and their permissions."
    BROKEN = "Try again; if it keeps failing, look at the server's log."
    UNREACHABLE = "Check the address, the network, the certificate and any proxy."
    SLOW = "Try again later. `pallasc cache push` and `cache pull` wait longer with --timeout."
    SETTINGS = "Check the settings and credentials of the remote."


FAULTS = (Failure.MISSING, Failure.DAMAGED)
"""Faults of one object in the remote."""
OF_ONE_OBJECT = (*FAULTS, Failure.TORN)
"""Failures after which requests for other objects may succeed."""


class RemoteError(ToolError):
    """A request to a remote store failed; `failure` is the kind."""

    def __init__(self, message: str, failure: Failure, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or failure.value)
        self.failure = failure


class Session(contextlib.AbstractContextManager["Session"]):
    """Requests to one remote; a context manager that ends them all.

    Args:
        settings: the address of the remote.
        is_build: waiting has a budget, and failures of the remote do not raise. A command waits as
            long as its requests may take, and fails if they fail.
        tell: called with the warning of a build that continues without the remote.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        is_build: bool,
        tell: Callable[[str], None] = lambda warning: None,
    ) -> None:
        self._tell = tell
        self.address = settings.address
        self.stats = RemoteStats(url=settings.address.text)
        self.is_build = is_build
        self.failed: RemoteError | None = None
        self._failures = 0
        self._asked: dict[int, Future[Any]] = {}
        """Requests that have no reply yet, by number."""
        self._unsent: SimpleQueue[object] = SimpleQueue()
        """Requests to send; None ends the thread that sends them."""
        self._lost: RemoteError | None = None
        """Set when the process has ended."""
        self._process: subprocess.Popen[bytes] | None = None
        self._start((REQUEST_S, 1) if is_build else (settings.timeout_s, 2))

    def _start(self, limits: tuple[float, int]) -> None:
        self._unsent.put((self.address, *limits))
        failed = contextlib.ExitStack()
        try:
            ours, theirs = socket.socketpair()
            failed.enter_context(ours)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), *sys.path],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
            # Daemons: a process that hangs must not keep this one from exiting.
            for work in (self._send, self._listen):
                threading.Thread(target=work, args=(ours,), daemon=True).start()
            failed.pop_all()  # `_listen` closes `ours`
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            text = f"{self.stats.url}: the process that makes requests cannot be started: {error}"
            failed.close()
            self.fail(RemoteError(text, Failure.SETTINGS, hint="Check the limits of this user."))

    def submit(
        self,
        method: Callable[Concatenate[Objects, P], Coroutine[Any, Any, T]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> Future[T]:
        """Start a request, a method of `Objects`; get its result with `first` or `result`."""
        future: Future[T] = Future()
        if self.failed is not None:
            future.cancel()
            return future
        self.stats.requests += 1
        number = self.stats.requests
        self._asked[number] = future
        self._unsent.put((number, method.__name__, arguments, options))
        if self._lost is not None:
            self._settle(number, None, self._lost)
        return future

    def _send(self, channel: socket.socket) -> None:
        # `_listen` notices that the process has ended.
        with contextlib.suppress(OSError), channel.makefile("wb") as requests:
            while (request := self._unsent.get()) is not None:
                pickle.dump(request, requests)
                requests.flush()

    def _listen(self, channel: socket.socket) -> None:
        """Settle requests by the replies of the process, until it ends."""
        # A process that is killed may leave half a reply, which can raise anything.
        with channel, channel.makefile("rb") as replies, contextlib.suppress(Exception):
            while True:
                number, value, error, read, written = pickle.load(replies)
                self.stats.bytes_read, self.stats.bytes_written = read, written
                self._settle(number, value, error and RemoteError(*error[:2], hint=error[2]))
        text = f"{self.stats.url}: the process that makes requests ended, maybe due to an answer"
        self._lost = RemoteError(text, Failure.BROKEN)
        for number in [*self._asked]:
            self._settle(number, None, self._lost)

    def _settle(self, number: int, value: object, error: RemoteError | None) -> None:
        future = self._asked.pop(number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in the block as waiting; a build over its budget gives up the remote."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.stats.waited_s += time.monotonic() - began_s
            self.stats.lost_s += time.monotonic() - began_s
            if self.is_build and self.stats.lost_s > PATIENCE_S:
                text = f"{self.stats.url}: {PATIENCE_S} s of waiting brought too few variants"
                self.fail(RemoteError(text, Failure.SLOW))

    @property
    def left_s(self) -> float:
        """The time that may still be lost, in seconds; infinite for a command."""
        return max(0.0, PATIENCE_S - self.stats.lost_s) if self.is_build else math.inf

    def earn(self, variants: int) -> None:
        """Record that variants were downloaded or sent, which restores lost time."""
        self.stats.lost_s = max(0.0, self.stats.lost_s - variants * VARIANT_S)

    def first(self, futures: Collection[Future[Any]]) -> Future[Any] | None:
        """Wait for the first of these to finish; return None if the budget is used up."""
        if self.failed is not None:
            return None
        left_s = self.left_s + 0.01 if self.is_build else None
        with self.waiting():
            done, _ = wait(futures, left_s, return_when=FIRST_COMPLETED)
        return next((future for future in futures if future in done), None)

    def result(self, future: Future[T]) -> T:
        """Wait for the result of a request.

        Raises:
            RemoteError: the request fails, or the budget is used up.
        """
        if self.first([future]) is None and self.failed is not None:
            raise self.failed
        try:
            return future.result()
        except CancelledError:
            raise self.failed or RemoteError(self.stats.url, Failure.SLOW) from None

    def fail(self, error: RemoteError) -> None:
        """Make no more requests, and cancel pending ones.

        Raises:
            RemoteError: the session is not a build's.
        """
        if self.failed is None:
            self.failed = error
            self.stats.tripped = error.message
            self.close()
            if self.is_build:
                self._tell(f"remote store disabled for this build: {error.message}. {error.hint}")
        if not self.is_build:
            raise self.failed

    def failed_with(self, error: PallascError) -> None:
        """Record the failure of an object or of the remote; a build tolerates some bad objects.

        Raises:
            RemoteError: the session is not a build's, and the remote failed or its answer broke
                off.
        """
        tolerated = OF_ONE_OBJECT if self.is_build else FAULTS
        if isinstance(error, RemoteError) and error.failure not in tolerated:
            self.fail(error)
            return
        self.stats.refuse(error.message)
        self._failures += 1
        if self.is_build and self._failures >= MOST_FAILURES:
            text = f"{self.stats.url}: {self._failures} objects are missing or damaged"
            self.fail(RemoteError(text, Failure.DAMAGED))

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all requests and the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for future in [*self._asked.values()]:
            future.cancel()
        self._unsent.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


# ---- the process that makes the requests


def serve(descriptor: int) -> None:
    """Make the requests that a session sends, until it ends.

    Args:
        descriptor: a socket, for requests and replies.
    """
    import asyncio

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = socket.socket(fileno=descriptor)
    requests, replies = channel.makefile("rb"), channel.makefile("wb")
    objects = Objects(*pickle.load(requests))
    loop = asyncio.new_event_loop()

    async def reply(number: int, method: str, arguments: Any, options: Any) -> None:
        value = error = None
        try:
            value = await getattr(objects, method)(*arguments, **options)
        except RemoteError as caught:
            error = caught.message, caught.failure, caught.hint
        except BaseException:  # noqa: BLE001 - a panic of obstore is no `Exception`
            error = f"{objects.address}: the request failed", Failure.BROKEN, ""
        pickle.dump((number, value, error, objects.bytes_read, objects.bytes_written), replies)
        replies.flush()

    def read() -> None:
        try:
            while True:
                asyncio.run_coroutine_threadsafe(reply(*pickle.load(requests)), loop)
        finally:
            os._exit(0)  # the session is gone; no request may delay this

    threading.Thread(target=read, daemon=True).start()
    loop.run_forever()


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class Objects:
    """The objects below an address.

    Args:
        address: the address.
        timeout_s: time limit of a request.
        retries: how often a request is repeated after a failure of the server.

    Attributes:
        bytes_read: size of the bodies that were received so far.
        bytes_written: size of the bodies that were sent so far.
    """

    def __init__(self, address: Address, timeout_s: float, retries: int) -> None:
        self.address = address
        self.bytes_read = self.bytes_written = 0
        self._client: dict[str, Any] = {
            "timeout": timedelta(seconds=timeout_s),
            "allow_http": True,
            "user_agent": "pallasc",
        }
        self._retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=3)}
        self._grown_from: dict[asyncio.Future[Any], int] = {}

    async def get(self, name: str, *, limit: int) -> tuple[bytes, Version]:
        """Return an object of at most `limit` bytes, and its version.

        The stream is closed at the first byte over the limit, which ends the download.
        """
        what = f"GET {self.address}/{name}"

        async def read() -> tuple[bytes, Version]:
            result = await self._store(name).get_async(name)
            meta, data = result.meta, bytearray()
            if meta["size"] <= limit:
                async for chunk in result.stream(_CHUNK_BYTES):
                    data += bytes(chunk)
                    self.bytes_read += len(chunk)
                    if len(data) > limit:
                        break
            if max(len(data), meta["size"]) > limit:
                raise RemoteError(f"{what}: over the limit of {limit:,} bytes", Failure.DAMAGED)
            return bytes(data), {part: meta[part] for part in _VERSION if meta.get(part)}

        return await self._call(what, read())

    async def put(self, name: str, data: bytes, *, over: Version | None = None) -> bool:
        """Write an object.

        Args:
            name: its name.
            data: its bytes.
            over: the version that the object must still have, {} if it must not exist; None for
                any. Plain web servers and folders do not support this condition.

        Returns:
            False if the object has a different version.
        """
        is_free = over is None or self.address.scheme not in CLOUDS
        mode = "overwrite" if is_free else over or "create"

        async def write() -> bool:
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            store = self._store(name, write=True)
            try:
                await store.put_async(name, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                if is_free:
                    raise
                return False
            self.bytes_written += len(data)
            return True

        return await self._call(f"PUT {self.address}/{name}", write())

    async def listed(self, folder: str) -> tuple[list[str], list[tuple[str, int, float]]]:
        """Return the folders and the objects in a folder; none if it is missing.

        Returns:
            The names of the folders in it, and for each object in it the name below the address,
            the size in bytes, and the modification time in seconds since 1970.
        """
        # Web servers name objects by their whole path.
        above = f"{self.address.path}/" if self.address.scheme in ("http", "https") else ""

        async def read() -> tuple[list[str], list[tuple[str, int, float]]]:
            found = await self._store(folder).list_with_delimiter_async(folder)
            folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
            objects = [
                (meta["path"].removeprefix(above), meta["size"], meta["last_modified"].timestamp())
                for meta in found["objects"]
            ]
            return folders, objects

        try:
            return await self._call(f"LIST {self.address}/{folder}", read())
        except RemoteError as error:
            if error.failure is not Failure.MISSING:
                raise
            return [], []

    async def delete(self, name: str) -> None:
        """Delete an object; it is not an error if it does not exist."""

        async def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                await self._store(name).delete_async(name)

        await self._call(f"DELETE {self.address}/{name}", remove())

    async def _call(self, what: str, request: Coroutine[Any, Any, T]) -> T:
        """Make a request, and cancel it if its response does not end.

        The error is raised outside the handler, so that the library's error is not in
        `__context__`.
        """
        import asyncio

        task = asyncio.ensure_future(request)
        self._grown_from[task] = _resident_bytes()
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_WATCH_S)
                oldest = next(iter(self._grown_from.values()))
                if _resident_bytes() - oldest > MOST_GROWTH_BYTES:
                    text = f"{self.address}: the server's answers do not end"
                    raise RemoteError(text, Failure.BROKEN)
            return task.result()
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - obstore also raises bare and built-in ones
            # Python's own errors have a number: then a folder cannot be created or read.
            missing = isinstance(error, FileNotFoundError) and error.errno is None
            problem = translated(str(error), what, missing=missing)
        finally:
            task.cancel()
            del self._grown_from[task]
        raise problem

    def _store(self, name: str, *, write: bool = False) -> Any:
        if self.address.scheme == "file":
            self._check_folder(name, write=write)
        return self._connected

    def _check_folder(self, name: str, *, write: bool) -> None:
        """Create the folder of the address for a writer; reject links and pipes below it."""
        root = Path(self.address.path)
        if write:
            root.mkdir(parents=True, exist_ok=True)
        elif not root.exists():
            raise RemoteError(f"{self.address}: does not exist", Failure.MISSING)
        for place in (root / name, *(root / name).parents):
            if place == root:
                break
            with contextlib.suppress(OSError):  # the request itself reports it
                mode = place.lstat().st_mode
                if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                    text = f"{self.address}: {place.relative_to(root)} is not a folder or file"
                    raise RemoteError(text, Failure.DAMAGED)

    @cached_property
    def _connected(self) -> Any:
        try:
            from obstore import store as stores
        except ImportError:
            raise RemoteError(
                f"{self.address}: needs the package obstore, which is not installed",
                Failure.SETTINGS,
                hint="Install the extra: pip install 'pallasc[remote]'.",
            ) from None
        clouds = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
        scheme = self.address.scheme
        options: dict[str, Any] = {"client_options": self._client, "retry_config": self._retry}
        try:
            if scheme == "file":
                return stores.LocalStore(self.address.path)
            if scheme == "s3" and not any(map(os.environ.get, _REGIONS)):
                options["region"] = "us-east-1"  # obstore would use an empty variable
            if scheme in clouds:
                return clouds[scheme](self.address.place, prefix=self.address.path, **options)
            header = authorization(self.address, os.environ)
            if header is not None:
                self._client["default_headers"] = {"Authorization": header}
            return stores.HTTPStore(self.address.text, **options)
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - obstore also raises bare and built-in ones
            text = str(error)
        if scheme == "file":
            raise translated(text, str(self.address))
        text = f"{self.address}: the environment has no complete settings for this remote"
        raise RemoteError(text, Failure.SETTINGS)


# ---- errors

_STATUS = re.compile(r"status code: (\d{3})\b|\bstatus: (\d{3})\b", re.ASCII)
_CODE = re.compile(
    r"<Code>(AccessDenied|AuthenticationFailed|AuthorizationFailure|AuthorizationHeaderMalformed"
    r"|AuthorizationPermissionMismatch|ContainerNotFound|ExpiredToken|InternalError"
    r"|InvalidAccessKeyId|InvalidToken|NoSuchBucket|NoSuchKey|NotImplemented|PermanentRedirect"
    r"|QuotaExceeded|RequestTimeTooSkewed|ServerBusy|ServiceUnavailable|SignatureDoesNotMatch"
    r"|SlowDown)</Code>"
)
"""Only these codes are shown: in any other text, a server could repeat a credential."""
_SYSTEM = re.compile(r"(?:\bos error |\bOs \{ code: |\[Errno )(\d+)\b", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CERTIFICATE = re.compile(
    r"\b(UnknownIssuer|Expired|NotValidForName|NotValidYet|BadSignature|Revoked|BadEncoding"
    r"|CaUsedAsEndEntity)\b"
)
_OF_STATUS = {
    404: Failure.MISSING, 410: Failure.MISSING, 401: Failure.REFUSED, 403: Failure.REFUSED,
    407: Failure.REFUSED, 408: Failure.SLOW, 504: Failure.SLOW,
}  # fmt: skip
_SIGNS = (
    (r"dns error|lookup address", Failure.UNREACHABLE, "the host's name cannot be resolved"),
    (r"Time(dO|o)ut", Failure.SLOW, "no answer came in time"),
    (r"IncompleteBody|body error|response body", Failure.TORN, "the answer broke off"),
    (r"Credential", Failure.REFUSED, "there are no credentials"),
    (r"kind: Connect", Failure.UNREACHABLE, "no connection can be made"),
    (r"", Failure.BROKEN, "the request failed"),
)
"""Patterns in the library's text, the kind of failure, and pallasc's text. The first match is used.
"""


def translated(text: str, action: str, *, missing: bool = False) -> RemoteError:
    """Return the error for a library's message; only its known names are included.

    Args:
        text: the library's message.
        action: the request and its address, without credentials.
        missing: whether the library reports a missing object.
    """
    code, status, system = _CODE.search(text), _STATUS.search(text), _SYSTEM.search(text)
    if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
        hint = "Check the address, and variables that name the server, such as AWS_ENDPOINT_URL."
        return RemoteError(f"{action}: there is no such bucket", Failure.SETTINGS, hint=hint)
    if status:
        number = int(status[1] or status[2])
        shown = f"{number} ({code[1]})" if code else str(number)
        failure, hint = _OF_STATUS.get(number, Failure.BROKEN), _hint(action, number)
        return RemoteError(f"{action}: the server answers {shown}", failure, hint=hint)
    if missing:
        return RemoteError(f"{action}: there is no such file", Failure.MISSING)
    if "certificate" in text:
        fault = _CERTIFICATE.search(text)
        hint = "Name the certificate of its authority in SSL_CERT_FILE." if fault else ""
        why = f"the server's certificate is not valid ({fault[1] if fault else 'unknown reason'})"
        return RemoteError(f"{action}: {why}", Failure.UNREACHABLE, hint=hint)
    if system:
        number = int(system[1])
        hint = "Check the address, its permissions, and the network."
        if number in _FULL:
            hint = "Free space there, or remove packs with `pallasc cache prune --remote`."
        return RemoteError(f"{action}: {os.strerror(number)}", Failure.UNREACHABLE, hint=hint)
    failure, why = next(sign[1:] for sign in _SIGNS if re.search(sign[0], text))
    return RemoteError(f"{action}: {why}", failure)


def _hint(action: str, status: int) -> str:
    """Return the hint for a status, "" for the hint of its kind of failure."""
    if status == 409:
        return "Make the folder of the address on the server."
    verb, _, url = action.partition(" ")
    if verb == "PUT" and status in (404, 410):
        return "Check that the address exists on the server and can be written."
    if status in (405, 501) and url.startswith("http"):
        method = "PROPFIND, which lists objects" if verb == "LIST" else verb
        return f"The server does not support {method}. Use a WebDAV server."
    return ""


# ---- credentials


def authorization(address: Address, environ: Mapping[str, str]) -> str | None:
    """Return the `Authorization` header for HTTP requests, None if there is none.

    Raises:
        RemoteError: the token cannot be used.
    """
    if address.login is not None:
        return f"Basic {base64.b64encode(':'.join(address.login).encode()).decode()}"
    token = environ.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise RemoteError(f"{TOKEN} has characters that no header may have", Failure.SETTINGS)
    return f"Bearer {token}" if token else None
