"""`pallasc bundle`: many compiled variants in one file; create, merge, and export bundles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from pallasc.cli import bundle_verify
from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.output.text import count, echo, fields, json_text
from pallasc.errors import PallascError, SpecError

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.cli.output.progress import Progress
    from pallasc.compiler.builds import bundling
    from pallasc.compiler.builds.collect import Selection as Selected
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Item, Provenance


@click.group(
    "bundle",
    cls=Group,
    short_help="Pack compiled variants into one file; sign and verify it.",
)
def command() -> None:
    """Pack compiled variants into one file to ship.

    A bundle contains cubins and launch plans, compressed, deduplicated, and checksummed. The same
    variants give the same bytes, regardless of the build order. Nothing in a bundle is executed
    before a launch, so it is safe to inspect a bundle from an untrusted source.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc inspect kernels.pallasc
      pallasc bundle sign kernels.pallasc --key release.key
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle verify kernels.pallasc --target sm_90a --target sm_100a --budget 2MiB
    """


_FOR_SPECS = frozenset({
    "--frozen", "--locked", "--lock", "--keep-debug", "--keep-ptx", "--lines", "--all-points",
    "--fail-on-warning",
})  # fmt: skip
"""Options that are errors if all SPECS are bundles."""


@command.command("create", cls=Command, short_help="Write variants of specs and bundles to a file.")
@options.specs_argument()
@options.output_option("FILE", "Bundle to write; an existing file is replaced atomically.")
@options.choice_option(
    "--split-by",
    ["target", "arch"],
    "Write one bundle per target or architecture, such as kernels-h100-sxm.pallasc.",
)
@options.flag("--keep-debug", "Keep debug sections in the cubins.")
@options.flag("--keep-ptx", "Include the PTX; it is not needed to launch kernels.")
@click.option(
    "--lines/--no-lines",
    default=None,
    help="Include source line numbers and text, for `pallasc inspect`; or omit those of bundles.",
)
@options.option("--level", "N", "Compression level.", type=click.IntRange(1, 22), default=19)
@options.frozen_options
@options.selection_options
@options.fail_on_warning_option
@options.quiet_option
@given.build_options()
@options.json_option("the written bundles")
def create_command(
    output: Path,
    frozen: bool,
    as_json: bool,
    lines: bool | None,
    work: Work,
    **packing: Any,
) -> int:
    """Write the variants of SPECS to a bundle.

    SPECS are specs, bundles, or both. Variants of specs that are not in the store are built first.
    If any variant fails, no bundle is written. With --frozen, nothing is compiled, and if there is
    a lock file, the artifacts of specs must match it.

    Bundles are verified, then their variants are copied as they are: options for building and for
    lock files apply to specs only. The order does not matter. A variant that is in several SPECS
    is written once; if its artifacts or tuning differ, the command names it and writes nothing. -k
    has to match in one of SPECS, not in each. A signature covers a whole bundle, so the new bundle
    must be signed again.

    The bundle records the toolchain, the digests of its spec files, the Git commit of the sources,
    and whether the sources differ from it. The same sources, commit, and toolchain give the same
    bytes in every folder and on every machine.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle create specs/ -o hopper.pallasc --target sm_90a --frozen
      pallasc bundle create specs/ -o norms.pallasc -k "rmsnorm or layernorm"
      pallasc bundle create specs/ -o dist/kernels.pallasc --split-by arch
      pallasc bundle create specs/ -o debug.pallasc --keep-ptx --lines
      pallasc bundle create hopper.pallasc blackwell.pallasc -o kernels.pallasc
    """
    from pallasc.compiler.builds import bundling
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.format import is_bundle

    files = [spec for spec in work.specs if is_bundle(Path(spec))]
    specs = tuple(spec for spec in work.specs if spec not in files)
    if not specs:
        _refuse_options_for_specs(click.get_current_context())
    source: bundling.Source = "frozen" if frozen else "compile"
    how = bundling.BundleOptions(source=source, build=work.how, **packing)
    with ExitStack() as stack:
        bundles = [stack.enter_context(open_bundle(file)) for file in files]
        copied = _copied(bundles, work.selection, keep_lines=lines is not False, required=not specs)
        if specs:
            made = _made(replace(work, specs=specs), output, how, copied, lines=bool(lines))
        else:
            made = bundling.copy_variants(copied, output, how)
        signed = [bundle.name for bundle in bundles if bundle.signatures]
    if made.report.exit_code:
        echo(f"{output} is not written.", err=True)
        return made.report.exit_code
    for name in signed:
        echo(f"{name} is signed, but {output} is not", err=True)
    _tell(made, quiet=work.quiet)
    if as_json:
        echo(json_text(_created_json(made)))
    return 0


def _copied(
    bundles: Sequence[Bundle], selection: options.Selection, *, keep_lines: bool, required: bool
) -> bundling.Copied:
    """Verify bundles, and return their selected variants.

    Raises:
        SpecError: no bundle has a selected variant, and one is required.
        CorruptError: a bundle is damaged.
    """
    from pallasc.cli.arguments.variants import selected_in_any
    from pallasc.compiler.builds import bundling
    from pallasc.specs.bundle.verify import verify

    for bundle in bundles:
        verify(bundle)
    items: list[Item] = []
    origins: list[Provenance] = []
    try:
        chosen = selected_in_any(bundles, selection)
    except SpecError:
        if required:
            raise
        return bundling.NOTHING_COPIED
    for bundle, entries in zip(bundles, chosen, strict=True):
        if not entries:
            continue
        copies = bundle.items(entries)
        items += copies if keep_lines else (replace(item, lines=None) for item in copies)
        origins += [origin for origin in bundle.provenance if origin not in origins]
    return bundling.Copied(items, origins)


def _refuse_options_for_specs(ctx: click.Context) -> None:
    for option in ctx.command.params:
        if option.opts[0] in _FOR_SPECS and ctx.params.get(option.name or ""):
            raise click.UsageError(
                f"{option.opts[0]} is for specs; variants of bundles are copied as they are."
            )


def _made(
    work: Work, output: Path, how: bundling.BundleOptions, copied: bundling.Copied, *, lines: bool
) -> bundling.BundleResult:
    """Build the variants of specs, and write the bundles."""
    from pallasc.cli.output.build_text import print_remarks
    from pallasc.compiler.builds import bundling

    with work.progress() as progress:
        finder = _finder(work, progress.mention) if lines else None
        selection = _selected(work, progress, copied, frozen=how.source == "frozen")
        if selection is None:
            return bundling.copy_variants(copied, output, how)
        made = bundling.make_bundle(
            selection,
            output,
            store=work.store,
            options=replace(how, lines=finder),
            on_event=progress,
            copied=copied,
        )
    print_remarks(made.report, work.store, progress.screen, quiet=work.quiet)
    return made


def _selected(
    work: Work, progress: Progress, copied: bundling.Copied, *, frozen: bool
) -> Selected | None:
    """Return the selected variants of specs; None if -k selects only variants of bundles."""
    from pallasc.specs.loading.select import select

    expression = work.selection.expression
    if expression is None or not copied.items:
        return work.select(progress, frozen=frozen)
    everything = replace(work, selection=work.selection._replace(expression=None))
    selection = everything.select(progress, frozen=frozen)
    try:
        variants = select(selection.variants, expression)
    except SpecError:
        return None
    return replace(selection, variants=tuple(variants))


def _finder(work: Work, say: Callable[[str], None]) -> bundling.FindLines:
    """Return a function that finds the source lines of all results; it raises if any has none."""
    from pallasc.cli.output.source_text import found_lines
    from pallasc.specs.artifacts.source_lines import to_json

    def find(results: Sequence[VariantResult]) -> list[bytes]:
        records = []
        for lines in found_lines(results, work.store, work.how, say).values():
            if isinstance(lines, PallascError):
                raise lines
            records.append(to_json(lines))
        return records

    return find


def _tell(made: bundling.BundleResult, *, quiet: bool) -> None:
    from pallasc.specs.bundle.manifest import differing

    for text in sorted({differing(origin) for origin in made.provenance if origin.dirty}):
        echo(f"warning: {text}; the bundle records this", err=True)
    for bundle in () if quiet else made.bundles:
        variants = count(len(bundle.variants), "variant")
        echo(f"wrote {bundle.path}: {variants}, {bundle.size:,} bytes", err=True)


def _created_json(made: bundling.BundleResult) -> dict[str, object]:
    return {
        "bundles": [
            {
                **fields(bundle, "target", "digest", "variants"),
                "file": str(bundle.path),
                "bytes": bundle.size,
            }
            for bundle in made.bundles
        ],
        "provenance": to_builtins(made.provenance),
    }


@command.command("export", cls=Command, short_help="Write kernels as sources for C and C++.")
@options.bundle_argument
@click.option("--c", "as_c", is_flag=True, required=True, help="Write C and a CMakeLists.txt.")
@options.output_option("FOLDER", "Folder to write; an unmodified earlier export is replaced.")
@options.option(
    "--name", "NAME", "Name of the library and prefix of its functions. Default: the bundle's name."
)
@options.size_option(
    "--max-size",
    "most_bytes",
    "Maximum total size, or none; if it is exceeded, nothing is written.",
    default="4GiB",
)
@options.bundle_selection_options
@options.json_option("the written kernels")
def export_command(
    file: Path,
    as_c: bool,
    output: Path,
    name: str | None,
    most_bytes: int | None,
    as_json: bool,
    selection: options.Selection,
) -> int:
    """Write kernels as sources that CMake builds into a library, without Python or a CUDA toolkit.

    The folder contains a flat launch plan for each variant, a header with one function per kernel,
    and the launcher's sources. Each function selects the variant by the arrays and the GPU. The
    same variants give the same bytes. The folder is written completely or not at all. Of
    a tuned kernel, the export contains, for each GPU model and set of arrays, the variant that the
    tuning table selects, else the default, else all. Unlike in Python, arrays are not padded to the
    size of a variant.

    Examples:
      pallasc bundle export --c kernels.pallasc -o kernels/
      pallasc bundle export --c kernels.pallasc -o norms/ --name norms -k "rmsnorm or layernorm"
    """
    from pallasc.cli.arguments.variants import selected_entries
    from pallasc.runtime.native.library import FOLDER
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.c_export import export_c, name_from
    from pallasc.version import installed_version

    library = name_from(file.name) if name is None else name
    with open_bundle(file) as bundle:
        entries = selected_entries(bundle, selection)
        kernels = export_c(
            bundle,
            entries,
            output,
            name=library,
            native=FOLDER,
            version=installed_version(),
            most_bytes=most_bytes,
        )
    if as_json:
        listed = [
            {
                **fields(kernel, "name", "function", "left_out"),
                "variants": [
                    {
                        **fields(own.entry, "id", "arch"),
                        **fields(own, "file", "chosen_by"),
                        "bytes": own.size,
                    }
                    for own in kernel.variants
                ],
            }
            for kernel in kernels
        ]
        told = {"file": str(file), "folder": str(output), "name": library, "kernels": listed}
        echo(json_text(told))
    for kernel in kernels:
        if kernel.left_out:
            left = f"left out {count(kernel.left_out, 'variant')} of {kernel.name}"
            echo(f"{left} that its tuning table does not select", err=True)
    variants = count(sum(len(kernel.variants) for kernel in kernels), "variant")
    echo(f"wrote {count(len(kernels), 'kernel')} with {variants} to {output}", err=True)
    return 0


for _command in (
    bundle_verify.keygen_command,
    bundle_verify.sign_command,
    bundle_verify.verify_command,
):
    command.add_command(_command)
