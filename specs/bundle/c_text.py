"""The text of what `pallasc bundle export --c` writes: header, tables of variants, CMake.

Names in a bundle are data from strangers: as identifiers they are letters, digits and underscores;
within literals and comments they are made harmless.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.occupancy import model_figure
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.gpus import ARCH, device_names


@dataclass(frozen=True, slots=True)
class CVariant:
    """A variant, and what tables say of it.

    Attributes:
        entry: what the bundle says of it.
        artifact: what was compiled.
        file: that of its flat plan, below the folder.
    """

    entry: Entry
    artifact: Artifact
    file: str

    @property
    def signature(self) -> Signature:
        """What it takes; not kept, as there may be many."""
        return Signature.of(self.artifact.plan)


@dataclass(frozen=True, slots=True)
class CKernel:
    """A kernel: its name, and what it is called in C after the library's name."""

    name: str
    identifier: str
    variants: tuple[CVariant, ...]


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


def header_text(name: str, kernels: Sequence[CKernel]) -> str:
    """Return the header of a library."""
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


def source_text(name: str, kernels: Sequence[CKernel], sizes: dict[str, int]) -> str:
    """Return the tables and functions of a library.

    Args:
        name: of the library.
        kernels: what it launches.
        sizes: bytes of each file of a flat plan.
    """
    parts = [
        f'/* Written by `pallasc bundle export --c`. */\n#include "{name}/{name}.h"\n\n'
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


def _row(variant: CVariant, symbol: str, arrays: str, size: int) -> str:
    target, own = variant.artifact.target, variant.signature
    match = ARCH.fullmatch(variant.entry.arch)
    sm, suffix = (int(match[1] + match[2]), match[3]) if match else (0, "")
    models = ", ".join(map(_literal, device_names(str(target.get("description", "")))))
    fields = {
        "name": _literal(variant.entry.id),
        "plan": symbol,
        "plan_bytes": str(size),
        "models": f"(const char *const[]){{{models}, NULL}}",
        "arrays": arrays,
        "array_count": str(len(own.passed)),
        "sm": str(sm),
        "suffix": f"'{suffix}'" if suffix else "0",
        "sm_count": str(model_figure(target, "sm_count")),
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
    PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/include"
           "${CMAKE_CURRENT_SOURCE_DIR}/pallasc/include"
    PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
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


def cmake_text(name: str, sources: Sequence[str], version: str) -> str:
    """Return the CMakeLists.txt of a library.

    Args:
        name: of the library.
        sources: the C library's, below pallasc/.
        version: of pallasc.
    """
    compiled = "".join(f"    pallasc/{source}\n" for source in sources if source.endswith(".c"))
    known = re.sub(r"[^A-Za-z0-9.+-]", "_", version)
    return _filled(_CMAKE, NAME=name, SOURCES=compiled, VERSION=known)
