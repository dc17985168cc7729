"""The manifest of a bundle: an entry for each variant, found by its key.

`about` of an entry, which follows its key:

* `arch`: the architecture with its suffix, `sm_90a`
* `record`: number of the artifact's record among the blobs
* `blobs`: the number of each of the record's blobs, in the order of their digests; null for a blob
  that was left out
* `driver`: `cuda` and `linux` of the minimum driver, as in the record
* `inputs`, `outputs`: `[path, dtype, shape]` of each array, as in the plan, followed by its layout
  if it is not row-major
* `lines`: number of the source lines among the blobs; only if they ship
* `order`: the parameters' names in the order of the matrix
* `reference`: number of its reference values among the blobs (`specs/bundle/tuned.py`); only in
  jobs for `pallasc tune run`
* `tune`: tuning data, which decides which calls use the variant; only for tuned kernels
* `vmap`: the kernel that does the same for a batch, for `jax.vmap`; only if the spec names one

`arch`, `driver`, `inputs`, and `outputs` repeat data of the record, so that a variant can be chosen
without reading records; `Bundle.artifact` and `verify` compare them.

    tune   = { "by": [name…], "over": [name…], "buckets": {name: "pow2" or [edge…]},
               "pad": {name: {path: dimension}}, "default": flag, "rows": [row…],
               "rank": number }
    row    = { "gpu": model, "key": [value of each of by…], "source": text, "us": number,
               "spread_percent": number, "rounds": number, "device": name, "driver": version,
               "clock_mhz": number, "date": text }

Defaults are omitted: no buckets, no padding, false, no rows, 0. A row uses the entry's own
values of `over`, and its times are for the entry's own artifact, unless `source` names another
origin. `rank` orders the points of a key, from 1, by their speed as estimated without a GPU. All
variants of a kernel agree on `by`, `over`, `buckets`, and `pad`, on the default's values of `over`,
and, for each model and key, on the row's values of `over` (`specs/bundle/tuned.py`).

**Provenance** is a JSON array with an object for each merged bundle, sorted by canonical text. It
has no times, folders, or machines, so the same sources give the same bytes:

* `builder`: the program that made the bundle, "pallasc 0.2.0"
* `toolchain`: version of each part of the toolchain, by name
* `specs`: digest of each spec file, by its name relative to the project
* `commit`: the commit of the sources, null if they are in no repository
* `dirty`: true if the sources differed from the commit, null if unknown
* `changed`: names of files that differed, relative to the repository, at most 20; omitted if there
  are none
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct, ValidationError, convert, structs, to_builtins

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.format import MAX_PROVENANCE_BYTES, pack_ends
from pallasc.specs.canonical import Natural, Scalar, canonical_json, parse_json, variant_id
from pallasc.specs.spelling import listed
from pallasc.specs.tuning import Tuning, check_padding

MOST_CHANGED = 20
"""Maximum number of recorded names of files that differed."""

_CONTENT_SCHEMA = b"pallasc bundle content 1\n"
_MAX_RANK = 64
_MOST_SHOWN = 5


class Array(NamedTuple):
    """An array of a variant's signature: `path: dtype[shape]`, row-major without a layout."""

    path: str
    dtype: str
    shape: tuple[Natural, ...]
    layout: tuple[Natural, ...] | None = None

    def __str__(self) -> str:
        return f"{self.path}: {array_text(self.dtype, self.shape, self.layout)}"

    def to_json(self) -> list[object]:
        """Return the form used in an entry."""
        return [*self] if self.layout is not None else [*self[:-1]]


class Entry(Struct, frozen=True):
    """A variant in a bundle.

    Attributes:
        name: the kernel.
        params: parameters and their values, in the order of the matrix.
        target: the model it was compiled for.
        arch: its architecture.
        inputs, outputs: its signature.
        minimum_driver: `cuda` and `linux`; empty if the artifact has none.
        record: number of the artifact's record among the blobs.
        blobs: number of each of the record's blobs, in the order of their digests; None for a blob
            that was left out.
        digest_of: returns the digest of a blob by its number.
        vmap: the kernel that does the same for a batch, None if the spec names none.
        lines: number of its source lines among the blobs, None if they do not ship.
        tuning: its tuning data, None if the kernel is not tuned.
        reference: number of its reference values among the blobs, None if they do not ship.
    """

    name: str
    params: tuple[tuple[str, Scalar], ...]
    target: str
    arch: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    minimum_driver: Mapping[str, str]
    record: int
    blobs: tuple[int | None, ...]
    digest_of: Callable[[int], str]
    vmap: str | None = None
    lines: int | None = None
    tuning: Tuning | None = None
    reference: int | None = None

    @property
    def digest(self) -> str:
        """The artifact's digest, as in store and lock.

        The shipped artifact's digest differs if debug sections or PTX were left out.
        """
        return self.digest_of(self.record)

    @property
    def id(self) -> str:
        """The variant's id, `matmul[m=1024,n=4096]@h100-sxm`."""
        return variant_id(self.name, self.params, self.target)

    @property
    def key(self) -> bytes:
        """The key of the entry."""
        return entry_key(self.name, self.target, dict(self.params))

    @property
    def numbers(self) -> list[int]:
        """Numbers of all its blobs."""
        named = (self.record, *self.blobs, self.lines, self.reference)
        return [number for number in named if number is not None]


class Item(Struct, frozen=True):
    """A variant to put into a bundle.

    Attributes:
        name: the kernel.
        params: parameters and their values, in the order of the matrix.
        artifact: the artifact as it was compiled.
        vmap: the kernel that does the same for a batch, None if the spec names none.
        lines: the record of its source lines, None if there are none.
        tuning: its tuning data, None if the kernel is not tuned.
        reference: its reference values (`specs/bundle/tuned.py`), None if there are none.
        read: returns the bytes of a blob by its digest, None if the bundle that the item comes from
            lacks them; if `read` is None, blobs come from the artifact.
    """

    name: str
    params: Mapping[str, Scalar]
    artifact: Artifact
    vmap: str | None = None
    lines: bytes | None = None
    tuning: Tuning | None = None
    reference: bytes | None = None
    read: Callable[[str], bytes | None] | None = None

    @property
    def target(self) -> str:
        """The model that it was compiled for."""
        return self.artifact.target.name

    @property
    def id(self) -> str:
        """The variant's id."""
        return variant_id(self.name, self.params.items(), self.target)


def is_name(text: str) -> bool:
    """Return True if a text can be the name of a kernel or target in a key."""
    return bool(text) and text.isprintable()


def entry_key(name: str, target: str, params: Mapping[str, Scalar]) -> bytes:
    """Return the key of an entry.

    Raises:
        SpecError: a name cannot be part of a key.
    """
    for text in (name, target):
        if not is_name(text):
            raise SpecError(
                f"{text!r} is not allowed as the name of a kernel or target in a bundle."
            )
    return b"\0".join((name.encode(), target.encode(), canonical_json(dict(params))))


def arrays_of(bindings: Iterable[Binding]) -> tuple[Array, ...]:
    """Return the arrays of a plan's signature."""
    return tuple(Array(own.path, own.dtype, own.shape, own.layout) for own in bindings)


# ---- packing


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Return an uncompressed page of entries."""
    texts = [entry.key + b"\n" + _about(entry, lambda number: number) for entry in entries]
    return pack_ends(texts) + b"".join(texts)


def content_digest(entries: Iterable[Entry]) -> bytes:
    """Return the digest of a bundle's content, given its entries sorted by key."""
    state = hashlib.sha256(_CONTENT_SCHEMA)
    for entry in entries:
        state.update(entry.key + b"\n" + _about(entry, entry.digest_of) + b"\n")
    return state.digest()


def _about(entry: Entry, name_of: Callable[[int], int | str]) -> bytes:
    """Return `about` of an entry; `name_of` returns the name of each blob: its number or digest."""

    def named(number: int | None) -> int | str | None:
        return None if number is None else name_of(number)

    about: dict[str, object] = {
        "arch": entry.arch,
        "blobs": list(map(named, entry.blobs)),
        "driver": dict(entry.minimum_driver),
        "inputs": [array.to_json() for array in entry.inputs],
        "lines": named(entry.lines),
        "order": [name for name, _ in entry.params],
        "outputs": [array.to_json() for array in entry.outputs],
        "record": named(entry.record),
        "reference": named(entry.reference),
        "tune": entry.tuning and entry.tuning.to_json(),
        "vmap": entry.vmap,
    }
    return canonical_json({name: value for name, value in about.items() if value is not None})


# ---- parsing


def split_page(page: bytes, count: int) -> list[bytes]:
    """Split a page into the texts of its `count` entries.

    Raises:
        CorruptError: the page does not have this many entries.
    """
    start = count * 4
    if len(page) < start:
        raise CorruptError(f"a page of {len(page)} bytes has no room for {count} entries")
    ends = (0, *struct.unpack_from(f"<{count}I", page))
    if ends[-1] != len(page) - start or not all(a < b for a, b in pairwise(ends)):
        raise CorruptError("the entries of a page do not follow each other")
    return [page[start + a : start + b] for a, b in pairwise(ends)]


def key_of(text: bytes) -> bytes:
    """Return the key in an entry's text.

    Raises:
        CorruptError: the text has no key.
    """
    key, newline, _ = text.partition(b"\n")
    if not newline:
        raise CorruptError(f"entry {text[:80]!r} has an unterminated key")
    return key


def parse_entry(text: bytes, digest_of: Callable[[int], str]) -> Entry:
    """Parse an entry.

    Args:
        text: its text on the page.
        digest_of: returns the digest of a blob by its number.

    Raises:
        CorruptError: the text is not an entry.
    """
    key = key_of(text)
    try:
        about = convert(parse_json(text[len(key) + 1 :]), _About)
        return _entry(key, about, digest_of)
    except ValueError as error:
        raise CorruptError(f"entry {key[:80]!r} is damaged: {error}") from error


class _About(Struct, frozen=True):
    """`about` of an entry, as parsed."""

    arch: str
    blobs: tuple[Natural | None, ...]
    driver: Mapping[str, str]
    inputs: tuple[Array, ...]
    order: tuple[str, ...]
    outputs: tuple[Array, ...]
    record: Natural
    lines: Natural | None = None
    reference: Natural | None = None
    tune: Any = None
    vmap: str | None = None


def _entry(key: bytes, about: _About, digest_of: Callable[[int], str]) -> Entry:
    name, target, params = key.decode().split("\0")
    values = convert(parse_json(params.encode()), Mapping[str, Scalar])
    if not (is_name(name) and is_name(target)):
        raise ValueError("its kernel or target has a name that is not allowed")
    if sorted(about.order) != sorted(values):
        raise ValueError("`order` does not name each parameter exactly once")
    if about.vmap is not None and not is_name(about.vmap):
        raise ValueError("`vmap` is not a name that a kernel can have")
    point = {item: values[item] for item in about.order}
    arrays = (*about.inputs, *about.outputs)
    for array in arrays:
        rank = len(array.shape)
        if rank > _MAX_RANK or sorted(array.layout or range(rank)) != list(range(rank)):
            raise ValueError(f"{str(array)[:80]} is not an array")
    tuning = None
    if about.tune is not None:
        tuning = Tuning.from_json(about.tune, point)
        check_padding(tuning.pad, point, {array.path: array.shape for array in arrays})
    fields = structs.asdict(about)
    del fields["order"], fields["tune"]
    return Entry(
        name=name,
        params=tuple(point.items()),
        target=target,
        minimum_driver=fields.pop("driver"),
        digest_of=digest_of,
        tuning=tuning,
        **fields,
    )


# ---- provenance


class Provenance(Struct, frozen=True):
    """The sources and tools that a bundle was made from; the fields are the fields of the JSON."""

    builder: str = ""
    toolchain: Mapping[str, str] = {}
    specs: Mapping[str, str] = {}
    commit: str | None = None
    dirty: bool | None = None
    changed: tuple[str, ...] = ()


def differing(origin: Provenance) -> str:
    """Return a clause that names the sources of a bundle that differ from their commit."""
    names = ", ".join(listed(origin.changed, _MOST_SHOWN))
    clause = f"it was made from files that differ from commit {(origin.commit or '')[:12]}"
    return f"{clause}: {names}" if names else clause


def pack_provenance(origins: Iterable[Provenance]) -> bytes:
    """Return the bytes of a bundle's provenance; no bytes if there is nothing to record.

    Raises:
        SpecError: the provenance has too many bytes.
    """
    records = list(map(to_builtins, origins))
    for record in records:
        if not record["changed"]:
            del record["changed"]
    texts = sorted(set(map(canonical_json, records)))
    data = b"[" + b",".join(texts) + b"]" if texts else b""
    if len(data) > MAX_PROVENANCE_BYTES:
        raise SpecError(
            f"the provenance is {len(data)} bytes; the limit is {MAX_PROVENANCE_BYTES}.",
            hint="Name fewer spec files.",
        )
    return data


def parse_provenance(data: bytes) -> tuple[Provenance, ...]:
    """Parse the provenance of a bundle; fields of later minor versions are dropped.

    Raises:
        CorruptError: the data is malformed.
    """
    try:
        return convert(parse_json(data or b"[]"), tuple[Provenance, ...])
    except ValidationError as error:
        raise CorruptError(f"the provenance is damaged: {error}") from error
