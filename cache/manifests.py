"""Manifests: their fields and signatures.

A store may come from an untrusted source, so fields are checked when a manifest is read or written.
All fields are optional, and unknown fields are rejected, so readers of a checked manifest have to
handle only missing fields. The fields are documented in `compiler/inputs/manifest.py` and
`compiler/builds/collect.py`, except `check` (`checks/stored_results.py`) and `lines`
(`analysis/lines.py`).

The checksums of a store detect damage but not forgery, since anyone with write access can recompute
them. A hit begins with a manifest, so manifests are signed. A signature covers the request,
everything that the compilation read, the action key, and the digest of the record, which names
every blob by its SHA-256. A manifest that was replaced or moved to another request, or that leads
to a record other than the signed one, is a miss.

    signed    = [ { "key": id, "signature": base64 } ]
    id        = the SHA-256 of an Ed25519 key | "hmac-" and the SHA-256 of the secret, 16 digits
    signature = Ed25519 or HMAC-SHA-256 over
                "pallasc store 1" LF kind LF name LF digest LF
    kind      = "manifest" | "stat"
    name      = the name of the manifest
    digest    = the SHA-256 of the body without `signed`, as the store writes JSON

Manifests are signed with the private key in `$PALLASC_STORE_KEY`, and with this user's secret, if
there is one: 32 random bytes in hexadecimal in `pallasc/store.secret` in the user's settings
folder, which nobody else may read. If signatures are required and there is neither key nor secret,
the secret is created.

Trusted keys are the keys that the machine trusts (`specs/bundle/signature.py`), the key in
`$PALLASC_STORE_KEY`, and the secret. An old signed manifest that is restored is still valid: it
states the result of these sources with this toolchain. A signature counts while its key is trusted.

Signing vouches for the content. If signatures are required, an unsigned record that is found under
an action key is not used: the variant is compiled again, and the new manifest signed. If signatures
are not required, the record is used, and the manifest that leads to it stays unsigned, even if
there is a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

from msgspec import Meta, Struct, convert, field, to_builtins
from msgspec.structs import asdict

from pallasc.errors import CorruptError, Location, SpecError
from pallasc.specs.canonical import canonical_json
from pallasc.specs.user_files import config_folder, read_switch

MAX_SIGNATURES = 16
MAX_SETS = 32
"""Maximum number of manifests per request key; the least recently used is removed first."""
_KEY_DIGITS = 32
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_LONGEST_ERROR = 200

if TYPE_CHECKING:
    from pallasc.specs.spec import Variant

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
DigestOrNone = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
Seconds = Annotated[int, Meta(ge=0, lt=9 * 10**9)] | Annotated[float, Meta(ge=0, lt=9e9)]
"""Seconds that fit into 64 bits as nanoseconds."""
ShortText = Annotated[str, Meta(max_length=200, pattern=r"\A[\x00-\x7f]*\Z")]


class AboutJson(TypedDict, total=False):
    """The variant that was compiled last, and its compile time."""

    name: str
    target: str
    params: Mapping[str, object]
    seconds: Seconds


LONGEST_TEXT = 2000
MOST_DIAGNOSTICS = 50
_Text = Annotated[str, Meta(max_length=LONGEST_TEXT + 1)]


class Diagnostic(Struct, frozen=True):
    """A warning, a log record, or some lines of output.

    Attributes:
        stage: the stage: tracing and lowering, or compilation by XLA.
        kind: the class of a warning, the level of a log record (`WARNING` or above), or `stderr`.
        source: file and line of a warning, the name of a logger, or "".
        text: the message.
        count: number of occurrences.
    """

    stage: Literal["lower", "compile"]
    kind: _Text
    source: _Text
    text: _Text
    count: Annotated[int, Meta(gt=0, lt=2**53)] = 1

    def __str__(self) -> str:
        """Return `kernels.py:4: UserWarning: no tuning for this shape (3 times)`."""
        parts = [part for part in (self.source, self.kind) if part]
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"{': '.join(parts)}: {self.text}{times}"

    def place(self, base_dir: str) -> Location | None:
        """Return the line that it comes from if its file is in the spec's folder."""
        file, _, line = self.source.rpartition(":")
        path = os.path.join(base_dir, file)
        if not file or not line.isdecimal() or not os.path.isfile(path):
            return None
        return Location(path, int(line))


Diagnostics = Annotated[tuple[Diagnostic, ...], Meta(max_length=MOST_DIAGNOSTICS)]


class SignatureJson(TypedDict):
    """A signature, and the id of its key."""

    key: ShortText
    signature: ShortText


Signatures = Annotated[Sequence[SignatureJson], Meta(max_length=MAX_SIGNATURES)]


class About(NamedTuple):
    """A variant as requested: its kernel's name, its target, its parameters."""

    name: str
    target: str
    params: Mapping[str, object]

    @classmethod
    def of(cls, variant: Variant) -> About:
        """Return the name, target, and parameters of a variant."""
        return cls(variant.name, variant.target.name, dict(variant.params))

    @classmethod
    def from_json(cls, about: AboutJson) -> About | None:
        """Return the variant in a manifest's `about`; None without one."""
        name, target = about.get("name", ""), about.get("target", "")
        if not (name or target) or not f"{name}{target}".isprintable():
            return None
        return cls(name, target, about.get("params", {}))

    def to_json(self) -> AboutJson:
        """Return it as JSON for a manifest."""
        return {"name": self.name, "target": self.target, "params": dict(self.params)}


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entry of a request in a store; missing fields have their defaults.

    `fields` and `package_versions` are accepted because an earlier pallasc wrote them.
    """

    about: AboutJson = field(default_factory=dict)  # type: ignore[assignment]
    absent: Sequence[str] = ()
    action: DigestOrNone = ""
    check: str = ""
    diagnostics: Diagnostics = ()
    env: Mapping[str, str] = {}
    fields: str = ""
    files: Mapping[str, Digest] = {}
    hidden: Sequence[str] | None = None
    lines: str = ""
    missed: Mapping[str, str] = {}
    name: str = ""
    opened: Mapping[str, str | None] = {}
    package_versions: Mapping[str, str] = {}
    packages: Mapping[str, str | None] = {}
    printed: str = ""
    read: DigestOrNone = ""
    record: DigestOrNone = ""
    request: str = ""
    schema: int = 0
    signed: Signatures = ()
    specs: str = ""
    toolchains: Sequence[Mapping[str, str | Mapping[str, str]]] = ()
    variant: str = ""
    versions: Mapping[str, str] = {}
    warnings: Diagnostics = ()

    @property
    def cost_s(self) -> float:
        """The compile time in seconds, 0 if unknown."""
        return float(self.about.get("seconds", 0.0))

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for a store, without empty fields other than `hidden`."""
        said = {n: to_builtins(getattr(self, n)) for n in ("diagnostics", "warnings")}
        fields = asdict(self) | said
        return {n: v for n, v in fields.items() if v or (n == "hidden" and v is not None)}


def set_name(key: str, read: str) -> str:
    """Return the name of the manifest of a request key and a set of sources.

    Args:
        key: the request key.
        read: the digest over the sources.
    """
    digest = hashlib.sha256(f"{key} {read}".encode("ascii")).hexdigest()
    return key[:_KEY_DIGITS] + digest[:_KEY_DIGITS]


def set_prefix(key: str) -> str:
    """Return the prefix of the names of all manifests of a request key."""
    return key[:_KEY_DIGITS]


def manifest_from_json(name: str, body: Mapping[str, Any]) -> Manifest:
    """Return the manifest with these fields, after checking each field.

    Args:
        name: its key, for messages.
        body: its fields.

    Raises:
        CorruptError: a field is invalid or unknown.
    """
    try:
        check_text(body)
        return convert(body, Manifest)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"manifest {name}: {str(error)[:_LONGEST_ERROR]}") from error


def check_text(value: object) -> None:
    """Check that strings have no surrogates, except the ones that Python uses for bytes of paths.

    Raises:
        ValueError: a string has another surrogate.
    """
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise ValueError(f"{value!r} is not Unicode")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key)
            check_text(item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_text(item)


# ---- signatures

REQUIRE, KEY = "PALLASC_REQUIRE_SIGNED_STORE", "PALLASC_STORE_KEY"
NOT_SIGNED = "its entry in the store is not signed by a trusted key"
ANOTHER_RECORD = "its record in the store is not the one that was signed"

_SECRET_BYTES = 32

Sign = Callable[[bytes], bytes]
Check = Callable[[bytes, bytes], bool]


class Trust(Struct, frozen=True):
    """Keys that sign a store's manifests, and keys that must have signed them.

    Attributes:
        required: whether manifests without a trusted signature count as missing.
        signers: functions that sign a message, by the id of the key.
        checkers: functions that verify a signature of a message, by the id of the key.
        notes: notes for the user.
    """

    required: bool = False
    signers: Mapping[str, Sign] = field(default_factory=dict)
    checkers: Mapping[str, Check] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def signed(self, kind: str, name: str, body: Mapping[str, object]) -> dict[str, object]:
        """Return a body with the signatures of all available keys."""
        plain = _unsigned(body)
        if not self.signers:
            return plain
        import base64

        message = _message(kind, name, plain)
        made = [
            {"key": key, "signature": base64.b64encode(sign(message)).decode()}
            for key, sign in sorted(self.signers.items())
        ]
        return {**plain, "signed": made}

    @property
    def strict(self) -> bool:
        """True if cached digests of files must be signed, since signed manifests contain them."""
        return self.required or bool(self.signers)

    def vouches(self, kind: str, name: str, body: Mapping[str, object]) -> bool:
        """Return True if a trusted key signed a body."""
        listed = body.get("signed")
        signatures = [
            (self.checkers[entry["key"]], entry["signature"])
            for entry in (listed if isinstance(listed, list) else ())
            if entry["key"] in self.checkers
        ]
        if not signatures:
            return False
        message = _message(kind, name, _unsigned(body))
        return any(check(_decoded(signature), message) for check, signature in signatures)


def _unsigned(body: Mapping[str, object]) -> dict[str, object]:
    return {label: value for label, value in body.items() if label != "signed"}


def _message(kind: str, name: str, body: Mapping[str, object]) -> bytes:
    digest = hashlib.sha256(canonical_json(body)).hexdigest()
    return f"pallasc store 1\n{kind}\n{name}\n{digest}\n".encode("ascii")


def _decoded(text: str) -> bytes:
    import base64

    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def read_trust(environ: Mapping[str, str], *, required: bool = False) -> Trust:
    """Return the keys that this user signs with and trusts.

    Args:
        environ: the environment's variables.
        required: require signatures, even if the environment does not.

    Raises:
        SpecError: a variable is invalid, or a key or the secret cannot be read or used.
        ToolError: there is a key, and the cryptography package is missing.
    """
    demanded = is_required(environ) or required
    signers: dict[str, Sign] = {}
    checkers: dict[str, Check] = {}
    if environ.get(KEY):
        key_id, signer, checker = _private_key(environ)
        signers[key_id], checkers[key_id] = signer, checker
    if demanded:
        checkers |= _trusted_keys()
    # A user who only verifies, with other users' keys, may have no folder for a secret.
    secret, notes = _secret(make=demanded and not signers, needed=not checkers)
    if secret:
        own = f"hmac-{hashlib.sha256(b'pallasc store secret' + secret).hexdigest()[:16]}"
        signers[own] = partial(_mac, secret)
        checkers[own] = partial(_is_mac, secret)
    return Trust(demanded, signers, checkers, notes)


def is_required(environ: Mapping[str, str]) -> bool:
    """Return True if the environment requires that entries of stores are signed.

    Raises:
        SpecError: the variable is invalid.
    """
    return read_switch(environ, REQUIRE)


def _mac(secret: bytes, message: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, message, "sha256")


def _is_mac(secret: bytes, mac: bytes, message: bytes) -> bool:
    import hmac

    return hmac.compare_digest(mac, _mac(secret, message))


def _private_key(environ: Mapping[str, str]) -> tuple[str, Sign, Check]:
    from pallasc.specs.bundle.signature import is_signed, public_key, read_private_key

    key = read_private_key(environ[KEY], environ, KEY)
    public = public_key(key)
    return public.id, key.sign, partial(is_signed, public.data)


def _trusted_keys() -> dict[str, Check]:
    from pallasc.specs.bundle.signature import is_signed, machine_keys

    return {key.id: partial(is_signed, key.data) for key in machine_keys()}


def secret_file() -> Path:
    """Return the path of this user's secret, which may not exist.

    Raises:
        RuntimeError: this user has no settings folder.
    """
    return config_folder() / "store.secret"


def _secret(*, make: bool, needed: bool) -> tuple[bytes, tuple[str, ...]]:
    """Return the secret, b"" if there is none, and notes for the user.

    Args:
        make: create one if there is none.
        needed: whether a failure is an error.
    """
    try:
        path = secret_file()
        secret = _read_secret(path)
        if secret or not make:
            return secret, ()
        _make_secret(path)
        note = f"made {path}, the secret that this user's stores are signed with"
        return _read_secret(path), (note,)
    except (OSError, RuntimeError) as error:
        if not (make and needed):
            return b"", ()
        raise SpecError(
            f"store.secret, which stores are signed with, cannot be read or made: {error}",
            hint="Set XDG_CONFIG_HOME to a folder of yours, or PALLASC_STORE_KEY to a key.",
        ) from error


def _read_secret(path: Path) -> bytes:
    """Return the secret in a file, b"" if there is none.

    Raises:
        SpecError: others could have read it, or it is not a secret.
        OSError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    with open(descriptor, "rb") as file:
        status = os.stat(descriptor)
        data = file.read(1000) if stat.S_ISREG(status.st_mode) else b""
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SpecError(
            f"{path} is a secret, but other users can read or write it.",
            hint=f"If no one else can have read it, run chmod 600 {path}; otherwise delete it.",
        )
    with contextlib.suppress(ValueError):
        secret = bytes.fromhex(data.decode("ascii").strip())
        if len(secret) == _SECRET_BYTES:
            return secret
    raise SpecError(
        f"{path} is not a secret of pallasc: expected {2 * _SECRET_BYTES} hexadecimal digits.",
        hint="Remove it; another one is made where signatures are required.",
    )


def _make_secret(path: Path) -> None:
    """Write a new secret, unless another process was first.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(f"{os.urandom(_SECRET_BYTES).hex()}\n".encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()
