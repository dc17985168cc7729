"""`pallasc bundle merge`: several bundles in one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import Selection, bundle_selection_options, json_option
from pallasc.cli.bundle.options import files_argument, output_option
from pallasc.cli.output.text import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry

_MOST_NAMED = 10

Chosen = tuple["Bundle", "Sequence[Entry]"]


@click.command("merge", cls=Command, short_help="Put several bundles into one.")
@files_argument
@output_option
@bundle_selection_options
@click.option("--strip-lines", is_flag=True, help="Leave out the lines of the source.")
@json_option("what was written")
def command(
    files: tuple[Path, ...],
    output: Path,
    strip_lines: bool,
    as_json: bool,
    selection: Selection,
) -> int:
    """Write the variants of several bundles into one, whatever their order.

    A variant that several of them have is written once. Where they have different artifacts of a
    variant, the variant is named, nothing is written, and the exit code is 5. All bundles are
    verified first. A signature covers a whole bundle, so the new bundle has none: sign it.

    Examples:
      pallasc bundle merge hopper.pallasc blackwell.pallasc -o kernels.pallasc
      pallasc bundle merge kernels.pallasc -o small.pallasc --target sm_90a -k "not debug"

    --json prints one object:
      schema    1
      file      the bundle that was written
      variants  how many it holds
      bytes     its size
      digest    of all its content
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.verify import verify

    with ExitStack() as stack:
        bundles = [stack.enter_context(open_bundle(file)) for file in files]
        for bundle in bundles:
            verify(bundle)
        data = _merged(_selected(bundles, selection), strip_lines=strip_lines)
        for bundle in bundles:
            if bundle.signatures:
                echo(f"{bundle.name} is signed, {output} will not be", err=True)
    _write(output, data, as_json=as_json)
    return 0


def _selected(bundles: Sequence[Bundle], selection: Selection) -> list[Chosen]:
    """Return each bundle that has variants which match, with these.

    Raises:
        SpecError: no bundle has any.
    """
    from pallasc.cli.arguments.compiled import selected_entries
    from pallasc.errors import SpecError

    choices: list[Chosen] = []
    errors = []
    for bundle in bundles:
        try:
            choices.append((bundle, selected_entries(bundle, selection)))
        # A target or expression has to fit some of the bundles, not each of them.
        except SpecError as error:
            errors.append(error)
    if not choices:
        raise errors[0]
    return choices


def _merged(choices: Sequence[Chosen], *, strip_lines: bool) -> bytes:
    """Return the bytes of the new bundle.

    Raises:
        CorruptError: bundles do not agree on a variant.
    """
    from pallasc.cli.output.text import count
    from pallasc.errors import CorruptError
    from pallasc.specs.bundle.writer import build_bundle

    if conflicts := _conflicts(choices):
        named = "\n".join(f"  {conflict}" for conflict in conflicts[:_MOST_NAMED])
        more = f"\n  and {len(conflicts) - _MOST_NAMED} more" * (len(conflicts) > _MOST_NAMED)
        raise CorruptError(
            f"the bundles have different artifacts of {count(len(conflicts), 'variant')}:\n"
            f"{named}{more}",
            hint="Build them again with one toolchain, or leave them out with -k.",
        )
    origins = [origin for bundle, _ in choices for origin in bundle.provenance]
    items = (item for bundle, entries in choices for item in bundle.items(entries))
    if strip_lines:
        items = (replace(item, lines=None) for item in items)
    return build_bundle(items, keep_debug=True, keep_ptx=True, provenance=origins)


def _conflicts(choices: Sequence[Chosen]) -> list[str]:
    """Return the variants that bundles disagree on, with the artifact that each bundle has."""
    found: dict[bytes, list[tuple[str, Entry]]] = {}
    for bundle, entries in choices:
        for entry in entries:
            found.setdefault(entry.key, []).append((bundle.name, entry))
    return [
        f"{own[0][1].id}: {', '.join(f'{e.digest[:12]} in {name}' for name, e in own)}"
        for _, own in sorted(found.items())
        if len({entry.digest for _, entry in own}) > 1
    ]


def _write(output: Path, data: bytes, *, as_json: bool) -> None:
    from pallasc.cli.output.text import count, json_text
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.user_files import replace_file

    replace_file(output, data)
    with open_bundle(data) as bundle:
        number, digest = len(bundle), bundle.digest
    if as_json:
        facts = {"file": str(output), "variants": number, "bytes": len(data), "digest": digest}
        echo(json_text(facts))
    echo(f"wrote {output}: {count(number, 'variant')}, {len(data):,} bytes", err=True)
