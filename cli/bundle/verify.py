"""`pallasc bundle verify`: is a bundle undamaged, who signed it, does it agree with a lock file?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import file_option, json_option
from pallasc.cli.bundle.options import file_argument, key_option
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.audit import Finding
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.signature import PublicKey

_NOT_AS_LOCKED = 3


@click.command("verify", cls=Command, short_help="Check digests, signatures, and the lock file.")
@file_argument
@key_option("Demand a signature by this key, or by one of several.")
@click.option(
    "--require-signature",
    is_flag=True,
    help="Demand a signature by a key that this machine trusts: $PALLASC_TRUSTED_KEYS.",
)
@file_option("--lock", "Demand that every artifact in it is the one that this lock file names.")
@json_option("the result")
def command(
    file: Path,
    keys: tuple[str, ...],
    require_signature: bool,
    lock: Path | None,
    as_json: bool,
) -> int:
    """Read all of a bundle and compare it with its digests; exit code 5 if something is wrong.

    Signatures are checked with --key or --require-signature only. With --lock, each variant that
    the lock file does not have, or has with another artifact, is a line on the standard output, and
    the exit code is 3 if there are any. Variants that the bundle lacks are listed too, but are not
    an error.

    Examples:
      pallasc bundle verify kernels.pallasc
      pallasc bundle verify kernels.pallasc --key release.key.pub
      pallasc bundle verify kernels.pallasc --lock pallasc.lock

    --json prints one object:
      schema    1
      file      the bundle
      variants  how many it holds
      digest    of all its content
      signed    keys of which a signature was demanded and is right
      lock      the lock file, or null
      findings  how it differs from the lock file, a list; of each: severity (error, note),
                subject (a variant), message
    """
    from pallasc.cli.terminal.output import json_text
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        bundle.verify()
        signers = _signers(bundle, keys, require=require_signature)
        findings = [] if lock is None else compare(bundle, lock)
        number, digest = len(bundle), bundle.digest
    if as_json:
        data = {
            "file": str(file),
            "variants": number,
            "digest": digest,
            "signed": [str(key) for key in signers],
            "lock": str(lock) if lock else None,
            "findings": [_finding(finding) for finding in findings],
        }
        echo(json_text(data))
    else:
        _tell(file, number, digest, signers, findings, lock)
    # A variant of the lock file that the bundle lacks is a note: bundles may be split.
    return _NOT_AS_LOCKED if any(finding.severity == "error" for finding in findings) else 0


def _signers(bundle: Bundle, keys: Sequence[str], *, require: bool) -> list[PublicKey]:
    """Return the keys that signed it, of those that had to."""
    from pallasc.cli.bundle.options import read_keys
    from pallasc.specs.bundle.trust import read_policy

    policy = read_policy(require_signature=require)
    signers = {}
    if keys:
        signers = {key.id: key for key in bundle.check_signatures(read_keys(keys))}
    policy.check(bundle)
    for demand in policy.demands:
        signers |= {key.id: key for key in bundle.check_signatures(demand.keys)}
    return [signers[name] for name in sorted(signers)]


def compare(bundle: Bundle, path: Path) -> list[Finding]:
    """Return how a bundle differs from a lock file.

    Raises:
        NotCachedError: there is no such file.
    """
    from pallasc.errors import NotCachedError
    from pallasc.specs.bundle.audit import compare_with_lock
    from pallasc.specs.loading.lock_file import read_lock
    from pallasc.specs.lock import update_command

    lock = read_lock(path)
    if lock is None:
        raise NotCachedError(f"there is no {path}.", hint=f"Make it with: {update_command(path)}")
    return compare_with_lock(bundle.entries(), lock)


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "subject": finding.subject,
        "message": finding.message,
    }


def _tell(
    file: Path,
    number: int,
    digest: str,
    signers: Sequence[PublicKey],
    findings: Sequence[Finding],
    lock: Path | None,
) -> None:
    from pallasc.cli.terminal.output import count

    echo(f"{file} is whole: {count(number, 'variant')}, content {digest[:12]}")
    for key in signers:
        echo(f"{file} is signed by {key.id[:16]}{f' ({key.comment})' * bool(key.comment)}")
    if lock is None:
        return
    errors = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        echo(f"{finding.severity}: {finding.subject}: {finding.message}")
    if errors:
        differ = "differs" if len(errors) == 1 else "differ"
        echo(f"{file} does not match {lock}: {count(len(errors), 'variant')} {differ}")
    else:
        echo(f"{file} matches {lock}")
