"""`pallasc cache why`: why variants are in the store or not."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    LoadOptions,
    json_option,
    reading_options,
    selection_options,
    specs_argument,
    store_option,
)
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo


@click.command("why", cls=Command)
@specs_argument()
@selection_options
@reading_options
@store_option
@json_option("the explanations")
def command(
    specs: tuple[str, ...],
    store_root: Path | None,
    as_json: bool,
    **options: Unpack[LoadOptions],
) -> None:
    """Explain why variants of SPECS are in the store or not.

    A miss is compared with the nearest entry: which labelled fields of the key differ, or which
    source file has changed. Nothing is compiled and JAX is not imported; it need not even be
    installed where the store remembers the toolchain that filled it.

    Example:
      pallasc cache why kernels.yaml -k matmul
    """
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.cli.render.why_text import explanation_text
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.inputs.manifest import installed_or_remembered
    from pallasc.compiler.inputs.why import explain_variants

    store = opened(store_root)
    variants = load_variants(specs, store=store, **options)
    with installed_or_remembered(store) as setup:
        context = setup.context(store)
        explanations = explain_variants(variants, context, store, setup.versions_now)
        notes = setup.notes(context)
    for note in notes:
        echo(f"warning: {note}", err=True)
    if as_json:
        echo(json_text({"variants": [item.to_json() for item in explanations]}))
    else:
        echo("\n".join(map(explanation_text, explanations)))
