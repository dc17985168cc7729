"""Variants of a bundle as sources for CMake: flat plans, tables, and the C library's sources.

    include/NAME/NAME.h        the functions: NAME_KERNEL, NAME_KERNEL_prepare, NAME_last_error
    NAME.c                     tables of variants, and __tvm_ffi_KERNEL for hosts of tvm-ffi
    CMakeLists.txt             one library NAME
    plans/VARIANT.plan         the flat plan of each variant, which NAME.c includes
    pallasc/, pallasc/export/  the C library's sources
    pallasc/include/           its headers for programs

The same variants give the same bytes. Names in a bundle are data from strangers: as files they are
letters, digits and few signs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pallasc.errors import SpecError, ToolError
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.c_text import CKernel, CVariant, cmake_text, header_text, source_text
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.tuned import chosen_entries, untuned
from pallasc.specs.bundle.unpack import DEFAULT_MOST_BYTES, check_size
from pallasc.specs.canonical import digest
from pallasc.specs.made_folder import replace_folder
from pallasc.specs.tuning import How

LIBRARY_SOURCES = (
    *("cubin.c", "cuda_abi.h", "driver.c", "driver.h", "driver_functions.h", "errors.c"),
    *("errors.h", "export/kernels.c", "export/kernels.h", "export/pallasc_tensor.h"),
    *("export/tvm_ffi.c", "flat_plan.h", "include/pallasc.h", "launch.c", "map_rules.c"),
    *("plan.c", "plan.h", "prepare.c", "prepare.h", "sha256.c", "sha256.h", "text.c", "text.h"),
)
"""What programs need of the C library's sources; the others are for Python and JAX."""

_PLACES = {"export/pallasc_tensor.h": "include/pallasc_tensor.h"}
"""Where else an export has them: beside the other header that programs include."""

_TARGETS_OF_CMAKE = frozenset(
    (
        *("all", "all_build", "clean", "cmake", "codegen", "continuous", "default_target"),
        *("depend", "edit_cache", "experimental", "help", "install", "list_install_components"),
        *("nightly", "package", "package_source", "preinstall", "rebuild_cache", "run_tests"),
        *("test", "zero_check"),
    )
)
"""What CMake, CTest or CPack call targets of their own, in lower case."""

_SYSTEM_LIBRARIES = frozenset(
    (
        *("asan", "atomic", "c", "crypt", "cuda", "cudart", "dl", "gcc", "gcc_s", "gomp", "m"),
        *("nvrtc", "pthread", "resolv", "rt", "tsan", "ubsan", "util"),
    )
)
"""Libraries that a program may link by these names."""

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_LONGEST = 100
_LONGEST_NAME = 40
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ExportedVariant:
    """A variant.

    Attributes:
        id: its id.
        arch: its architecture.
        file: that of its flat plan, in the folder.
        size: bytes of that.
        chosen_by: what a tuned kernel's variant is taken by, None where it was the only one.
    """

    id: str
    arch: str
    file: str
    size: int
    chosen_by: How | None = None


@dataclass(frozen=True, slots=True)
class ExportedKernel:
    """A kernel.

    Attributes:
        name: its name.
        function: the C function that launches it.
        variants: what it chooses among.
        left_out: how many variants are not there because a table chooses others.
    """

    name: str
    function: str
    variants: tuple[ExportedVariant, ...]
    left_out: int = 0


def export_c(
    bundle: Bundle,
    entries: Sequence[Entry],
    folder: Path,
    *,
    name: str,
    native: Path,
    version: str,
    most_bytes: int | None = DEFAULT_MOST_BYTES,
) -> list[ExportedKernel]:
    """Write the folder.

    Args:
        bundle: what to read.
        entries: which of its variants.
        folder: where to; it is replaced where nobody has changed it.
        name: of the library, and what its functions begin with.
        native: where the C library's sources lie.
        version: of pallasc.
        most_bytes: what may be written in all, None for any amount.

    Raises:
        SpecError: names collide, variants cannot be told apart, there is too much, or the folder
            cannot be written.
        CorruptError: the bundle is damaged.
        UnsupportedError: a variant cannot be a flat plan.
        ToolError: the C library's sources are not there.
    """
    _check_name(name)
    chosen = chosen_entries(entries)
    check_size(bundle, [own for own, _ in chosen.values()], most_bytes)
    kernels = _kernels(bundle, [own for own, _ in chosen.values()], name)
    counts = Counter(entry.name for entry in entries)
    sources = _library_sources(native)
    sizes: dict[str, int] = {}

    def files() -> Iterator[tuple[str, bytes]]:
        for source in sources:
            yield f"pallasc/{source}", sources[source]
        for kernel in kernels:
            for variant in kernel.variants:
                plan = flat_plan(variant.artifact, name=variant.entry.id)
                sizes[variant.file] = len(plan)
                yield variant.file, plan
        yield f"include/{name}/{name}.h", header_text(name, kernels).encode("ascii")
        yield f"{name}.c", source_text(name, kernels, sizes).encode("ascii")
        yield "CMakeLists.txt", cmake_text(name, [*sources], version).encode("ascii")

    replace_folder(folder, files())
    return [
        ExportedKernel(
            kernel.name,
            f"{name}_{kernel.identifier}",
            tuple(
                ExportedVariant(
                    own.entry.id,
                    own.entry.arch,
                    own.file,
                    sizes[own.file],
                    chosen[own.entry.id][1],
                )
                for own in kernel.variants
            ),
            counts[kernel.name] - len(kernel.variants),
        )
        for kernel in kernels
    ]


def _library_sources(native: Path) -> Mapping[str, bytes]:
    """Return the sources of the C library that programs need, by their places in the export.

    Raises:
        ToolError: they are not there, or cannot be read.
    """
    try:
        return {_PLACES.get(name, name): (native / name).read_bytes() for name in LIBRARY_SOURCES}
    except OSError as error:
        raise ToolError(
            f"this pallasc has no sources of its C library to export: {error.filename}: "
            f"{error.strerror}.",
            hint="Install pallasc again.",
        ) from error


def name_from(file: str) -> str:
    """Return the name of a library that a bundle's file suggests."""
    own = _FOREIGN.sub("_", file.removesuffix(".pallasc"))[:_LONGEST_NAME]
    return "kernels" if _why_not(own) else own


def _check_name(name: str) -> None:
    if why := _why_not(name):
        raise SpecError(
            f"--name {why}, got {name!r}.", hint="C functions and the library are named after it."
        )


def _why_not(name: str) -> str:
    """Return what a name of a library must not be, "" where it may be this."""
    if not _IDENTIFIER.fullmatch(name) or len(name) > _LONGEST_NAME:
        return (
            f"must begin with a letter and go on with at most {_LONGEST_NAME - 1} letters, digits "
            "and underscores"
        )
    lower = name.lower()
    if lower.startswith("pallasc"):
        return "must not begin with pallasc, as functions of the C library do"
    if lower in _TARGETS_OF_CMAKE:
        return "must not be a target of CMake's own"
    if lower in _SYSTEM_LIBRARIES:
        return "must not be a library of the system's"
    return ""


# ---- which kernels and variants


def _kernels(bundle: Bundle, entries: Sequence[Entry], name: str) -> list[CKernel]:
    grouped: dict[str, list[Entry]] = {}
    for entry in entries:
        grouped.setdefault(entry.name, []).append(entry)
    functions = {f"{name}_last_error": "the function for errors"}
    taken: set[str] = set()
    kernels = []
    for kernel, own in grouped.items():
        identifier = _FOREIGN.sub("_", kernel)
        for ending in ("", "_prepare"):
            function = f"{name}_{identifier}{ending}"
            if function in functions:
                raise SpecError(
                    f"kernel {kernel} and {functions[function]} would both be {function} in C.",
                    hint="Choose variants with -k.",
                )
            functions[function] = f"kernel {kernel}"
        _check_distinct(own)
        variants = (
            CVariant(entry, bundle.artifact(entry), _plan_file(entry.id, taken)) for entry in own
        )
        kernels.append(CKernel(kernel, identifier, tuple(variants)))
    return kernels


def _check_distinct(entries: Sequence[Entry]) -> None:
    """Refuse variants of one kernel that only parameters tell apart: C passes none."""
    seen: dict[object, Entry] = {}
    for entry in entries:
        first = seen.setdefault((entry.arch, entry.inputs), entry)
        # Of several models of an architecture C takes the likest, whose own rows then count.
        rest = untuned if first.target != entry.target else lambda own: own.params
        if dict(rest(first)) != dict(rest(entry)):
            raise SpecError(
                f"{first.id} and {entry.id} take the same arrays, and C functions choose by them.",
                hint="Choose one of them with -k.",
            )


def _plan_file(variant: str, taken: set[str]) -> str:
    own = re.sub(r"[^A-Za-z0-9_.]+", "-", variant).strip("-.")[:_LONGEST]
    if not own or own.lower() in taken:
        own = f"{own}-{digest(variant.encode('utf-8', 'backslashreplace'))[:_DIGITS]}"
    taken.add(own.lower())
    return f"plans/{own}.plan"
