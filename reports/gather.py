"""Gather the content of a report from a build, and from the stored results of checks."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.analysis.metrics.kernel_metrics import Codes, KernelMetrics, artifact_metrics
from pallasc.errors import Location, PallascError
from pallasc.reports.content import (
    Content,
    Entry,
    FindingRow,
    LevelRow,
    Timing,
    grouped,
    shown_path,
    slug,
)
from pallasc.reports.figures import Figures, figures_of
from pallasc.specs.canonical import plain
from pallasc.specs.spelling import one_line, printable
from pallasc.version import installed_version

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult

_NO_CODE = "nvdisasm is not installed, or shows no code of it"
_COMPILED = frozenset({"hit", "lowered", "shared", "compiled"})


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
    checks = checked.checks if checked is not None else ()
    taken: set[str] = set()
    entries = [
        _entry(
            result,
            checks[number] if number < len(checks) else None,
            codes or {},
            taken,
            timing=timing,
        )
        for number, result in enumerate(report.results)
    ]
    groups = grouped(entries)
    return Content(
        one_line(title) or _title(len(entries), len(groups)),
        groups,
        tuple(_facts(report)),
        tuple(map(printable, report.notes)),
        tuple(printable(str(error)) for error in report.errors),
        _timing(report) if timing else None,
    )


def _title(variants: int, kernels: int) -> str:
    return f"{_count(variants, 'variant')} of {_count(kernels, 'kernel')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
            figures = figures_of(artifact, metrics)
        except PallascError as error:
            damage = printable(error.message)
    return Entry(
        slug=slug("v", variant.id, taken),
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
    """Return why there is no artifact; a miss has a reason even if it was then compiled."""
    if result.error is not None:
        return printable(str(result.error))
    return one_line(result.reason) if result.artifact is None else ""


def _seconds(result: VariantResult) -> float | None:
    """Return the compile time: from this build, or from the store."""
    seconds = result.seconds if result.status == "compiled" else result.saved_s
    return seconds or None


def _place(location: Location, base_dir: str) -> str:
    line = f":{location.line}" if location.line else ""
    return f"{shown_path(location.file, base_dir)}{line}"


def _levels(check: VariantCheck | None) -> tuple[LevelRow, ...]:
    results = check.results if check is not None else ()
    return tuple(
        LevelRow(each.level, each.status, one_line(each.reason), tuple(map(one_line, each.notes)))
        for each in results
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
        yield "Specs", _joined(shown_path(each.location.file, each.base_dir) for each in specs)
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
    counts: dict[str, int] = {}
    for result in report.results:
        counts[result.status] = counts.get(result.status, 0) + 1
    cores = len(os.sched_getaffinity(0))
    return Timing(
        report.seconds,
        counts,
        sum(result.saved_s for result in report.hits),
        f"{platform.system()} {platform.machine()}, {_count(cores, 'core')}",
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )
