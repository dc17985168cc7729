"""The toolchains that a store was filled with, for machines where none is installed.

Every key contains the toolchain's identity, even where nothing is compiled. A store therefore
remembers the toolchains that filled it. Without an installed compiler, a build uses the newest of
them, or the one in the lock file. Python and pallasc are installed and compared; the rest cannot
be checked, and the build says so.

Manifest, under a fixed key: `toolchains`, a list, newest first, of objects with

* `identity`: label -> digest, as in `identity`
* `versions`: label -> version, for messages (`components`)
* `jax`: digest of JAX's file lists (`identity.recorded`), which Python specs depend on
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.identity import JAX, components, own_digest, python_name, recorded
from pallasc.compiler.toolchain.setup import Context, Setup, key_variables, prepare, settled
from pallasc.compiler.toolchain.toolchain import is_compiler_installed
from pallasc.errors import NotCachedError, ToolError
from pallasc.specs.canonical import labelled_key

if TYPE_CHECKING:
    from pallasc.specs.lock import Component, Lock

_KEY = labelled_key({"toolchains": "1"})
_MOST = 16


@dataclass(frozen=True, slots=True)
class RememberedToolchain:
    """A toolchain that is not installed here; stands in for a `Setup`.

    Attributes:
        identity: digests by label.
        versions: versions by label, for messages.
        jax: digest of JAX's file lists.
    """

    identity: Mapping[str, str]
    versions: Mapping[str, str]
    jax: str

    def __enter__(self) -> RememberedToolchain:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def context(self, store: Store) -> Context:
        """Return the context for keys."""
        variables = key_variables(settled(os.environ))
        digests = FileDigests(store.root, trust=store.trust)
        return Context(self.identity, variables, digests, unchecked=set())

    def components(self, context: Context) -> dict[str, Component]:
        """Return its components, as in a lock."""
        return context.components(self.versions)

    def versions_now(self) -> Mapping[str, str]:
        """Return its versions."""
        return self.versions

    def notes(self, context: Context) -> list[str]:
        """Return notes on what was not checked."""
        versions = (f"{n} {self.versions[n]}" for n in ("jax", "ptxas") if n in self.versions)
        notes = [
            "the toolchain was not checked, because no compiler is installed here; the store was "
            f"filled with {', '.join(versions)}"
        ]
        if context.unchecked:
            names = ", ".join(sorted(context.unchecked))
            notes.append(
                f"packages that kernels import but are not installed here were not checked: {names}"
            )
        return notes


def remember(store: Store, identity: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Record in a store the installed toolchain, that was used to fill it."""
    remember_toolchain(store, RememberedToolchain(dict(identity), dict(versions), recorded(JAX)))


def remember_toolchain(store: Store, now: RememberedToolchain) -> None:
    """Record in a store a toolchain that was used to fill it."""
    before = remembered_toolchains(store)
    if before[:1] != [now]:
        others = [toolchain for toolchain in before if toolchain.identity != now.identity]
        entries = [asdict(toolchain) for toolchain in [now, *others][:_MOST]]
        store.put_manifest(_KEY, Manifest(toolchains=entries))


def installed_or_remembered(
    store: Store, *, ptxas: Path | None = None, lock: Lock | None = None
) -> Setup | RememberedToolchain:
    """Return the installed toolchain, else one that the store was filled with.

    Args:
        store: the store.
        ptxas: an assembler to use instead of the installed wheel's.
        lock: a lock whose toolchain a remembered one must match.

    Raises:
        ToolError: the toolchain is incomplete, or none is installed and none remembered.
        NotCachedError: none is installed, and no remembered one matches.
    """
    if ptxas is not None or is_compiler_installed():
        return prepare(ptxas)
    return choose_remembered(store, lock)


def choose_remembered(store: Store, lock: Lock | None = None) -> RememberedToolchain:
    """Return the newest remembered toolchain that matches Python, pallasc and the lock.

    Raises:
        ToolError: the store remembers none.
        NotCachedError: Python or pallasc differ here, or the lock is for another toolchain.
    """
    from pallasc.specs.lock import differences
    from pallasc.version import installed_version

    remembered = remembered_toolchains(store)
    if not remembered:
        raise ToolError(
            "No compiler is installed, and the store does not record which one filled it.",
            hint='Fill the store with a build, or install it with: pip install "pallasc[cuda13]"',
        )
    if lock is not None:
        remembered = [toolchain for toolchain in remembered if _matches(toolchain, lock)]
        if not remembered:
            raise NotCachedError(
                "no compiler is installed here, and the store was not filled with the lock file's "
                "toolchain.",
                hint="Restore the store that belongs to the lock.",
            )
    here = {"python": python_name(), "pallasc": own_digest(FileDigests(store.root).digest)}
    for toolchain in remembered:
        if _python_and_pallasc(toolchain.identity) == here:
            return toolchain
    newest = remembered[0]
    before = components(_python_and_pallasc(newest.identity), newest.versions, {})
    clauses = differences(before, components(here, {"pallasc": installed_version()}, {}))
    raise NotCachedError(
        f"the store was filled with another toolchain: {'; '.join(clauses)}.",
        hint="Use the same versions of Python and pallasc.",
    )


def remembered_toolchains(store: Store) -> list[RememberedToolchain]:
    """Return the toolchains that a store was filled with, the newest first."""
    manifest = store.get_manifest(_KEY) or Manifest()
    return list(filter(None, map(_parse, manifest.toolchains)))


def _parse(entry: Mapping[str, object]) -> RememberedToolchain | None:
    """Parse an entry that `remember` wrote, None if it is malformed."""
    identity, versions, jax = (entry.get(name) for name in ("identity", "versions", "jax"))
    if not isinstance(identity, dict) or not isinstance(versions, dict) or len(entry) != 3:
        return None
    if type(jax) is not str or not {"python", "pallasc"} <= {*identity}:
        return None
    return RememberedToolchain(identity, versions, jax)


def _python_and_pallasc(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of an identity that are installed here, too.

    Python's startup files, after the comma, do not matter where no kernel is traced.
    """
    return {"python": identity["python"].partition(",")[0], "pallasc": identity["pallasc"]}


def _matches(toolchain: RememberedToolchain, lock: Lock) -> bool:
    """Tell whether a toolchain is that of a lock, apart from environment variables."""
    from pallasc.specs.lock import VARIABLE, differing

    expected = {k: v for k, v in lock.toolchain.items() if not k.startswith(VARIABLE)}
    return not differing(expected, components(toolchain.identity, {}, {}))
