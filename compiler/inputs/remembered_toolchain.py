"""The toolchains that a store was filled with, for places where none is installed.

Looking something up compiles nothing, and yet every key holds the toolchain's identity. So a
store remembers what it was filled with. Where no compiler is installed, a build takes the newest of
these, or the one that a lock file names. Python and pallasc are here, so they are compared; the
rest cannot be, and the build says so.

Manifest, under a key of its own: `toolchains`, a list, the newest first; of each:

* `identity`: label -> digest, as of `identity`
* `versions`: label -> version, for people (`components`)
* `jax`: digest of JAX's file lists (`identity.recorded`), on which Python specs depend
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
from pallasc.compiler.toolchain.components import components
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.environment import compiler_variables, settled
from pallasc.compiler.toolchain.identity import JAX, python_name, recorded
from pallasc.compiler.toolchain.own_modules import own_digest
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import is_compiler_installed
from pallasc.errors import NotCachedError, ToolError
from pallasc.specs.canonical import labelled_key

if TYPE_CHECKING:
    from pallasc.specs.lock import Component, Lock

_KEY = labelled_key({"toolchains": "1"})
_MOST = 16


@dataclass(frozen=True, slots=True)
class RememberedToolchain:
    """A toolchain that is not installed here, in the place of a `Setup`.

    Attributes:
        identity: digests by label.
        versions: by label, for people.
        jax: digest of JAX's file lists.
    """

    identity: Mapping[str, str]
    versions: Mapping[str, str]
    jax: str

    def __enter__(self) -> RememberedToolchain:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to clean up."""

    def context(self, store: Store) -> Context:
        """Return what keys are made of with it."""
        variables = compiler_variables(settled(os.environ))
        digests = FileDigests(store.root, trust=store.trust)
        return Context(self.identity, variables, digests, unchecked=set())

    def components(self, context: Context) -> dict[str, Component]:
        """Return what a lock says of it."""
        return context.components(self.versions)

    def versions_now(self) -> Mapping[str, str]:
        """Return its versions, as a `Setup` does."""
        return self.versions

    def notes(self, context: Context) -> list[str]:
        """Return what the user should know of what was not checked."""
        found = [
            "the toolchain is not checked, because no compiler is installed here: what the store "
            f"has was compiled with {self.named()}"
        ]
        if context.unchecked:
            names = ", ".join(sorted(context.unchecked))
            found.append(
                f"not checked, because not installed here, though kernels import it: {names}"
            )
        return found

    def named(self) -> str:
        """Return it in words: `jax 0.12.0, ptxas 13.5.37`."""
        return ", ".join(f"{n} {self.versions[n]}" for n in ("jax", "ptxas") if n in self.versions)


def remember(store: Store, identity: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Have a store remember with which toolchain it was just filled."""
    now = RememberedToolchain(dict(identity), dict(versions), recorded(JAX))
    before = remembered_toolchains(store)
    if before[:1] != [now]:
        others = [known for known in before if known.identity != now.identity]
        entries = [asdict(known) for known in [now, *others][:_MOST]]
        store.put_manifest(_KEY, Manifest(toolchains=entries))


def installed_or_remembered(
    store: Store, *, ptxas: Path | None = None, lock: Lock | None = None
) -> Setup | RememberedToolchain:
    """Return the toolchain that is installed; where none is, one that the store was filled with.

    Args:
        store: the store.
        ptxas: an assembler to use instead of the installed wheel's.
        lock: what is recalled must be its toolchain.

    Raises:
        ToolError: it is not complete, or there is none and the store knows of none.
        NotCachedError: there is none, and what the store was filled with does not fit.
    """
    if ptxas is not None or is_compiler_installed():
        return prepare(ptxas)
    return choose_remembered(store, lock)


def choose_remembered(store: Store, lock: Lock | None = None) -> RememberedToolchain:
    """Return the toolchain that a store was filled with, for a place where none is installed.

    Args:
        store: the store.
        lock: must be for that toolchain.

    Raises:
        ToolError: the store does not say.
        NotCachedError: Python or pallasc differ here, or the lock is for another toolchain.
    """
    from pallasc import __version__
    from pallasc.specs.lock import differences

    found = remembered_toolchains(store)
    if not found:
        raise ToolError(
            "No compiler is installed here, and the store does not say with which one its kernels "
            "were compiled.",
            hint='Fill the store with a build, or install it with: pip install "pallasc[cuda13]"',
        )
    if lock is not None:
        found = [known for known in found if _is_locks(known, lock)]
        if not found:
            raise NotCachedError(
                "no compiler is installed here, and the store was not filled with the toolchain of "
                "the lock file.",
                hint="Restore the store that the lock was made with.",
            )
    here = {"python": python_name(), "pallasc": own_digest(FileDigests(store.root).digest)}
    chosen = next((known for known in found if _of_both(known.identity) == here), None)
    if chosen is not None:
        return chosen
    before = components(_of_both(found[0].identity), found[0].versions, {})
    clauses = differences(before, components(here, {"pallasc": __version__}, {}))
    raise NotCachedError(
        f"the store was filled with another toolchain: {'; '.join(clauses)}.",
        hint="Use the Python and the pallasc that it was filled with.",
    )


def remembered_toolchains(store: Store) -> list[RememberedToolchain]:
    """Return the toolchains that a store was filled with, the newest first."""
    manifest = store.get_manifest(_KEY) or Manifest()
    return [known for entry in manifest.toolchains if (known := _parse(entry)) is not None]


def _parse(entry: Mapping[str, object]) -> RememberedToolchain | None:
    """Return what `remember` wrote as an entry, None if it is something else."""
    identity, versions, jax = (entry.get(name) for name in ("identity", "versions", "jax"))
    if not isinstance(identity, dict) or not isinstance(versions, dict) or len(entry) != 3:
        return None
    if type(jax) is not str or not {"python", "pallasc"} <= {*identity}:
        return None
    return RememberedToolchain(identity, versions, jax)


def _of_both(identity: Mapping[str, str]) -> dict[str, str]:
    """Return what an identity says of Python and of pallasc, which are installed here too.

    What Python runs at its start is left out: no kernel is run here.
    """
    return {"python": identity["python"].partition(",")[0], "pallasc": identity["pallasc"]}


def _is_locks(known: RememberedToolchain, lock: Lock) -> bool:
    """Tell whether a toolchain is that of a lock; variables are looked at later."""
    from pallasc.specs.lock import VARIABLE, differing

    named = {k: v for k, v in lock.toolchain.items() if not k.startswith(VARIABLE)}
    return not differing(named, components(known.identity, {}, {}))
