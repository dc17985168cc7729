"""Outputs for the report of a build or a check besides the terminal: JSON, files, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pallasc.cli.output.exits import deferred
from pallasc.cli.output.text import (
    echo,
    echo_bytes,
    echo_command,
    json_text,
    refusing,
    workspace_root,
)
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.checks.levels import Level
    from pallasc.checks.run import Report as CheckReport
    from pallasc.cli.output.outcome import Run
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.shard import Share

STANDARD_OUTPUT = Path("-")
"""Value of an option that writes a report to stdout."""


class Outputs(NamedTuple):
    """The requested outputs; for a check, with its levels."""

    as_json: bool
    junit: Path | None
    annotations: str | None
    sarif: Path | None = None
    levels: tuple[Level, ...] | None = None

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
            if self.levels is None:
                from pallasc.compiler.builds.report import Report

                self.write_build(Report((), 0.0), error=error)
            else:
                from pallasc.checks.run import Report as CheckReport

                names = tuple(level.name for level in self.levels)
                self._write_check(CheckReport((), 0.0, names), error)
            raise

    def write_build(
        self,
        report: Report,
        reproduction: Reproduction | None = None,
        share: Share | None = None,
        error: PallascError | None = None,
    ) -> None:
        """Write the report of a build.

        Args:
            report: report of the build.
            reproduction: result of compiling twice, None if that was not requested.
            share: the shard's share of all variants, None for a build without shards.
            error: error that ended the whole build, if any.

        Raises:
            SpecError: the JUnit file can no longer be written.
        """
        if not (self.as_json or self.junit or self.annotations):
            return
        from pallasc.cli.output.json import report_json
        from pallasc.cli.output.outcome import build_run

        run = build_run(report, error, share)
        self._write(run, report_json(run, report, reproduction) if self.as_json else None)

    def write_check(self, report: CheckReport, share: Share | None = None, *, quiet: bool) -> None:
        """Write the report of a check. A first signal is deferred until every output is complete.

        Args:
            report: report of the check.
            share: the shard's share of all variants, None for a check without shards.
            quiet: print only warnings about the store, unless the check fails.

        Raises:
            SpecError: a file can no longer be written.
        """
        from pallasc.cli.output.check_text import print_report

        with deferred():
            run, levels = self._write_check(report, report.unchecked, share), self.levels or ()
            print_report(run, report, levels, only_totals=self.prints_report, quiet=quiet)

    def _write_check(
        self, report: CheckReport, error: PallascError | None, share: Share | None = None
    ) -> Run:
        from pallasc.cli.output.json import check_json
        from pallasc.cli.output.outcome import check_run

        run = check_run(report, error, share)
        self._write(run, check_json(run, report) if self.as_json else None)
        return run

    def _write(self, run: Run, data: dict[str, object] | None) -> None:
        """Write the requested outputs: JSON from `data`, everything else from `run`."""
        root = workspace_root(os.environ)
        if self.annotations:
            from pallasc.cli.output.annotations import github_commands

            # GitHub reads commands from both streams, and stdout may contain JSON.
            for line in github_commands(run, root):
                echo_command(line)
        if data is not None:
            echo(json_text(data))
        if self.junit:
            from pallasc.cli.output.junit import junit_xml

            write_report(junit_xml(run, root), self.junit, "--junit")
        if self.sarif:
            from pallasc.checks.levels import rules_of
            from pallasc.cli.output.sarif import sarif
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
