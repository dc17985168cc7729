"""`pallasc list` and `pallasc targets`: variants of specs and bundles, and models of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import count, echo, fields, json_text, print_result, table

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import Variant


@click.command("list", cls=Command, short_help="List the variants of specs or bundles.")
@options.specs_argument()
@options.selection_options
@given.reading_options
@options.json_option("the variants")
def command(work: Work, as_json: bool) -> None:
    """List the variants of SPECS: one for each point of the matrix and each target.

    SPECS are specs or bundles. For bundles, the table shows the size and digest of each variant.
    Nothing is compiled, and JAX is imported only if a Python spec imports it.

    Examples:
      pallasc list kernels.yaml
      pallasc list specs/ -k "target=sm_90a and not dtype=f32"
      pallasc list specs/ --json | jq -r ".variants[].id"
      pallasc list kernels.pallasc --target sm_90a
    """
    from pallasc.cli.arguments.variants import bundle_files

    if bundles := bundle_files(work.specs):
        list_bundles(bundles, work.selection, as_json=as_json)
        return
    variants = work.select().variants
    if as_json:
        echo(json_text({"variants": [variant_json(variant) for variant in variants]}))
        return
    rows = [
        [
            variant.id,
            variant.target.arch,
            variant.entry,
            ", ".join(f"{path}: {array}" for path, array in variant.arrays()),
        ]
        for variant in variants
    ]
    echo(table(["VARIANT", "ARCH", "ENTRY", "ARRAYS"], rows))


def list_bundles(files: Sequence[Path], selection: options.Selection, *, as_json: bool) -> None:
    """Print the variants of bundles, sorted by kernel, target and parameters."""
    from pallasc.cli.arguments.variants import selected_in_any
    from pallasc.specs.bundle.bundle import open_bundle

    listed: list[dict[str, object]] = []
    rows: list[list[str]] = []
    with ExitStack() as stack:
        bundles = [stack.enter_context(open_bundle(file)) for file in files]
        chosen = selected_in_any(bundles, selection)
        for file, bundle, entries in zip(files, bundles, chosen, strict=True):
            for entry in entries:
                listed.append({"bundle": str(file), **entry_json(bundle, entry)})
                size = f"{stored_bytes(bundle, entry):,}"
                rows.append([entry.id, entry.arch, size, entry.digest[:12], _used_for(entry)])
    columns = ["VARIANT", "ARCH", "BYTES", "DIGEST", "USED FOR"]
    if not any(row[-1] for row in rows):  # no kernel is tuned
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    text = table(columns, rows, right={"BYTES"})
    print_result({"variants": listed}, [text], as_json=as_json)


def stored_bytes(bundle: Bundle, entry: Entry) -> int:
    """Return the stored size of an entry's blobs, without the blobs they are compressed against."""
    return sum(row.extent.size for row in bundle.rows(entry))


def _used_for(entry: Entry) -> str:
    """Return how many table rows use a variant, per GPU, and whether it is the default."""
    tuning = entry.tuning
    if tuning is None:
        return ""
    gpus = Counter(row.gpu for row in tuning.rows)
    uses = [f"{count(number, 'row')} for {gpu}" for gpu, number in sorted(gpus.items())]
    return ", ".join([*uses, *(["default"] if tuning.is_default else [])])


def entry_json(bundle: Bundle, entry: Entry) -> dict[str, object]:
    """Return the `--json` object of a variant."""
    return {
        **fields(entry, "id", "name", "target", "arch", "digest", "vmap"),
        "params": dict(entry.params),
        "inputs": [str(array) for array in entry.inputs],
        "outputs": [str(array) for array in entry.outputs],
        "minimum_driver": dict(entry.minimum_driver),
        "bytes": stored_bytes(bundle, entry),
        "tune": None if entry.tuning is None else entry.tuning.to_json(),
    }


def variant_json(variant: Variant) -> dict[str, object]:
    """Return the `--json` object of a variant."""
    from pallasc.cli.output.reports import variant_facts
    from pallasc.specs.spec import plain_args

    return {
        **variant_facts(variant),
        **fields(variant, "entry", "static", "reference"),
        "arch": variant.target.arch,
        "args": plain_args(variant.args),
        "arrays": {path: str(array) for path, array in variant.arrays()},
        "mesh": dict(variant.mesh),
        "file": variant.location.file,
        "line": variant.location.line or None,
    }


COLUMNS = ("MODEL", "ARCH", "SMS", "SMEM PER BLOCK", "L2", "MEMORY", "DEVICE")
FIGURES = ("SMS", "SMEM PER BLOCK", "L2", "MEMORY")
"""Numeric columns; sizes are in bytes, MiB and GiB."""


@click.command(
    "targets", cls=Command, short_help="List the GPU models and architectures to compile for."
)
@options.specs_argument(required=False)
@options.store_option
@options.json_option("the models with all their properties")
def targets_command(specs: tuple[str, ...], store_root: Path | None, as_json: bool) -> None:
    """List the GPU models that kernels can be compiled for, including models declared in SPECS.

    A star marks the default model of an architecture: --target sm_90a is the model h100-sxm.

    Examples:
      pallasc targets
      pallasc targets kernels.yaml
      pallasc targets --json
    """
    from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, device_names

    models = [*MODELS.values(), *_added(specs, store_root)]
    listed = [{**asdict(each), "device_names": device_names(each.description)} for each in models]
    data = {"architectures": dict(DEFAULT_MODELS), "models": listed}
    print_result(data, [table(COLUMNS, target_rows(models), right=FIGURES)], as_json=as_json)


def target_rows(models: Iterable[Target]) -> list[list[str]]:
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
    from pallasc.cli.arguments.variants import open_store
    from pallasc.compiler.builds.collect import SpecReader

    added: dict[str, Target] = {}
    for spec in SpecReader(store=open_store(store_root)).specs(specs):
        added |= spec.models
    return list(added.values())
