"""Where a check's report goes: lines, totals, JSON, JUnit XML, SARIF, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.checks.findings import to_json
from pallasc.cli.render.check_text import STATUSES
from pallasc.cli.render.report_rows import error_row, shard_row
from pallasc.cli.terminal.interrupts import deferred
from pallasc.cli.terminal.output import (
    STANDARD_OUTPUT,
    check_reports,
    echo,
    echo_command,
    write_report,
)
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.checks.levels import Level
    from pallasc.checks.report import Report, VariantCheck
    from pallasc.compiler.builds.shard import Share
    from pallasc.errors import PallascError


def check_json(
    report: Report, *, error: PallascError | None = None, share: Share | None = None
) -> dict[str, object]:
    """Return what `--json` prints of a report, without the schema version."""
    totals = dict.fromkeys(STATUSES, 0)
    for check in report.checks:
        for result in check.results:
            totals[result.status] += 1
    return {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "levels": list(report.levels),
        "notes": list(report.notes),
        "totals": totals,
        "findings": sum(len(r.findings) for check in report.checks for r in check.results),
        "variants": [
            {**_row(check), "interrupted": list(report.missing(check))} for check in report.checks
        ],
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(error) if error else None,
        "shard": shard_row(share) if share else None,
    }


def _row(check: VariantCheck) -> dict[str, object]:
    variant = check.variant
    failed = check.built.error if check.built is not None else None
    return {
        "id": check.id,
        "name": variant.name if variant else None,
        "params": dict(variant.params) if variant else {},
        "target": variant.target.name if variant else None,
        "action_key": check.action_key,
        "digest": check.digest,
        "results": [
            {
                **to_json(result),
                "seconds": round(result.seconds, 3),
                "from_store": result.level in check.from_store,
                "error": error_row(check.errors[result.level])
                if result.level in check.errors
                else None,
            }
            for result in check.results
        ],
        "error": error_row(failed) if failed else None,
    }


class Outputs(NamedTuple):
    """The outputs that were asked for, and the levels that the report is about.

    If it is quiet, a check that ends with 0 prints nothing but warnings about the store.
    """

    as_json: bool
    junit: Path | None
    sarif: Path | None
    annotations: str | None
    levels: tuple[Level, ...]
    quiet: bool = False

    @property
    def prints_report(self) -> bool:
        """Whether the standard output belongs to a report, and not to lines for people."""
        return self.as_json or STANDARD_OUTPUT in (self.junit, self.sarif)

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error that ends the whole check in every output, not only on the terminal.

        Raises:
            click.UsageError: two reports go to the standard output.
            SpecError: a file cannot be written.
        """
        reports = {"--junit": self.junit, "--sarif": self.sarif}
        check_reports(reports, as_json=self.as_json)
        try:
            yield
        except PallascError as error:
            self._report(error)
            raise

    def write(self, report: Report, share: Share | None = None) -> None:
        """Write a report to every output; a first signal waits until all of them are whole.

        Args:
            report: what the check found.
            share: what was checked of all variants, None for a check without shards.

        Raises:
            SpecError: a file can no longer be written.
        """
        with deferred():
            self._write(report, share)

    def _write(self, report: Report, share: Share | None) -> None:
        from pallasc.cli.render.check_text import (
            error_lines,
            interrupted_lines,
            rule_lines,
            summary_line,
        )
        from pallasc.cli.render.failures import error_text
        from pallasc.cli.render.remarks import compiled_wrongly

        if self.annotations:
            from pallasc.cli.render.annotations import check_commands, github_command

            ended = [*report.errors, *([report.unchecked] if report.unchecked else [])]
            # GitHub reads commands from either stream; the standard output may hold JSON.
            for line in (*map(github_command, ended), *check_commands(report)):
                echo_command(line)
        self._write_files(report, error=report.unchecked, share=share)
        for note in report.notes:
            echo(f"warning: {note}", err=True)
        shows_totals = not self.quiet or report.exit_code != 0
        if not self.prints_report and shows_totals:
            for text in (*interrupted_lines(report), *rule_lines(report, self.levels)):
                echo(text)
        for text in error_lines(report):
            echo(text, err=True)
        if shows_totals:
            built = [check.built for check in report.checks if check.built is not None]
            for line in compiled_wrongly(built):
                echo(line, err=True)
            echo(summary_line(report), err=True)
        if (unchecked := report.unchecked) is not None:
            echo(f"error: {error_text(unchecked)}", err=True)

    def _report(self, error: PallascError) -> None:
        from pallasc.checks.report import Report

        if self.annotations:
            from pallasc.cli.render.annotations import github_command

            echo_command(github_command(error))
        names = tuple(level.name for level in self.levels)
        self._write_files(Report((), 0.0, names), error=error)

    def _write_files(
        self, report: Report, *, error: PallascError | None = None, share: Share | None = None
    ) -> None:
        from pallasc.cli.terminal.output import workspace_root

        root = workspace_root(os.environ)
        if self.as_json:
            from pallasc.cli.terminal.output import json_text

            echo(json_text(check_json(report, error=error, share=share)))
        if self.junit is not None:
            from pallasc.cli.render.junit import check_junit

            shard = share.shard if share else None
            write_report(check_junit(report, root, error, shard), self.junit, "--junit")
        if self.sarif is not None:
            from pallasc.checks.levels import rules_of
            from pallasc.cli.render.sarif import sarif
            from pallasc.version import installed_version

            rules = rules_of(self.levels)
            data = sarif(report, rules, root, version=installed_version(), error=error)
            write_report(data, self.sarif, "--sarif")
