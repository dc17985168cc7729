"""Variants of a bundle as sources for CMake: flat plans, tables, and the C library's sources.

    include/NAME/NAME.h        the functions: NAME_KERNEL, NAME_KERNEL_prepare, NAME_last_error
    NAME.c                     tables of variants
    CMakeLists.txt             one library NAME
    plans/NUMBER.plan          launch plan and cubins of a variant (`flat_plan`) for NAME.c
    pallasc/, pallasc/export/  the C library's sources
    pallasc/include/           the C library's headers, for programs to include

The same variants give the same bytes. Names in a bundle are untrusted. File names and identifiers
made from them have only letters, digits, and underscores. In literals and comments, names are
escaped.

Sizes are untrusted as well: many variants may share a blob that is tiny when compressed. So the
sizes that the bundle declares are added up before anything is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pallasc.errors import SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry, arrays_of
from pallasc.specs.canonical import Scalar
from pallasc.specs.gpus import device_names
from pallasc.specs.tuning import How, chosen_by, is_for, names_of
from pallasc.specs.user_files import replace_folder

LIBRARY_SOURCES = (
    *("cubin.c", "driver.c", "driver.h", "driver_functions.h", "driver_results.h"),
    *("errors.c", "errors.h", "export/kernels.c", "export/kernels.h", "export/pallasc_tensor.h"),
    *("flat_plan.h", "include/pallasc.h", "launch.c"),
    *("plan.c", "plan.h", "prepare.c", "sha256.c"),
)
"""Sources of the C library that an export contains; its other sources are for Python and JAX."""

_PLACES = {"export/pallasc_tensor.h": "include/pallasc_tensor.h"}
"""Headers that programs include, and their paths in `pallasc/` of an export."""

_HOWS: tuple[How | None, ...] = ("row", "bucket", "default", None)
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_LONGEST_NAME = 40
_NAME = re.compile(rf"(?!pallasc)[a-z][a-z0-9_]{{0,{_LONGEST_NAME - 1}}}", re.IGNORECASE | re.ASCII)
_LEAST_FILE_BYTES = 4096
"""Disk space used by a small file."""


def check_size(bundle: Bundle, entries: Sequence[Entry], most_bytes: int | None) -> None:
    """Add up the sizes that a bundle declares, before any of it is read.

    Raises:
        SpecError: the total is more than `most_bytes`.
    """
    total = 0
    for number, entry in enumerate(entries, 1):
        record, *blobs = (row.size for row in bundle.rows(entry))
        total += sum(max(size, _LEAST_FILE_BYTES) for size in (record, record, *blobs))
        if most_bytes is not None and total > most_bytes:
            raise SpecError(
                f"the first {number:,} of {len(entries):,} variants take more than {most_bytes:,} "
                f"bytes, the limit. (The bundle file has {bundle.size:,} bytes.)",
                hint="Choose variants with -k, or let export write more with --max-size.",
            )


@dataclass(slots=True)
class CVariant:
    """A variant in an export.

    Attributes:
        entry: its entry.
        artifact: its artifact.
        number: its number in the library.
        chosen_by: how the tuning table chose it, None if no table did.
        size: size of its flat plan in bytes, set when the plan is written.
    """

    entry: Entry
    artifact: Artifact
    number: int
    chosen_by: How | None
    size: int = 0

    @property
    def file(self) -> str:
        """The file of its flat plan in the folder."""
        return f"plans/{self.number}.plan"

    @property
    def signature(self) -> LaunchPlan:
        """Its arrays; not cached, as there may be many variants."""
        return self.artifact.plan


@dataclass(frozen=True, slots=True)
class CKernel:
    """A kernel in an export.

    Attributes:
        name: its name.
        function: the C function that launches it.
        variants: the variants that it selects from.
        left_out: number of variants that are left out because a table selects others.
    """

    name: str
    function: str
    variants: tuple[CVariant, ...]
    left_out: int


def export_c(
    bundle: Bundle,
    entries: Sequence[Entry],
    folder: Path,
    *,
    name: str,
    native: Path,
    version: str,
    most_bytes: int | None = None,
) -> list[CKernel]:
    """Write the folder of an export.

    Args:
        bundle: the bundle to read.
        entries: the variants to write.
        folder: the folder to write; an existing export is replaced if nobody has changed it.
        name: name of the library; its functions begin with it.
        native: the folder of the C library's sources.
        version: version of pallasc.
        most_bytes: maximum number of bytes to write, None for no limit.

    Raises:
        SpecError: names collide, C cannot distinguish two variants, there are too many bytes, or
            the folder cannot be written.
        ToolError: the C library's sources are missing.
        CorruptError: the bundle is damaged.
        UnsupportedError: a variant cannot be a flat plan.
    """
    if _NAME.fullmatch(name) is None:
        raise SpecError(
            f"--name must be a letter and up to {_LONGEST_NAME - 1} letters, digits and "
            f"underscores, and must not begin with pallasc; got {name!r}.",
            hint="C functions and the library are named after it.",
        )
    chosen = chosen_entries(entries)
    check_size(bundle, [entry for entry, _ in chosen], most_bytes)
    kernels = _kernels(bundle, chosen, name, Counter(entry.name for entry in entries))
    sources = {_PLACES.get(own, own): _source(native, own) for own in LIBRARY_SOURCES}
    header, cmake = (
        _source(native, f"export/{file}.in").decode() for file in ("library.h", "CMakeLists.txt")
    )

    def files() -> Iterator[tuple[str, bytes]]:
        for source in sources:
            yield f"pallasc/{source}", sources[source]
        for kernel in kernels:
            for variant in kernel.variants:
                plan = flat_plan(variant.artifact, name=variant.entry.id)
                variant.size = len(plan)
                yield variant.file, plan
        guard, functions = f"PALLASC_EXPORT_{name.upper()}", "".join(map(_declared, kernels))
        text = _filled(header, NAME=name, GUARD=guard, FUNCTIONS=functions)
        yield f"include/{name}/{name}.h", text.encode("ascii")
        yield f"{name}.c", _source_text(name, kernels).encode("ascii")
        compiled = "".join(f"    pallasc/{own}\n" for own in sources if own.endswith(".c"))
        known = re.sub(r"[^A-Za-z0-9.+-]", "_", version)
        text = _filled(cmake, NAME=name, SOURCES=compiled, VERSION=known)
        yield "CMakeLists.txt", text.encode("ascii")

    replace_folder(folder, files())
    return kernels


def name_from(file: str) -> str:
    """Derive the name of a library from a bundle's file name."""
    own = _FOREIGN.sub("_", file.removesuffix(".pallasc"))[:_LONGEST_NAME]
    return own if _NAME.fullmatch(own) else "kernels"


def _source(native: Path, name: str) -> bytes:
    try:
        return (native / name).read_bytes()
    except OSError as error:
        raise ToolError(
            f"this pallasc has no sources of its C library to export: {error.filename}: "
            f"{error.strerror}.",
            hint="Install pallasc again.",
        ) from error


def chosen_entries(entries: Sequence[Entry]) -> list[tuple[Entry, How | None]]:
    """Return the entries that an export contains, and how each was chosen.

    Variants for the same target and arrays that differ only in tuned parameters are alternatives.
    Of alternatives, an export contains those that a table row for exactly these arrays names, else
    those of a row for a range of arrays (a bucket), else the default, else all.
    """
    groups: dict[object, dict[How | None, list[Entry]]] = {}
    for entry in entries:
        group = entry.name, entry.target, entry.inputs, _untuned(entry)
        groups.setdefault(group, {}).setdefault(_how(entry), []).append(entry)
    chosen: dict[str, How | None] = {}
    for by_how in groups.values():
        how = next(how for how in _HOWS if how in by_how)
        chosen.update((entry.id, how) for entry in by_how[how])
    return [(entry, chosen[entry.id]) for entry in entries if entry.id in chosen]


def _untuned(entry: Entry) -> tuple[tuple[str, Scalar], ...]:
    over = () if entry.tuning is None else entry.tuning.over
    return tuple(item for item in entry.params if item[0] not in over)


def _how(entry: Entry) -> How | None:
    if entry.tuning is None:
        return None
    names = names_of(entry.target)
    found = chosen_by(entry.tuning, dict(entry.params), lambda row: is_for(row, names))
    return None if found is None else found[0]


def _kernels(
    bundle: Bundle,
    chosen: Sequence[tuple[Entry, How | None]],
    name: str,
    counts: Mapping[str, int],
) -> list[CKernel]:
    grouped: dict[str, list[tuple[Entry, How | None]]] = {}
    for entry, how in chosen:
        grouped.setdefault(entry.name, []).append((entry, how))
    functions = {f"{name}_last_error": "the function for errors"}
    numbers = count()
    kernels = []
    for kernel, own in grouped.items():
        identifier = _FOREIGN.sub("_", kernel)
        for function in (f"{name}_{identifier}", f"{name}_{identifier}_prepare"):
            if function in functions:
                raise SpecError(
                    f"kernel {kernel} and {functions[function]} would both be {function} in C.",
                    hint="Choose variants with -k.",
                )
            functions[function] = f"kernel {kernel}"
        _check_distinct([entry for entry, _ in own])
        variants = tuple(
            CVariant(entry, bundle.artifact(entry), next(numbers), how) for entry, how in own
        )
        left_out = counts[kernel] - len(variants)
        kernels.append(CKernel(kernel, f"{name}_{identifier}", variants, left_out))
    return kernels


def _check_distinct(entries: Sequence[Entry]) -> None:
    """Reject variants of one kernel that differ only in parameters, which C calls do not have."""
    seen: dict[object, Entry] = {}
    for entry in entries:
        first = seen.setdefault((entry.arch, entry.inputs), entry)
        # C code uses the variant for the model most similar to the GPU. So only variants for the
        # same model must have equal tuned parameters.
        is_other = first.target != entry.target
        own, others = (_untuned(e) if is_other else e.params for e in (entry, first))
        if dict(own) != dict(others):
            raise SpecError(
                f"{first.id} and {entry.id} take the same arrays, but C functions choose a variant "
                "only by its arrays.",
                hint="Choose one of them with -k.",
            )


# ---- the text of C


def _literal(text: str) -> str:
    return '"' + "".join(map(_escaped, text.encode("utf-8", "backslashreplace"))) + '"'


def _escaped(byte: int) -> str:
    sign = chr(byte)
    return sign if " " <= sign <= "~" and sign not in '"\\?' else f"\\{byte:03o}"


def _comment(text: str) -> str:
    """Return a text that cannot end or begin a comment."""
    plain = "".join(sign if " " <= sign <= "~" else "?" for sign in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /")


def _filled(text: str, **values: str) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)


def _declared(kernel: CKernel) -> str:
    rows = []
    for variant in kernel.variants:
        own = variant.signature
        inputs, results = (
            ", ".join(map(str, arrays_of(each))) for each in (own.inputs, own.results)
        )
        text = f"{variant.entry.id}: {inputs} -> {results or 'in place'}"
        rows.append(f" *   {_comment(text)}\n")
    return f"""
/* {_comment(kernel.name)}
{"".join(rows)} */
int {kernel.function}(int device, const pallasc_tensor *arrays, size_t count, void *workspace,
    size_t workspace_bytes, void *stream);
int {kernel.function}_prepare(int device, const pallasc_tensor *arrays, size_t count,
    size_t *workspace_bytes);
"""


def _source_text(name: str, kernels: Sequence[CKernel]) -> str:
    """Return the tables and functions of a library; call it after its flat plans are written."""
    parts = [
        f"""/* Written by `pallasc bundle export --c`. */
#include "{name}/{name}.h"

#include "pallasc/export/kernels.h"

PALLASC_EXPORTED const char *{name}_last_error(void)
{{
    return pallasc_last_error();
}}
"""
    ]
    for place, kernel in enumerate(kernels):
        rows = []
        for variant in kernel.variants:
            plan, arrays = f"{name}_plan_{variant.number}", f"arrays_{variant.number}"
            parts.append(f'\nINCLUDE_PLAN({plan}, "{variant.file}");\n')
            parts.append(_array_table(arrays, variant.signature.passed))
            rows.append(_row(variant, plan, arrays))
        parts.append(
            f"""
static struct variant variants_{place}[] = {{
{"".join(rows)}}};
static struct kernel kernel_{place} = {{{_literal(kernel.name)}, variants_{place}, {len(rows)}}};
KERNEL_FUNCTIONS({kernel.function}, &kernel_{place})
"""
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


def _row(variant: CVariant, plan: str, arrays: str) -> str:
    target = variant.artifact.target
    models = ", ".join(map(_literal, device_names(target.description)))
    return f"""\
    {{
        .name = {_literal(variant.entry.id)},
        .plan = {plan},
        .plan_bytes = {variant.size},
        .models = (const char *const[]){{{models}, NULL}},
        .arrays = {arrays},
        .array_count = {len(variant.signature.passed)},
        .sm = {10 * target.major + target.minor},
        .suffix = {f"'{target.suffix}'" if target.suffix else "0"},
        .sm_count = {target.sm_count},
    }},
"""
