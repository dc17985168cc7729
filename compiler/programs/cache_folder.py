"""A folder for JAX's persistent cache, filled with compiled programs, and its index.

Next to JAX's entries, the folder has:

* `pallasc-warm.json`, schema 1: `machines` by digest; and `entries`, each with `key`, `program`
  (id), `function`, `module`, `machine` (digest), `sha256` of the entry's file, and `lines`. Equal
  programs share a key
* `pallasc/<sha256>.lines`: the lines of a module (`compiler.programs.lines`)
* `pallasc/lock`: empty; locked while the folder is filled
* `python/jax_plugins/pallasc_warm.py`: the module that JAX imports at start (`jax_cache`)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.compiler.programs.jax_cache import (
    KEY,
    START_FILE,
    START_FOLDER,
    START_MODULE,
    entry_name,
)
from pallasc.compiler.programs.lines import first_change
from pallasc.errors import CorruptError, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Machine, Variant

INDEX = "pallasc-warm.json"
_SCHEMA = 1
_LINES = "pallasc"
_SHA256 = re.compile("[0-9a-f]{64}")
_LARGEST_INDEX_BYTES = 1 << 28


class IndexEntry(Struct, frozen=True):
    """An entry in the index; this module's docstring lists the fields."""

    key: str
    program: str
    function: str
    module: str
    machine: str
    sha256: str
    lines: str

    @property
    def owner(self) -> tuple[str, str, str]:
        """Program and machine of this entry; compiling them again removes their old entries."""
        return self.program, self.function, self.machine


class Index(Struct):
    """The index of a cache folder."""

    schema: int = _SCHEMA
    machines: dict[str, Machine] = field(default_factory=dict)
    entries: list[IndexEntry] = field(default_factory=list)


class ProgramOutput(Struct, frozen=True):
    """The field `program` of an artifact's record; see `compiler.programs.compile`."""

    key: str
    module: str
    entry: str
    lines: str


def program_output(artifact: Artifact) -> ProgramOutput:
    """Return the fields of a program in an artifact's record.

    Raises:
        CorruptError: the record has no program, or the program is malformed.
    """
    try:
        output = msgspec.convert(artifact.record.get("program"), ProgramOutput)
    except msgspec.ValidationError as error:
        raise CorruptError(f"the artifact has no program: {error}") from error
    if not KEY.fullmatch(output.key):
        raise CorruptError(f"the artifact's program has the key {output.key[:80]!r}")
    return output


def read_index(folder: Path) -> Index:
    """Return the index of a folder.

    Raises:
        CorruptError: the index is damaged.
        SpecError: there is no index, or it cannot be read.
    """
    path = folder / INDEX
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"{folder} was not filled by pallasc warm: {path.name}: {error.strerror}.",
            hint="Fill it with: pallasc warm SPECS --cache-dir DIR",
        ) from error
    try:
        if len(data) > _LARGEST_INDEX_BYTES:
            raise ValueError("it is too large")
        index = msgspec.json.decode(data, type=Index)
        if index.schema != _SCHEMA:
            raise ValueError(f"schema {index.schema}, and this pallasc reads {_SCHEMA}")
        for entry in index.entries:
            digests = (entry.sha256, entry.lines)
            is_whole = KEY.fullmatch(entry.key) and entry.machine in index.machines
            if not is_whole or not all(map(_SHA256.fullmatch, digests)):
                raise ValueError(f"the entry {entry.key[:80]!r}")
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"{path} is damaged: {error}.", hint="Fill the folder again with pallasc warm."
        ) from error
    return index


def fill(folder: Path, made: Iterable[tuple[Variant, Artifact]]) -> int:
    """Write compiled programs into a cache folder; return the number of files that changed.

    Args:
        folder: the folder, which may have entries of other programs.
        made: programs and their artifacts.

    Raises:
        CorruptError: an artifact is damaged.
        SpecError: the folder cannot be written.
    """
    try:
        (folder / _LINES).mkdir(parents=True, exist_ok=True)
        with (folder / _LINES / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other processes add to the index, too
            return _fill(folder, made)
    except OSError as error:
        raise SpecError(
            f"{folder} cannot be filled: {error.strerror}.", hint="Give another --cache-dir."
        ) from error


def _fill(folder: Path, made: Iterable[tuple[Variant, Artifact]]) -> int:
    try:
        index = read_index(folder)
    except (CorruptError, SpecError):
        index = Index()
    before = index.entries
    changed = _write(folder / START_FOLDER / START_FILE, START_MODULE.encode())
    own = []
    for variant, artifact in made:
        assert variant.program is not None  # noqa: S101
        machine, output = variant.program.machine, program_output(artifact)
        changed += _write(
            folder / entry_name(output.key), artifact.blob(output.entry), output.entry
        )
        _write(_lines_file(folder, output.lines), artifact.blob(output.lines), output.lines)
        names = (output.key, variant.id, str(variant.entry), output.module)
        own.append(IndexEntry(*names, machine.digest, output.entry, output.lines))
        index.machines[machine.digest] = machine
    owners = {entry.owner for entry in own}
    written = {entry.key: entry.sha256 for entry in own}
    kept = [entry for entry in before if entry.owner not in owners]
    entries = {replace(e, sha256=written.get(e.key, e.sha256)) for e in (*kept, *own)}
    index.entries = sorted(entries, key=lambda entry: (entry.key, entry.owner))
    used = {entry.machine for entry in index.entries}
    index.machines = {key: index.machines[key] for key in sorted(used)}
    _write(folder / INDEX, msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n")
    for file in _files(folder, before) - _files(folder, index.entries):
        file.unlink(missing_ok=True)
    return changed


def _files(folder: Path, entries: Iterable[IndexEntry]) -> set[Path]:
    both = ((folder / entry_name(e.key), _lines_file(folder, e.lines)) for e in entries)
    return {file for files in both for file in files}


def _lines_file(folder: Path, digest: str) -> Path:
    return folder / _LINES / f"{digest}.lines"


def _write(path: Path, data: bytes, digest: str = "") -> int:
    """Write a file atomically unless it has this content; return 1 if it was written."""
    digest = digest or hashlib.sha256(data).hexdigest()
    if _digest_of(path) == digest:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".pallasc-", delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except OSError:  # such as a full disk
            os.unlink(file.name)
            raise
    return 1


def _digest_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


class Verdict(Struct, frozen=True):
    """A hit or a miss on a machine, and the reason of a miss."""

    program: str
    key: str
    status: Literal["hit", "miss"]
    reason: str = ""


Now = tuple[str, bytes] | str
"""Current key of a program and lines of its module, or the reason why there are none."""


def verify(folder: Path, here: Machine, now: Mapping[str, Now]) -> list[Verdict]:
    """Return a verdict for each entry of a folder, by program, and for programs without an entry.

    Args:
        folder: the folder.
        here: the machine that will start the programs.
        now: programs as they lower now, by id. Entries of other programs are compared by machine
            and content only.

    Raises:
        CorruptError: the index is damaged.
        SpecError: there is no index.
    """
    index = read_index(folder)
    missed = {e: _why_missed(folder, e, index.machines[e.machine], here) for e in index.entries}
    reasons = {entry.key: reason for entry, reason in missed.items()}
    verdicts = []
    for entry, reason in sorted(missed.items(), key=lambda item: (item[0].program, item[0].key)):
        found = now.get(entry.program, "")
        # A program may also have an older entry, for example from before its function was renamed.
        # If another entry has the current key, the older one does not count as changed.
        if not reason and found and reasons.get(found[0]) != "":
            reason = _why_changed(folder, entry, found)
        verdicts.append(Verdict(entry.program, entry.key, "miss" if reason else "hit", reason))
    for program in sorted({*now} - {verdict.program for verdict in verdicts}):
        found = now[program]
        key, reason = ("", found) if isinstance(found, str) else (found[0], "not in the folder")
        reason = reasons.get(key, reason)  # equal programs have one key
        verdicts.append(Verdict(program, key, "miss" if reason else "hit", reason))
    return verdicts


def _why_missed(folder: Path, entry: IndexEntry, machine: Machine, here: Machine) -> str:
    if found := _machine_differences(here, machine):
        return "; ".join(found)
    file = folder / entry_name(entry.key)
    if not file.is_file():
        return f"{file.name} is missing"
    return "" if _digest_of(file) == entry.sha256 else f"{file.name} is damaged"


def _why_changed(folder: Path, entry: IndexEntry, now: Now) -> str:
    if isinstance(now, str):
        return now
    try:
        place = first_change(_lines_file(folder, entry.lines).read_bytes(), now[1])
    except (OSError, CorruptError):
        return "module changed"
    return f"module changed at {place}" if place else "module or settings changed"


_COMPARED = {
    "driver": "driver",
    "gpu": "GPU",
    "gpus": "number of GPUs",
    "memory_bytes": "GPU memory in bytes",
    "cpu": "CPU",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "plugin": "CUDA plugin",
    "platform_version": "platform version",
    "compression_in_key": "compression",
}


def _machine_differences(here: Machine, recorded: Machine) -> list[str]:
    """Return the differences that make each cache entry of one machine a miss on the other."""
    found = [
        f"{label} {getattr(here, name)} here, {getattr(recorded, name)} recorded"
        for name, label in _COMPARED.items()
        if getattr(here, name) != getattr(recorded, name)
    ]
    found += _set_differences("XLA flags", here.flags, recorded.flags)
    settings = [[f"{k}={v}" for k, v in each.settings.items()] for each in (here, recorded)]
    found += _set_differences("settings", *settings)
    if not found and here.fingerprint != recorded.fingerprint:
        found.append("the topology differs, for example in CUDA or cuDNN versions")
    return found


def _set_differences(label: str, here: Iterable[str], recorded: Iterable[str]) -> list[str]:
    counts = Counter(here), Counter(recorded)
    if counts[0] == counts[1]:
        return []
    only = counts[0] - counts[1], counts[1] - counts[0]
    shown = [" ".join(sorted(each.elements())) or "none" for each in only]
    return [f"{label} {shown[0]} here, {shown[1]} recorded"]
