"""`pallasc targets`: list the models and architectures to compile for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import print_result, table

if TYPE_CHECKING:
    from pallasc.specs.gpus import Target

COLUMNS = ("MODEL", "ARCH", "SMS", "SMEM PER BLOCK", "L2", "MEMORY", "DEVICE")
FIGURES = ("SMS", "SMEM PER BLOCK", "L2", "MEMORY")
"""Numeric columns; sizes are in bytes, MiB and GiB."""


@click.command(
    "targets", cls=Command, short_help="List the GPU models and architectures to compile for."
)
@options.specs_argument(required=False)
@options.store_option
@options.json_option("the models with all their properties")
def command(specs: tuple[str, ...], store_root: Path | None, as_json: bool) -> None:
    """List the GPU models that kernels can be compiled for, including models declared in SPECS.

    A star marks the default model of an architecture: --target sm_90a is the model h100-sxm.

    Examples:
      pallasc targets
      pallasc targets kernels.yaml
      pallasc targets --json

    --json prints one object:
      schema         1
      architectures  default model of each architecture
      models         list, each with: name, arch, description, sm_count, smem_optin_bytes (maximum
                     for one block), smem_per_sm_bytes, threads_per_sm, fpus_per_sm,
                     memory_bandwidth_bytes_per_s, l2_bytes, clock_ghz, memory_bytes,
                     device_names (names in drivers, including description)
    """
    from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, device_names

    models = [*MODELS.values(), *_added(specs, store_root)]
    listed = [{**asdict(each), "device_names": device_names(each.description)} for each in models]
    data = {"architectures": dict(DEFAULT_MODELS), "models": listed}
    print_result(data, [table(COLUMNS, rows(models), right=FIGURES)], as_json=as_json)


def rows(models: Iterable[Target]) -> list[list[str]]:
    """Return one row of `COLUMNS` for each model."""
    from pallasc.specs.gpus import DEFAULT_MODELS

    return [
        [
            model.name,
            model.arch + ("*" if DEFAULT_MODELS.get(model.arch) == model.name else ""),
            str(model.sm_count),
            f"{model.smem_optin_bytes:,}",
            f"{model.l2_bytes / 2**20:.0f} MiB",
            f"{model.memory_bytes / 2**30:.0f} GiB",
            model.description,
        ]
        for model in models
    ]


def _added(specs: tuple[str, ...], store_root: Path | None) -> list[Target]:
    if not specs:
        return []
    from pallasc.cli.arguments.selection import open_store
    from pallasc.compiler.builds.collect import SpecReader

    added: dict[str, Target] = {}
    for spec in SpecReader(store=open_store(store_root)).specs(specs):
        added |= spec.models
    return list(added.values())
