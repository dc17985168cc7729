"""The lock file `pallasc.lock`: the artifact of each variant, and the toolchain that compiled it.

The writer emits exactly this form: UTF-8 YAML, lines sorted by key, schema 4, or 3 if no kernel is
tuned:

    lock      = notes "schema: " ( "3" | "4" ) LF "toolchain:" ( " {}" LF | LF { component } )
                [ "tables:" LF table { table } ] "variants:" ( " {}" LF | LF { variant } )
    notes     = { "#" text LF }
    component = "  " key ": {" [ "version: " text ", " ] "digest: " digest "}" LF
    table     = "  " key ": " digest LF
    variant   = "  " key ": {action: " digest ", artifact: " digest ", request: " digest
                [ ", resources: {" numbers "}" ] "}" LF
    numbers   = [ "registers: " n ", " ] [ "spill_bytes: " n ", " ] [ "stack_bytes: " n ", " ]
                [ "smem_bytes: " n ", " ] [ "occupancy: " n ", " ] [ "cubin_bytes: " n ", " ],
                without the last comma
    key       = plain text, where letters, digits, spaces and -_.,=@+/*()[] are enough
              | text in double quotes, with YAML escapes for unprintable characters
    text      = text in double quotes
    digest    = 64 lower-case hexadecimal digits

* a variant's key is its id, such as `matmul[m=1024]@h100-sxm`
* `action` is the action key, of the lowered module, the target, and the toolchain; `artifact` is
  the digest of the artifact's record, which names every blob by digest; `request` is the request
  key, which shows changes of the spec if the sources are not known
* `resources` are the known numbers of `Resources` for the artifact: budget rules
  compare with them, and `pallasc diff` shows them if nothing else is available
* a table's key is a kernel and a target, `matmul@h100-sxm`. Its digest covers the spec's `tune`
  field and all rows of the kernel for that model (`tuned_digest_text` in `specs/tuning.py`): which
  variants are used where, and their measurements
* a component is an input of all action keys, under its label in the toolchain's identity; only its
  digest affects keys, its version is for people

Each variant is one line, so that diffs are small and merge. The file has no checksum, since every
merge of two branches would then conflict. It needs none: every line consists of digests, and a
mismatch fails. The reader accepts only this form, with comments and empty lines between the lines,
and lines in any order. It needs no YAML parser, so it is fast even for ten thousand variants.

History:
    1  the first version.
    2  adds compile times, `, cost: 1.8` at the end of a variant; they are ignored now.
    3  adds resources; older locks are read as locks without them.
    4  adds tables; used only if there are any, so that other locks do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.artifacts.artifact import Resources
from pallasc.specs.loading.yaml_text import check_merged, decoded
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_regular, replace_file

LOCK_FILE = Path("pallasc.lock")
"""Default path of the lock; `--lock` overrides it."""

LOCK_SCHEMA, TABLES_SCHEMA = 3, 4
"""Schemas written without and with tuned kernels."""

READ_SCHEMAS = ("1", "2", "3", "4")
NOTES = (
    "# The artifact of each variant. Commit this file. `pallasc lock SPECS --update` writes it;",
    "# `pallasc build --locked` and `pallasc build --frozen` require these artifacts.",
)

VARIABLE = "variable "
"""Prefix of the labels of environment variables."""

_MOST_BYTES = 1 << 28

DIGEST = "[0-9a-f]{64}"
_WORD = r"A-Za-z0-9_\-.,=@+/*()\[\]"
PLAIN = rf"[A-Za-z_](?:[{_WORD} ]*[{_WORD}])?"
_PLAIN_KEY = re.compile(PLAIN)


class Entry(NamedTuple):
    """A variant's entry in the lock: action key, digest of the artifact, request key."""

    action: str
    artifact: str
    request: str


class Component(NamedTuple):
    """A part of the toolchain: the digest that action keys depend on, and a version for people."""

    digest: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file.

    Components are keyed by label; variants and resources by variant id; tables by kernel and
    target. Locks written by older versions of pallasc have no resources. A table is the digest of a
    tuned kernel's rows and of its spec's `tune` field.
    """

    toolchain: Mapping[str, Component] = field(default_factory=dict)
    variants: Mapping[str, Entry] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)


ChangeKind = Literal["added", "changed", "dropped", "unknown"]


@dataclass(frozen=True, slots=True)
class Change:
    """Difference between a variant and its entry in a lock.

    Attributes:
        kind: `added` if the lock lacks it, `dropped` if the specs lack it, `unknown` if only a
            compilation can decide.
        variant: its id.
        before: its entry, None if it is added.
        after: its new entry, None if it is dropped or unknown.
        reason: the cause, if known.
    """

    kind: ChangeKind
    variant: str
    before: Entry | None = None
    after: Entry | None = None
    reason: str = ""


def update_command(place: Path | str) -> str:
    """Return the command that writes a lock file."""
    import shlex

    named = "" if str(place) == str(LOCK_FILE) else f" --lock {shlex.quote(str(place))}"
    return f"pallasc lock SPECS --update{named}"


def lock_text(lock: Lock) -> str:
    """Return the text of a lock file; equal locks give equal bytes."""
    lines = [*NOTES, f"schema: {TABLES_SCHEMA if lock.tables else LOCK_SCHEMA}"]
    lines += _section("toolchain", {k: _component(v) for k, v in lock.toolchain.items()})
    lines += _section("tables", lock.tables) if lock.tables else []
    entries = {n: _entry(entry, lock.resources.get(n)) for n, entry in lock.variants.items()}
    lines += _section("variants", entries)
    return "\n".join(lines) + "\n"


def _section(name: str, lines: Mapping[str, str]) -> list[str]:
    if not lines:
        return [f"{name}: {{}}"]
    shown = {key: key if _PLAIN_KEY.fullmatch(key) else quoted(key) for key in sorted(lines)}
    return [f"{name}:", *(f"  {shown[key]}: {lines[key]}" for key in shown)]


def _component(component: Component) -> str:
    version = f"version: {quoted(component.version)}, " if component.version else ""
    return f"{{{version}digest: {component.digest}}}"


def _entry(entry: Entry, resources: Resources | None) -> str:
    text = f"action: {entry.action}, artifact: {entry.artifact}, request: {entry.request}"
    if resources is not None:
        numbers = zip(Resources._fields, resources, strict=True)
        known = ", ".join(f"{name}: {value}" for name, value in numbers if value is not None)
        text += f", resources: {{{known}}}"
    return f"{{{text}}}"


def quoted(text: str) -> str:
    """Return text in the double quotes of YAML."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08X}"


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file in one step: a reader sees either the old file or the new one.

    Raises:
        SpecError: the file cannot be written; the old one remains.
    """
    replace_file(path, lock_text(lock).encode())


def merged(lock: Lock, new: Lock, *, whole: bool) -> Lock:
    """Return a lock updated with `new`; other entries remain unless `new` is complete (`whole`).

    If the toolchains have the same digests, the old version texts remain.
    """
    same = not differing(lock.toolchain, new.toolchain)
    toolchain = lock.toolchain if same else new.toolchain
    if whole:
        return replace(new, toolchain=toolchain)
    again = tuned_in(new.variants)
    tables = {name: own for name, own in lock.tables.items() if name not in again}
    return Lock(
        toolchain,
        {**lock.variants, **new.variants},
        {**lock.resources, **new.resources},
        {**tables, **new.tables},
    )


def tuned_in(variants: Iterable[str]) -> set[str]:
    """Return the keys of the tables for some variants, such as `matmul@h100-sxm`."""
    ends = ((name.partition("@")[0], name.rpartition("@")[2]) for name in variants)
    return {table_key(kernel.partition("[")[0], target) for kernel, target in ends}


def table_key(kernel: str, target: str) -> str:
    """Return the key of a kernel's table for a target."""
    return f"{kernel}@{target}"


def differing(locked: Mapping[str, Component], now: Mapping[str, Component]) -> list[str]:
    """Return the labels of the components whose digests differ."""
    none = Component("")
    labels = {*locked, *now}
    return sorted(x for x in labels if locked.get(x, none).digest != now.get(x, none).digest)


def differences(locked: Mapping[str, Component], now: Mapping[str, Component]) -> list[str]:
    """Return clauses that describe how the toolchain of a lock differs from the installed one."""
    labels: dict[str, list[str]] = {}
    for label in differing(locked, now):
        labels.setdefault(_change(locked.get(label), now.get(label)), []).append(label)
    return [f"{listed(own)}: {change}" for change, own in labels.items()]


def _change(before: Component | None, after: Component | None) -> str:
    if before is None or after is None:
        return "only here" if before is None else "not here"
    if before.version == after.version:
        return f"other content{f' of the same version, {after.version}' if after.version else ''}"
    # In lists of versions, name only those that differ.
    first, second = before.version.split(", "), after.version.split(", ")
    was = ", ".join(part for part in first if part not in second) or "nothing"
    return f"{was} before, {', '.join(p for p in second if p not in first) or 'nothing'} here"


def listed(words: Iterable[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


_HEX = "[0-9A-F]"
_CHARACTER = rf'[^"\\]|\\["\\]|\\U(?!0000D[89A-F])00(?:0{_HEX}|10){_HEX}{{4}}'
_NAME = rf'(?:(?P<plain>{PLAIN})|"(?P<quoted>(?:{_CHARACTER})+)")'
_NUMBERS = "".join(
    rf"(?:{name}: (?P<{name}>\d{{1,18}})(?:, (?!\}})|(?=\}})))?" for name in Resources._fields
)
_ESCAPE = re.compile(r"\\(?:U([0-9A-F]{8})|(.))")
_SCHEMA = re.compile(r"schema: (.*)")
_SECTION = re.compile(r"(toolchain|tables|variants):(?: \{\})?")
_ROWS = {
    "": re.compile(r"(?!)"),
    "toolchain": re.compile(
        rf'  {_NAME}: \{{(?:version: "(?P<version>(?:{_CHARACTER})*)", )?'
        rf"digest: (?P<digest>{DIGEST})\}}"
    ),
    "tables": re.compile(rf"  {_NAME}: (?P<digest>{DIGEST})"),
    "variants": re.compile(
        rf"  {_NAME}: \{{action: (?P<action>{DIGEST}), artifact: (?P<artifact>{DIGEST}), "
        rf"request: (?P<request>{DIGEST})(?P<resources>, resources: \{{{_NUMBERS}\}})?"
        r"(?:, cost: \d{1,9}(?:\.\d{1,9})?)?\}"
    ),
}


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; return None if it does not exist.

    Raises:
        SpecError: the file cannot be read, or as for `parse_lock`.
    """
    file = str(path)
    if not path.exists():
        return None
    content = read_regular(file, most_bytes=_MOST_BYTES)
    # Universal newlines, as for text files.
    hint = "Give a lock file: pallasc lock SPECS --update writes it."
    text = decoded(content, file, hint).replace("\r\n", "\n").replace("\r", "\n")
    return parse_lock(text, file)


def _restore(file: str) -> str:
    return f"Restore the file, or remove it and run: {update_command(file)}"


def parse_lock(text: str, file: str) -> Lock:
    """Parse the text of a lock file; comments and empty lines are ignored.

    Args:
        text: content of the file.
        file: its name for messages.

    Raises:
        SpecError: the lock is damaged, has a duplicate, or was written by a later pallasc; the
            location is the line.
    """
    check_merged(text, file, "lock", f"Take either side, then run: {update_command(file)}")
    rows: dict[str, dict[str, re.Match[str]]] = {}
    section = schema = ""
    for number, line in enumerate(text.split("\n"), 1):
        row, name = _ROWS[section].fullmatch(line), ""
        if row is not None:
            name = row["plain"] or _ESCAPE.sub(_unescaped, row["quoted"])
        if row is not None and name not in rows[section]:
            rows[section][name] = row
        elif (start := _SECTION.fullmatch(line)) and start[1] not in rows:
            section, rows[start[1]] = start[1], {}
        elif given := _SCHEMA.fullmatch(line):
            schema = given[1]
            if schema not in READ_SCHEMAS:
                raise SpecError(
                    f"the lock has schema {schema[:20]}, and this pallasc reads schemas "
                    f"{listed(READ_SCHEMAS)}.",
                    location=Location(file, number),
                    hint="Install the pallasc that wrote it.",
                )
        elif line and not line.startswith("#"):
            message = f"{show(name)} is in the lock twice" if row else f"invalid line: {show(line)}"
            raise SpecError(f"{message}.", location=Location(file, number), hint=_restore(file))
    if not schema or not {"toolchain", "variants"} <= rows.keys():
        message = "the lock lacks its schema, its toolchain, or its variants."
        raise SpecError(message, location=Location(file), hint=_restore(file))
    variants = rows["variants"]
    return Lock(
        {
            name: Component(row["digest"], _ESCAPE.sub(_unescaped, row["version"] or ""))
            for name, row in rows["toolchain"].items()
        },
        {name: Entry(*row.group(*Entry._fields)) for name, row in variants.items()},
        {name: _resources(row) for name, row in variants.items() if row["resources"]},
        {name: row["digest"] for name, row in rows.get("tables", {}).items()},
    )


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else escape[2]


def _resources(row: re.Match[str]) -> Resources:
    numbers = row.group(*Resources._fields)
    return Resources(*(None if number is None else int(number) for number in numbers))
