"""The manifest of a bundle: an entry for each variant, found by its key.

`about` of an entry, which follows its key:

* `arch`: the architecture with its suffix, `sm_90a`
* `record`: number of the artifact's record among the blobs
* `blobs`: for each blob of the record, in the order of their digests, its number, or null
* `driver`: `cuda` and `linux` of the minimum driver, as in the record
* `inputs`, `outputs`: `[path, dtype, shape]` of each array, as in the plan; after them its layout,
  where it is not row-major
* `lines`: number of the source lines among the blobs; only where they ship
* `order`: the parameters' names in the order of the matrix
* `reference`: number of its reference values among the blobs (`specs/bundle/reference.py`); only in
  jobs for `pallasc tune run`
* `tune`: what decides where it is used; only of tuned kernels
* `vmap`: the kernel that does the same to a batch, for `jax.vmap`; only where the spec names one

`arch`, `driver`, `inputs` and `outputs` repeat what the record says, so that a variant can be
chosen without reading records; `Bundle.artifact` and `Bundle.verify` compare.

    tune   = { "by": [name…], "over": [name…], "buckets": {name: "pow2" or [edge…]},
               "pad": {name: {path: dimension}}, "round": "up" or "down", "default": flag,
               "rows": [row…], "rank": number }
    row    = { "gpu": model, "key": [value of each of by…], "source": text, "us": number,
               "spread_percent": number, "rounds": number, "device": name, "driver": version,
               "clock_mhz": number, "date": text }

What is as usual is left out: no buckets, no padding, "up", false, no rows, 0. A row uses the
entry's own values of `over`, and its times are of the entry's own artifact, unless `source` says
where they are from. `rank` counts the points of a key from 1 by what is known without a GPU. All
variants of a kernel agree on `by`, `over`, `buckets`, `pad` and `round`, on the values of `over` of
the default, and on what a row of one model and key uses (`specs/bundle/tuned.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.arrays import array_text
from pallasc.specs.bundle.format import CONTENT_SCHEMA, MAX_COUNT
from pallasc.specs.canonical import canonical_json, variant_id
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning, check_padding
from pallasc.specs.untrusted_json import as_list, as_object, as_text, as_whole, fault, parse_json

_END = struct.Struct("<I")
_MAX_RANK = 64
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a variant's signature: `path: dtype[shape]`, row-major without a layout."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    layout: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.path}: {array_text(self.dtype, self.shape, self.layout)}"

    def to_json(self) -> list[object]:
        """Return the array as an entry has it."""
        layout = [] if self.layout is None else [self.layout]
        return [self.path, self.dtype, self.shape, *layout]


@dataclass(frozen=True, slots=True)
class Entry:
    """A variant in a bundle.

    Attributes:
        name: the kernel.
        params: parameters and their values, in the order of the matrix.
        target: the model it was compiled for.
        arch: its architecture.
        inputs, outputs: its signature.
        minimum_driver: `cuda` and `linux`; empty where the artifact does not say.
        record: number of the artifact's record among the blobs.
        blobs: number of each of the record's blobs, in the order of their digests; None for those
            that were left out.
        digest_of: returns the digest of a blob by its number.
        vmap: the kernel that does the same to a batch, None where the spec names none.
        lines: number of its source lines among the blobs, None where none ship.
        tuning: what decides where it is used, None where the kernel is not tuned.
        reference: number of its reference values among the blobs, None where none ship.
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
    digest_of: Callable[[int], str] = field(repr=False, compare=False)
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
        """Return `matmul[m=1024,n=4096]@h100-sxm`, the variant's id."""
        return variant_id(self.name, self.params, self.target)

    @property
    def key(self) -> bytes:
        """What the entry is found by."""
        return entry_key(self.name, self.target, dict(self.params))


def is_name(text: str) -> bool:
    """Tell whether a key can hold a text as the name of a kernel or target."""
    return bool(text) and text.isprintable()


def entry_key(name: str, target: str, params: Mapping[str, Scalar]) -> bytes:
    """Return the key of an entry.

    Raises:
        SpecError: a name that a key cannot hold.
    """
    for text in (name, target):
        if not is_name(text):
            raise SpecError(
                f"{text!r} is not allowed as the name of a kernel or target in a bundle."
            )
    return b"\0".join((name.encode(), target.encode(), canonical_json(dict(params))))


def about_of(
    entry: Entry,
    *,
    record: int | str,
    blobs: Sequence[int | str | None],
    lines: int | str | None = None,
    reference: int | str | None = None,
) -> bytes:
    """Return `about` of an entry, with numbers or with digests of all that it names."""
    return canonical_json(
        {
            "arch": entry.arch,
            "blobs": list(blobs),
            "driver": dict(entry.minimum_driver),
            "inputs": [array.to_json() for array in entry.inputs],
            **({} if lines is None else {"lines": lines}),
            "order": [name for name, _ in entry.params],
            "outputs": [array.to_json() for array in entry.outputs],
            "record": record,
            **({} if reference is None else {"reference": reference}),
            **({} if entry.tuning is None else {"tune": entry.tuning.to_json()}),
            **({} if entry.vmap is None else {"vmap": entry.vmap}),
        }
    )


class Named(NamedTuple):
    """An entry with the digests of what it names.

    Attributes:
        entry: the variant.
        blobs: digest of each of the record's blobs as it ships, None where it was left out.
        lines: that of its source lines, None where none ship.
        reference: that of its reference values, None where none ship.
    """

    entry: Entry
    blobs: Sequence[str | None]
    lines: str | None = None
    reference: str | None = None


def content_digest(entries: Iterable[Named]) -> bytes:
    """Return the digest of what a bundle holds.

    Args:
        entries: all that it has, in the order of their keys.
    """
    state = hashlib.sha256(CONTENT_SCHEMA)
    for entry, blobs, lines, reference in entries:
        about = about_of(entry, record=entry.digest, blobs=blobs, lines=lines, reference=reference)
        state.update(entry.key + b"\n" + about + b"\n")
    return state.digest()


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Return a page of entries, before it is compressed."""
    texts = [
        entry.key
        + b"\n"
        + about_of(
            entry,
            record=entry.record,
            blobs=entry.blobs,
            lines=entry.lines,
            reference=entry.reference,
        )
        for entry in entries
    ]
    ends = bytearray()
    end = 0
    for text in texts:
        end += len(text)
        ends += _END.pack(end)
    return bytes(ends) + b"".join(texts)


class EntryPage:
    """A page of entries, each parsed when it is asked for.

    Args:
        raw: the decompressed page.
        count: entries that it must hold.

    Raises:
        CorruptError: it does not hold them.
    """

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw = raw
        start = count * _END.size
        if len(raw) < start:
            raise CorruptError(f"a page of {len(raw)} bytes has no room for {count} entries")
        ends = struct.unpack_from(f"<{count}I", raw)
        if ends[-1] != len(raw) - start or list(ends) != sorted({0, *ends})[1:]:
            raise CorruptError("the entries of a page do not follow each other")
        self._start = start
        self._bounds = (0, *ends)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def key(self, index: int) -> bytes:
        """Return the key of an entry."""
        return self._parts(index)[0]

    def find(self, key: bytes) -> int:
        """Return the index of the first entry whose key is not less than `key`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def entry(self, index: int, digest_of: Callable[[int], str]) -> Entry:
        """Return an entry.

        Args:
            index: its number on the page.
            digest_of: returns the digest of a blob by its number. The page does not keep it,
                so that an unused bundle is closed at once.

        Raises:
            CorruptError: it is not an entry.
        """
        key, about = self._parts(index)
        try:
            return _entry(key, as_object(parse_json(about)), digest_of)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"entry {key[:80]!r} is damaged: {fault(error)}") from error

    def _parts(self, index: int) -> tuple[bytes, bytes]:
        start, end = self._bounds[index], self._bounds[index + 1]
        text = self._raw[self._start + start : self._start + end]
        key, newline, about = text.partition(b"\n")
        if not newline:
            raise CorruptError(f"entry {text[:80]!r} has an unterminated key")
        return key, about


def _entry(key: bytes, about: Mapping[str, object], digest_of: Callable[[int], str]) -> Entry:
    name, target, params = key.decode().split("\0")
    values = as_object(parse_json(params.encode()))
    order = list(map(as_text, as_list(about["order"])))
    if not (is_name(name) and is_name(target)):
        raise ValueError("a key cannot hold the name of its kernel or target")
    if len(set(order)) != len(values) or len(order) != len(values):
        raise ValueError("its order does not name each parameter once")
    vmap = as_text(about["vmap"]) if "vmap" in about else None
    if vmap is not None and not is_name(vmap):
        raise ValueError("its kernel for batches has no name of a kernel")
    point = {item: _scalar(values[item]) for item in order}
    inputs = tuple(map(parse_array, as_list(about["inputs"])))
    outputs = tuple(map(parse_array, as_list(about["outputs"])))
    return Entry(
        name=name,
        params=tuple(point.items()),
        target=target,
        arch=as_text(about["arch"]),
        inputs=inputs,
        outputs=outputs,
        minimum_driver={k: as_text(v) for k, v in as_object(about["driver"]).items()},
        record=_number(about["record"]),
        blobs=tuple(None if item is None else _number(item) for item in as_list(about["blobs"])),
        digest_of=digest_of,
        vmap=vmap,
        lines=_number(about["lines"]) if "lines" in about else None,
        tuning=_tuning(about, point, (*inputs, *outputs)),
        reference=_number(about["reference"]) if "reference" in about else None,
    )


def _tuning(
    about: Mapping[str, object],
    point: Mapping[str, Scalar],
    arrays: Sequence[Array],
) -> Tuning | None:
    if "tune" not in about:
        return None
    tuning = Tuning.from_json(about["tune"], point)
    check_padding(tuning.pad, point, {array.path: array.shape for array in arrays})
    return tuning


def parse_array(item: object) -> Array:
    """Return an array from `[path, dtype, shape]` or `[path, dtype, shape, layout]`.

    Raises:
        TypeError, ValueError: it is something else.
    """
    path, dtype, sizes, *orders = as_list(item)
    shape = tuple(map(as_whole, as_list(sizes)))
    if len(shape) > _MAX_RANK or not all(0 <= size <= _LARGEST for size in shape):
        raise ValueError(f"{str(shape)[:80]} is not a shape")
    layout = None
    if orders:
        (order,) = orders
        layout = tuple(map(as_whole, as_list(order)))
        if sorted(layout) != list(range(len(shape))):
            raise ValueError(f"{str(layout)[:80]} is not a layout")
    return Array(as_text(path), as_text(dtype), shape, layout)


def _number(value: object) -> int:
    number = as_whole(value)
    if not 0 <= number < MAX_COUNT:
        raise ValueError(f"{number} is not a blob number")
    return number


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{str(value)[:80]} is not the value of a parameter")
