"""The table of docs/coverage.md, made from the results that tests/coverage keeps true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "tests" / "coverage"

_INTRODUCTION = """\
Which entries of Pallas and Mosaic GPU compile ahead of time: each entry of the API reference, and
each further name that `jax.experimental.pallas.mosaic_gpu` exports, with the kernels that use it.
Every kernel is built from a spec for each architecture where it makes sense: all that pallasc
compiles for, or those that have the feature. The last column lists what was then found in its PTX,
SASS or launch plan on each of them; “all” stands for all nine. *Numbers* means that JAX's
interpreter ran the kernel and agreed with a reference in NumPy; otherwise the interpreter's reason
is quoted. *Emulated* means that its PTX, executed without a GPU as `pallasc.emulate` does, agreed
for each architecture that it compiles for; otherwise what the emulation finds or cannot tell is
quoted. A gap is quoted in the words of JAX, Mosaic or `ptxas`. What is “wrong in JAX” compiles into
something other than the kernel asks for, and is checked to still do so; a build warns about it
(`CompiledWrongly`), with the line and what to write instead.

`pl` is `jax.experimental.pallas`, `plgpu` is `jax.experimental.pallas.mosaic_gpu`. The kernels are
in `tests/coverage`; `make coverage` compiles all of them for all architectures and writes the
results again. The tests interpret every fifteenth kernel, compile and emulate it for one of its
architectures, and compare with those results; with `PALLASC_ALL_COVERAGE=1` they compile and
compare all."""

_EMULATED = """\
By architecture: how many of the kernels that compile give the numbers of their reference when their
PTX is executed. Of the others, the tables below say what the emulation finds, or why it cannot."""

_GROUPS = {
    "plgpu": "The module `plgpu`",
    "plgpu.CompilerParams": "Fields of `plgpu.CompilerParams`",
    "plgpu.kernel": "Keywords of `plgpu.kernel`",
    "pl": "The module `pl`",
    "pl.kernel": "Keywords of `pl.kernel`",
}


def all_results() -> dict[str, dict[str, Any]]:
    """Return the checked-in results by JAX version, the oldest first, with what is declared."""
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
    """Return what the newest JAX has of `plgpu` and the pages do not list."""
    listed = page_entries()
    newest = results[list(results)[-1]]["exports"]
    return {
        page: sorted(set(newest[page]) - set(listed[page]))
        for page in ("plgpu", "plgpu.CompilerParams", "plgpu.kernel")
    }


def entry_name(page: str, name: str) -> str:
    """Return an entry as cases name it: `plgpu.wgmma`, `plgpu.kernel(cluster)`."""
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
    parts += [_EMULATED, _emulated_by_architecture(results)]
    covering = rows(results)
    for page, names in page_entries().items():
        parts += [f"## {_GROUPS[page]}", _table(page, names, covering, results)]
    for page, names in beyond(results).items():
        if names:
            parts += [f"## Beyond the reference: {_GROUPS[page]}"]
            parts += [_table(page, names, covering, results)]
    return "\n\n".join(parts) + "\n"


def _totals(results: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["JAX", "kernels", "compiled", "wrong in JAX", "gaps", "numbers", "emulated"]
    lines = [head, ["---"] * len(head)]
    for held in results.values():
        cases = held["cases"].values()
        outcomes = [text.partition(":")[0] for case in cases for text in case["targets"].values()]
        counts = [outcomes.count(kind) for kind in ("ok", "fault", "gap")]
        numbers = sum(case.get("numbers") == "ok" for case in cases)
        emulated = [text for case in cases for text in case.get("emulated", {}).values()]
        share = f"{emulated.count('ok')} of {len(emulated)}"
        lines.append([held["jax"], *map(str, [len(cases), *counts, numbers]), share])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _emulated_by_architecture(results: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["architecture", *(f"JAX {held['jax']}" for held in results.values())]
    found: dict[str, list[list[str]]] = {}
    for column, held in enumerate(results.values()):
        for case in held["cases"].values():
            for arch, outcome in case.get("emulated", {}).items():
                found.setdefault(arch, [[] for _ in results])[column].append(outcome)
    lines = [head, ["---"] * len(head)]
    for arch in sorted(found, key=_capability):
        shares = [f"{column.count('ok')} of {len(column)}" for column in found[arch]]
        lines.append([arch, *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _table(
    page: str,
    names: Sequence[str],
    covering: Mapping[str, Sequence[str]],
    results: Mapping[str, Mapping[str, Any]],
) -> str:
    head = ["entry", "kernel", *(f"JAX {held['jax']}" for held in results.values()), "looked for"]
    lines = [head, ["---"] * len(head)]
    for name in names:
        entry = entry_name(page, name)
        cases = covering.get(entry, ["nothing"])
        for number, case in enumerate(cases):
            shown = f"`{name}`" if number == 0 else ""
            cells = [_cell(held["cases"].get(case)) for held in results.values()]
            lines.append([shown, f"`{case}`", *cells, _looked_for(case, results)])
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _cell(case: Mapping[str, Any] | None) -> str:
    if case is None:
        return "no kernel"
    return "; ".join(_outcomes(case))


def _outcomes(case: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a kernel compiles, where not and why; numbers, or why there are none."""
    where = _by_outcome(case["targets"])
    numbers = case.get("numbers", "")
    emulated = _by_outcome(case.get("emulated", {}))
    if good := where.pop("ok", None):
        with_numbers = numbers == "ok"
        all_emulated = set(good) <= set(emulated.get("ok", ()))
        held = ["*numbers*"] * with_numbers + ["*emulated*"] * all_emulated
        yield " and ".join([_listed(good), ", ".join(held)] if held else [_listed(good)])
    for outcome, architectures in where.items():
        kind, _, words = outcome.partition(": ")
        listed = _listed(architectures)
        yield (
            f"**wrong in JAX** {listed}: {words}"
            if kind == "fault"
            else f"**gap** {listed}: “{words}”"
        )
    if numbers == "ok" and not good:
        yield "the interpreter's *numbers* are right"
    if numbers.startswith("gap: ") and numbers not in where:
        yield f"no numbers: “{numbers.partition(': ')[2]}”"
    good_all = emulated.pop("ok", [])
    if emulated and good_all:
        yield f"*emulated* for {_listed(good_all)}"
    for outcome, architectures in emulated.items():
        kind, _, words = outcome.partition(": ")
        said = "emulation finds" if kind == "found" else "not emulated"
        yield f"{said}{f' for {_listed(architectures)}' if good_all else ''}: “{words}”"


def _by_outcome(outcomes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return architectures by outcome, the oldest first."""
    found: dict[str, list[str]] = {}
    for arch, outcome in sorted(outcomes.items(), key=lambda one: _capability(one[0])):
        found.setdefault(outcome, []).append(arch)
    return found


def _listed(architectures: Sequence[str]) -> str:
    from pallasc.specs.gpus import DEFAULT_MODELS

    return "all" if set(architectures) == set(DEFAULT_MODELS) else ", ".join(architectures)


def _capability(arch: str) -> int:
    """Return the compute capability of an architecture: 90 for sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def _looked_for(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    cases = [held["cases"][name] for held in results.values() if name in held["cases"]]
    looks = list(dict.fromkeys(look for case in cases for look in case["looked_for"]))
    notes = list(dict.fromkeys(case["note"] for case in cases if "note" in case))
    return "; ".join([*looks, *notes])


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
