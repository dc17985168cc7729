"""`pallasc bundle show`, and `pallasc list` for bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import file_argument, json_option
from pallasc.cli.output.text import count, print_result, table
from pallasc.errors import SpecError

if TYPE_CHECKING:
    from pallasc.cli.arguments.options import Selection
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry, Provenance

_MOST_LISTED = 8


@click.command("show", cls=Command, short_help="Show a bundle, or one of its variants.")
@file_argument
@click.argument("name", required=False)
@json_option("everything")
def command(file: Path, name: str | None, as_json: bool) -> int:
    """Show a bundle, or one of its variants.

    NAME is the id of a variant, or an expression as in -k that matches one variant.

    For a bundle, this shows the format version, size, kernels, targets with their minimum drivers,
    signatures, and provenance. For a variant, it shows the signature, launch plan, resources,
    digests, target, minimum driver, toolchain, and provenance. Signatures of the bundle are not
    checked; use verify for that.

    Examples:
      pallasc bundle show kernels.pallasc
      pallasc bundle show kernels.pallasc "matmul[m=1024]@h100-sxm"
      pallasc bundle show kernels.pallasc "matmul and m=1024 and target=sm_90a" --json

    --json prints one object:
      schema      1
      file        the bundle
      provenance  list, each with: builder, toolchain, specs, commit, dirty, changed
    for a bundle also:
      format      format version
      bytes       size of the file
      digest      digest of the whole content
      root        digest that signatures cover
      codec       compression codec
      signatures  ids of the keys that signed it
      kernels     number of variants by kernel
      targets     list, each with: target, arch, variants, minimum_driver
    for a variant also:
      variant     as in pallasc list
      record      the artifact's record as compiled, see inspect --json
      shipped     digest and bytes of each blob in the bundle, or null; by its digest in the record
    """
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        entry = None if name is None else find_entry(bundle, name)
        data = _bundle_json(bundle) if entry is None else _variant_json(bundle, entry)
        origins = [asdict(origin) for origin in bundle.provenance]
        lines = _bundle_text(data) if entry is None else _variant_text(bundle, entry)
        data = {"file": str(file), "provenance": origins, **data}
        print_result(data, chain(lines, _origins(bundle.provenance)), as_json=as_json)
    return 0


def find_entry(bundle: Bundle, name: str) -> Entry:
    """Return the single entry with this id or kernel name, or that matches this expression.

    Raises:
        SpecError: no entry matches, or several do.
    """
    from pallasc.cli.arguments.compiled import select_entries

    entries = list(bundle.entries())
    # An id is unique; a kernel name or an expression may match several entries.
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


def _targets(bundle: Bundle) -> list[dict[str, Any]]:
    """Return name, architecture, variant count and minimum driver of each target."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for entry in bundle.entries():
        found.setdefault((entry.arch, entry.target), []).append(dict(entry.minimum_driver))
    return [
        {
            "target": target,
            "arch": arch,
            "variants": len(drivers),
            "minimum_driver": max(drivers, key=_newness),
        }
        for (arch, target), drivers in sorted(found.items())
    ]


def _newness(driver: Mapping[str, str]) -> list[int]:
    parts = driver.get("cuda", "").split(".")
    return [int(part) if part.isdecimal() else 0 for part in parts]


def _bundle_json(bundle: Bundle) -> dict[str, Any]:
    from pallasc.specs.bundle.format import MAJOR

    return {
        "format": f"{MAJOR}.{bundle.reader.head.minor}",
        "bytes": bundle.size,
        "digest": bundle.digest,
        "root": bundle.root,
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
    """Yield how a tuned kernel uses this variant: table rows, default, padding, rank."""
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
    elif not tuning.rows:
        yield "  unused: in no row"
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


def list_bundles(files: Sequence[Path], selection: Selection, *, as_json: bool) -> None:
    """Print the variants of bundles, sorted by kernel, target and parameters."""
    from pallasc.cli.arguments.compiled import selected_entries
    from pallasc.specs.bundle.bundle import open_bundle

    listed: list[dict[str, object]] = []
    rows: list[list[str]] = []
    for file in files:
        with open_bundle(file) as bundle:
            entries = selected_entries(bundle, selection)
            for entry in sorted(entries, key=_order):
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


def _order(entry: Entry) -> tuple[object, ...]:
    """Return a sort key: parameters that are numbers sort by value, before other values."""
    params = [
        (name, 0, value, "") if isinstance(value, int | float) else (name, 1, 0, str(value))
        for name, value in entry.params
    ]
    return entry.name, entry.target, params


def entry_json(bundle: Bundle, entry: Entry) -> dict[str, object]:
    """Return the `--json` object of a variant."""
    return {
        "id": entry.id,
        "name": entry.name,
        "params": dict(entry.params),
        "target": entry.target,
        "arch": entry.arch,
        "inputs": [str(array) for array in entry.inputs],
        "outputs": [str(array) for array in entry.outputs],
        "minimum_driver": dict(entry.minimum_driver),
        "digest": entry.digest,
        "bytes": stored_bytes(bundle, entry),
        "vmap": entry.vmap,
        "tune": None if entry.tuning is None else entry.tuning.to_json(),
    }
