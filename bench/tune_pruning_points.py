"""Compile the points that `tune_pruning.py` judges again, and write what is known of them.

Usage: tune_pruning_points.py [--shapes N] [--store STORE] [-o FILE]. Which points, stands in the
records. Needs Tokamax of their version and JAX 0.12, no GPU. The first N shapes take a minute each;
the others keep what the records say of them. Artifacts of JAX's tunings are not compiled again:
`jax_tuning.py` builds those.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tune_pruning_case
from tune_pruning import RECORDS

from pallasc.analysis.metrics.kernel_metrics import all_metrics
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.arrays import DTYPES
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.tuning.rules import Facts, facts_of

SHORT = {dtype.jax_name: name for name, dtype in DTYPES.items()}


def spec(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel of a shape, a variant for each configuration."""
    import jax

    op, arguments = shape["op"], shape["arguments"]
    _, bound = tune_pruning_case.bound_arguments(op, arguments)
    arrays = [leaf for leaf in jax.tree.leaves(bound) if tune_pruning_case.is_array(leaf)]
    return {
        "name": op,
        "entry": "tune_pruning_case.py:call",
        "targets": [shape["target"]],
        "args": [f"{SHORT[str(a.dtype)]}[{', '.join(map(str, a.shape))}]" for a in arrays],
        "static": {
            "op": op,
            "arguments": arguments.replace("{", "{{").replace("}", "}}"),
            "configuration": "{configuration}",
        },
        "matrix": {"configuration": [json.dumps(each) for each in configurations(shape)]},
    }


def configurations(shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the configurations of a shape, whole."""
    return [
        {**shape["fixed"], **dict(zip(shape["varied"], values, strict=True))}
        for values in shape["configurations"]
    ]


def compiled(shape: Mapping[str, Any], store: Store) -> list[Facts | None]:
    """Return what is known of each point of a shape, None where it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(tune_pruning_case.__file__, folder)
        file = Path(folder, "case.yaml")
        file.write_text(json.dumps({"schema": 1, "kernels": [spec(shape)]}), encoding="utf-8")
        report = build(expand(load_yaml(file)), store=store, options=Options(jobs=1))
        artifacts = [r.artifact for r in report.results if r.artifact is not None]
        metrics = all_metrics(artifacts)
        known = {each.digest: facts_of(each, metrics[each.digest]) for each in artifacts}
        return [known[r.artifact.digest] if r.artifact else None for r in report.results]


def renewed(records: dict[str, Any], shapes: int, store: Store) -> dict[str, Any]:
    """Return records in which the first shapes were compiled again."""
    rows: list[list[Any]] = list(records["artifacts"])
    numbers: dict[str, int] = {}
    for shape in records["shapes"][:shapes]:
        points: list[int | None] = []
        for facts in compiled(shape, store):
            if facts is None:
                points.append(None)
                continue
            if facts.digest not in numbers:
                numbers[facts.digest] = len(rows)
                rows.append([round(v, 6) if n == "waves" else v for n, v in _figures(facts)])
            points.append(numbers[facts.digest])
        shape["points"] = points
    return _without_unused({**records, "artifacts": rows})


def _figures(facts: Facts) -> Sequence[tuple[str, Any]]:
    return [(name, value) for name, value in facts._asdict().items() if name != "digest"]


def _without_unused(records: dict[str, Any]) -> dict[str, Any]:
    """Return records with the rows that something names, in the order in which it does."""
    places: dict[int, int] = {}

    def moved(numbers: Sequence[int | None]) -> list[int | None]:
        return [None if n is None else places.setdefault(n, len(places)) for n in numbers]

    shapes = [{**shape, "points": moved(shape["points"])} for shape in records["shapes"]]
    jax = {key: moved(numbers) for key, numbers in records["jax"].items()}
    return {
        **records,
        "shapes": shapes,
        "jax": jax,
        "artifacts": [records["artifacts"][number] for number in places],
    }


def text(records: Mapping[str, Any]) -> str:
    """Return the records as a file has them: a line for each artifact, shape and key."""
    lists = ("artifacts", "shapes")
    head = {name: value for name, value in records.items() if name not in (*lists, "jax")}
    parts = [
        f' "{name}": [\n' + ",\n".join(f"  {_line(row)}" for row in records[name]) + "]"
        for name in lists
    ]
    keys = ",\n".join(f"  {json.dumps(key)}: {_line(row)}" for key, row in records["jax"].items())
    return f'{json.dumps(head)[:-1]},\n{parts[0]},\n{parts[1]},\n "jax": {{\n{keys}}}}}\n'


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def main(arguments: Sequence[str]) -> int:
    """Compile and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", type=int, help="compile the first N shapes again, not all")
    parser.add_argument("--store", type=Path, help="the store; a new one by default")
    parser.add_argument("-o", "--output", type=Path, default=RECORDS)
    options = parser.parse_args(arguments)
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    shapes = len(records["shapes"]) if options.shapes is None else options.shapes
    with tempfile.TemporaryDirectory() as folder:
        store = Store(options.store or Path(folder, "store"))
        options.output.write_text(text(renewed(records, shapes, store)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
