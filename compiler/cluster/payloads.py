"""What travels between a build and the workers of a cluster: bytes that hold JSON.

dask carries them as it carries any bytes; nothing of ours is pickled but the name of the function
that a worker calls. Both sides read with every type checked, as `workers/messages` does: what comes
from a cluster comes from strangers.

    session = zlib(JSON of `Session`); its SHA-256 is its name
    work    = JSON of `Work`, for one slot of one dask worker
    result  = JSON of `Result`, for one `Work`

A worker that does not have the session of its work says so, and is sent the work again with it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallasc.compiler.workers.channel import decode, encode
from pallasc.compiler.workers.messages import Message
from pallasc.errors import Location, PallascError

LONGEST_SESSION_BYTES = 1 << 30
_LONGEST_RESULT_BYTES = 1 << 30
_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Message):
    """What holds for all variants of a build.

    Attributes:
        build: a random name, so that no two builds share a session.
        identity: the digests of the toolchain by label; a worker must have the same.
        variables: what reaches the compiler, as `compiler_variables` returns it; the same goes.
        versions: those of the toolchain's parts, for messages.
        environment: the variables that reach the compiler, by name.
        ptxas: the assembler that the user named, "" for the installed one.
        timeout_s: time limit of one variant, None for no limit.
        memory_bytes: memory limit of one compiling process: 0 for none, None for its share of the
            worker's machine.
        program: the module that compiling processes run.
        folders: folders to make, as they are called at home.
        files: digests of files by their paths at home.
        links: where symbolic links point, by their paths at home.
        path: folders in which Python looks for modules first, as they are called at home.
        blobs: the files' contents by digest.
    """

    build: str
    identity: Mapping[str, str]
    variables: Mapping[str, str]
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    ptxas: str = ""
    timeout_s: float | None = None
    memory_bytes: int | None = None
    program: str
    folders: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the session as it travels."""
        return zlib.compress(encode(self.to_json()), _LEVEL)

    @staticmethod
    def from_bytes(data: bytes) -> Session:
        """Return the session that `to_bytes` was given.

        Raises:
            ValueError: it is malformed.
        """
        inflate = zlib.decompressobj()
        try:
            text = inflate.decompress(data, LONGEST_SESSION_BYTES)
        except zlib.error as error:
            raise ValueError(f"a session that cannot be decompressed: {error}") from error
        if not inflate.eof:
            raise ValueError("a session that is too long, or cut")
        return Session.from_json(_decoded(text))


def name_of(session: bytes) -> str:
    """Return the name of a session."""
    return hashlib.sha256(session).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Message):
    """Requests to the compiling processes of one group, answered one after the other.

    Attributes:
        session: the name of the session.
        arch: the group's architecture.
        folders: its folders at home, as in `PATH`.
        declared: the variables that its specs declare; None if not set.
        requests: the requests, as JSON.
        topic: where the worker says that it has begun.
        key: what dask calls this work.
    """

    session: str
    arch: str
    folders: str
    declared: Mapping[str, str | None]
    requests: tuple[Mapping[str, object], ...]
    topic: str
    key: str

    def to_bytes(self) -> bytes:
        """Return the work as it travels."""
        return encode(self.to_json())

    @staticmethod
    def from_bytes(data: bytes) -> Work:
        """Return the work that `to_bytes` was given.

        Raises:
            ValueError: it is malformed.
        """
        return Work.from_json(_decoded(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request, as `tasks.Answer` says it.

    Attributes:
        reply: the compiling process's reply as JSON, None if there is none.
        error: why there is none.
        output: the end of what the process wrote meanwhile.
        place: where in the user's files it was when it died.
        stray_bytes: ignored bytes that came through its channel.
        seconds: how long it took.
    """

    reply: Mapping[str, object] | None = None
    error: PallascError | None = None
    output: str = ""
    place: Location | None = None
    stray_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Message):
    """A dask worker's answer to work.

    Attributes:
        worker: the address of the dask worker.
        lacks: whether it does not have the session.
        refused: why it does not compile for this session, in clauses; empty if it does.
        outcomes: one for each request, if it did.
    """

    worker: str
    lacks: bool = False
    refused: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the result as it travels."""
        return encode(self.to_json())

    @staticmethod
    def from_bytes(data: object) -> Result:
        """Return the result that `to_bytes` was given.

        Raises:
            ValueError: it is malformed.
        """
        if type(data) is not bytes or len(data) > _LONGEST_RESULT_BYTES:
            raise ValueError(f"a result is bytes, not {type(data).__name__}")
        return Result.from_json(_decoded(data))


def _decoded(data: bytes) -> dict[str, object]:
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
