"""Signatures of bundles: Ed25519 over the root, which covers the whole content of a bundle.

A file of public keys has one key per line: `ed25519:` and its 32 bytes in Base64, optionally
followed by a comment. Lines that begin with `#` are comments. A private key is PKCS #8 in PEM,
which `openssl` can read.

**Trust.** The program (arguments) and the machine (environment) can require signatures, and both
requirements count: a program can require more than the machine, not less. The machine's keys are in
the files, or folders with `*.pub`, that `PALLASC_TRUSTED_KEYS` lists, else in the folder
`pallasc/trusted_keys` below `XDG_CONFIG_HOME` or `~/.config`.

Keys are never looked up in the current folder, which may contain anybody's files: a program's paths
are relative to its package or absolute, the machine's paths are absolute.
"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pallasc.errors import CorruptError, Location, SpecError, ToolError
from pallasc.specs.canonical import digest
from pallasc.specs.user_files import config_folder, read_switch

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey as Ed25519PrivateKey,
    )
REQUIRE = "PALLASC_REQUIRE_SIGNATURE"
TRUSTED = "PALLASC_TRUSTED_KEYS"
PASSWORD = "PALLASC_KEY_PASSWORD"

_MAX_SIGNATURES = 64
_ALGORITHM = b"ed25519\0"
_RECORD = struct.Struct("<8s32s32s64s")
MAX_SIGNATURES_BYTES = _MAX_SIGNATURES * _RECORD.size
_MESSAGE = b"pallasc bundle 1\n"
_PREFIX = "ed25519:"
_KEY_BYTES = 32


class PublicKey(Struct, frozen=True):
    """A key to check signatures with; `comment` is for people."""

    data: bytes
    comment: str = ""

    @property
    def id(self) -> str:
        """The SHA-256 of its bytes, which messages show."""
        return digest(self.data)

    def __str__(self) -> str:
        text = _PREFIX + base64.b64encode(self.data).decode()
        return f"{text} {self.comment}" if self.comment else text


class Signature(NamedTuple):
    """A signature in a bundle.

    Attributes:
        key_id: id of the key that made the signature.
        root: digest of the signed head.
        signature: 64 bytes.
    """

    key_id: str
    root: bytes
    signature: bytes


def parse_signatures(data: bytes) -> tuple[Signature, ...]:
    """Parse the signatures after a bundle's body.

    Raises:
        CorruptError: signatures are truncated, damaged, out of order, or use another algorithm.
    """
    if len(data) % _RECORD.size or len(data) > MAX_SIGNATURES_BYTES:
        raise CorruptError(f"the {len(data)} bytes after its end are not signatures")
    signatures = []
    for algorithm, key_id, root, signature in _RECORD.iter_unpack(data):
        if algorithm != _ALGORITHM:
            raise CorruptError(f"it has a signature of another algorithm, {algorithm!r}")
        signatures.append(Signature(key_id.hex(), root, signature))
    ids = [signature.key_id for signature in signatures]
    if ids != sorted(set(ids)):
        raise CorruptError("its signatures are out of order")
    return tuple(signatures)


def pack_signatures(signatures: Iterable[Signature]) -> bytes:
    """Return the bytes of signatures; if one key has several, the last one counts."""
    by_key = {signature.key_id: signature for signature in signatures}
    if len(by_key) > _MAX_SIGNATURES:
        raise SpecError(f"a bundle has at most {_MAX_SIGNATURES} signatures.")
    return b"".join(
        _RECORD.pack(_ALGORITHM, bytes.fromhex(key_id), signature.root, signature.signature)
        for key_id, signature in sorted(by_key.items())
    )


def check_signatures(
    signatures: Sequence[Signature], root: bytes, trusted: Iterable[PublicKey], name: str
) -> tuple[PublicKey, ...]:
    """Return the trusted keys that signed a bundle, at least one.

    Signatures by keys that are not trusted are ignored; signatures by trusted keys must be valid.

    Args:
        signatures: the bundle's signatures.
        root: digest of the bundle's head.
        trusted: the trusted keys.
        name: name of the bundle for messages.

    Raises:
        CorruptError: the bundle is not signed, or not by a trusted key; or a signature by a trusted
            key is invalid or for another bundle.
        ToolError: the cryptography package is missing.
    """
    keys = {key.id: key for key in trusted}
    if not signatures:
        raise CorruptError(f"{name} is not signed.", hint="Get a signed one, or sign it.")
    by_trusted = [signature for signature in signatures if signature.key_id in keys]
    if not by_trusted:
        signers = _listed(signature.key_id for signature in signatures)
        trusts = f"trusted are {_listed(keys)}" if keys else "no keys are trusted here"
        raise CorruptError(
            f"{name} is signed by {signers}, and {trusts}.",
            hint="Trust the key if you know whose it is, else do not use the bundle.",
        )
    for signature in by_trusted:
        _check(signature, root, keys[signature.key_id], name)
    return tuple(keys[signature.key_id] for signature in by_trusted)


def _check(signature: Signature, root: bytes, key: PublicKey, name: str) -> None:
    # Check the signature itself first: the second message is for a genuine signature.
    if not is_signed(key.data, signature.signature, _MESSAGE + signature.root):
        raise CorruptError(
            f"{name}: the signature by {key.id[:16]} is not valid; it was forged or damaged.",
            hint="Do not use the bundle; get it again from whoever signed it.",
        )
    if signature.root != root:
        raise CorruptError(
            f"{name}: the signature by {key.id[:16]} is for another bundle, "
            f"{signature.root.hex()[:16]}, and this is {root.hex()[:16]}.",
            hint="The bundle was changed after signing, or the signature was taken from elsewhere.",
        )


def _listed(key_ids: Iterable[str]) -> str:
    return ", ".join(key_id[:16] for key_id in key_ids)


def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return True if a signature of a message is valid for the 32 bytes of a public key.

    Raises:
        ToolError: the cryptography package is missing.
    """
    _need_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def sign(root: bytes, private_key: Ed25519PrivateKey) -> Signature:
    """Return the signature of the bundle with this root."""
    signature = private_key.sign(_MESSAGE + root)
    return Signature(public_key(private_key).id, root, signature)


def generate_key() -> Ed25519PrivateKey:
    """Return a new private key.

    Raises:
        ToolError: the cryptography package is missing.
    """
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def public_key(private_key: Ed25519PrivateKey, comment: str = "") -> PublicKey:
    """Return the public half of a key."""
    return PublicKey(private_key.public_key().public_bytes_raw(), comment)


def private_key_text(private_key: Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    """Return a private key in PEM, encrypted if there is a password."""
    from cryptography.hazmat.primitives import serialization as form

    encryption = form.BestAvailableEncryption(password) if password else form.NoEncryption()
    return private_key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, encryption)


def parse_private_key(data: bytes, file: str, password: bytes | None = None) -> Ed25519PrivateKey:
    """Parse the private key in a PEM file.

    Raises:
        SpecError: the file has no key or another kind of key, or the password is wrong.
        ToolError: the cryptography package is missing.
    """
    _need_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise SpecError(
            f"no private key can be read: {error}",
            location=Location(file),
            hint="Give a key that pallasc bundle keygen made, and its password if it has one.",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SpecError("it is not an Ed25519 key.", location=Location(file))
    return key


def read_private_key(file: str, environ: Mapping[str, str], source: str) -> Ed25519PrivateKey:
    """Return the private key in a file, decrypted with `$PALLASC_KEY_PASSWORD`.

    Args:
        file: its path.
        environ: environment variables.
        source: origin of the path for messages.

    Raises:
        SpecError: the file cannot be read, or as for `parse_private_key`.
        ToolError: the cryptography package is missing.
    """
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise SpecError(
            f"{source}: {file} cannot be read: {error.strerror}.",
            hint="Give a key that pallasc bundle keygen made.",
        ) from error
    return parse_private_key(data, file, key_password(environ))


def key_password(environ: Mapping[str, str]) -> bytes | None:
    """Return the password of private keys, None if there is none."""
    text = environ.get(PASSWORD)
    return os.fsencode(text) if text else None


def parse_public_keys(text: str, file: str) -> tuple[PublicKey, ...]:
    """Parse a file of public keys.

    Raises:
        SpecError: a line is not a key; the location is the line.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            keys.append(_public_key(line.strip(), Location(file, number)))
    return tuple(keys)


def _public_key(line: str, location: Location) -> PublicKey:
    text, _, comment = line.partition(" ")
    try:
        data = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:
        data = b""
    if not text.startswith(_PREFIX) or len(data) != _KEY_BYTES:
        raise SpecError(
            f"{line[:60]!r} is not a public key.",
            location=location,
            hint="Write ed25519: and 32 bytes in Base64, as pallasc bundle keygen does.",
        )
    return PublicKey(data, comment.strip())


# ---- trust

Keys = PublicKey | str | os.PathLike[str]
"""A key, its text `ed25519:…`, or the path of a file of keys or of a folder with `*.pub`."""

Folders = Sequence["Traversable"]
"""Folders of a package, possibly in a zip file, that relative paths of keys refer to."""


class Policy(NamedTuple):
    """The requirements of program and machine together; none by default.

    Attributes:
        demands: sets of keys of which one must have signed, each with its origin.
    """

    demands: tuple[tuple[tuple[PublicKey, ...], str], ...] = ()

    def check(self, signatures: Sequence[Signature], root: bytes, name: str) -> list[PublicKey]:
        """Return the keys that signed, at least one for each demand; see `check_signatures`.

        Raises:
            CorruptError: a demand is not met, or a signature is wrong.
            ToolError: the cryptography package is missing.
        """
        signers: list[PublicKey] = []
        for keys, place in self.demands:
            try:
                signers += check_signatures(signatures, root, keys, name)
            except CorruptError as error:
                hint = f"{error.hint or ''} Trusted keys were taken from {place}.".lstrip()
                raise CorruptError(error.message, hint=hint) from error
        return signers


def read_policy(
    trusted: Keys | Iterable[Keys] | None = None,
    require_signature: bool | None = None,
    *,
    beside: Folders = (),
) -> Policy:
    """Return the policy of the program and the machine.

    Args:
        trusted: keys that the program trusts; a signature by one of them is then required.
        beside: the folders of the program's package, for relative paths in `trusted`.
        require_signature: require a signature by one of `trusted`, or by a key of the machine if
            `trusted` is not given. False disables the program's requirement, never the machine's.

    Raises:
        SpecError: a file of keys cannot be read or is malformed, a path is neither absolute nor in
            the package, or a variable of the environment has an unknown value.
    """
    demands = []
    if machine_requires() or (require_signature and trusted is None):
        demands.append(_machine_demand())
    if trusted is not None and require_signature is not False:
        keys = read_keys(trusted, beside=beside, source="the argument trusted")
        demands.append((keys, "the argument trusted"))
    return Policy(tuple(demands))


def read_keys(
    trusted: Keys | Iterable[Keys], *, beside: Folders = (), source: str = "a trusted key"
) -> tuple[PublicKey, ...]:
    """Return keys, including those in files and folders.

    Args:
        trusted: keys, their texts, and paths.
        beside: the folders that relative paths refer to.
        source: origin of the paths for messages.

    Raises:
        SpecError: a file cannot be read or is malformed, or a relative path is in none of the
            folders.
    """
    if isinstance(trusted, PublicKey):
        return (trusted,)
    if isinstance(trusted, str) and trusted.startswith("ed25519:"):
        return parse_public_keys(trusted, "the trusted key")
    if isinstance(trusted, str | os.PathLike):
        return _read_file(_place(os.fspath(trusted), beside, source))
    return tuple(key for item in trusted for key in read_keys(item, beside=beside, source=source))


def machine_keys() -> tuple[PublicKey, ...]:
    """Return the keys that this machine trusts; errors as for `read_keys`."""
    return _machine_demand()[0]


def machine_requires() -> bool:
    """Return True if this machine requires signatures of bundles.

    Raises:
        SpecError: the variable of the environment has an unknown value.
    """
    return read_switch(os.environ, REQUIRE)


def _machine_demand() -> tuple[tuple[PublicKey, ...], str]:
    named = [item for item in os.environ.get(TRUSTED, "").split(os.pathsep) if item]
    if named:
        return read_keys(named, source=TRUSTED), TRUSTED
    try:
        folder = config_folder() / "trusted_keys"
    except RuntimeError as error:
        raise SpecError(
            f"there is no folder of trusted keys: {error}",
            hint=f"Set {TRUSTED} to the absolute path of a file of keys.",
        ) from error
    return read_keys(folder) if folder.is_dir() else (), str(folder)


def _place(path: str, beside: Folders, source: str) -> Traversable:
    """Return the file or folder of keys at a path."""
    pure = PurePath(path)
    if pure.is_absolute():
        return Path(path)
    if not pure.parts or ".." in pure.parts or not beside:
        where = "Give a file or folder inside the package" if beside else "Give an absolute path"
        raise SpecError(
            f"{source} is {path!r}, but keys are never read from the current folder.",
            hint=f"{where}, or the text of the key, ed25519:….",
        )
    for folder in beside:
        place = folder.joinpath(*pure.parts)
        if place.is_file() or place.is_dir():
            return place
    raise SpecError(
        f"{source} is {path!r}, and there is no such file in {', '.join(map(str, beside))}.",
        hint="Ship the file of keys in the package, or give an absolute path.",
    )


def _read_file(place: Traversable) -> tuple[PublicKey, ...]:
    """Return the keys in a file, or in the `*.pub` files of a folder."""
    try:
        if place.is_dir():
            files = [file for file in place.iterdir() if file.name.endswith(".pub")]
            files.sort(key=lambda file: file.name)
            return tuple(key for file in files for key in _read_file(file))
        text = place.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecError(
            f"the trusted keys in {place} cannot be read: {reason}.",
            hint="Give files that pallasc bundle keygen made, or a folder of them.",
        ) from error
    return parse_public_keys(text, str(place))


def _need_cryptography() -> None:
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise ToolError(
            "signatures need the package cryptography, which is not installed.",
            hint="Run: pip install 'pallasc[sign]'",
        ) from error
