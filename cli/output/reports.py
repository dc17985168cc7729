"""Reports of a build or a check for other programs: JSON, JUnit, SARIF, annotations.

To add a field to the JSON of a build, add a key to `_variant_row`, and describe it in
`docs/json.yaml`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click
from msgspec import to_builtins

from pallasc.cli.output.text import (
    STATUS_COLOURS,
    echo,
    echo_bytes,
    echo_command,
    fields,
    json_text,
    refusing,
    workspace_root,
)
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.cli.output.outcome import Outcome, Run
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.specs.spec import Variant

_TOP = 5
STANDARD_OUTPUT = Path("-")
"""Value of an option that writes a report to stdout."""


class Outputs(NamedTuple):
    """The requested outputs; `levels` are the levels of a check, None for a build."""

    as_json: bool
    junit: Path | None = None
    annotations: str | None = None
    sarif: Path | None = None
    levels: tuple[str, ...] | None = None

    @property
    def is_requested(self) -> bool:
        """True if any output is requested."""
        return bool(self.as_json or self.junit or self.annotations or self.sarif)

    @property
    def prints_report(self) -> bool:
        """True if stdout is reserved for a report."""
        return self.as_json or STANDARD_OUTPUT in (self.junit, self.sarif)

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error that ends the whole command in every output, not only on the terminal.

        Raises:
            click.UsageError: two reports go to stdout.
            SpecError: a file cannot be written.
        """
        check_reports({"--junit": self.junit, "--sarif": self.sarif}, as_json=self.as_json)
        try:
            yield
        except PallascError as error:
            from pallasc.cli.output.outcome import build_run, check_run

            if self.levels is None:
                from pallasc.compiler.builds.report import Report

                self.write(build_run(Report((), 0.0), error))
            else:
                from pallasc.checks.report import Report as CheckReport

                self.write(check_run(CheckReport((), 0.0, self.levels), error))
            raise

    def write(self, run: Run, reproductions: Sequence[Reproduction] | None = None) -> None:
        """Write the requested outputs for a build or a check.

        Args:
            run: record of the build or the check.
            reproductions: results of compiling again, None if that was not requested.

        Raises:
            SpecError: a file can no longer be written.
        """
        root = workspace_root(os.environ)
        if self.annotations:
            from pallasc.cli.output.code_hosts import github_commands

            # GitHub reads commands from both streams, and stdout may contain JSON.
            for line in github_commands(run, root):
                echo_command(line)
        if self.as_json:
            report: Any = run.report
            is_build = run.command == "build"
            data = report_json(run, report, reproductions) if is_build else check_json(run, report)
            echo(json_text(data))
        if self.junit:
            from pallasc.cli.output.junit import junit_xml

            write_report(junit_xml(run, root), self.junit, "--junit")
        if self.sarif:
            from pallasc.checks.levels import rules_of
            from pallasc.cli.output.code_hosts import sarif
            from pallasc.version import installed_version

            rules = rules_of(self.levels or ())
            log = sarif(run, rules, root, version=installed_version())
            write_report(log, self.sarif, "--sarif")


def check_reports(reports: Mapping[str, Path | None], *, as_json: bool) -> None:
    """Check that the requested reports can be written, before any work is done.

    Args:
        reports: path of each report by its option; None if it was not requested.
        as_json: JSON goes to stdout.

    Raises:
        click.UsageError: two reports go to stdout.
        SpecError: a file cannot be written.
    """
    printed = ["--json"] if as_json else []
    for option, path in reports.items():
        if path == STANDARD_OUTPUT:
            printed.append(f"{option} -")
        elif path is not None:
            _check_writable(path, option)
    if len(printed) > 1:
        first, second = printed[:2]
        raise click.UsageError(
            f"{first} and {second} both write to the standard output: "
            f"name a file for {second.removesuffix(' -')}."
        )


def _check_writable(path: Path, option: str) -> None:
    import tempfile

    # Opening a pipe or /dev/stdout as a test would be visible to its reader.
    if path.exists() and not path.is_file():
        return
    with refusing(path, hint=f"Give {option} another path."):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A report replaces its file by a rename, which needs a writable folder.
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_report(data: bytes, path: Path, option: str) -> None:
    """Write a complete report, or nothing, to the path of an option; "-" is stdout.

    Raises:
        SpecError: the report cannot be written.
    """
    from pallasc.specs.user_files import replace_file

    if path == STANDARD_OUTPUT:
        echo_bytes(data)
        return
    with refusing(path, hint=f"Give {option} another path."):
        if path.exists() and not path.is_file():  # /dev/stdout or a pipe
            path.write_bytes(data)
            return
    replace_file(path, data)


def report_json(
    run: Run, report: Report, reproductions: Sequence[Reproduction] | None = None
) -> dict[str, object]:
    """Return the `--json` object of a build, without the schema version.

    Args:
        run: record of the build.
        report: report of the build.
        reproductions: results of compiling again, None if that was not requested.
    """
    totals = run.totals(STATUS_COLOURS)
    finished = len(run.outcomes) - totals["skipped"]
    compiled = [outcome for outcome in run.outcomes if outcome.status == "compiled"]
    data = {
        **_common(run),
        "warnings": sum(outcome.warnings for outcome in run.outcomes),
        "totals": totals,
        "hit_rate": round(totals["hit"] / finished, 4) if finished else None,
        "saved_s": round(sum(result.saved_s for result in report.hits), 3),
        "slowest": _top(compiled, lambda outcome: outcome.seconds)[:_TOP],
        "largest": _top(compiled, lambda o: o.artifact.cubin_bytes if o.artifact else 0)[:_TOP],
        "spilling": _top(run.outcomes, lambda o: o.artifact.spill_bytes if o.artifact else 0),
        "variants": [
            _variant_row(outcome, outcome.result) for outcome in run.outcomes if outcome.result
        ],
        "remote": report.remote.to_json() if report.remote else None,
    }
    if reproductions is not None:
        data["reproduced"] = to_builtins(list(reproductions))
    return data


def check_json(run: Run, report: CheckReport) -> dict[str, object]:
    """Return the `--json` object of a check, without the schema version."""
    from pallasc.checks.findings import Status

    return {
        **_common(run),
        "levels": list(report.levels),
        "totals": run.totals(get_args(Status)),
        "findings": sum(len(outcome.findings) for outcome in run.outcomes),
        "variants": [_check_row(check, report) for check in report.checks],
    }


def _common(run: Run) -> dict[str, object]:
    report, share = run.report, run.share
    shard = share and {
        "number": share.shard.number,
        "of": share.shard.of,
        "variants": len(share.variants),
        "others": share.others,
    }
    return {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "notes": list(report.notes),
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(run.error),
        "shard": shard,
    }


def _top(outcomes: list[Outcome], measure: Callable[[Outcome], float]) -> list[str]:
    """Return the ids of the outcomes with a nonzero measure, in descending order."""
    return [o.id for o in sorted(filter(measure, outcomes), key=lambda o: -measure(o))]


def variant_facts(variant: Variant) -> dict[str, object]:
    """Return the fields of a variant that are common to every command's `--json`."""
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
    }


def _variant_row(outcome: Outcome, result: VariantResult) -> dict[str, object]:
    """Return the row of a variant in a build; missing values are null or empty."""
    from pallasc.cli.output.outcome import kernel_facts

    variant, artifact, resources = result.variant, result.artifact, outcome.resources
    facts: dict[str, object] = {"digest": None, "pallas_kernels": 0, "xla_kernels": []}
    return {
        **variant_facts(variant),
        "arch": variant.target.arch,
        "status": outcome.status,
        **fields(result, "reason", "remote", "action_key", "output"),
        "seconds": round(outcome.seconds, 3),
        "saved_s": round(result.saved_s, 3),
        "explanation": result.explanation,
        **(kernel_facts(artifact) if artifact else facts),
        "cubin_bytes": artifact and artifact.cubin_bytes,
        "kernels": to_builtins(artifact.kernels) if artifact else [],
        "resources": resources and resources._asdict(),
        "warnings": to_builtins(result.diagnostics),
        "error": error_row(outcome.error),
    }


def _check_row(check: VariantCheck, report: CheckReport) -> dict[str, object]:
    from pallasc.checks.findings import to_json

    variant = check.variant
    return {
        **(variant_facts(variant) if variant else {"name": None, "params": {}, "target": None}),
        **fields(check, "id", "action_key", "digest"),
        "results": [
            {
                **to_json(result),
                "seconds": round(result.seconds, 3),
                "from_store": result.level in check.from_store,
                "error": error_row(check.errors.get(result.level)),
            }
            for result in check.results
        ],
        "error": error_row(check.built.error if check.built is not None else None),
        "interrupted": list(report.missing(check)),
    }


def error_row(error: PallascError | None) -> dict[str, object] | None:
    """Return the row of an error, None without an error."""
    if error is None:
        return None
    place = error.location
    return {
        **fields(error, "message", "hint", "exit_code"),
        "file": place.file if place else None,
        "line": place.line or None if place else None,
        "column": place.column or None if place else None,
    }
