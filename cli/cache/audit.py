"""`pallasc cache audit`: compile again what the store has, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    LoadOptions,
    compile_options,
    count_option,
    json_option,
    selection_options,
    specs_argument,
    store_option,
    supervision_options,
)
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo


@click.command("audit", cls=Command, short_help="Compile again, and compare byte for byte.")
@specs_argument()
@selection_options
@compile_options
@count_option("--sample", "Compile only N of them.")
@click.option("--seed", default=0, show_default=True, help="Choose the sample.")
@supervision_options
@store_option
@json_option("the results")
def command(
    specs: tuple[str, ...],
    jobs: int | None,
    ptxas: Path | None,
    sample: int | None,
    seed: int,
    store_root: Path | None,
    as_json: bool,
    **options: Unpack[LoadOptions],
) -> int:
    """Compile variants of SPECS that are in the store again, and compare byte for byte.

    Ends with exit code 1 where a variant differs or fails.

    Example:
      pallasc cache audit kernels.yaml --sample 5
    """
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.builds.audit import audit
    from pallasc.compiler.builds.options import Options

    store = opened(store_root)
    variants = load_variants(specs, store=store, **options)
    how = Options(
        jobs=jobs,
        ptxas=ptxas,
        timeout_s=options["timeout_s"],
        memory_bytes=options["memory_bytes"],
    )
    audited = audit(variants, store=store, sample=sample, seed=seed, options=how)
    if as_json:
        echo(json_text({"variants": [item.to_json() for item in audited]}))
    else:
        for item in audited:
            rest = item.error or ", ".join(item.parts)
            echo(f"{item.outcome:<9}  {item.variant}" + (f": {rest}" if rest else ""))
        echo(f"{len(audited)} of {len(variants)} variants compiled again")
    return 0 if all(item.outcome == "same" for item in audited) else 1
