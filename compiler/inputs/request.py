"""Request keys: the keys under which a build looks variants up in the store.

A request key is computed from the spec and the toolchain without importing anything, so a hit does
not load JAX. Parts that many variants share are computed once per build: the toolchain's key, and
all fields of a kernel except its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.toolchain.identity import PROGRAMS, own_digest
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.setup import Context, declared_fields
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.canonical import canonical_text, labelled_key
from pallasc.specs.entries import Entry, parse_entry
from pallasc.specs.spec import Variant, plain_args

if TYPE_CHECKING:
    from pallasc.specs.program import Program

MANIFEST_SCHEMA = 4
"""The schema of the manifests that request keys lead to: see `manifest`."""

_PLAIN = (str, int, float, type(None), ArraySpec)


class Request(Struct, frozen=True):
    """A variant's key, and the folders that its sources come from.

    Equal specs in two folders have the same key; the files that they read are compared in `lookup`.

    Attributes:
        key: request key.
        place: folders in which modules and files are searched for.
    """

    key: str
    place: Place


class Requests:
    """Computes the requests of one build.

    Args:
        context: the toolchain's identity and the digests of files.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._toolchain = labelled_key(_toolchain_fields(context))
        self._shared: dict[tuple[object, ...], dict[str, str]] = {}
        self._places: dict[tuple[str, ...], Place] = {}

    def of(self, variant: Variant) -> Request:
        """Return the request of a variant.

        Raises:
            ToolError: a declared data file cannot be read.
        """
        kernel = (
            variant.entry, variant.base_dir, variant.files, variant.env, variant.mesh,
            variant.target, variant.program and id(variant.program),
        )  # fmt: skip
        shared = self._shared.get(kernel)
        if shared is None:
            fields = _shared_fields(variant, self._context.digests)
            shared = self._shared[kernel] = {**fields, "toolchain": self._toolchain}
        entries = (variant.base_dir, *_names_of_entries(variant))
        if entries not in self._places:
            self._places[entries] = place_of(variant)
        key = labelled_key({**shared, **_own_fields(variant)})
        return Request(key, self._places[entries])


def request_fields(variant: Variant, context: Context) -> dict[str, str]:
    """Return the labeled fields of a request key, as text.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    shared = _shared_fields(variant, context.digests)
    return _own_fields(variant) | shared | _toolchain_fields(context)


def data_digests(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the digests of the data files that a variant declares.

    Raises:
        ToolError: a data file cannot be read.
    """
    return {name: digests.digest(Path(variant.base_dir) / name) for name in variant.files}


def place_of(variant: Variant) -> Place:
    """Return the folders in which a compilation searches for modules and files."""
    base = Path(variant.base_dir)
    folders = (
        str((base / entry.source).resolve().parent) if entry.is_file else variant.base_dir
        for entry in named_entries(variant)
    )
    return Place(variant.base_dir, tuple(dict.fromkeys(folders)))


def named_entries(variant: Variant) -> list[Entry]:
    """Return the entry points that a compilation imports, including those in `$call` and `$ref`."""
    return [parse_entry(entry) for entry in _names_of_entries(variant)]


def _own_fields(variant: Variant) -> dict[str, str]:
    """Return the fields that differ between variants of a kernel."""
    return {
        "args": canonical_text(plain_args(variant.args)),
        "static": canonical_text(variant.static),
    }


def _shared_fields(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the fields that the variants of a kernel for one target share."""
    data = data_digests(variant, digests)
    return {
        "manifest": str(MANIFEST_SCHEMA),
        "entry": canonical_text(variant.entry),
        "files": canonical_text(sorted(variant.files)),
        "target": canonical_text(variant.target.figures()),
        "architecture": canonical_text(variant.target.facts()),
        "target name": variant.target.name,
        **({"mesh": canonical_text(variant.mesh)} if variant.mesh else {}),
        **(_program_fields(variant.program, digests) if variant.program else {}),
        **{f"data {name}": value for name, value in data.items()},
        **(declared_fields(variant.env) if variant.env else {}),
    }


def _program_fields(program: Program, digests: FileDigests) -> dict[str, str]:
    code = own_digest(digests.digest, PROGRAMS)
    return {"program": canonical_text(program.request()), "program code": code}


def _toolchain_fields(context: Context) -> dict[str, str]:
    return {
        **{f"tool {label}": value for label, value in context.identity.items()},
        **{f"variable {name}": value for name, value in context.variables.items()},
    }


def _names_of_entries(variant: Variant) -> list[str]:
    """Return the entry points that a compilation imports, as the spec writes them."""
    args = variant.args if isinstance(variant.args, list) else variant.args.values()
    values = (*variant.static.values(), *args)
    nested = [value for value in values if not isinstance(value, _PLAIN)]
    return [variant.entry, *_entries_in(nested)] if nested else [variant.entry]


def _entries_in(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _entries_in(item)
    elif isinstance(value, Mapping):
        yield from (value[key] for key in ("$call", "$ref") if key in value)
        yield from _entries_in([*value.values()])
