"""`pallasc bundle`: many compiled variants in one file; create, merge, export, show bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from pallasc.cli import bundle_verify
from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.output.text import count, echo, fields, first_of, json_text, print_result
from pallasc.errors import PallascError, SpecError

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.compiler.builds.bundling import BundleResult, FindLines, Source
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry, Provenance


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
      pallasc bundle show kernels.pallasc
      pallasc bundle sign kernels.pallasc --key release.key
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle verify kernels.pallasc --target sm_90a --target sm_100a --budget 2MiB
    """


_MOST_LISTED = 8

Chosen = tuple["Bundle", "Sequence[Entry]"]

bundle_option = options.output_option(
    "FILE", "Bundle to write; an existing file is replaced atomically."
)


@command.command("create", cls=Command, short_help="Write variants of specs into a bundle.")
@options.specs_argument()
@bundle_option
@options.choice_option(
    "--split-by",
    ["target", "arch"],
    "Write one bundle per target or architecture, such as kernels-h100-sxm.pallasc.",
)
@options.flag("--keep-debug", "Keep debug sections in the cubins.")
@options.flag("--keep-ptx", "Include the PTX; it is not needed to launch kernels.")
@options.flag("--lines", "Include source line numbers and text, for `pallasc inspect`.")
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
    lines: bool,
    work: Work,
    **packing: Any,
) -> int:
    """Write the variants of SPECS to a bundle.

    Variants that are not in the store are built first. If any variant fails, no bundle is written.
    With --frozen, nothing is compiled, and if there is a lock file, every artifact must match it.

    The bundle records the toolchain, the digests of its spec files, the Git commit of the sources,
    and whether the sources differ from it. The same sources, commit, and toolchain give the same
    bytes in every folder and on every machine.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle create specs/ -o hopper.pallasc --target sm_90a --frozen
      pallasc bundle create specs/ -o norms.pallasc -k "rmsnorm or layernorm"
      pallasc bundle create specs/ -o dist/kernels.pallasc --split-by arch
      pallasc bundle create specs/ -o debug.pallasc --keep-ptx --lines
    """
    from pallasc.cli.output.build_text import print_remarks
    from pallasc.compiler.builds.bundling import BundleOptions, make_bundle

    with work.progress() as progress:
        source: Source = "frozen" if frozen else "compile"
        made = make_bundle(
            work.select(progress, frozen=frozen),
            output,
            store=work.store,
            options=BundleOptions(
                source=source,
                lines=_finder(work, progress.mention) if lines else None,
                build=work.how,
                **packing,
            ),
            on_event=progress,
        )
    print_remarks(made.report, work.store, progress.screen, quiet=work.quiet)
    if made.report.exit_code:
        echo(f"{output} is not written.", err=True)
        return made.report.exit_code
    _tell(made, quiet=work.quiet)
    if as_json:
        echo(json_text(_created_json(made)))
    return 0


def _finder(work: Work, say: Callable[[str], None]) -> FindLines:
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


def _tell(made: BundleResult, *, quiet: bool) -> None:
    from pallasc.specs.bundle.manifest import differing

    for text in sorted({differing(origin) for origin in made.provenance if origin.dirty}):
        echo(f"warning: {text}; the bundle records this", err=True)
    for bundle in () if quiet else made.bundles:
        variants = count(len(bundle.variants), "variant")
        echo(f"wrote {bundle.path}: {variants}, {bundle.size:,} bytes", err=True)


def _created_json(made: BundleResult) -> dict[str, object]:
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


@command.command("merge", cls=Command, short_help="Merge several bundles into one.")
@options.bundles_argument
@bundle_option
@options.bundle_selection_options
@options.flag("--strip-lines", "Omit source lines.")
@options.json_option("the written bundle")
def merge_command(
    files: tuple[Path, ...],
    output: Path,
    strip_lines: bool,
    as_json: bool,
    selection: options.Selection,
) -> int:
    """Merge the variants of several bundles into one; the order of the bundles does not matter.

    Variants that are in several bundles are written once. If bundles have different artifacts or
    tuning for a variant, the command names the variant and writes nothing. All bundles are verified
    first. A signature covers a whole bundle, so the new bundle must be signed again.

    Examples:
      pallasc bundle merge hopper.pallasc blackwell.pallasc -o kernels.pallasc
      pallasc bundle merge kernels.pallasc -o small.pallasc --target sm_90a -k "not debug"
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.verify import verify
    from pallasc.specs.user_files import replace_file

    with ExitStack() as stack:
        bundles = [stack.enter_context(open_bundle(file)) for file in files]
        for bundle in bundles:
            verify(bundle)
        data = _merged(_selected(bundles, selection), strip_lines=strip_lines)
        for bundle in bundles:
            if bundle.signatures:
                echo(f"{bundle.name} is signed, but {output} is not", err=True)
    replace_file(output, data)
    with open_bundle(data) as made:
        number, digest = len(made), made.digest
    if as_json:
        facts = {"file": str(output), "variants": number, "bytes": len(data), "digest": digest}
        echo(json_text(facts))
    echo(f"wrote {output}: {count(number, 'variant')}, {len(data):,} bytes", err=True)
    return 0


def _selected(bundles: Sequence[Bundle], selection: options.Selection) -> list[Chosen]:
    """Return the bundles that have selected variants, with those variants.

    Raises:
        SpecError: no bundle has a selected variant.
    """
    from pallasc.cli.arguments.variants import selected_entries

    choices: list[Chosen] = []
    errors = []
    for bundle in bundles:
        try:
            choices.append((bundle, selected_entries(bundle, selection)))
        # A target or expression need not match variants in every bundle, only in one.
        except SpecError as error:
            errors.append(error)
    if not choices:
        raise errors[0]
    return choices


def _merged(choices: Sequence[Chosen], *, strip_lines: bool) -> bytes:
    from pallasc.specs.bundle.writer import build_bundle

    origins = [origin for bundle, _ in choices for origin in bundle.provenance]
    items = (item for bundle, entries in choices for item in bundle.items(entries))
    if strip_lines:
        items = (replace(item, lines=None) for item in items)
    return build_bundle(items, keep_debug=True, keep_ptx=True, provenance=origins)


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


@command.command("show", cls=Command, short_help="Show a bundle, or one of its variants.")
@options.bundle_argument
@click.argument("name", required=False)
@options.json_option("everything")
def show_command(file: Path, name: str | None, as_json: bool) -> int:
    """Show a bundle, or one of its variants.

    NAME is the id of a variant, or an expression as in -k that matches one variant.

    For a bundle, this shows the format version, size, kernels, targets with their minimum drivers,
    signatures, and provenance. For a variant, it shows the arrays, launch plan, resources,
    digests, target, minimum driver, toolchain, and provenance. The root is the digest that keys
    sign; use verify to check signatures.

    Examples:
      pallasc bundle show kernels.pallasc
      pallasc bundle show kernels.pallasc "matmul[m=1024]@h100-sxm"
      pallasc bundle show kernels.pallasc "matmul and m=1024 and target=sm_90a" --json
    """
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        entry = None if name is None else find_entry(bundle, name)
        data = _bundle_json(bundle) if entry is None else _variant_json(bundle, entry)
        origins = to_builtins(bundle.provenance)
        lines = _bundle_text(data) if entry is None else _variant_text(bundle, entry)
        data = {"file": str(file), "provenance": origins, **data}
        print_result(data, chain(lines, _origins(bundle.provenance)), as_json=as_json)
    return 0


def find_entry(bundle: Bundle, name: str) -> Entry:
    """Return the single entry that this id, kernel name, or expression selects.

    Raises:
        SpecError: no entry matches, or several do.
    """
    from pallasc.cli.arguments.variants import select_entries

    entries = list(bundle.entries())
    # An id is unique; an expression, such as the name of a kernel, may match several entries.
    matching = [entry for entry in entries if entry.id == name]
    try:
        matching = matching or select_entries(entries, name)
    except SpecError as error:
        raise SpecError(f"{bundle.name} has no variant {name!r}.", hint=error.hint) from error
    if len(matching) > 1:
        ids = first_of([entry.id for entry in matching], _MOST_LISTED)
        raise SpecError(
            f"{name!r} matches {len(matching)} variants of {bundle.name}.", hint=f"Name one: {ids}."
        )
    return matching[0]


def _targets(bundle: Bundle) -> list[dict[str, Any]]:
    """Return name, architecture, variant count and minimum driver of each target."""
    from pallasc.specs.bundle.verify import version_of

    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for entry in bundle.entries():
        found.setdefault((entry.arch, entry.target), []).append(dict(entry.minimum_driver))
    return [
        {
            "target": target,
            "arch": arch,
            "variants": len(drivers),
            "minimum_driver": max(drivers, key=lambda driver: version_of(driver.get("cuda", ""))),
        }
        for (arch, target), drivers in sorted(found.items())
    ]


def _bundle_json(bundle: Bundle) -> dict[str, Any]:
    from pallasc.specs.bundle.format import MAJOR

    return {
        "format": f"{MAJOR}.{bundle.reader.head.minor}",
        **fields(bundle, "digest", "root"),
        "bytes": bundle.size,
        "codec": dict(bundle.codec),
        "signatures": [signature.key_id for signature in bundle.signatures],
        "kernels": Counter(entry.name for entry in bundle.entries()),
        "targets": _targets(bundle),
    }


def _bundle_text(data: Mapping[str, Any]) -> Iterator[str]:
    codec = ", ".join(f"{name} {value}" for name, value in sorted(data["codec"].items()))
    yield f"format      {data['format']}"
    yield f"bytes       {data['bytes']:,}"
    yield f"content     {data['digest']}"
    yield f"root        {data['root']}"
    yield f"codec       {codec or 'unknown'}"
    yield f"signatures  {', '.join(data['signatures']) or 'none'}"
    yield "kernels"
    for name, number in data["kernels"].items():
        yield f"  {name}: {count(number, 'variant')}"
    yield "targets"
    for row in data["targets"]:
        api, package = (row["minimum_driver"].get(name, "unknown") for name in ("cuda", "linux"))
        driver = f"driver {package} or newer (CUDA {api})"
        yield f"  {row['target']} ({row['arch']}): {count(row['variants'], 'variant')}, {driver}"


def _variant_json(bundle: Bundle, entry: Entry) -> dict[str, object]:
    from pallasc.cli.list import entry_json

    return {
        "variant": entry_json(bundle, entry),
        "record": dict(bundle.record(entry)),
        "shipped": {
            key: None if row is None else {"digest": row.digest.hex(), "bytes": row.size}
            for key, row in bundle.shipped(entry).items()
        },
    }


def _variant_text(bundle: Bundle, entry: Entry) -> Iterator[str]:
    from pallasc.cli.output.artifact_text import plan_text, summary_text

    artifact = bundle.artifact(entry)
    yield entry.id
    yield f"compiled   {entry.digest}"
    yield summary_text(artifact).replace("artifact  ", "shipped   ", 1)
    yield from _tuning_text(entry)
    yield "plan"
    yield from (f"  {line}" for line in plan_text(artifact.plan).splitlines())
    yield "blobs"
    for key, row in bundle.shipped(entry).items():
        if row is None:
            yield f"  {key}  left out"
        else:
            name = row.digest.hex()
            yield f"  {key}  {'' if name == key else f'as {name}, '}{row.size} bytes"


def _tuning_text(entry: Entry) -> Iterator[str]:
    """Yield how a tuned kernel uses this variant: its table rows, and if it is the default."""
    from pallasc.specs.tuning import key_text

    tuning = entry.tuning
    if tuning is None:
        return
    yield f"tuned      {', '.join(tuning.over)} by {', '.join(tuning.by)}"
    yield "used for"
    for row in tuning.rows:
        figures = row.measured
        us = f", {figures.us:g} µs on {figures.device or row.gpu}" if figures else ""
        source = f", from {row.source}" if row.source else ""
        yield f"  {row.gpu}, {key_text(tuning.by, row.key)}{us}{source}"
    if tuning.is_default:
        yield "  default, for keys without a row"


def _origins(origins: Sequence[Provenance]) -> Iterator[str]:
    yield "provenance" if origins else "provenance  none"
    for origin in origins:
        states = {True: ", with changed files", False: "", None: ", changes unknown"}
        commit = f"commit {origin.commit}{states[origin.dirty]}" if origin.commit else "no commit"
        yield f"  {origin.builder}, {commit}"
        tools = ", ".join(f"{name} {text}" for name, text in sorted(origin.toolchain.items()))
        yield f"    {tools or 'toolchain unknown'}"
        for name, digest in sorted(origin.specs.items()):
            yield f"    {digest[:12]}  {name}"
        for name in origin.changed:
            yield f"    differs       {name}"


for _command in (
    bundle_verify.keygen_command,
    bundle_verify.sign_command,
    bundle_verify.verify_command,
):
    command.add_command(_command)
