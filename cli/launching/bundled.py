"""Variants in bundle files, to be launched without a spec, a compiler or a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.errors import Location, SpecError

if TYPE_CHECKING:
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.spec import Variant

_SUFFIX = ".pallasc"


def bundle_files(specs: Sequence[str]) -> list[Path]:
    """Return the bundles among the paths of a command, which are all or none of them.

    Raises:
        SpecError: only some are.
    """
    bundles = [Path(one) for one in specs if _is_bundle(Path(one))]
    if bundles and len(bundles) < len(specs):
        other = next(one for one in specs if not _is_bundle(Path(one)))
        raise SpecError(
            f"{bundles[0]} is a bundle, and {other} is not.", hint="Launch them one at a time."
        )
    return bundles


def _is_bundle(path: Path) -> bool:
    from pallasc.specs.bundle.format import MAGIC

    if path.suffix == _SUFFIX and not path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_bundled(
    files: Sequence[Path], *, targets: Sequence[str], expression: str | None
) -> list[tuple[Variant, Artifact]]:
    """Return the variants of bundles that are meant, and what was compiled.

    The bundles stay open: what is launched is read when it is loaded.

    Raises:
        SpecError: a file cannot be read, or nothing in it is meant.
        CorruptError: one is damaged, or not signed as this machine demands.
        ToolError: a signature is demanded, and the cryptography package is missing.
    """
    from pallasc.cli.bundle.options import chosen_entries
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.trust import read_policy

    policy = read_policy()
    found = []
    for file in files:
        bundle = open_bundle(file)
        policy.check(bundle)
        for entry in chosen_entries(bundle, targets=targets, expression=expression):
            artifact = bundle.artifact(entry)
            found.append((_variant(file, entry, artifact.target), artifact))
    return found


def _variant(file: Path, entry: Entry, target: Any) -> Variant:
    """Return what a bundle knows of a variant; it has neither function nor reference."""
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import Budget, Variant

    return Variant(
        name=entry.name,
        params=tuple(entry.params),
        target=Target(**target),
        entry="",
        args={},
        static={},
        reference=None,
        tolerance=None,
        budget=Budget(),
        files=(),
        location=Location(str(file)),
        base_dir="",
    )
