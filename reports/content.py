"""The content of a report, as data: gathered from a build, and from the stored results of checks.

Paths are relative to the folder of their spec, or to site-packages, so that a report of the same
inputs is the same in every folder.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from pallasc.analysis.metrics import KernelMetrics, artifact_metrics
from pallasc.analysis.sass import Codes
from pallasc.errors import Location, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import plain
from pallasc.specs.spelling import one_line, printable, short_time
from pallasc.version import installed_version

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult

_SLUG_DIGITS = 12
_INSTALLED = "site-packages"
_NO_CODE = "nvdisasm is not installed, or shows no code of this kernel"
_COMPILED = frozenset({"hit", "lowered", "shared", "compiled"})
MOST_REGISTERS = 255
"""Maximum number of registers of a thread."""


class Figures(NamedTuple):
    """The figures of a variant, one number each; None if unknown.

    A variant may launch several kernels. Registers, shared memory and spills are the maximum over
    its kernels; the roofline bound is for all launches together.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes per thread of spill stores and loads.
        smem_bytes: static and dynamic shared memory per block.
        cubin_bytes: total size of the cubins.
        occupancy: lowest occupancy of the Mosaic launches, 0 to 1.
        limited_by: the resources that limit the occupancy.
        bound_s: minimum time for the operations and bytes of all launches on the target.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    cubin_bytes: int | None = None
    occupancy: float | None = None
    limited_by: str = ""
    bound_s: float | None = None


def _figures(artifact: Artifact, metrics: Sequence[KernelMetrics]) -> Figures:
    """Return the figures of an artifact, given the metrics of its launches.

    Raises:
        CorruptError: the artifact's record is damaged.
    """
    spills = [kernel.spill_bytes for kernel in artifact.kernels]
    mosaic = [each for each in metrics if each.origin == "mosaic"] or metrics
    least = min((each.occupancy for each in mosaic), key=lambda own: own.part, default=None)
    return Figures(
        registers=max((kernel.registers for kernel in artifact.kernels), default=None),
        spill_bytes=None if None in spills else max(filter(None, spills), default=0),
        smem_bytes=max((kernel.smem_bytes for kernel in artifact.kernels), default=None),
        cubin_bytes=artifact.cubin_bytes,
        occupancy=least.part if least else None,
        limited_by=", ".join(least.limited_by) if least else "",
        bound_s=sum(each.roofline.bound_s for each in metrics) or None,
    )


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding of a stored check: its level, rule and severity, message and place."""

    level: str
    rule: str
    severity: str
    message: str
    place: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A variant in a report.

    Attributes:
        slug: name of the variant's page: letters, digits and dashes.
        id, kernel, target, arch, params: as in the spec, with unprintable characters escaped.
        status: "compiled", or why there is no artifact: "failed", "missing", "skipped".
        error: why there is no artifact, "" if there is one.
        place: where the kernel is declared.
        base_dir: the folder that file names are relative to.
        figures: figures of the artifact.
        seconds: compile time, according to the store; None if unknown.
        digest, action_key: names of the artifact; "" if unknown.
        artifact: the artifact, None if there is none.
        metrics: the metrics of each launch.
        levels: results of checks that the store has.
        findings: the findings of these checks.
        warnings: messages from the compilation.
        damage: why the artifact cannot be read, "" if it can be read.
    """

    slug: str
    id: str
    kernel: str
    target: str
    arch: str
    params: Mapping[str, str]
    status: str
    error: str = ""
    place: str = ""
    base_dir: str = ""
    figures: Figures = field(default_factory=Figures)
    seconds: float | None = None
    digest: str = ""
    action_key: str = ""
    artifact: Artifact | None = None
    metrics: tuple[KernelMetrics, ...] = ()
    levels: tuple[LevelResult, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A kernel and its variants; `params` are the names of its parameters."""

    slug: str
    name: str
    params: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Date, machine and times: all that differs between reports of the same inputs."""

    seconds: float
    counts: Mapping[str, int]
    saved_s: float
    machine: str
    date: str


@dataclass(frozen=True, slots=True)
class Content:
    """The whole content of a report.

    Attributes:
        title: heading of the report.
        groups: kernels with their variants, in the order of the specs.
        facts: toolchain, drivers, specs: names and values.
        notes: warnings of the build.
        errors: errors of specs that could not be read.
        timing: see `Timing`; None to omit it.
    """

    title: str
    groups: tuple[Group, ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    timing: Timing | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All variants."""
        return tuple(entry for group in self.groups for entry in group.entries)


def _slug(kind: str, name: str, taken: set[str]) -> str:
    """Return a page's name, which is the same in every report, and add it to `taken`."""
    for times in itertools.count(1):
        text = name if times == 1 else f"{name}\0{times}"
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if (found := f"{kind}-{digest[:_SLUG_DIGITS]}") not in taken:
            break
    taken.add(found)
    return found


def _shown_path(file: str, base_dir: str) -> str:
    """Return a path relative to the spec's folder or to site-packages; else only the file name."""
    parts = PurePath(file).parts
    if _INSTALLED in parts:
        return "/".join(parts[parts.index(_INSTALLED) + 1 :])
    if base_dir and os.path.isabs(file):
        relative = os.path.relpath(file, base_dir)
        if not relative.startswith(os.pardir):
            return one_line(relative)
    return one_line(parts[-1] if os.path.isabs(file) and parts else file)


def grouped(entries: Sequence[Entry]) -> tuple[Group, ...]:
    """Return the kernels of variants, in the order of their first variants."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.kernel, []).append(entry)
    taken: set[str] = set()
    return tuple(
        Group(
            _slug("k", name, taken),
            name,
            tuple(dict.fromkeys(param for entry in members for param in entry.params)),
            tuple(members),
        )
        for name, members in found.items()
    )


def gather(
    report: Report,
    checked: CheckReport | None = None,
    *,
    codes: Codes | None = None,
    title: str = "",
    timing: bool = True,
) -> Content:
    """Return the content of a report.

    Args:
        report: the report of the build.
        checked: stored results of checks, in the order of the build's results; None for none.
        codes: disassembled kernels, None if there is no disassembler.
        title: the heading, "" for one that counts kernels and variants.
        timing: include compile times, date and machine.
    """
    checks = dict(enumerate(checked.checks if checked is not None else ()))
    taken: set[str] = set()
    entries = [
        _entry(result, checks.get(number), codes or {}, taken, timing=timing)
        for number, result in enumerate(report.results)
    ]
    groups = grouped(entries)
    counts = f"{counted(len(entries), 'variant')} of {counted(len(groups), 'kernel')}"
    return Content(
        one_line(title) or counts,
        groups,
        tuple(_facts(report)),
        tuple(map(printable, report.notes)),
        tuple(printable(str(error)) for error in report.errors),
        _timing(report) if timing else None,
    )


def _entry(
    result: VariantResult,
    check: VariantCheck | None,
    codes: Codes,
    taken: set[str],
    *,
    timing: bool,
) -> Entry:
    variant, artifact = result.variant, result.artifact
    figures, damage = Figures(), ""
    metrics: tuple[KernelMetrics, ...] = ()
    if artifact is not None:
        try:
            metrics = artifact_metrics(artifact, codes=codes, reason=_NO_CODE)
            figures = _figures(artifact, metrics)
        except PallascError as error:
            damage = printable(error.message)
    return Entry(
        slug=_slug("v", variant.id, taken),
        id=one_line(variant.id),
        kernel=one_line(variant.name),
        target=one_line(variant.target.name),
        arch=one_line(variant.target.arch),
        params={one_line(name): one_line(plain(value)) for name, value in variant.params},
        status="compiled" if artifact is not None and result.status in _COMPILED else result.status,
        error=_error(result),
        place=_place(variant.location, variant.base_dir) if variant.location.line else "",
        base_dir=variant.base_dir,
        figures=figures,
        seconds=_seconds(result) if timing else None,
        digest=artifact.digest if artifact is not None else "",
        action_key=result.action_key or "",
        artifact=artifact if not damage else None,
        metrics=metrics,
        levels=_levels(check),
        findings=tuple(_findings(check, variant.base_dir)),
        warnings=tuple(printable(str(each)) for each in result.diagnostics),
        damage=damage,
    )


def _error(result: VariantResult) -> str:
    """Return why there is no artifact, "" if there is one."""
    if result.error is not None:
        return printable(str(result.error))
    return one_line(result.reason) if result.artifact is None else ""


def _seconds(result: VariantResult) -> float | None:
    """Return the compile time: from this build, or from the store."""
    seconds = result.seconds if result.status == "compiled" else result.saved_s
    return seconds or None


def _place(location: Location, base_dir: str) -> str:
    line = f":{location.line}" if location.line else ""
    return f"{_shown_path(location.file, base_dir)}{line}"


def _levels(check: VariantCheck | None) -> tuple[LevelResult, ...]:
    """Return the stored results, safe for display; findings are separate."""
    return tuple(
        replace(each, reason=one_line(each.reason), notes=tuple(map(one_line, each.notes)))
        for each in (check.results if check is not None else ())
    )


def _findings(check: VariantCheck | None, base_dir: str) -> Iterator[FindingRow]:
    for result in check.results if check is not None else ():
        for finding in result.findings:
            yield FindingRow(
                result.level,
                finding.rule,
                finding.severity,
                printable(finding.message),
                _place_of(finding, base_dir),
                one_line(finding.hint),
            )


def _place_of(finding: Finding, base_dir: str) -> str:
    if finding.location is not None:
        return _place(finding.location, base_dir)
    return f"line {finding.ptx_line} of the PTX" if finding.ptx_line else ""


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield facts about all variants together, each with all of its values."""
    artifacts = [result.artifact for result in report.results if result.artifact is not None]
    versions: dict[str, dict[str, None]] = {}
    for artifact in artifacts:
        for name, version in artifact.versions.items():
            versions.setdefault(name, {})[one_line(version)] = None
    yield (
        "Targets",
        _joined(
            f"{result.variant.target.name} ({result.variant.target.arch})"
            for result in report.results
        ),
    )
    specs = [result.variant for result in report.results if result.variant.location.line]
    if specs:
        yield "Specs", _joined(_shown_path(each.location.file, each.base_dir) for each in specs)
    for name, found in sorted(versions.items()):
        yield one_line(name), ", ".join(found)
    drivers: Sequence[Mapping[str, str]] = [a.record.get("minimum_driver", {}) for a in artifacts]
    if any(drivers):
        yield (
            "Driver",
            _joined(
                f"CUDA {each.get('cuda')}, Linux {each.get('linux')} or newer" for each in drivers
            ),
        )
    yield "pallasc", installed_version()


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(map(one_line, texts)))


def _timing(report: Report) -> Timing:
    cores = len(os.sched_getaffinity(0))
    return Timing(
        report.seconds,
        Counter(result.status for result in report.results),
        sum(result.saved_s for result in report.hits),
        f"{platform.system()} {platform.machine()}, {counted(cores, 'core')}",
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


# ---- Numbers formatted for people. The functions take known values, never None.

_UNITS = ("B", "KiB", "MiB", "GiB")


def number(value: float) -> str:
    """Return `12,345`, or three significant digits if the number is not whole."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.3g}"


def size(count: float) -> str:
    """Return a number of bytes: `512 B`, `9.3 KiB`, `217 KiB`."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    text = f"{count:.1f}" if count < 10 and unit != "B" else f"{count:.0f}"
    return f"{text.removesuffix('.0')} {unit}"


def percent(part: float) -> str:
    """Return `42 %`."""
    return f"{100 * part:.0f} %"


def duration(seconds: float) -> str:
    """Return `0.42 s`, `14 s` or `3 min 20 s`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 120 else f"{rounded // 60} min {rounded % 60:02} s"


def by(sizes: tuple[int, ...]) -> str:
    """Return `132 × 2`, without trailing ones."""
    length = max((at + 1 for at, each in enumerate(sizes) if each != 1), default=1)
    return " × ".join(f"{each:,}" for each in sizes[:length])


def counted(amount: int, noun: str) -> str:
    """Return `1 variant` or `153 variants`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def status_count(status: str, amount: int) -> str:
    """Return `1 hit`, `4 hits` or `4 compiled`: only "hit" is a noun, with a plural."""
    return counted(amount, "hit") if status == "hit" else f"{amount:,} {status}"


Value = float | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of variants.

    Attributes:
        key: name of the column in filters such as `registers>128`.
        label: heading of the column.
        title: a one-sentence description.
        value: returns the value for a variant; None if unknown.
        written: formats a known value.
        is_number: True if values are compared as numbers.
        bad: returns True if a value should be highlighted.
        whole: the value of a full bar; None for no bar.
        is_plotted: True if the values are plotted over the parameters.
        scale, unit: factor for values in plots, and the unit of the scaled values.
        always: show the column even if no variant has a value.
    """

    key: str
    label: str
    title: str
    value: Callable[[Entry], Value]
    written: Callable[[float], str] = number
    is_number: bool = True
    bad: Callable[[Value], bool] = lambda value: False
    whole: float | None = None
    is_plotted: bool = False
    scale: float = 1.0
    unit: str = ""
    always: bool = False

    def show(self, entry: Entry) -> str:
        """Return the text of a cell."""
        value = self.value(entry)
        if value is None:
            return "?" if entry.status == "compiled" else "–"
        return value if isinstance(value, str) else self.written(value)

    def is_bad(self, entry: Entry) -> bool:
        """Return True if the value of a variant should be highlighted."""
        return self.bad(self.value(entry))

    def part(self, entry: Entry) -> float | None:
        """Return the length of a variant's bar, 0 to 1; None for no bar."""
        value = self.value(entry)
        if self.whole is None or not isinstance(value, int | float):
            return None
        return max(0.0, min(1.0, value / self.whole))


COLUMNS: Sequence[Column] = (
    Column(
        key="registers",
        label="Registers",
        title="Registers per thread, at most 255",
        value=lambda entry: entry.figures.registers,
        bad=lambda value: value == MOST_REGISTERS,
        whole=MOST_REGISTERS,
        is_plotted=True,
        always=True,
    ),
    Column(
        key="spill",
        label="Spills",
        title="Bytes of spill stores and loads per thread",
        value=lambda entry: entry.figures.spill_bytes,
        bad=bool,
        always=True,
    ),
    Column(
        key="occupancy",
        label="Occupancy",
        title="Resident warps, as a share of the warps that a multiprocessor can hold",
        value=lambda entry: entry.figures.occupancy,
        written=percent,
        whole=1.0,
        is_plotted=True,
        scale=100,
        unit="%",
        always=True,
    ),
    Column(
        key="limit",
        label="Limited by",
        title="The resource that limits occupancy",
        value=lambda entry: entry.figures.limited_by or None,
        is_number=False,
    ),
    Column(
        key="smem",
        label="Shared memory",
        title="Static and dynamic shared memory per block",
        value=lambda entry: entry.figures.smem_bytes,
        written=size,
        always=True,
    ),
    Column(
        key="cubin",
        label="Cubin",
        title="Size of all cubins",
        value=lambda entry: entry.figures.cubin_bytes,
        written=size,
        is_plotted=True,
        scale=1 / 1024,
        unit="KiB",
        always=True,
    ),
    Column(
        key="bound",
        label="Roofline bound",
        title="Minimum time for the variant's operations and bytes on the target",
        value=lambda entry: entry.figures.bound_s,
        written=short_time,
        is_plotted=True,
        scale=1e6,
        unit="µs",
    ),
    Column(
        key="seconds",
        label="Compile time",
        title="Compile time, according to the store",
        value=lambda entry: entry.seconds,
        written=duration,
    ),
    Column(
        key="findings",
        label="Findings",
        title="Findings of stored checks",
        value=lambda entry: len(entry.findings) if entry.levels else None,
        bad=bool,
    ),
    Column(
        key="status",
        label="Status",
        title="Result of the build",
        value=lambda entry: entry.status,
        is_number=False,
        bad=lambda value: value != "compiled",
    ),
)


def columns_of(entries: Sequence[Entry]) -> list[Column]:
    """Return the columns that have information on these variants."""
    return [
        column
        for column in COLUMNS
        if column.always or {column.value(entry) for entry in entries} - {None, "compiled"}
    ]
