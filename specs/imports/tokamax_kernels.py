"""Kernels from the entries of Tokamax's tables: their points, and what each of them uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pallasc.specs.canonical import canonical_json, canonical_text, digest, plain
from pallasc.specs.gpus import Target
from pallasc.specs.imports.tokamax_ops import OPS, Left, Op, Row
from pallasc.specs.imports.tokamax_tables import Entry, Package, Timed, read_entries

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,47}")

UNTUNED = "_untuned"
"""The end of the name of kernels that Tokamax has no configuration for."""


@dataclass(slots=True)
class Kernel:
    """A kernel of an imported spec.

    Attributes:
        op: what it is of.
        model: the GPU.
        points: the parameters of each entry that is taken, and its configurations, fastest first.
        untuned: the parameters of entries that no configuration worked for.
        left: how many entries are left out, by reason.
    """

    op: Op
    model: Target
    points: list[tuple[Row, tuple[Timed, ...]]] = field(default_factory=list)
    untuned: list[Row] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return self.op.kernel

    @property
    def parameters(self) -> list[str]:
        """Return the parameters of the matrix."""
        return list((self.points[0][0] if self.points else self.untuned[0]).keys())

    @property
    def by(self) -> list[str]:
        """Return the parameters that decide which configuration is used."""
        return [name for name in self.parameters if name not in self.op.redundant]

    @property
    def several(self) -> int:
        """Return how many entries have more than one configuration."""
        return sum(len(configs) > 1 for _, configs in self.points)

    def configs(self) -> list[dict[str, Any]]:
        """Return every configuration once, in the order in which entries have them."""
        seen = {
            canonical_text(timed.config): timed.config
            for _, configs in self.points
            for timed in configs
        }
        return list(seen.values())


def kernels_of(package: Package, device: str, model: Target) -> Iterator[Kernel]:
    """Yield the kernels that the package has entries of on a device.

    Raises:
        SpecError: a file is not a table of Tokamax.
    """
    for op in OPS:
        entries = read_entries(package, device, op.table)
        if entries and model.arch in op.configs:
            kernel = _kernel(op, model, entries)
            if kernel.points or kernel.untuned or kernel.left:
                yield kernel


def _kernel(op: Op, model: Target, entries: Iterable[Entry]) -> Kernel:
    kernel = Kernel(op, model)
    seen = set()
    for entry in entries:
        try:
            row = _row(op, entry)
        except Left as reason:
            kernel.left[str(reason)] += 1
            continue
        if row is None:
            continue
        key = canonical_text(row)
        if key in seen:
            kernel.left["the arguments of an earlier entry"] += 1
        elif entry.configs:
            kernel.points.append((row, entry.configs))
        else:
            kernel.untuned.append(row)
        seen.add(key)
    return kernel


def _row(op: Op, entry: Entry) -> Row | None:
    try:
        return op.row(dict(entry.arguments))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise Left("arguments of another form than Tokamax 0.0.17 has") from None


def varying(configs: list[dict[str, Any]]) -> list[str]:
    """Return the fields in which configurations differ; all where there is only one."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    values = {name: {canonical_text(config.get(name)) for config in configs} for name in names}
    return [name for name in names if len(values[name]) > 1] or names


def config_names(configs: list[dict[str, Any]]) -> list[str]:
    """Return a name for each configuration: initials of the fields that vary, with their values.

    `bq64-bk128-ns2` stands for block_q 64, block_k 128 and num_stages 2. Where initials are not
    distinct, the last word is whole: `bqdkv64-bqdq64`. Where that does not help, or is too long,
    the name is a digest.
    """
    fields = varying(configs)
    initials = {name: "".join(part[:1] for part in name.split("_")) for name in fields}
    times = Counter(initials.values())
    short = {name: text if times[text] == 1 else _longer(name) for name, text in initials.items()}
    if len(set(short.values())) < len(fields):
        short = dict.fromkeys(fields, "")
    return [_config_name(config, short) for config in configs]


def _longer(name: str) -> str:
    *parts, last = name.split("_")
    return "".join(part[:1] for part in parts) + last


def _config_name(config: dict[str, Any], short: dict[str, str]) -> str:
    def text(value: object) -> str:
        return str(int(value)) if isinstance(value, bool) else plain(value)

    name = "-".join(f"{short[field]}{text(config.get(field))}" for field in short)
    return (
        name
        if all(short.values()) and _NAME.fullmatch(name)
        else f"c{digest(canonical_json(config))[:12]}"
    )
