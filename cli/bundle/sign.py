"""`pallasc bundle keygen` and `sign`: Ed25519 keys, and signatures with them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option
from pallasc.cli.bundle.options import files_argument
from pallasc.cli.output.text import echo, refusing

if TYPE_CHECKING:
    from pallasc.specs.bundle.signature import Ed25519PrivateKey

PASSWORD = "PALLASC_KEY_PASSWORD"
_STDIN = "-"
_PRIVATE = stat.S_IRUSR | stat.S_IWUSR


@click.command("keygen", cls=Command, short_help="Make a key to sign with.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option("--comment", default="", metavar="TEXT", help="A comment after the public key.")
@json_option("the public key")
def keygen_command(file: Path, comment: str, as_json: bool) -> int:
    """Make a key: the private half in FILE, the public half in FILE.pub and on standard output.

    Only you can read FILE, and neither file is ever replaced. If $PALLASC_KEY_PASSWORD is set, FILE
    is encrypted with it. FILE is PKCS #8 in PEM, which openssl reads too. Give FILE.pub to those
    who should trust your bundles, and FILE to nobody.

    Examples:
      pallasc bundle keygen release.key --comment "example.org releases"
      pallasc bundle sign kernels.pallasc --key release.key

    --json prints one object:
      schema   1
      private  FILE
      public   FILE.pub
      key      the public key, as it stands there
      id       what messages call it, the SHA-256 of its 32 bytes
    """
    from pallasc.cli.output.text import json_text
    from pallasc.specs.bundle.signature import generate_key, private_key_text, public_key

    public = file.with_name(f"{file.name}.pub")
    key = generate_key()
    shown = public_key(key, " ".join(comment.split()))
    _create(public, f"{shown}\n".encode(), 0o644)
    try:
        _create(file, private_key_text(key, _password()), _PRIVATE)
    # An interrupt while the password is asked for must not leave half a pair behind.
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
@files_argument
@click.option(
    "--key",
    "key_file",
    required=True,
    metavar="KEY",
    help="The file with the private key; - reads it from the standard input.",
)
@json_option("who signed what")
def sign_command(files: tuple[Path, ...], key_file: str, as_json: bool) -> int:
    """Sign bundles. Signatures by other keys stay; a signature by the same key is replaced.

    A bundle is verified first, so that no damaged bundle is signed. Nothing else in it changes, and
    the file is replaced in one step. $PALLASC_KEY_PASSWORD is the password of an encrypted key.

    Examples:
      pallasc bundle sign kernels.pallasc --key release.key
      echo "$RELEASE_KEY" | pallasc bundle sign dist/*.pallasc --key -

    --json prints one object:
      schema  1
      key     the public key
      id      what messages call it
      files   a list; of each: file, root (what was signed)
    """
    from pallasc.cli.output.text import json_text
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
    """Write a file that must not exist.

    Raises:
        SpecError: it exists, or cannot be written.
    """
    from pallasc.errors import SpecError

    with refusing(path, hint="Give another path."):
        try:
            # Created with its mode: there is no moment in which others can read the key.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError as error:
            raise SpecError(
                f"{path} already exists, and keys are never replaced.", hint="Give another name."
            ) from error
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask may have taken bits away
            file.write(data)


def _read_key(file: str) -> Ed25519PrivateKey:
    """Return the private key of a file, or of the standard input.

    Raises:
        SpecError: it cannot be read, or is not a private key.
    """
    from pallasc.specs.bundle.signature import parse_private_key

    if file == _STDIN:
        return parse_private_key(sys.stdin.buffer.read(), "standard input", _password())
    with refusing(file, hint="Give a key that pallasc bundle keygen made.", doing="read"):
        data = Path(file).read_bytes()
        mode = Path(file).stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        echo(f"warning: others can read {file}; run: chmod 600 {file}", err=True)
    return parse_private_key(data, file, _password())


def _password() -> bytes | None:
    text = os.environ.get(PASSWORD)
    return text.encode() if text else None
