"""Manifests: their fields, checked when one is read or written.

All fields are optional and unknown ones are rejected. A store may come from an untrusted source, so
readers of a checked manifest only have to handle missing fields. What the fields mean is documented
in `manifest.py` of `compiler/inputs`, and in
`compiler/builds/collect.py`; `check` in `checks/stored_results.py`, `lines` in
`analysis/lines/stored.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.errors import CorruptError

MAX_SIGNATURES = 16
MAX_SETS = 32
"""Manifests that are kept of one request key; the least recently used goes first."""
_KEY_DIGITS = 32
_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_LONGEST_SIGNATURE = 200
_MOST = 2**53

if TYPE_CHECKING:
    from typing import TypedDict

    from pallasc.specs.spec import Variant

    class AboutJson(TypedDict, total=False):
        """The variant that was compiled last, and how long that took."""

        name: str
        target: str
        params: Mapping[str, object]
        seconds: float

    class DiagnosticJson(TypedDict):
        """A warning of a compilation."""

        stage: str
        kind: str
        source: str
        text: str
        count: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The entry of a request in a store; missing fields have their defaults.

    `body` is the JSON object that was read, including signatures; empty for a new manifest.
    """

    about: AboutJson = field(default_factory=dict)  # type: ignore[assignment]
    absent: Sequence[str] = ()
    action: str = ""
    check: str = ""
    diagnostics: Sequence[DiagnosticJson] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fields: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    hidden: Sequence[str] | None = None
    lines: str = ""
    missed: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    opened: Mapping[str, str | None] = field(default_factory=dict)
    package_versions: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str | None] = field(default_factory=dict)
    printed: str = ""
    read: str = ""
    record: str = ""
    request: str = ""
    schema: int = 0
    signed: Sequence[Mapping[str, str]] = ()
    specs: str = ""
    toolchains: Sequence[Mapping[str, str | Mapping[str, str]]] = ()
    variant: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[DiagnosticJson] = ()
    body: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def cost_s(self) -> float:
        """The compile time in seconds, 0 if unknown."""
        return float(self.about.get("seconds", 0.0))

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for a store, without empty fields other than `hidden`."""
        fields = {name: getattr(self, name) for name in _FIELDS}
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


def manifest_from_json(body: Mapping[str, Any]) -> Manifest:
    """Return a manifest from a body that `check_manifest` has accepted."""
    return Manifest(**body, body=body)


def check_manifest(name: str, body: Mapping[str, object]) -> None:
    """Check every field of a manifest.

    Args:
        name: its key, for messages.
        body: its fields.

    Raises:
        CorruptError: a field is invalid or unknown.
    """
    for label, value in body.items():
        check = _FIELDS.get(label)
        if check is None:
            raise CorruptError(f"manifest {name}: unknown field {label[:40]!r}")
        if not check(value):
            raise CorruptError(f"manifest {name}: {label!r} has an invalid value")


def _is_name(value: object) -> bool:
    return type(value) is str and _NAME.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    """Return True for Unicode text, in which Python's surrogates for bytes of paths may occur."""
    return type(value) is str and (value.isascii() or not _SURROGATE.search(value))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_mapping(value: object, of: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(_is_text(k) and of(v) for k, v in value.items())


def _is_optional_text(value: object) -> bool:
    return value is None or _is_text(value)


def is_seconds(value: object) -> bool:
    """Return True for a non-negative time in seconds that fits into 64 bits as ns."""
    return type(value) in (int, float) and 0 <= value < 9e9  # type: ignore[operator]


def _is_about(value: object) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"name", "target", "params", "seconds"}:
        return False
    texts = _is_text(value.get("name", "")) and _is_text(value.get("target", ""))
    params = _is_mapping(value.get("params", {}), lambda _: True)
    return texts and params and is_seconds(value.get("seconds", 0))


def _are_diagnostics(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict)
        and item.keys() == {"stage", "kind", "source", "text", "count"}
        and all(_is_text(item[name]) for name in ("stage", "kind", "source", "text"))
        and type(item["count"]) is int
        and 0 < item["count"] < _MOST
        for item in value
    )


def _is_toolchain(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_text(label) and (_is_text(part) or _is_mapping(part, _is_text))
        for label, part in value.items()
    )


def is_signed_by(value: object) -> bool:
    """Return True for a well-formed list of signatures, valid or not."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_SIGNATURES
        and all(isinstance(item, dict) and item.keys() == {"key", "signature"} for item in value)
        and all(
            type(part) is str and len(part) <= _LONGEST_SIGNATURE and part.isascii()
            for item in value
            for part in item.values()
        )
    )


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("check", "fields", "lines", "name", "printed"), _is_text),
    **dict.fromkeys(("request", "specs", "variant"), _is_text),
    **dict.fromkeys(("read", "record"), _is_name),
    **dict.fromkeys(("diagnostics", "warnings"), _are_diagnostics),
    **dict.fromkeys(
        ("env", "missed", "package_versions", "versions"),
        lambda value: _is_mapping(value, _is_text),
    ),
    **dict.fromkeys(("opened", "packages"), lambda value: _is_mapping(value, _is_optional_text)),
    "about": _is_about,
    "absent": _is_texts,
    "action": lambda value: value == "" or _is_name(value),
    "files": lambda value: _is_mapping(value, _is_name),
    "hidden": lambda value: value is None or _is_texts(value),
    "schema": lambda value: type(value) is int,
    "signed": is_signed_by,
    "toolchains": lambda value: isinstance(value, list) and all(map(_is_toolchain, value)),
}
