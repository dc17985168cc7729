"""`pallasc bundle audit`: is this what should be shipped?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import WholeNumber, file_option, json_option, size_option
from pallasc.cli.bundle.options import file_argument, key_option
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.audit import Finding

_FOUND = 5
_DRIVER = re.compile(r"\d{1,3}(\.\d{1,3})*")


def _driver(ctx: click.Context, _: click.Parameter, text: str | None) -> str | None:
    if text is not None and not _DRIVER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a CUDA version; write it like 12.8.", ctx)
    return text


class _Limits(TypedDict):
    bundle_bytes: int | None
    variant_bytes: int | None
    spill_bytes: int
    driver: str | None


@click.command("audit", cls=Command, short_help="Check whether a bundle is ready to ship.")
@file_argument
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="A model or architecture that the bundle is for; repeatable.",
)
@size_option("--budget", "bundle_bytes", "The largest size that the file may have.")
@size_option(
    "--variant-budget",
    "variant_bytes",
    "The largest size that the cubins of a variant may have together, as they are loaded.",
)
@click.option(
    "--spills",
    "spill_bytes",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    metavar="BYTES",
    help="The most bytes that a thread may spill.",
)
@click.option(
    "--driver",
    callback=_driver,
    metavar="CUDA",
    help="The newest CUDA version of a driver that the bundle may need, such as 12.8.",
)
@key_option("A key that must have signed, or one of several.")
@file_option("--lock", "Compare with this lock file too.")
@click.option(
    "--fail-on",
    type=click.Choice(["note", "warning", "error", "never"]),
    default="error",
    show_default=True,
    help="The lowest severity that gives exit code 5.",
)
@json_option("the findings")
def command(
    file: Path,
    targets: tuple[str, ...],
    keys: tuple[str, ...],
    lock: Path | None,
    fail_on: str,
    as_json: bool,
    **limits: Unpack[_Limits],
) -> int:
    """Check whether a bundle is ready to ship; nothing is changed.

    Each finding is a line on the standard output, the worst first:
      target        nothing for a target that was asked for (error), something for one that was not,
                    or a kernel without some of its variants on one (warning)
      size          more bytes than --budget or --variant-budget (error)
      driver        a newer driver is needed than --driver (error); what each target needs (note)
      architecture  a cubin that is not for the architecture of its variant (error)
      signature     not signed by any --key (error); not signed at all (warning)
      lock          not as --lock says (error); lacking a variant that it has (note)
      spill         more than --spills (warning); not known (note)
      debug         debug sections, PTX, lines of source or reference values left in (warning)
      tuning        variants of a tuned kernel that are in no row (warning); its rows (note)
      provenance    made from files that differ from the commit (warning)
      duplicate     the same code for two models of one architecture, or the same artifact for two
                    points of a matrix (note)

    Examples:
      pallasc bundle audit kernels.pallasc
      pallasc bundle audit kernels.pallasc --target sm_90a --target sm_100a --fail-on warning
      pallasc bundle audit kernels.pallasc --budget 2MiB --driver 12.8 --key release.key.pub

    --json prints one object:
      schema    1
      file      the bundle
      bytes     its size
      totals    number of findings by severity
      findings  a list; of each: severity, kind, subject, message
    """
    from pallasc.cli.bundle.options import read_keys
    from pallasc.specs.bundle.audit import Rules, audit, sort_findings
    from pallasc.specs.bundle.bundle import open_bundle

    rules = Rules(targets=_checked(targets), trusted=read_keys(keys), **limits)
    with open_bundle(file) as bundle:
        bundle.verify()
        findings = audit(bundle, rules)
        if lock is not None:
            from pallasc.cli.bundle.verify import compare

            findings = sort_findings([*findings, *compare(bundle, lock)])
        size = bundle.size
    _show(file, size, findings, as_json=as_json)
    failed = fail_on != "never" and any(finding.at_least(fail_on) for finding in findings)  # type: ignore[arg-type]
    return _FOUND if failed else 0


def _checked(targets: Sequence[str]) -> tuple[str, ...]:
    """Return each target once; a name may be that of a model which a spec adds.

    Raises:
        SpecError: an architecture does not exist.
    """
    from pallasc.specs.gpus import DEFAULT_MODELS
    from pallasc.specs.targets import resolve_target

    for name in targets:
        if name.startswith("sm_") and name not in DEFAULT_MODELS:
            resolve_target(name)
    return tuple(dict.fromkeys(targets))


def _show(file: Path, size: int, findings: Sequence[Finding], *, as_json: bool) -> None:
    from pallasc.cli.terminal.output import count, json_text, table
    from pallasc.specs.bundle.audit import SEVERITIES

    totals = {name: sum(f.severity == name for f in findings) for name in SEVERITIES}
    if as_json:
        listed = [
            {"severity": f.severity, "kind": f.kind, "subject": f.subject, "message": f.message}
            for f in findings
        ]
        data = {"file": str(file), "bytes": size, "totals": totals, "findings": listed}
        echo(json_text(data))
    elif findings:
        rows = [[f.severity, f.kind, f"{f.subject}: {f.message}"] for f in findings]
        echo(table(["SEVERITY", "KIND", "FINDING"], rows))
    words = ", ".join(count(totals[name], name) for name in reversed(SEVERITIES) if totals[name])
    echo(f"{file}: {words or 'nothing found'}", err=True)
