"""Manifests: their fields, checked when one is read or written.

All fields are optional and unknown ones are rejected. A store may come from an untrusted source, so
readers of a checked manifest only have to handle missing fields. What the fields mean is documented
in `manifest.py` of `compiler/inputs`, and in
`compiler/builds/collect.py`; `check` in `checks/stored_results.py`, `lines` in
`analysis/lines/stored.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

from msgspec import Meta, Struct, convert, field
from msgspec.structs import asdict

from pallasc.errors import CorruptError

MAX_SIGNATURES = 16
MAX_SETS = 32
"""Manifests that are kept of one request key; the least recently used goes first."""
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
    """The variant that was compiled last, and how long that took."""

    name: str
    target: str
    params: Mapping[str, object]
    seconds: Seconds


class DiagnosticJson(TypedDict):
    """A warning of a compilation."""

    stage: str
    kind: str
    source: str
    text: str
    count: Annotated[int, Meta(gt=0, lt=2**53)]


class SignatureJson(TypedDict):
    """A signature, and the id of its key."""

    key: ShortText
    signature: ShortText


Signatures = Annotated[Sequence[SignatureJson], Meta(max_length=MAX_SIGNATURES)]


class About(NamedTuple):
    """A variant as it was asked for: its kernel's name, its target, its parameters."""

    name: str
    target: str
    params: Mapping[str, object]

    @classmethod
    def of(cls, variant: Variant) -> About:
        """Return the name, target, and parameters of a variant."""
        return cls(variant.name, variant.target.name, dict(variant.params))

    @classmethod
    def from_json(cls, value: object) -> About | None:
        """Return the variant in a manifest's `about`; None without one. Never raises."""
        if not isinstance(value, Mapping) or not isinstance(value.get("params", {}), Mapping):
            return None
        name, target = value.get("name", ""), value.get("target", "")
        texts = isinstance(name, str) and isinstance(target, str)
        if not texts or not (name or target) or not f"{name}{target}".isprintable():
            return None
        return cls(name, target, value.get("params", {}))

    def to_json(self) -> AboutJson:
        """Return it as JSON, as manifests hold it."""
        return {"name": self.name, "target": self.target, "params": dict(self.params)}


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entry of a request in a store; missing fields have their defaults."""

    about: AboutJson = field(default_factory=dict)  # type: ignore[assignment]
    absent: Sequence[str] = ()
    action: DigestOrNone = ""
    check: str = ""
    diagnostics: Sequence[DiagnosticJson] = ()
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
    warnings: Sequence[DiagnosticJson] = ()

    @property
    def cost_s(self) -> float:
        """The compile time in seconds, 0 if unknown."""
        return float(self.about.get("seconds", 0.0))

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for a store, without empty fields other than `hidden`."""
        fields = asdict(self)
        return {n: v for n, v in fields.items() if v or (n == "hidden" and v is not None)}


def set_name(key: str, read: str) -> str:
    """Return the name of the manifest of a request key and a set of sources.

    Args:
        key: the request key.
        read: the digest over the sources.
    """
    return key[:_KEY_DIGITS] + sha256(f"{key} {read}".encode("ascii")).hexdigest()[:_KEY_DIGITS]


def set_prefix(key: str) -> str:
    """Return the digits that the names of all manifests of a request key begin with."""
    return key[:_KEY_DIGITS]


def manifest_from_json(name: str, body: Mapping[str, Any]) -> Manifest:
    """Return the manifest with these fields; every field is checked.

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
    """Check that texts have no surrogates other than Python's for bytes of paths.

    Raises:
        ValueError: one has.
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
