"""Makes docs/coverage.md from the results recorded in tests/coverage and verified by its tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "tests" / "coverage"

_INTRODUCTION = """\
This page lists the architectures for which each entry of Pallas and Mosaic GPU compiles. It covers
the API reference, and all other names in `jax.experimental.pallas.mosaic_gpu`.

`pl` is `jax.experimental.pallas`, and `plgpu` is `jax.experimental.pallas.mosaic_gpu`. *All* is
every architecture that pallasc compiles for (`docs/targets.md`), and `sm_90a+` is sm_90a and newer.
*missing*: this JAX version lacks the entry. *no*: it does not compile. An architecture that is not
listed lacks the feature, or was not tested. If options of an entry do not compile, its note names
them.

For each entry, `tests/coverage` has kernels. They are compiled for each architecture that has the
feature, and their PTX is executed and compared with a reference:"""

_WRONG = """\
JAX compiles these constructs into code that does something else. For each of them, a build gives a
`CompiledWrongly` warning with your source line and the text of the last column."""

_BOOLEANS = "loads and stores by indexing"
_GROUPS = {
    "plgpu": "The module `plgpu`",
    "plgpu.CompilerParams": "Fields of `plgpu.CompilerParams`",
    "plgpu.kernel": "Keywords of `plgpu.kernel`",
    "pl": "The module `pl`",
    "pl.kernel": "Keywords of `pl.kernel`",
}

_INTERPRETER = "For JAX's interpreter; there is nothing to compile."
_LANE = "With `Lane`, the swizzle and tiling of `wgmma` operands must be given."
_MISPLACED = "JAX 0.11 and newer compile `pl.pallas_call` with Triton. Use `emit_pipeline`."
_NO_EFFECT = "No effect on the compiled kernel."
_PRINTED = "`pallasc inspect --debug-output` shows the output."
_PROFILED = "Profile the kernel with JAX on a GPU."
_WRONGLY = "[compiled wrongly](#compiled-wrongly)"
NOTES = {
    "pl.BlockSpec": "Not in `pl.pallas_call` since JAX 0.11. Use `emit_pipeline`.",
    "pl.GridSpec": _MISPLACED,
    "pl.Slice": f"With `stride`: {_WRONGLY}.",
    "pl.broadcast_to": "Use `jnp.broadcast_to`.",
    "pl.core_map": "Deprecated in JAX 0.12. Use `pl.kernel`.",
    "pl.debug_check": "Needs the setting `jax_pallas_enable_debug_checks`.",
    "pl.dot": "Use `plgpu.wgmma`, `plgpu.mma`, or `plgpu.tcgen05_mma`.",
    "pl.dslice": f"With `stride`: {_WRONGLY}.",
    "pl.kernel(body)": "One body, not several with a mesh each.",
    "pl.kernel(cost_estimate)": _NO_EFFECT,
    "pl.kernel(debug)": _PRINTED,
    "pl.kernel(metadata)": _NO_EFFECT,
    "pl.kernel(scratch_types)": "Use `pl.run_scoped`, or `plgpu.kernel`.",
    "pl.load": f"Use indexing. Boolean arrays: {_WRONGLY}.",
    "pl.max_contiguous": "It was for Triton only.",
    "pl.multiple_of": "Required for windows of `wgmma` operands at a run-time index.",
    "pl.num_programs": "Use `lax.axis_size`.",
    "pl.pallas_call": "JAX 0.11 and newer compile it with Triton. Use `plgpu.kernel`.",
    "pl.program_id": "Deprecated in JAX 0.12. Use `lax.axis_index`.",
    "pl.store": "Use indexing.",
    "pl.swap": "Use `jax.ref.swap`.",
    "plgpu.BlockSpec": "`collective_axes` only in `emit_pipeline_warp_specialized`.",
    "plgpu.CompilerParams(delay_release)": "Use `delay_release` of `plgpu.BlockSpec`.",
    "plgpu.CompilerParams(dimension_semantics)": "All dimensions of `plgpu.kernel` are parallel.",
    "plgpu.CompilerParams(lowering_semantics)": _LANE,
    "plgpu.CompilerParams(max_concurrent_steps)": (
        "No effect in `plgpu.kernel`. Use the parameter of `emit_pipeline`."
    ),
    "plgpu.CompilerParams(profile_bounds_check)": _PROFILED,
    "plgpu.CompilerParams(profile_dir)": _PROFILED,
    "plgpu.CompilerParams(profile_space)": _PROFILED,
    "plgpu.CompilerParams(profile_trace_scope)": _PROFILED,
    "plgpu.InterpretGPUParams": _INTERPRETER,
    "plgpu.LoweringSemantics": _LANE,
    "plgpu.TraceScope": _PROFILED,
    "plgpu.TransposeTransform": "Use `Ref.transpose`.",
    "plgpu.as_torch_kernel": (
        "Compile the wrapped function, and pass torch tensors to `pallasc.open_artifact`."
    ),
    "plgpu.async_load_tmem": "JAX 0.10: no `reduce`.",
    "plgpu.async_prefetch": f"JAX 0.10: no `predicate`. `collective_axes`: {_WRONGLY}.",
    "plgpu.atomic_add": "JAX 0.10: no `optimized`.",
    "plgpu.copy_gmem_to_smem": "JAX 0.10: no `predicate`. Gathering rows needs sm_100a+.",
    "plgpu.copy_smem_to_gmem": "Scattering rows needs sm_100a–sm_110a.",
    "plgpu.emit_pipeline_warp_specialized": "`memory_thread_idx` must be the last thread.",
    "plgpu.force_gpu_interpret_mode": _INTERPRETER,
    "plgpu.kernel": "JAX 0.10: no references as arguments or in closures.",
    "plgpu.kernel(cost_estimate)": _NO_EFFECT,
    "plgpu.kernel(debug)": _PRINTED,
    "plgpu.kernel(interpret)": _INTERPRETER,
    "plgpu.kernel(out_shape)": "Use `out_type`.",
    "plgpu.kernel(scratch_shapes)": "Use `scratch_types`.",
    "plgpu.multimem_store": "Needs `mesh` in the spec.",
    "plgpu.set_gpu_interpret_mode": _INTERPRETER,
    "plgpu.transpose_ref": "Deprecated in JAX 0.12. Use `Ref.transpose`.",
    "plgpu.try_cluster_cancel": "JAX 0.10: no `collective_axes`.",
}
"""Notes on entries: limits, and replacements."""

SUBSTITUTES = {
    "pl.broadcast_to": ["broadcast_rows"],
    "pl.kernel(scratch_types)": ["entry_with_a_scope"],
    "pl.load": ["swapped"],
    "pl.num_programs": ["place_in_a_grid"],
    "pl.program_id": ["place_in_a_grid", "place_in_a_kernel"],
    "pl.store": ["swapped"],
    "pl.swap": ["swapped"],
    "plgpu.TransposeTransform": ["transposed_reference"],
    "plgpu.as_torch_kernel": ["wrapped_for_torch"],
}
"""For each entry, the kernels that cover it without using it."""

_MISSING = re.compile(r"gap: .*(has no attribute|unexpected keyword|missing 1 required)")


def all_results() -> dict[str, dict[str, Any]]:
    """Return the checked-in results and declarations by JAX version, the oldest first."""
    declared = json.loads((RESULTS / "cases.json").read_text())
    results = {}
    for file in sorted(RESULTS.glob("results-*.json"), key=lambda file: _version_key(file.stem)):
        held = json.loads(file.read_text())
        cases = {name: declared[name] | case for name, case in held["cases"].items()}
        results[file.stem.partition("-")[2]] = held | {"cases": cases}
    return results


def _version_key(stem: str) -> list[int]:
    return [int(part) for part in stem.partition("-")[2].split(".")]


def page_entries() -> dict[str, list[str]]:
    """Return the names on the reference pages, page by page."""
    import yaml

    pages = yaml.safe_load((RESULTS / "entries.yaml").read_text())
    return {page: [name for line in lines for name in line] for page, lines in pages.items()}


def beyond(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of `plgpu` in the newest JAX that the reference pages do not list."""
    listed = page_entries()
    newest = results[list(results)[-1]]["exports"]
    return {
        page: sorted(set(newest[page]) - set(listed[page]))
        for page in ("plgpu", "plgpu.CompilerParams", "plgpu.kernel")
    }


def entry_name(page: str, name: str) -> str:
    """Return an entry's name in the cases: `plgpu.wgmma`, `plgpu.kernel(cluster)`."""
    return f"{page}({name})" if page.count(".") else f"{page}.{name}"


def rows(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the cases that cover each entry."""
    covering: dict[str, list[str]] = {}
    for held in results.values():
        for name, case in held["cases"].items():
            for entry in case["covers"]:
                cases = covering.setdefault(entry, [])
                if name not in cases:
                    cases.append(name)
    return covering


def coverage_page(note: str) -> str:
    """Return the whole page."""
    results = all_results()
    parts = ["# Coverage of Pallas and Mosaic GPU", note, _INTRODUCTION, _totals(results)]
    parts += ["## Compiled wrongly", _WRONG, _wrong(results)]
    covering = rows(results)
    more = beyond(results)
    for page, names in page_entries().items():
        parts += [f"## {_GROUPS[page]}", *_group(page, [*names, *more.get(page, ())], covering)]
    return "\n\n".join(parts) + "\n"


def _totals(results: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["JAX", "kernels", "compiled", "compiled wrongly", "not compiled", "right when executed"]
    lines = []
    for held in results.values():
        cases = held["cases"].values()
        outcomes = [text.partition(":")[0] for case in cases for text in case["targets"].values()]
        counts = [outcomes.count(kind) for kind in ("ok", "fault", "gap")]
        emulated = [text for case in cases for text in case.get("emulated", {}).values()]
        share = f"{emulated.count('ok')} of {len(emulated)}"
        lines.append([held["jax"], *map(str, [len(cases), *counts]), share])
    return _table(head, lines)


def _wrong(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the constructs that JAX compiles wrongly."""
    from pallasc.compiler.lowering.constructs import WRONG_CONSTRUCTS

    lines = []
    for row in WRONG_CONSTRUCTS:
        fault = f"fault: {row.does}"
        entries, versions = set(), []
        for held in results.values():
            wrong = [case for case in held["cases"].values() if fault in case["targets"].values()]
            entries |= {entry for case in wrong for entry in case["covers"]}
            versions += [held["jax"]] * bool(wrong)
        names = [_BOOLEANS if entry == "pl.load" else f"`{entry}`" for entry in sorted(entries)]
        lines.append([", ".join(names), ", ".join(versions), row.does, row.instead])
    return _table(["entry", "JAX", "effect", "instead"], lines)


def _group(page: str, names: Sequence[str], covering: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the list of the entries without differences and notes, and the table of the others."""
    results = all_results()
    plain: dict[str, list[str]] = {}
    lines = []
    for name in names:
        entry = entry_name(page, name)
        cells = [compiles(held["cases"], entry, covering[entry]) for held in results.values()]
        if len(set(cells)) == 1 and entry not in NOTES:
            plain.setdefault(cells[0], []).append(f"`{name}`")
        else:
            lines.append([f"`{name}`", *cells, NOTES.get(entry, "")])
    head = ["entry", *(f"JAX {held['jax']}" for held in results.values()), "note"]
    first = sorted(plain, key=lambda where: where != "all")
    yield "\n".join(f"* {where}: {', '.join(plain[where])}" for where in first)
    if lines:
        yield _table(head, lines)


def compiles(cases: Mapping[str, Any], entry: str, covering: Sequence[str]) -> str:
    """Return the architectures that an entry compiles for, or the reason if there is none."""
    using = [cases[name] for name in covering if name not in SUBSTITUTES.get(entry, ())]
    found = {arch for case in using for arch, text in case["targets"].items() if text == "ok"}
    if found:
        return _listed(found)
    texts = [text for case in using for text in case["targets"].values()]
    return "missing" if any(map(_MISSING.match, texts)) else "no"


def _listed(found: set[str]) -> str:
    """Return architectures as text: all, sm_90a+, or sm_100a–sm_110a."""
    from pallasc.specs.gpus import DEFAULT_MODELS

    known = sorted(DEFAULT_MODELS, key=_capability)
    first, last = known.index(min(found, key=_capability)), known.index(max(found, key=_capability))
    if found != set(known[first : last + 1]):
        return ", ".join(sorted(found, key=_capability))
    if last == len(known) - 1:
        return f"{known[first]}+" if first else "all"
    return known[first] if first == last else f"{known[first]}–{known[last]}"


def _capability(arch: str) -> int:
    """Return the compute capability of an architecture: 90 for sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
