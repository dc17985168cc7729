"""`pallasc bundle keygen`, `sign` and `verify`: keys, signatures, and release checks."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import (
    count,
    echo,
    fields,
    json_text,
    print_result,
    refusing,
    table,
)
from pallasc.errors import SpecError

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.signature import Ed25519PrivateKey, PublicKey
    from pallasc.specs.bundle.verify import Finding

_STDIN = "-"
_PRIVATE = stat.S_IRUSR | stat.S_IWUSR
_NOT_AS_LOCKED, _FOUND = 3, 5
_DRIVER = re.compile(r"\d{1,3}(\.\d{1,3})*")


def _driver(ctx: click.Context, _: click.Parameter, text: str | None) -> str | None:
    if text is not None and not _DRIVER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a CUDA version; write it like 12.8.", ctx)
    return text


@click.command(
    "verify", cls=Command, short_help="Verify a bundle, and check that it is ready for release."
)
@options.bundle_argument
@options.option(
    "--key",
    "KEY",
    "Require a signature by one of these: FILE.pub, a folder with *.pub, ed25519:…; repeatable.",
    parameter="keys",
    multiple=True,
)
@options.flag(
    "--require-signature", "Require a signature by a trusted key, from $PALLASC_TRUSTED_KEYS."
)
@options.file_option("--lock", "Require that every artifact matches this lock file.")
@options.target_option("Model or architecture that the bundle must support")
@options.size_option("--budget", "bundle_bytes", "Maximum size of the bundle, e.g. 2MiB.")
@options.size_option(
    "--variant-budget", "variant_bytes", "Maximum size of the cubins of one variant when loaded."
)
@options.option(
    "--spills",
    "BYTES",
    "Maximum number of bytes that a thread may spill.",
    parameter="spill_bytes",
    type=click.IntRange(0),
    default=0,
)
@options.option(
    "--driver",
    "CUDA",
    "Newest CUDA driver version that the bundle may require, e.g. 12.8.",
    callback=_driver,
)
@options.choice_option(
    "--fail-on",
    ["note", "warning", "error", "never"],
    "Lowest severity that causes exit code 5.",
    default="error",
)
@options.json_option("the result")
def verify_command(
    file: Path,
    keys: tuple[str, ...],
    require_signature: bool,
    lock: Path | None,
    targets: tuple[str, ...],
    fail_on: str,
    as_json: bool,
    **limits: Any,
) -> int:
    """Verify the digests and signatures of a bundle, and check that it is ready for release.

    The exit code is 5 for a damaged bundle and for a missing required signature.
    Signatures are checked only with --key or --require-signature. With --lock,
    the exit code is 3, regardless of --fail-on, if a variant is missing from the
    lock file or has a different artifact there. Each finding is one line, the
    worst first:
      lock          differs from --lock (error); a variant of the lock file is
                    missing (note)
      target        no variants for a requested target (error); variants for
                    another target, or a kernel that lacks some of its variants on
                    a target (warning)
      size          larger than --budget or --variant-budget (error)
      driver        needs a newer driver than --driver (error); driver of each
                    target (note)
      architecture  a cubin for a different architecture than its variant's
                    (error)
      signature     not signed (warning)
      spill         spills more than --spills (warning); spills are unknown (note)
      debug         contains debug sections, PTX, source lines, or reference
                    values (warning)
      tuning        a variant of a tuned kernel that no row of the table uses
                    (warning)
      provenance    built from files that differ from the commit (warning)

    Examples:
      pallasc bundle verify kernels.pallasc
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle verify kernels.pallasc --target sm_90a --target sm_100a --fail-on warning
      pallasc bundle verify kernels.pallasc --budget 2MiB --driver 12.8
    """
    from pallasc.cli.arguments.variants import read_existing_lock
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.verify import (
        SEVERITIES,
        Rules,
        audit,
        compare_with_lock,
        sort_findings,
        verify,
    )
    from pallasc.specs.gpus import DEFAULT_MODELS, resolve_target

    for name in targets:  # other names may be models that a spec adds
        if name.startswith("sm_") and name not in DEFAULT_MODELS:
            resolve_target(name)
    rules = Rules(targets=tuple(dict.fromkeys(targets)), **limits)
    with open_bundle(file) as bundle:
        verify(bundle)
        signers = _signers(bundle, keys, require=require_signature)
        differences = []
        if lock is not None:
            differences = compare_with_lock(bundle.entries(), read_existing_lock(lock))
        findings = sort_findings([*differences, *audit(bundle, rules)])
        size, number, digest = bundle.size, len(bundle), bundle.digest
    totals = {name: sum(f.severity == name for f in findings) for name in SEVERITIES}
    data = {
        "file": str(file),
        "bytes": size,
        "variants": number,
        "digest": digest,
        "signed": [str(key) for key in signers],
        "lock": str(lock) if lock else None,
        "totals": totals,
        "findings": [fields(f, "severity", "kind", "subject", "message") for f in findings],
    }
    words = ", ".join(count(totals[name], name) for name in reversed(SEVERITIES) if totals[name])
    content = f"{count(number, 'variant')}, content {digest[:12]}"
    lines = [
        f"{file} is intact: {content}; {words or 'nothing found'}",
        *(_verified_lines(file, signers, findings, lock)),
    ]
    print_result(data, lines, as_json=as_json)
    # A bundle that lacks a locked variant is only a note, because bundles may be split.
    if any(finding.severity == "error" for finding in differences):
        return _NOT_AS_LOCKED
    failed = fail_on != "never" and any(finding.at_least(fail_on) for finding in findings)  # type: ignore[arg-type]
    return _FOUND if failed else 0


def _signers(bundle: Bundle, keys: Sequence[str], *, require: bool) -> list[PublicKey]:
    """Return the required keys that signed the bundle."""
    from pallasc.specs.bundle.signature import read_policy

    policy = read_policy(require_signature=require)
    signers = [*bundle.check_signatures(_read_keys(keys))] if keys else []
    signers += bundle.check_policy(policy)
    return sorted({key.id: key for key in signers}.values(), key=lambda key: key.id)


def _verified_lines(
    file: Path, signers: Sequence[PublicKey], findings: Sequence[Finding], lock: Path | None
) -> Iterator[str]:
    for key in signers:
        yield f"{file} is signed by {key.id[:16]}{f' ({key.comment})' * bool(key.comment)}"
    if findings:
        rows = [[f.severity, f.kind, f"{f.subject}: {f.message}"] for f in findings]
        yield table(["SEVERITY", "KIND", "FINDING"], rows)
    if lock is not None:
        errors = sum(f.kind == "lock" and f.severity == "error" for f in findings)
        differ = "differs" if errors == 1 else "differ"
        wrong = f"does not match {lock}: {count(errors, 'variant')} {differ}"
        yield f"{file} {wrong if errors else f'matches {lock}'}"


@click.command("keygen", cls=Command, short_help="Create a key pair for signing.")
@click.argument("file", type=options.FILE, metavar="FILE")
@options.option("--comment", "TEXT", "Comment to append to the public key.", default="")
@options.json_option("the public key")
def keygen_command(file: Path, comment: str, as_json: bool) -> int:
    """Create a key pair for signing bundles.

    The private key is written to FILE, the public key to FILE.pub and to standard output. Only you
    can read FILE, and existing files are never replaced. If $PALLASC_KEY_PASSWORD is set, FILE is
    encrypted with it. FILE is in PKCS #8 PEM format, which openssl can read. Give FILE.pub to users
    who should trust your bundles, and keep FILE secret.

    Examples:
      pallasc bundle keygen release.key --comment "example.org releases"
      pallasc bundle sign kernels.pallasc --key release.key
    """
    from pallasc.specs.bundle import signature

    public = file.with_name(f"{file.name}.pub")
    key = signature.generate_key()
    shown = signature.public_key(key, " ".join(comment.split()))
    _create(public, f"{shown}\n".encode(), 0o644)
    try:
        password = signature.key_password(os.environ)
        _create(file, signature.private_key_text(key, password), _PRIVATE)
    # An interrupt at the password prompt must not leave a public key without its private key.
    except BaseException:
        public.unlink()
        raise
    echo(f"wrote {file}, which must be kept secret, and {public}", err=True)
    if as_json:
        facts = {"private": str(file), "public": str(public), "key": str(shown), "id": shown.id}
        echo(json_text(facts))
    else:
        echo(str(shown))
    return 0


@click.command("sign", cls=Command, short_help="Sign bundles with a private key.")
@options.bundles_argument
@options.option(
    "--key",
    "KEY",
    "File with the private key; - for standard input.",
    parameter="key_file",
    required=True,
)
@options.json_option("the key and the signed files")
def sign_command(files: tuple[Path, ...], key_file: str, as_json: bool) -> int:
    """Sign bundles with a private key.

    Signatures by other keys are kept; a signature by the same key is replaced. Each bundle is
    verified before it is signed, and replaced atomically. Nothing else in it changes.
    $PALLASC_KEY_PASSWORD is the password of an encrypted key.

    Examples:
      pallasc bundle sign kernels.pallasc --key release.key
      echo "$RELEASE_KEY" | pallasc bundle sign dist/*.pallasc --key -
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import public_key
    from pallasc.specs.bundle.verify import signed
    from pallasc.specs.user_files import replace_file

    key = _read_key(key_file)
    shown = public_key(key)
    done = []
    for file in files:
        with open_bundle(file) as bundle:
            root, data = bundle.root, bundle.reader.source.read(0, bundle.size)
        replace_file(file, signed(data, key, str(file)))
        done.append({"file": str(file), "root": root})
        echo(f"signed {file} with {shown.id[:16]}", err=True)
    if as_json:
        echo(json_text({"key": str(shown), "id": shown.id, "files": done}))
    return 0


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that must not exist yet.

    Raises:
        SpecError: the file exists, or cannot be written.
    """
    with refusing(path, hint="Give another path."):
        try:
            # Created with its final mode, so that others can never read the key.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError as error:
            raise SpecError(
                f"{path} already exists, and keys are never replaced.", hint="Give another name."
            ) from error
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask may have cleared bits
            file.write(data)


def _read_key(file: str) -> Ed25519PrivateKey:
    """Return the private key from a file or stdin.

    Raises:
        SpecError: the key cannot be read, or is not a private key.
    """
    from pallasc.specs.bundle.signature import key_password, parse_private_key, read_private_key

    if file == _STDIN:
        password = key_password(os.environ)
        return parse_private_key(sys.stdin.buffer.read(), "standard input", password)
    key = read_private_key(file, os.environ, "--key")
    if Path(file).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        echo(f"warning: others can read {file}; run: chmod 600 {file}", err=True)
    return key


def _read_keys(keys: Sequence[str]) -> tuple[PublicKey, ...]:
    """Return the public keys that `--key` names.

    Raises:
        SpecError: a file cannot be read, or contains something other than keys.
    """
    from pallasc.specs.bundle.signature import read_keys as read_trusted

    # On a command line, paths are relative to the current folder.
    named = [key if key.startswith("ed25519:") else os.path.abspath(key) for key in keys if key]
    public_keys = read_trusted(named)
    if keys and not public_keys:
        raise SpecError(
            f"no public key in {', '.join(keys)}.",
            hint="Give a .pub file that pallasc bundle keygen wrote.",
        )
    return public_keys
