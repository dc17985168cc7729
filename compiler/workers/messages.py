"""Messages between a build and its workers.

Requests are pickled. A worker gets `Warm`, then `Introduction` once, perhaps `Rehearse`, then
`Compile` and `Recompile`; or `Collect`. It replies to `Introduction` with `READY`, and does not
reply to `Warm` and `Rehearse`. Its reply to all other requests is a line of JSON: the fields of the
reply, and its class as `type`; bytes are base64.

User code runs in the process that replies, and may write to any descriptor, including the
channel's. So replies are never unpickled. A line that is not a reply fails the current task, and
the types of all fields of a reply are checked.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pallasc import errors
from pallasc.cache.manifests import Diagnostics, Digest, Seconds
from pallasc.cache.store import PutResult
from pallasc.compiler.inputs.manifest import Sources
from pallasc.compiler.lowering import LineTable
from pallasc.errors import CompileError, Location, PallascError, SpecError, bounded
from pallasc.specs.gpus import Target
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.toolchain.setup import Context, Setup


# ---- plain data


class _ErrorText(Struct, frozen=True):
    """A `PallascError` as JSON; `type` is the name of the nearest public class."""

    type: str
    message: str
    hint: str | None
    location: Location | None
    field: str = ""
    kind: str = ""

    @staticmethod
    def of(error: PallascError) -> _ErrorText:
        public = next(k.__name__ for k in type(error).__mro__ if hasattr(errors, k.__name__))
        place = error.field if isinstance(error, SpecError) else ""
        hint = error.hint and bounded(error.hint)
        message, location = bounded(error.message), error.location
        return _ErrorText(public, message, hint, location, place, error.kind)

    def error(self) -> PallascError:
        public = getattr(errors, self.type, None)
        kind = public if isinstance(public, type) and issubclass(public, PallascError) else None
        error = (kind or CompileError)(self.message, location=self.location, hint=self.hint)
        error.kind = self.kind
        if isinstance(error, SpecError):
            error.field = self.field
        return error


def _encode(value: Any) -> object:
    """Convert a value that msgspec cannot encode by itself."""
    if isinstance(value, PallascError):
        return _ErrorText.of(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


def _decode(kind: Any, value: Any) -> object:
    """Convert a value to a type that msgspec cannot decode by itself."""
    if kind is PallascError:
        return msgspec.convert(value, _ErrorText).error()
    if kind is Path:
        return Path(value)
    return value  # of type `object`


# ---- replies

R = TypeVar("R", bound="Reply")


class Reply(Struct, frozen=True, kw_only=True, tag=True):
    """A worker's reply to a request.

    Attributes:
        task: the number of the request among the worker's requests.
        tainted: whether user code changed the process permanently.
        diagnostics: warnings and output of the request.
        output: the end of the worker's output during the request; the build sets it on arrival.
    """

    task: int | None = None
    tainted: bool = False
    diagnostics: Diagnostics = ()
    output: str = ""

    def line(self) -> bytes:
        """Return the reply as a line of JSON."""
        # msgspec's own encoder rejects the surrogates that Python uses for bytes of paths.
        data = msgspec.to_builtins(self, enc_hook=_encode)
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"

    def require(self, kind: type[R]) -> R:
        """Return the reply, which must be of class `kind`.

        Raises:
            PallascError: the request failed.
        """
        if isinstance(self, Failed):
            raise self.error
        if not isinstance(self, kind):
            raise CompileError(f"a worker sent {type(self).__name__}, not {kind.__name__}")
        return self


class Failed(Reply, frozen=True, kw_only=True):
    """The request failed, or its worker died or was stopped.

    Attributes:
        error: the reason.
        out_of_memory: whether Python ran out of memory.
        missed: as in `Compiled`, as far as known.
        compiling: whether XLA was compiling; its output is then in the error.
        repeat: whether an earlier task of the worker may be the cause: the worker died, or the
            failure is in a module that an earlier variant had loaded and that can be executed only
            once.
        died: whether the worker sent no reply.
        place: the line of the user's files that the worker was executing when it died, if known.
    """

    error: PallascError
    out_of_memory: bool = False
    missed: Mapping[str, str] = {}
    compiling: bool = False
    repeat: bool = False
    died: bool = False
    place: Location | None = None

    @staticmethod
    def because_of(error: PallascError, **known: Any) -> Failed:
        """Return the reply for an error; `known` are the reply's other fields."""
        cause: BaseException | None = error
        # An error that is re-raised "from" itself is its own cause.
        while isinstance(cause, PallascError) and cause.__cause__ is not cause:
            cause = cause.__cause__
        return Failed(error=error, out_of_memory=isinstance(cause, MemoryError), **known)


class Collected(Reply, frozen=True, kw_only=True):
    """The declarations of a Python spec file.

    Attributes:
        specs: the specs as plain data, from `spec_to_json`.
        uncached: why the store must not remember the specs, "" if it may.
        sources: files that were read while the spec file was executed, None if unknown.
    """

    specs: tuple[dict[str, Any], ...]
    uncached: str
    sources: Sources | None = None

    @property
    def missed(self) -> dict[str, str]:
        """Withheld variables and files that were requested, with the place of the request."""
        return self.sources.missed if self.sources else {}


class Compiled(Reply, frozen=True, kw_only=True):
    """An artifact, compiled now or found under the action key of the lowered module.

    Attributes:
        action: the action key.
        status: "hit" if XLA did not have to compile.
        seconds: time of lowering and compiling.
        warnings: sentences for the user, by topic; the build shows one per topic.
        uncached: why there is no manifest, "" if there is one.
        printed: output of tracing, packed (`kernel_output`).
        put: result of adding the artifact to the store.
        record: the artifact's record, None if the worker has none.
        blobs: contents of the blobs that the record names, by digest.
        missed: withheld variables and files that were requested, with the place of the request.
        manifest: manifest for the build to sign and publish, None if there is none.
    """

    action: Digest
    status: Literal["hit", "compiled"]
    seconds: Seconds
    warnings: Mapping[str, str]
    uncached: str
    printed: str = ""
    put: PutResult = PutResult(stored=False, digest="")
    record: Mapping[str, object] | None = None
    blobs: Mapping[str, bytes] = {}
    missed: Mapping[str, str] = {}
    manifest: Mapping[str, object] | None = None

    @property
    def digest(self) -> str:
        """Digest of the stored record of the action key, else of the new record; "" if unknown."""
        return self.put.stored_digest or self.put.digest


class Recompiled(Reply, frozen=True, kw_only=True):
    """Result of `Recompile`: line tables by digest of the PTX; PTX by digest of the cubin."""

    tables: Mapping[str, LineTable] = {}
    ptx: Mapping[str, str] = {}


# ---- requests


class Request(Struct, frozen=True, kw_only=True):
    """A request to a worker; `reply` is the class of the reply.

    Attributes:
        task: the number of the request among the worker's requests.
    """

    reply: ClassVar[type[Reply]] = Reply
    task: int | None = None

    def read_reply(self, line: bytes) -> Reply:
        """Return the reply to this request that a worker sent.

        Raises:
            ValueError: the reply is malformed.
        """
        try:
            kinds: Any = self.reply | Failed
            reply: Reply = msgspec.convert(json.loads(line), kinds, dec_hook=_decode)
        except (TypeError, RecursionError, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from error
        if reply.task not in (None, self.task):
            raise ValueError(f"a reply to request {reply.task}")
        return reply


class Warm(Request, frozen=True, kw_only=True):
    """Import the compiler; there is no reply."""


class Introduction(Request, frozen=True, kw_only=True):
    """The toolchain and store of a build; the worker replies when it is ready to compile.

    Attributes:
        record: the part of artifacts that describes the toolchain.
        ptxas: the assembler.
        toolkit: the folder that XLA takes assembler and device library from.
        identity: label -> digest of each part of the toolchain that action keys depend on.
        versions: label -> version of each part of the toolchain, for people.
        variables: the environment variables that reach the compiler.
        store: the store's folder.
        signing: whether stored digests of files are signed; workers get no keys to check them.
    """

    record: Mapping[str, object]
    ptxas: Path
    toolkit: Path
    identity: Mapping[str, str]
    versions: Mapping[str, str]
    variables: Mapping[str, str]
    store: Path
    signing: bool

    @classmethod
    def of(cls, setup: Setup, context: Context, store: Store) -> Introduction:
        """Return the introduction to a toolchain and a store.

        Raises:
            ToolError: the assembler cannot be asked for its version.
        """
        return cls(
            record=setup.record(context.digests),
            ptxas=setup.toolchain.ptxas,
            toolkit=setup.toolkit,
            identity=context.for_actions(),
            versions=context.versions(),
            variables=context.variables,
            store=store.root,
            signing=store.trust.strict,
        )


class Rehearse(Request, frozen=True, kw_only=True):
    """Compile a small kernel for a target before the first task; there is no reply."""

    target: Target


class Collect(Request, frozen=True, kw_only=True):
    """Execute a Python spec file.

    Attributes:
        path: the file, as messages show it.
        env: values of the environment variables that it can read, None if not set.
    """

    reply: ClassVar[type[Reply]] = Collected
    path: str
    env: Mapping[str, str | None] = {}


class Compile(Request, frozen=True, kw_only=True):
    """Compile a variant to an artifact, or find it in the store.

    Attributes:
        variant: the variant.
        request: its request key.
        fields: the labeled fields of that key.
        data: the digests of its data files.
        env: the values of the variables that it declares, None if not set.
        trusted_records: for each action key, the digest of the only stored record that may be used;
            None allows all records.
    """

    reply: ClassVar[type[Reply]] = Compiled
    variant: Variant
    request: str
    fields: Mapping[str, str]
    data: Mapping[str, str]
    env: Mapping[str, str | None]
    trusted_records: Mapping[str, str] | None


class Recompile(Request, frozen=True, kw_only=True):
    """Compile a variant again, for its source lines or for PTX that its artifact lacks.

    Attributes:
        variant: the variant.
        env: the values of the variables that it declares, None if not set.
        ptx: the PTX whose lines are needed, by its digest: kernels may share a name.
        code: the digests of the machine code that ships, by the digest of its PTX; {} if only
            the lines of the PTX are needed.
        cubins: names of the kernels of XLA whose PTX is needed, by the digest of their cubin.
    """

    reply: ClassVar[type[Reply]] = Recompiled
    variant: Variant
    env: Mapping[str, str | None]
    ptx: Mapping[str, str] = {}
    code: Mapping[str, str] = {}
    cubins: Mapping[str, tuple[str, ...]] = {}


Group = tuple[str, str, tuple[tuple[str, str | None], ...]]
"""Architecture, the spec's folders in `PATH` notation, and the variables that the spec declares."""


class Task(Struct, frozen=True):
    """A request to a worker of a group.

    Attributes:
        label: the caller's number for it.
        group: its group; a worker serves a single group.
        request: the request to the worker, or a function that makes it when a worker is free.
        doing: name of the worker's activity in messages.
    """

    label: int
    group: Group
    request: Request | Callable[[], Request]
    doing: str = "the compiling process"

    def make_request(self) -> Request:
        """Return the request for the worker.

        Raises:
            PallascError: the request cannot be made.
        """
        return self.request() if callable(self.request) else self.request


REFUSED = "refused"
"""`kind` of the error with which a cluster's worker rejects all variants of a build."""

READY = b'{"ready":true}\n'
"""Sent when a worker can begin with its first task."""


Answers = Mapping[type[Request], Callable[[Any], Reply | bytes | None]]


def serve(
    requests: int, replies: int, answers: Answers, is_tainted: Callable[[], bool] = bool
) -> int:
    """Serve requests until there are no more, and return the exit status.

    Args:
        requests: descriptor that requests come from.
        replies: descriptor to send replies to.
        answers: for each class of requests, a function that returns the reply or `READY`, or None
            to send nothing, or raises a `PallascError`.
        is_tainted: called after each request that gets a reply; see `Reply`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    with os.fdopen(requests, "rb") as source:
        while source.peek(1):
            request = pickle.load(source)
            try:
                reply = answers[type(request)](request)
            except PallascError as error:
                reply = Failed.because_of(error)
            if isinstance(reply, Reply):
                reply = replace(reply, task=request.task, tainted=is_tainted()).line()
            left = memoryview(reply or b"")
            while left:
                left = left[os.write(replies, left) :]
    return 0
