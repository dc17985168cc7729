"""Variants of a bundle as sources for CMake: flat plans, tables, and the C library's sources.

    NAME.h                     the functions: NAME_KERNEL, NAME_KERNEL_prepare, NAME_last_error
    NAME.c                     tables of variants, and __tvm_ffi_KERNEL for hosts of tvm-ffi
    CMakeLists.txt             one library NAME
    plans/VARIANT.plan         the flat plan of each variant, which NAME.c includes
    pallasc/, pallasc/export/  the C library's sources

The same variants give the same bytes. Names in a bundle are data from strangers: as identifiers and
files they are letters, digits and few signs; within literals and comments they are made harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.unpack import DEFAULT_MOST_BYTES, check_size
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import ARCH
from pallasc.specs.made_folder import replace_folder

_NOT_FOR_PROGRAMS = {"host.c", "host.h", "python.c", "steps.c", "steps.h", "xla.c", "xla_ffi.h"}
"""What of the C library's sources is for Python and JAX."""

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_LONGEST = 100
_LONGEST_NAME = 40
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ExportedVariant:
    """A variant: its id, architecture, the file of its flat plan in the folder, its bytes."""

    id: str
    arch: str
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class ExportedKernel:
    """A kernel: its name, the C function that launches it, its variants."""

    name: str
    function: str
    variants: tuple[ExportedVariant, ...]


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant, and what tables say of it."""

    entry: Entry
    artifact: Artifact
    file: str

    @property
    def signature(self) -> Signature:
        """What it takes; not kept, as there may be many."""
        return Signature.of(self.artifact.plan)


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    identifier: str
    variants: tuple[_Variant, ...]


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
    """
    _check_name(name)
    check_size(bundle, [*entries], most_bytes)
    kernels = _kernels(bundle, entries, name)
    sources = _library_sources(native)
    sizes: dict[str, int] = {}

    def files() -> Iterator[tuple[str, bytes]]:
        for source in sources:
            yield f"pallasc/{source}", (native / source).read_bytes()
        for kernel in kernels:
            for variant in kernel.variants:
                plan = flat_plan(variant.artifact, name=variant.entry.id)
                sizes[variant.file] = len(plan)
                yield variant.file, plan
        yield f"{name}.h", _header(name, kernels).encode("ascii")
        yield f"{name}.c", _source(name, kernels, sizes).encode("ascii")
        yield "CMakeLists.txt", _cmake(name, sources, version).encode("ascii")

    replace_folder(folder, files())
    return [
        ExportedKernel(
            kernel.name,
            f"{name}_{kernel.identifier}",
            tuple(
                ExportedVariant(own.entry.id, own.entry.arch, own.file, sizes[own.file])
                for own in kernel.variants
            ),
        )
        for kernel in kernels
    ]


def _library_sources(native: Path) -> list[str]:
    """Return the files of the C library that programs need, below its folder."""
    found = (
        path.relative_to(native).as_posix()
        for pattern in ("*.[ch]", "include/*.h", "export/*.[ch]")
        for path in native.glob(pattern)
    )
    return sorted(name for name in found if name not in _NOT_FOR_PROGRAMS)


def name_from(file: str) -> str:
    """Return the name of a library that a bundle's file suggests."""
    own = _FOREIGN.sub("_", file.removesuffix(".pallasc"))[:_LONGEST_NAME]
    return own if _IDENTIFIER.fullmatch(own) and own != "pallasc" else "kernels"


def _check_name(name: str) -> None:
    if not _IDENTIFIER.fullmatch(name) or len(name) > _LONGEST_NAME or name == "pallasc":
        raise SpecError(
            f"--name must begin with a letter and go on with at most {_LONGEST_NAME - 1} letters, "
            f"digits and underscores, and not be pallasc, got {name!r}.",
            hint="C functions and the library are named after it.",
        )


# ---- which kernels and variants


def _kernels(bundle: Bundle, entries: Sequence[Entry], name: str) -> list[_Kernel]:
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
            _Variant(entry, bundle.artifact(entry), _plan_file(entry.id, taken)) for entry in own
        )
        kernels.append(_Kernel(kernel, identifier, tuple(variants)))
    return kernels


def _check_distinct(entries: Sequence[Entry]) -> None:
    """Refuse variants of one kernel that only parameters tell apart: C passes none."""
    seen: dict[object, Entry] = {}
    for entry in entries:
        first = seen.setdefault((entry.arch, entry.inputs), entry)
        if dict(first.params) != dict(entry.params):
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


# ---- text


def _literal(text: str) -> str:
    """Return a string of C."""
    return '"' + "".join(map(_escaped, text.encode("utf-8", "backslashreplace"))) + '"'


def _escaped(byte: int) -> str:
    sign = chr(byte)
    return sign if " " <= sign <= "~" and sign not in '"\\?' else f"\\{byte:03o}"


def _comment(text: str) -> str:
    """Return a text that cannot end a comment, or begin one."""
    plain = "".join(sign if " " <= sign <= "~" else "?" for sign in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /")


def _arrays(bindings: Sequence[Binding]) -> str:
    return ", ".join(
        f"{own.path}: {array_text(own.dtype, own.shape, own.layout)}" for own in bindings
    )


_HEADER = """\
/* Kernels for NVIDIA GPUs, compiled ahead of time. Written by `pallasc bundle export --c`.
 *
 * Each kernel is a function that takes its inputs, then an array for each result, and puts the
 * kernel into a stream of the device's primary context (NULL: the default stream). It chooses the
 * variant for these arrays and this GPU; the first call on a device loads it, later ones allocate
 * nothing and take no lock. NAME_KERNEL_prepare loads it ahead, which a captured stream needs, and
 * tells how many bytes of device memory, at a multiple of 256, it takes as workspace that no other
 * launch uses meanwhile; there, addresses of arrays may be NULL.
 *
 * All return 0, or a number of enum pallasc_status in <pallasc.h>, and @NAME@_last_error has the
 * words for this thread's last failure. They may be called from any thread. `device` is the
 * driver's ordinal.
 */
#ifndef @GUARD@_KERNELS_H
#define @GUARD@_KERNELS_H

#include "pallasc_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *@NAME@_last_error(void);
@FUNCTIONS@
#ifdef __cplusplus
}
#endif

#endif
"""

_DECLARED = """
/* @TITLE@
@VARIANTS@ */
int @FUNCTION@(int device, const pallasc_tensor *arrays, size_t count, void *workspace,
    size_t workspace_bytes, void *stream);
int @FUNCTION@_prepare(int device, const pallasc_tensor *arrays, size_t count,
    size_t *workspace_bytes);
"""


def _filled(text: str, **values: str) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)


def _header(name: str, kernels: Sequence[_Kernel]) -> str:
    functions = []
    for kernel in kernels:
        rows = []
        for variant in kernel.variants:
            own = variant.signature
            taken, made = _arrays(own.inputs), _arrays(own.results) or "in place"
            rows.append(f" *   {_comment(f'{variant.entry.id}: {taken} -> {made}')}\n")
        functions.append(
            _filled(
                _DECLARED,
                TITLE=_comment(kernel.name),
                VARIANTS="".join(rows),
                FUNCTION=f"{name}_{kernel.identifier}",
            )
        )
    guard = f"PALLASC_EXPORT_{name.upper()}"
    return _filled(_HEADER, NAME=name, GUARD=guard, FUNCTIONS="".join(functions))


_FUNCTIONS = """
PALLASC_EXPORTED int @FUNCTION@(int device, const pallasc_tensor *arrays, size_t count,
    void *workspace, size_t workspace_bytes, void *stream)
{
    return launch_kernel(&@KERNEL@, device, arrays, count, workspace, workspace_bytes, stream);
}

PALLASC_EXPORTED int @FUNCTION@_prepare(int device, const pallasc_tensor *arrays, size_t count,
    size_t *workspace_bytes)
{
    return prepare_kernel(&@KERNEL@, device, arrays, count, workspace_bytes);
}

PALLASC_EXPORTED int __tvm_ffi_@IDENTIFIER@(void *handle, const struct tvm_any *arguments,
    int32_t count, struct tvm_any *result)
{
    (void)handle;
    return call_by_tvm(&@KERNEL@, arguments, count, result);
}
"""


def _source(name: str, kernels: Sequence[_Kernel], sizes: dict[str, int]) -> str:
    parts = [
        f'/* Written by `pallasc bundle export --c`. */\n#include "{name}.h"\n\n'
        f'#include "pallasc/export/kernels.h"\n\n'
        f"PALLASC_EXPORTED const char *{name}_last_error(void)\n"
        "{\n    return pallasc_last_error();\n}\n"
    ]
    number = 0
    for place, kernel in enumerate(kernels):
        rows = []
        for variant in kernel.variants:
            symbol = f"{name}_plan_{number}"
            parts.append(f'\nINCLUDE_PLAN({symbol}, "{variant.file}");\n')
            parts.append(_array_table(f"arrays_{number}", variant.signature.passed))
            rows.append(_row(variant, symbol, f"arrays_{number}", sizes[variant.file]))
            number += 1
        table = f"variants_{place}"
        parts.append(f"\nstatic struct variant {table}[] = {{\n{''.join(rows)}}};\n")
        parts.append(
            f"static struct kernel kernel_{place} = "
            f"{{{_literal(kernel.name)}, {table}, {len(rows)}}};\n"
        )
        parts.append(
            _filled(
                _FUNCTIONS,
                FUNCTION=f"{name}_{kernel.identifier}",
                KERNEL=f"kernel_{place}",
                IDENTIFIER=kernel.identifier,
            )
        )
    return "".join(parts)


def _array_table(table: str, bindings: Sequence[Binding]) -> str:
    rows = []
    for own in bindings:
        numbers = ", ".join(f"{number}LL" for number in (*own.shape, *own.strides)) or "0"
        rows.append(
            f"    {{{_literal(own.path)}, {_literal(own.dtype)}, (const int64_t[]){{{numbers}}}, "
            f"{len(own.shape)}}},\n"
        )
    return f"static const struct array_type {table}[] = {{\n{''.join(rows)}}};\n"


def _row(variant: _Variant, symbol: str, arrays: str, size: int) -> str:
    target, own = variant.artifact.target, variant.signature
    match = ARCH.fullmatch(variant.entry.arch)
    sm, suffix = (int(match[1] + match[2]), match[3]) if match else (0, "")
    fields = {
        "name": _literal(variant.entry.id),
        "plan": symbol,
        "plan_bytes": str(size),
        "model": _literal(str(target.get("description", ""))),
        "arrays": arrays,
        "array_count": str(len(own.passed)),
        "sm": str(sm),
        "suffix": f"'{suffix}'" if suffix else "0",
        "sm_count": str(int(target["sm_count"])),
    }
    text = "".join(f"        .{field} = {value},\n" for field, value in fields.items())
    return f"    {{\n{text}    }},\n"


_CMAKE = """\
# Written by `pallasc bundle export --c`: the library @NAME@, static unless BUILD_SHARED_LIBS is ON.
cmake_minimum_required(VERSION 3.12)
project(@NAME@ LANGUAGES C)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
endif()

add_library(@NAME@
    @NAME@.c
@SOURCES@)
set_target_properties(@NAME@ PROPERTIES
    C_STANDARD 11
    C_STANDARD_REQUIRED ON
    C_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON)
target_include_directories(@NAME@
    PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/pallasc/export"
           "${CMAKE_CURRENT_SOURCE_DIR}/pallasc/include")
# An empty PALLASC_API keeps the library's own functions inside of a shared one.
target_compile_definitions(@NAME@ PRIVATE PALLASC_API= "PALLASC_LIBRARY_VERSION=\\"@VERSION@\\"")
if(BUILD_SHARED_LIBS)
    # It hears of forks, so it must stay loaded.
    target_link_libraries(@NAME@ PRIVATE "-Wl,-z,nodelete,-z,defs")
endif()
find_package(Threads REQUIRED)
target_link_libraries(@NAME@ PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
file(GLOB @NAME@_plans "${CMAKE_CURRENT_SOURCE_DIR}/plans/*.plan")
set_source_files_properties(@NAME@.c PROPERTIES OBJECT_DEPENDS "${@NAME@_plans}")
"""


def _cmake(name: str, sources: Sequence[str], version: str) -> str:
    compiled = "".join(f"    pallasc/{source}\n" for source in sources if source.endswith(".c"))
    known = re.sub(r"[^A-Za-z0-9.+-]", "_", version)
    return _filled(_CMAKE, NAME=name, SOURCES=compiled, VERSION=known)
