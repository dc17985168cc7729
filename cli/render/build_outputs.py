"""Where a build's report goes, besides the terminal: JSON, JUnit XML, annotations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cli.terminal.output import check_reports, echo, echo_command
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.shard import Share


class Outputs(NamedTuple):
    """The outputs that were asked for: JSON on the standard output, a JUnit file, annotations."""

    as_json: bool
    junit: Path | None
    annotations: str | None

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error that ends the whole build in every output, not only on the terminal.

        Raises:
            click.UsageError: both go to the standard output.
            SpecError: the JUnit file cannot be written.
        """
        check_reports({"--junit": self.junit}, as_json=self.as_json)
        try:
            yield
        except PallascError as error:
            self._report(error)
            raise

    def write(
        self, report: Report, reproduction: Reproduction | None = None, share: Share | None = None
    ) -> None:
        """Write a report.

        Args:
            report: what the build did.
            reproduction: what compiling twice showed, None if nothing was.
            share: what was built of all variants, None for a build without shards.

        Raises:
            SpecError: the JUnit file can no longer be written.
        """
        if self.annotations:
            from pallasc.cli.render.annotations import github_command, github_commands

            for line in (*map(github_command, report.errors), *github_commands(report)):
                echo_command(line)
        self._write_files(report, reproduction, share=share)

    def _report(self, error: PallascError) -> None:
        from pallasc.compiler.builds.report import Report

        if self.annotations:
            from pallasc.cli.render.annotations import github_command

            echo_command(github_command(error))
        self._write_files(Report((), 0.0), error=error)

    def _write_files(
        self,
        report: Report,
        reproduction: Reproduction | None = None,
        *,
        error: PallascError | None = None,
        share: Share | None = None,
    ) -> None:
        if self.as_json:
            from pallasc.cli.render.report_rows import report_json
            from pallasc.cli.terminal.output import json_text

            echo(json_text(report_json(report, reproduction, error=error, share=share)))
        if self.junit is not None:
            from pallasc.cli.render.junit import write_junit

            shard = share.shard if share else None
            write_junit(report, self.junit, error=error, shard=shard)
