"""The files that an import of Tokamax's tables writes: a spec, its points, and the table of rows.

Of one model of GPU: `tokamax-h100.yaml` declares the kernels; `tokamax-h100.json` has their points,
`{kernel: [{parameter: value, …}, …]}`, one a line; `tokamax-h100.tuned.yaml` says which
configuration each of them uses.
"""

from __future__ import annotations

import json
from typing import Any

from pallasc.specs.canonical import canonical_text
from pallasc.specs.imports.tokamax_kernels import UNTUNED, Kernel, config_names, varying
from pallasc.specs.imports.tokamax_ops import Row
from pallasc.specs.loading.tuned_table import Table, table_text
from pallasc.specs.tuning import Row as TunedRow

MARK = "# Written by pallasc import tokamax"
"""What files begin with that another import may replace."""


def stem_of(model: str) -> str:
    """Return the name of a model's files: `tokamax-h100` of `h100-sxm`."""
    return f"tokamax-{model.removesuffix('-sxm')}"


def files_of(kernels: list[Kernel], source: str, *, untuned: bool = False) -> dict[str, str]:
    """Return the texts of the files of one model's kernels, by name; as `spec_text`.

    There are none where none of the kernels would be declared.
    """
    if not any(kernel.points or (untuned and kernel.untuned) for kernel in kernels):
        return {}
    stem = stem_of(kernels[0].model.name)
    tables = {
        kernel.name: Table(tuple(kernel.by), tuple(tuned_rows(kernel, source)))
        for kernel in kernels
        if kernel.points
    }
    return {
        f"{stem}.yaml": spec_text(kernels, source, untuned=untuned),
        f"{stem}.json": points_text(kernels, untuned=untuned),
        f"{stem}.tuned.yaml": table_text(tables),
    }


def spec_text(kernels: list[Kernel], source: str, *, untuned: bool = False) -> str:
    """Return the spec of kernels on one model.

    Args:
        kernels: what it declares.
        source: where they are from, `tokamax 0.0.17`.
        untuned: declare what Tokamax has no configuration for, too.
    """
    model = kernels[0].model.name
    head = (
        f"{MARK} from the tables of {source}; import again to change it.\n"
        "# Building it needs Tokamax, launching its bundles does not.\n"
        f"schema: 1\ntargets: [{model}]\nkernels:\n"
    )
    declared = [_declared(kernel) for kernel in kernels if kernel.points]
    if untuned:
        declared += [_declared_untuned(kernel) for kernel in kernels if kernel.untuned]
    return head + "\n".join(declared)


def _declared(kernel: Kernel) -> str:
    configs = kernel.configs()
    fields = varying(configs)
    listed = "".join(
        f"          - {_flow({'$name': name, **{field: config.get(field) for field in fields}})}\n"
        for name, config in zip(config_names(configs), configs, strict=True)
    )
    return (
        _head(kernel, kernel.name)
        + _self(kernel, configs[0], fields)
        + _matrix(kernel, kernel.name)
        + f"    tune:\n      over:\n        config:\n{listed}"
        + f"      by: [{', '.join(kernel.by)}]\n"
    )


def _declared_untuned(kernel: Kernel) -> str:
    name = f"{kernel.name}{UNTUNED}"
    return (
        f"  # No configuration worked when Tokamax was tuned: it would use its heuristics.\n"
        f'{_head(kernel, name)}      self: {{$call: "{kernel.op.op}"}}\n{_matrix(kernel, name)}'
    )


def _head(kernel: Kernel, name: str) -> str:
    return f'  - name: {name}\n    entry: "{kernel.op.op}.__call__"\n{kernel.op.text}'


def _self(kernel: Kernel, config: dict[str, Any], fields: list[str]) -> str:
    """Return the op with its configuration: fields that vary are those of the parameter."""
    lines = [
        f'          {name}: "{{config.{name}}}"\n'
        if name in fields
        else f"          {name}: {canonical_text(value)}\n"
        for name, value in config.items()
    ]
    return (
        f'      self:\n        $call: "{kernel.op.op}"\n        config:\n'
        f'          $call: "{kernel.op.configs[kernel.model.arch]}"\n{"".join(lines)}'
    )


def _matrix(kernel: Kernel, rows: str) -> str:
    file = f"{stem_of(kernel.model.name)}.json"
    return f"    matrix:\n      $file: {{path: {file}, rows: {rows}}}\n"


def _flow(values: dict[str, Any]) -> str:
    """Return a mapping of plain values in one line of YAML."""
    return f"{{{', '.join(f'{key}: {canonical_text(value)}' for key, value in values.items())}}}"


def points_text(kernels: list[Kernel], *, untuned: bool = False) -> str:
    """Return the points of kernels as JSON, one a line."""
    rows: dict[str, list[Row]] = {}
    for kernel in kernels:
        if kernel.points:
            rows[kernel.name] = [row for row, _ in kernel.points]
    for kernel in kernels:
        if untuned and kernel.untuned:
            rows[f"{kernel.name}{UNTUNED}"] = kernel.untuned
    lists = [f"{json.dumps(name)}: [\n{_lines(own)}\n]" for name, own in rows.items()]
    return "{\n" + ",\n".join(lists) + "\n}\n"


def _lines(rows: list[Row]) -> str:
    return ",\n".join(map(json.dumps, rows))


def tuned_rows(kernel: Kernel, source: str) -> list[TunedRow]:
    """Return a row for each entry: the configuration that Tokamax would take, and its times."""
    configs = kernel.configs()
    names = {
        canonical_text(config): name
        for config, name in zip(configs, config_names(configs), strict=True)
    }
    by, model = kernel.by, kernel.model
    return [
        TunedRow(
            gpu=model.name,
            key=tuple(row[name] for name in by),
            use={"config": names[canonical_text(timed[0].config)]},
            source=source,
            measured=timed[0].measured._replace(device=model.description),
        )
        for row, timed in kernel.points
    ]
