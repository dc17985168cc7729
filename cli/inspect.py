"""`pallasc inspect`: show compiled artifacts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import to_builtins

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output import artifact_text, source_text
from pallasc.cli.output.source_text import FoundLines
from pallasc.cli.output.text import count, echo, fields, json_text, write_text
from pallasc.errors import PallascError, SpecError
from pallasc.specs.spelling import printable

if TYPE_CHECKING:
    from pallasc.analysis.metrics import KernelMetrics
    from pallasc.cli.arguments.variants import Bundled, Work
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.source_lines import SourceLines
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry, Provenance

SUFFIXES = {
    "summary": ".txt",
    "plan": ".plan.txt",
    "ptx": ".ptx",
    "sass": ".sass",
    "resources": ".resources.txt",
    "lines": ".lines.txt",
    "debug-output": ".debug.txt",
    "json": ".json",
}
"""Views and the suffixes of their files."""

_PRINTED = "debug-output"
NOTHING_PRINTED = "nothing was printed"
"""Shown for a kernel that prints nothing, neither during tracing nor at run time."""

_IN_JSON = {"json", "lines", "resources"}
_CHOSEN = "pallasc.cli.inspect.views"


def _view(name: str, text: str) -> Callable[[Any], Any]:
    """Return an option that selects a view; views are shown in command-line order."""

    def choose(ctx: click.Context, _: click.Parameter, flag: bool) -> None:
        if flag:
            ctx.meta.setdefault(_CHOSEN, []).append(name)

    return click.option(f"--{name}", is_flag=True, expose_value=False, callback=choose, help=text)


Metrics = Mapping[str, "tuple[KernelMetrics, ...]"]
"""Metrics of launches, by artifact digest."""


@click.command("inspect", cls=Command, short_help="Show launch plans, PTX, SASS, and resources.")
@options.specs_argument()
@_view("plan", "Show the launch plan: buffers, launches, their parameters, and tensor maps.")
@_view("ptx", "Show the PTX.")
@_view("sass", "Show the machine code, disassembled with nvdisasm.")
@_view(
    "resources",
    "Show registers, spills, and shared memory; occupancy, work, and roofline of launches.",
)
@_view(
    "lines",
    "Show the cost of each source line: instructions, tensor core instructions, shared and local "
    "memory accesses, waits, live registers; and the allocations of shared memory.",
)
@_view(
    "debug-output",
    "Show what Pallas prints with debug=True (the traced kernel and its MLIR module), and the "
    "texts of the kernel's debug_print calls.",
)
@_view("json", "Print the complete artifact records as JSON; see docs/json.md.")
@options.flag("--source", "Interleave --sass and --ptx with your source lines.")
@options.option(
    "-o --output",
    "PATH",
    "File to write. If PATH is a folder or ends in /, write one file per variant and view into it.",
    type=click.Path(),
)
@options.selection_options
@given.build_options()
def command(
    source: bool,
    output: str | None,
    work: Work,
) -> int:
    """Show the compiled variants of SPECS, by default as a summary.

    SPECS are specs, bundles, or artifacts in the store, named by at least six digits of their
    action key or digest (`pallasc build --json` prints both). Variants that are not in the store
    are compiled first, with a message on standard error.

    Views are shown in command-line order. --json can be combined with --lines and
    --resources only.

    For --lines and --source, variants whose source lines are not in the store are compiled again to
    find them; the new PTX and machine code must match the artifact byte for byte. Action keys and
    bundles have no source to compile, so their lines must exist already: pallasc inspect
    SPECS --lines stores them, and pallasc bundle create --lines adds them to a bundle.

    The summary of a bundle begins with format, size, digests, signing keys (bundle verify checks
    them), kernels, targets, minimum drivers, and provenance. -k also takes the id of a variant.

    With --output FOLDER/ and no view, a bundle is unpacked into one folder per variant, with the
    cubins, launch plan, record, and PTX (if any). Existing files are never replaced.

    Examples:
      pallasc inspect kernels.yaml
      pallasc inspect kernels.yaml --plan -k "matmul and m=4096"
      pallasc inspect kernels.yaml --sass --target sm_90a | grep HGMMA
      pallasc inspect kernels.yaml --lines
      pallasc inspect kernels.yaml --sass --source
      pallasc inspect kernels.yaml --plan --ptx --output shown/
      pallasc inspect kernels.pallasc -k "matmul[m=1024]@h100-sxm"
      pallasc inspect kernels.pallasc --output shown/
      pallasc inspect 3fa94c --sass
    """
    from pallasc.cli.arguments.variants import bundle_files

    views = chosen_views(click.get_current_context(), source=source)
    found = "lines" in views or (source and "json" not in views)
    takes_apart = output is not None and is_folder(output) and views == ["summary"]
    if takes_apart and (bundles := bundle_files(work.specs)):
        return _extract(bundles, Path(output or ""), work.selection)
    compiled = work.compiled()
    if compiled is not None:
        if _PRINTED in views:
            raise click.UsageError(
                f"--{_PRINTED} shows the output of tracing, which bundles and artifacts do not "
                "contain: name the spec."
            )
        report = compiled
        lines = source_text.held_lines(report.results, work.store) if found else {}
    else:
        report, say = work.build(), partial(echo, err=True)
        lines = source_text.found_lines(report.results, work.store, work.how, say) if found else {}
    results = [result for result in report.results if result.artifact is not None]
    metrics = _metrics(results) if "resources" in views else {}
    bundled = {id(each.result): each for each in work.bundled}
    show(results, views, output, Document(lines, metrics, bundled, source))
    return report.exit_code or source_text.tell_missing(lines)


def _extract(bundles: Sequence[Path], folder: Path, selection: options.Selection) -> int:
    """Unpack the selected variants of bundles into files."""
    from pallasc.cli.arguments.variants import selected_in_any
    from pallasc.specs.bundle.bundle import open_bundle

    with ExitStack() as stack:
        opened = [stack.enter_context(open_bundle(file)) for file in bundles]
        chosen = selected_in_any(opened, selection)
        for name, times in Counter(entry.id for entries in chosen for entry in entries).items():
            if times > 1:
                raise SpecError(
                    f"{name} is in {times} of these bundles.", hint="Unpack one bundle at a time."
                )
        for bundle, entries in zip(opened, chosen, strict=True):
            if entries:
                _unpack(bundle, entries, folder)
    return 0


def _unpack(bundle: Bundle, entries: Sequence[Entry], folder: Path) -> None:
    written = artifact_text.unpack(bundle, entries, folder)
    text = f"{count(len(written), 'file')} of {count(len(entries), 'variant')}"
    echo(f"wrote {text} to {folder}", err=True)


def chosen_views(ctx: click.Context, *, source: bool = False) -> list[str]:
    """Return the views to show, in command-line order.

    Args:
        ctx: context of the command.
        source: interleave machine code and PTX with source lines.

    Raises:
        click.UsageError: JSON is combined with another view, or `source` has no view to apply to.
    """
    views: list[str] = ctx.meta.get(_CHOSEN, ["summary"])
    if "json" in views:
        if other := next((view for view in views if view not in _IN_JSON), None):
            raise click.UsageError(f"--json and --{other} cannot be used together.", ctx)
        return views
    if source and not {"sass", "ptx"} & set(views):
        raise click.UsageError("--source needs --sass or --ptx.", ctx)
    return views


def show(
    shown: list[VariantResult], views: list[str], output: str | None, document: Document
) -> None:
    """Print or write the views of variants that have an artifact."""
    if output is not None and is_folder(output):
        # Ids that differ only in characters invalid in file names must not share a file.
        names = artifact_text.safe_names(result.variant.id for result in shown)
        files = {".json": views} if "json" in views else {SUFFIXES[v]: [v] for v in views}
        for result in shown:
            for suffix, chosen in files.items():
                path = Path(output, names[result.variant.id] + suffix)
                write_text(path, document.text([result], chosen))
    elif output is not None:
        write_text(Path(output), document.text(shown, views))
    elif shown:
        echo(document.text(shown, views), nl=False)


def is_folder(path: str) -> bool:
    """Return True if a path is an existing folder or ends in a slash."""
    return path.endswith("/") or Path(path).is_dir()


def _metrics(results: list[VariantResult]) -> Metrics:
    """Return the metrics of launches; report on stderr, once, if some are missing."""
    from pallasc.analysis.metrics import all_metrics

    metrics = all_metrics(result.artifact for result in results if result.artifact is not None)
    reasons = (launch.reasons.get("mix") for launches in metrics.values() for launch in launches)
    if reason := next(filter(None, reasons), ""):
        echo(f"note: instructions and loops are left out: {reason}", err=True)
    return metrics


class Document(NamedTuple):
    """Views of variants as text.

    Attributes:
        lines: source lines by variant, if known.
        metrics: metrics of launches, if they are shown.
        bundled: variants of bundles, by the `id` of their result.
        source: interleave machine code and PTX with source lines.
    """

    lines: FoundLines
    metrics: Metrics
    bundled: Mapping[int, Bundled]
    source: bool

    def text(self, results: list[VariantResult], views: list[str]) -> str:
        """Return the views of variants; if there are several, each has a heading."""
        found = [(result, result.artifact) for result in results if result.artifact is not None]
        if views == ["summary"]:
            return "\n\n".join(self._summaries(found)) + "\n"
        if "json" in views:
            records = [self._record(*each, lines="lines" in views) for each in found]
            bundled = [self.bundled[id(each)] for each in results if id(each) in self.bundled]
            bundles = [_bundle_json(each) for each in dict.fromkeys(own.bundle for own in bundled)]
            about = {"bundles": bundles} if bundles else {}
            return json_text({"artifacts": records, **about}) + "\n"
        headed = len(results) * len(views) > 1
        parts = []
        for result, artifact in found:
            for view in views:
                text = self._view(result, artifact, view)
                what = f"{result.variant.id}: {view}" if len(views) > 1 else result.variant.id
                head = f"{_comment(view)} {what}\n" if headed else ""
                parts.append(f"{head}{text}".lstrip() if headed else text)
        return "\n\n".join(parts) + "\n"

    def _summaries(self, found: Sequence[tuple[VariantResult, Artifact]]) -> Iterator[str]:
        """Yield the summary of each variant, and of each bundle before its first variant."""
        bundle = None
        for result, artifact in found:
            own = self.bundled.get(id(result))
            if own is not None and own.bundle is not bundle:
                bundle = own.bundle
                yield "\n".join(_bundle_text(bundle))
            if own is None:
                yield f"{result.variant.id}\n{_summary(result, artifact)}"
            else:
                yield "\n".join([result.variant.id, *_bundled_text(own, artifact)])

    def _lines(self, result: VariantResult) -> SourceLines | None:
        found = self.lines.get(result.variant.id)
        return None if isinstance(found, PallascError) else found

    def _view(self, result: VariantResult, artifact: Artifact, view: str) -> str:
        with_lines = view == "lines" or (self.source and view in ("ptx", "sass"))
        lines = self._lines(result) if with_lines else None
        if with_lines and lines is None:
            return f"{_comment(view)} no source lines".strip()
        if view == "lines" and lines is not None:
            return source_text.lines_text(artifact, lines)
        if view == _PRINTED:
            return _printed(result, artifact)
        if view == "plan":
            return artifact_text.plan_text(artifact.plan)
        if view == "resources":
            launches = self.metrics.get(artifact.digest, ())
            parts = map(artifact_text.metrics_text, launches)
            return "\n\n".join([artifact_text.resources_text(artifact), *parts])
        show_code = source_text.ptx_text if view == "ptx" else source_text.sass_text
        return show_code(artifact, lines)

    def _record(
        self, result: VariantResult, artifact: Artifact, *, lines: bool
    ) -> dict[str, object]:
        record: dict[str, object] = {
            "id": result.variant.id,
            "action_key": result.action_key,
            "digest": artifact.digest,
            "record": dict(artifact.record),
        }
        if own := self.bundled.get(id(result)):
            record["bundled"] = _bundled_json(own)
        if lines:
            known = self._lines(result)
            record["lines"] = None if known is None else source_text.lines_json(artifact, known)
        if self.metrics:
            from pallasc.analysis.metrics import metrics_json

            record["metrics"] = [metrics_json(each) for each in self.metrics[artifact.digest]]
        return record


def _comment(view: str) -> str:
    """Return the comment prefix of a view, "" if it has none."""
    return "//" if view in ("ptx", "sass") else ""


def _summary(result: VariantResult, artifact: Artifact) -> str:
    """Return the summary of an artifact, and the variant's compile warnings."""
    text = artifact_text.summary_text(artifact)
    if not result.diagnostics:
        return text
    lines = printable("\n".join(map(str, result.diagnostics))).splitlines()
    return "\n".join([text, "warnings", *(f"  {line}".rstrip() for line in lines)])


def _printed(result: VariantResult, artifact: Artifact) -> str:
    """Return the output of tracing and lowering, and the texts of the kernels' debug prints."""
    from pallasc.compiler.lowering.kernel_output import formats, unpack

    parts = [unpack(result.printed).rstrip("\n")]
    for key, name in {kernel.ptx: kernel.name for kernel in artifact.kernels if kernel.ptx}.items():
        if texts := formats(artifact.blob(key).decode()):
            parts.append(f"{name} prints when it runs:")
            parts += [f"  {json.dumps(text, ensure_ascii=False)}" for text in texts]
    return "\n".join(filter(None, parts)) or NOTHING_PRINTED


def _bundle_json(bundle: Bundle) -> dict[str, Any]:
    from pallasc.specs.bundle.format import MAJOR

    return {
        "file": bundle.name,
        "format": f"{MAJOR}.{bundle.reader.head.minor}",
        **fields(bundle, "digest", "root"),
        "bytes": bundle.size,
        "codec": dict(bundle.codec),
        "signatures": [signature.key_id for signature in bundle.signatures],
        "kernels": Counter(entry.name for entry in bundle.entries()),
        "targets": _targets(bundle),
        "provenance": to_builtins(bundle.provenance),
    }


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


def _bundle_text(bundle: Bundle) -> Iterator[str]:
    data = _bundle_json(bundle)
    codec = ", ".join(f"{name} {value}" for name, value in sorted(data["codec"].items()))
    yield f"bundle         {data['file']}"
    yield f"format         {data['format']}"
    yield f"bytes          {data['bytes']:,}"
    yield f"content        {data['digest']}"
    yield f"signed digest  {data['root']} (the digest that keys sign)"
    yield f"codec          {codec or 'unknown'}"
    yield f"signatures     {', '.join(data['signatures']) or 'none'}"
    yield "kernels"
    for name, number in data["kernels"].items():
        yield f"  {name}: {count(number, 'variant')}"
    yield "targets"
    for row in data["targets"]:
        api, package = (row["minimum_driver"].get(name, "unknown") for name in ("cuda", "linux"))
        driver = f"driver {package} or newer (CUDA {api})"
        yield f"  {row['target']} ({row['arch']}): {count(row['variants'], 'variant')}, {driver}"
    yield from _origins(bundle.provenance)


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


def _bundled_json(own: Bundled) -> dict[str, object]:
    from pallasc.cli.list import entry_json

    return {
        "file": own.bundle.name,
        "variant": entry_json(own.bundle, own.entry),
        "record": dict(own.bundle.record(own.entry)),
        "shipped": {
            key: None if row is None else {"digest": row.digest.hex(), "bytes": row.size}
            for key, row in own.bundle.shipped(own.entry).items()
        },
    }


def _bundled_text(own: Bundled, artifact: Artifact) -> Iterator[str]:
    """Yield the summary of a variant of a bundle, with its tuning and its blobs."""
    yield f"compiled   {own.entry.digest}"
    yield artifact_text.summary_text(artifact, label="shipped")
    yield from _tuning_text(own.entry)
    yield "blobs"
    for key, row in own.bundle.shipped(own.entry).items():
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
