"""`pallasc bundle show`: a bundle as a whole, or one of its variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option
from pallasc.cli.bundle.options import file_argument
from pallasc.cli.output.text import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.provenance import Provenance

_MOST_LISTED = 8


@click.command("show", cls=Command, short_help="Show a bundle, or one variant of it.")
@file_argument
@click.argument("name", required=False)
@json_option("all of it")
def command(file: Path, name: str | None, as_json: bool) -> int:
    """Show a bundle, or the variant that NAME means: an id, or an expression as for -k.

    Of a bundle: version of the format, size, kernels, targets with the driver that each needs,
    signatures, provenance. Of a variant: signature, launch plan, resources, digests, target,
    minimum driver, toolchain, provenance. Signatures are shown, not checked: use verify for that.

    Examples:
      pallasc bundle show kernels.pallasc
      pallasc bundle show kernels.pallasc "matmul[m=1024]@h100-sxm"
      pallasc bundle show kernels.pallasc "matmul and m=1024 and target=sm_90a" --json

    --json prints one object:
      schema      1
      file        the bundle
      provenance  a list; of each: builder, toolchain, specs, commit, dirty, changed
    of a bundle, too:
      format      version of the format
      bytes       its size
      digest      of all its content
      root        what signatures are over
      codec       what compressed it
      signatures  ids of the keys
      kernels     number of variants by kernel
      targets     a list; of each: target, arch, variants, minimum_driver
    of a variant, too:
      variant     as in pallasc list
      record      the artifact's record as it was compiled, see inspect --json
      shipped     what is in the bundle for each blob: digest and bytes, or null; by its digest in
                  the record
    """
    from pallasc.cli.output.text import json_text
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        entry = None if name is None else find_entry(bundle, name)
        if as_json:
            data = _bundle_json(bundle) if entry is None else _variant_json(bundle, entry)
            origins = [asdict(origin) for origin in bundle.provenance]
            echo(json_text({"file": str(file), "provenance": origins, **data}))
        else:
            text = _bundle_text(bundle) if entry is None else _variant_text(bundle, entry)
            echo("\n".join([*text, *_origins(bundle.provenance)]))
    return 0


def find_entry(bundle: Bundle, name: str) -> Entry:
    """Return the entry with an id, with a kernel's name, or that an expression matches.

    Raises:
        SpecError: there is none, or there are several.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.bundle.rearrange import select_entries

    entries = list(bundle.entries())
    # An id is exact; a name or an expression may match several.
    matching = [entry for entry in entries if entry.id == name]
    matching = matching or [entry for entry in entries if entry.name == name]
    try:
        matching = matching or select_entries(entries, name)
    except SpecError as error:
        raise SpecError(f"{bundle.name} has no variant {name!r}.", hint=error.hint) from error
    if len(matching) > 1:
        more = ", …" if len(matching) > _MOST_LISTED else ""
        ids = ", ".join(entry.id for entry in matching[:_MOST_LISTED])
        raise SpecError(
            f"{name!r} matches {len(matching)} variants of {bundle.name}.",
            hint=f"Name one: {ids}{more}.",
        )
    return matching[0]


@dataclass(slots=True)
class _TargetRow:
    """What a bundle has for one target."""

    target: str
    arch: str
    variants: int = 0
    minimum_driver: Mapping[str, str] = field(default_factory=dict)


def _targets(bundle: Bundle) -> list[_TargetRow]:
    rows: dict[tuple[str, str], _TargetRow] = {}
    for entry in bundle.entries():
        row = rows.setdefault((entry.arch, entry.target), _TargetRow(entry.target, entry.arch))
        row.variants += 1
        row.minimum_driver = max(row.minimum_driver, dict(entry.minimum_driver), key=_newness)
    return [rows[key] for key in sorted(rows)]


def _newness(driver: Mapping[str, str]) -> list[int]:
    parts = driver.get("cuda", "").split(".")
    return [int(part) if part.isdecimal() else 0 for part in parts]


def _kernels(bundle: Bundle) -> Counter[str]:
    return Counter(entry.name for entry in bundle.entries())


def _format(bundle: Bundle) -> str:
    from pallasc.specs.bundle.format import MAJOR

    return f"{MAJOR}.{bundle.reader.head.minor}"


def _bundle_json(bundle: Bundle) -> dict[str, object]:
    return {
        "format": _format(bundle),
        "bytes": bundle.size,
        "digest": bundle.digest,
        "root": bundle.root,
        "codec": dict(bundle.codec),
        "signatures": [signature.key_id for signature in bundle.signatures],
        "kernels": _kernels(bundle),
        "targets": [asdict(row) for row in _targets(bundle)],
    }


def _bundle_text(bundle: Bundle) -> Iterator[str]:
    from pallasc.cli.output.text import count

    yield f"format      {_format(bundle)}"
    yield f"bytes       {bundle.size:,}"
    yield f"content     {bundle.digest}"
    yield f"root        {bundle.root}"
    codec = ", ".join(f"{name} {value}" for name, value in sorted(bundle.codec.items()))
    yield f"codec       {codec or 'unknown'}"
    signatures = ", ".join(signature.key_id for signature in bundle.signatures)
    yield f"signatures  {signatures or 'none'}"
    yield "kernels"
    for name, number in _kernels(bundle).items():
        yield f"  {name}: {count(number, 'variant')}"
    yield "targets"
    for row in _targets(bundle):
        variants = count(row.variants, "variant")
        yield f"  {row.target} ({row.arch}): {variants}, {_driver(row.minimum_driver)}"


def _driver(driver: Mapping[str, str]) -> str:
    api, package = driver.get("cuda", "unknown"), driver.get("linux", "unknown")
    return f"driver {package} or newer (CUDA {api})"


def _variant_json(bundle: Bundle, entry: Entry) -> dict[str, object]:
    from pallasc.cli.bundle.entries import entry_json

    return {
        "variant": entry_json(bundle, entry),
        "record": dict(bundle.record(entry)),
        "shipped": {
            key: None if place is None else {"digest": place[0], "bytes": place[1]}
            for key, place in bundle.shipped(entry).items()
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
    for key, place in bundle.shipped(entry).items():
        if place is None:
            yield f"  {key}  left out"
        elif place[0] == key:
            yield f"  {key}  {place[1]} bytes"
        else:
            yield f"  {key}  as {place[0]}, {place[1]} bytes"


def _tuning_text(entry: Entry) -> Iterator[str]:
    """Yield where a variant of a tuned kernel is used."""
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
        yield "  what no row is for, as the default"
    elif not tuning.rows:
        yield "  nothing: it is in no row"
    for name, places in tuning.pad.items():
        dimensions = ", ".join(f"dimension {axis} of {path}" for path, axis in places.items())
        yield f"padded     {name}: {dimensions}"
    if tuning.rank:
        yield f"rank       {tuning.rank} of its key; a job for pallasc tune run"


def _origins(origins: Sequence[Provenance]) -> Iterator[str]:
    yield "provenance" if origins else "provenance  none"
    for origin in origins:
        states = {True: ", and files differed from it", False: "", None: ", changes unknown"}
        commit = f"commit {origin.commit}{states[origin.dirty]}" if origin.commit else "no commit"
        yield f"  {origin.builder}, {commit}"
        tools = ", ".join(f"{name} {text}" for name, text in sorted(origin.toolchain.items()))
        yield f"    {tools or 'toolchain unknown'}"
        for name, digest in sorted(origin.specs.items()):
            yield f"    {digest[:12]}  {name}"
        for name in origin.changed:
            yield f"    differs       {name}"
