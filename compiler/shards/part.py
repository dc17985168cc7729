"""The part that a shard leaves behind: its artifacts, entries for the lock, and reports, in a file.

    part    = magic { pack } head footer
    magic   = "pallasc-part 1" LF
    pack    = as in `cache/packs/format.py`
    head    = zstd, see `specs/bundle/compress.py`, of JSON in ASCII: an object, see `Head`
    footer  = offset:u64 size:u64 raw:u64 digest:32 "pallasc-part 1" LF
              of the head: place, size, bytes of the JSON, SHA-256 of the `size` bytes there

All numbers are little-endian. The head names each pack by size and SHA-256, in their order, so that
every byte of a part is verified. A pack is closed after the variant with which the files in it have
more than `PACK_BYTES`.

History:
    1  the first version.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from pallasc.compiler.shards.shard import MOST_SHARDS, Shard
from pallasc.errors import CorruptError, SpecError
from pallasc.specs.canonical import canonical_json
from pallasc.specs.lock import Component
from pallasc.specs.lock import Entry as Locked
from pallasc.specs.untrusted_json import as_flag, as_list, as_object, as_text, as_whole, fault
from pallasc.specs.untrusted_json import parse_json as parse

if TYPE_CHECKING:
    from pallasc.cache.packs.format import Entry

MAGIC = b"pallasc-part 1\n"
PACK_BYTES = 64 * 2**20
_FOOTER = struct.Struct("<QQQ32s")
_END_BYTES = _FOOTER.size + len(MAGIC)
_MOST_HEAD_BYTES = 2**30
_SMALL_HEAD_BYTES, _MOST_DENSE = 2**24, 256
"""How much smaller than its JSON a larger head may be: a bound on what is unpacked."""
_LEVEL = 6
_NAME_CHARACTERS = frozenset("0123456789abcdef")


class StoredPack(NamedTuple):
    """A pack of a part: its SHA-256, and its bytes."""

    digest: str
    size: int


class Toolchain(NamedTuple):
    """What compiled a shard: as a lock has it, and as a store remembers it.

    Attributes:
        components: parts by label; empty where no toolchain was known.
        identity: digests by label.
        versions: versions by label.
        jax: digest of JAX's file lists.
    """

    components: Mapping[str, Component]
    identity: Mapping[str, str]
    versions: Mapping[str, str]
    jax: str


class Head(NamedTuple):
    """What a part says of its shard.

    Attributes:
        shard: which one it is.
        rule: version of the rule that variants were divided by (`shard.RULE`).
        costs: digest of the costs that they were divided by, "" for none.
        whole: whether all variants of the specs were listed, so that a lock of them is complete.
        toolchain: what compiled it.
        listed: all variants of all shards, as this job saw them: digests of what they ask for, by
            id, in the order of the specs.
        own: ids of the variants of this shard.
        entries: entries for the lock of those that have an artifact.
        costs_s: their compile times in seconds, where known.
        sources: digests of source files by kernel and label.
        report: what `--json` prints of the build.
        junit: what `--junit` writes of it.
        packs: its packs, in order.
        tables: digest of how each tuned kernel is tuned, by kernel and target.
    """

    shard: Shard
    rule: int
    costs: str
    whole: bool
    toolchain: Toolchain
    listed: Mapping[str, str]
    own: Sequence[str]
    entries: Mapping[str, Locked]
    costs_s: Mapping[str, float]
    sources: Mapping[str, str]
    report: Mapping[str, object]
    junit: str
    packs: Sequence[StoredPack] = ()
    tables: Mapping[str, str] = MappingProxyType({})


class Part:
    """A part that was read; its head is verified, its packs when they are read.

    Attributes:
        file: path, for messages.
        head: what it says of its shard.
        digest: of its head, and so of all of it.
    """

    def __init__(self, file: Path, head: Head, digest: str) -> None:
        self.file = file
        self.head = head
        self.digest = digest

    def packs(self) -> Iterator[bytes]:
        """Yield the bytes of each pack, verified.

        Raises:
            CorruptError: a pack is damaged.
            SpecError: the file can no longer be read.
        """
        with _reading(self.file) as file:
            file.seek(len(MAGIC))
            for pack in self.head.packs:
                data = file.read(pack.size)
                if hashlib.sha256(data).hexdigest() != pack.digest:
                    raise _damaged(self.file, f"its pack {pack.digest} has another SHA-256")
                yield data


def write_part(
    path: Path, head: Head, variants: Iterable[Sequence[Entry]], *, pack_bytes: int = PACK_BYTES
) -> None:
    """Write a part in one step.

    Args:
        path: the file; folders above it are made.
        head: what it says of its shard; `packs` is filled in.
        variants: the files of each variant in the store.
        pack_bytes: a pack is closed when its files have more.

    Raises:
        SpecError: it cannot be written.
        CorruptError: a file of the store is too large for a pack.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(MAGIC)
                packs = list(_write_packs(file, variants, pack_bytes))
                file.write(_end(head._replace(packs=packs), file.tell()))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}.", hint="Give --shard-output another path."
        ) from error


def _write_packs(
    file: BinaryIO, variants: Iterable[Sequence[Entry]], pack_bytes: int
) -> Iterator[StoredPack]:
    from pallasc.cache.packs.writer import PackWriter

    writer: PackWriter | None = None
    size = 0
    for entries in variants:
        writer = writer or PackWriter(file)
        writer.add(entries)
        size += sum(len(entry.data) for entry in entries)
        if size > pack_bytes:
            yield StoredPack(*writer.close()[:2])
            writer, size = None, 0
    if writer is not None:
        yield StoredPack(*writer.close()[:2])


def _end(head: Head, offset: int) -> bytes:
    """Return head and footer of a part."""
    from pallasc.specs.bundle.compress import compress

    raw = canonical_json(_to_json(head))
    stored = compress(raw, _LEVEL)
    digest = hashlib.sha256(stored).digest()
    return stored + _FOOTER.pack(offset, len(stored), len(raw), digest) + MAGIC


def _to_json(head: Head) -> dict[str, object]:
    return {
        **head._asdict(),
        "shard": list(head.shard),
        "toolchain": {
            **head.toolchain._asdict(),
            "components": {k: list(v) for k, v in head.toolchain.components.items()},
        },
        "listed": [[name, request] for name, request in head.listed.items()],
        "own": list(head.own),
        "entries": {name: list(entry) for name, entry in head.entries.items()},
        "packs": [list(pack) for pack in head.packs],
        "tables": dict(head.tables),
    }


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a part.

    Raises:
        SpecError: it does not exist, or cannot be read.
    """
    from pallasc.specs.user_files import check_regular

    try:
        check_regular(str(path))
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise SpecError(
            f"{path}: there is no such file.",
            hint="Name the files that the shards wrote with --shard-output.",
        ) from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error


def _damaged(path: Path, what: str) -> CorruptError:
    return CorruptError(
        f"{path} is damaged: {what}.", hint="Fetch it once more, or build that shard again."
    )


def read_part(path: Path) -> Part:
    """Return the part that a file holds.

    Raises:
        SpecError: it does not exist, or cannot be read.
        CorruptError: it is not a part, is damaged, or was written by a later pallasc.
    """
    with _reading(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        _check_magic(path, file.read(len(MAGIC)))
        file.seek(max(0, size - _END_BYTES))
        end = file.read()
        if size < len(MAGIC) + _END_BYTES or not end.endswith(MAGIC):
            raise _damaged(path, "it does not end as a part does, so it was cut short")
        offset, stored_bytes, raw_bytes, digest = _FOOTER.unpack(end[: _FOOTER.size])
        most_bytes = min(_MOST_HEAD_BYTES, max(_SMALL_HEAD_BYTES, stored_bytes * _MOST_DENSE))
        if offset + stored_bytes + _END_BYTES != size or raw_bytes > most_bytes:
            raise _damaged(path, "its footer contradicts its size")
        file.seek(offset)
        stored = file.read(stored_bytes)
    if hashlib.sha256(stored).digest() != digest:
        raise _damaged(path, "its head has another SHA-256")
    head = _read_head(path, stored, raw_bytes)
    if len(MAGIC) + sum(pack.size for pack in head.packs) != offset:
        raise _damaged(path, "the packs that its head names are not those that it holds")
    return Part(path, head, digest.hex())


def _check_magic(path: Path, begin: bytes) -> None:
    if begin == MAGIC:
        return
    name = MAGIC.partition(b" ")[0]
    if begin.startswith(name):
        raise CorruptError(
            f"{path} is a part of another version than this pallasc reads.",
            hint="Use one version of pallasc in all jobs.",
        )
    raise CorruptError(
        f"{path} is not a part of a sharded build.",
        hint="Name the files that the shards wrote with --shard-output.",
    )


def _read_head(path: Path, stored: bytes, raw_bytes: int) -> Head:
    from pallasc.specs.bundle.compress import decompress

    try:
        return _from_json(as_object(parse(decompress(stored, raw_bytes))))
    except (CorruptError, KeyError, TypeError, ValueError) as error:
        message = error.message if isinstance(error, CorruptError) else fault(error)
        raise _damaged(path, f"its head is malformed: {message}") from None


def _from_json(data: Mapping[str, object]) -> Head:
    number, of = map(as_whole, as_list(data["shard"]))
    if not 1 <= number <= of <= MOST_SHARDS:
        raise ValueError(f"there is no shard {number}/{of}")
    toolchain = as_object(data["toolchain"])
    return Head(
        shard=Shard(number, of),
        rule=as_whole(data["rule"]),
        costs=as_text(data["costs"]),
        whole=as_flag(data["whole"]),
        toolchain=Toolchain(
            {
                label: Component(*map(as_text, as_list(each)))
                for label, each in as_object(toolchain["components"]).items()
            },
            _texts(toolchain["identity"]),
            _texts(toolchain["versions"]),
            as_text(toolchain["jax"]),
        ),
        listed=dict(_pair(each) for each in as_list(data["listed"])),
        own=[as_text(each) for each in as_list(data["own"])],
        entries={
            name: Locked(*map(_name, as_list(each)))
            for name, each in as_object(data["entries"]).items()
        },
        costs_s={name: _seconds(each) for name, each in as_object(data["costs_s"]).items()},
        sources=_texts(data["sources"]),
        report=as_object(data["report"]),
        junit=as_text(data["junit"]),
        packs=[_pack(each) for each in as_list(data["packs"])],
        tables=_texts(data.get("tables", {})),
    )


def _texts(value: object) -> dict[str, str]:
    return {label: as_text(each) for label, each in as_object(value).items()}


def _pair(value: object) -> tuple[str, str]:
    name, request = map(as_text, as_list(value))
    return name, request


def _name(value: object) -> str:
    text = as_text(value)
    if len(text) != 64 or not _NAME_CHARACTERS.issuperset(text):
        raise ValueError(f"{text[:80]!r} is not a digest")
    return text


def _seconds(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 9e9:  # type: ignore[operator]
        raise ValueError(f"{repr(value)[:80]} is not a time")
    return float(value)  # type: ignore[arg-type]


def _pack(value: object) -> StoredPack:
    digest, size = as_list(value)
    if as_whole(size) < 0:
        raise ValueError("a pack has a negative size")
    return StoredPack(_name(digest), as_whole(size))
