"""Prepare to compile: find the toolchain, make the workers' environment, identify both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.environment import compiling_environment, key_variables, tool_folder
from pallasc.compiler.toolchain.identity import TRACED_WITH, identity_files, toolchain_identity
from pallasc.compiler.toolchain.toolchain import Toolchain, find_toolchain, toolchain_record

if TYPE_CHECKING:
    import tempfile

    from pallasc.specs.lock import Component


class Context(NamedTuple):
    """Toolchain identity and file digests that all variants of a build share.

    `unchecked` is None where a compiler is installed. Elsewhere, packages that are missing are no
    change, and their names are put there.
    """

    identity: Mapping[str, str]
    variables: Mapping[str, str]
    digests: FileDigests
    unchecked: set[str] | None = None

    def for_actions(self) -> dict[str, str]:
        """Return the part of the identity that action keys depend on."""
        return {label: held for label, held in self.identity.items() if label != TRACED_WITH}

    def components(self, versions: Mapping[str, str]) -> dict[str, Component]:
        """Return the identity as a lock has it; `versions` for people, as `versions_of` says."""
        from pallasc.compiler.toolchain.components import components

        return components(self.identity, versions, self.variables)


class Setup(NamedTuple):
    """A toolchain and the environment in which workers use it.

    `toolkit` is the folder that XLA takes assembler and device library from; `temporary` removes it
    with the setup, if it is temporary.
    """

    toolchain: Toolchain
    environment: Mapping[str, str]
    toolkit: Path
    temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Setup:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the temporary folder."""
        if self.temporary is not None:
            self.temporary.cleanup()

    def context(self, store: Store) -> Context:
        """Identify the toolchain; reads all its files unless the store remembers them."""
        digests = FileDigests(store.root, trust=store.trust)
        if not digests.remembers(self.toolchain.plugin):
            digests.hash_ahead(identity_files(self.toolchain))
        identity = toolchain_identity(self.toolchain, digests.digest)
        return Context(identity, key_variables(self.environment), digests)

    def components(self, context: Context) -> dict[str, Component]:
        """Return the toolchain as a lock has it: digests by label, and versions for people.

        Raises:
            ToolError: the assembler cannot be asked for its version.
        """
        return context.components(self.versions_now())

    def versions_now(self) -> dict[str, str]:
        """Return the versions of the toolchain's parts.

        Raises:
            ToolError: the assembler cannot be asked for its version.
        """
        from pallasc.compiler.toolchain.components import versions_of

        return versions_of(self.toolchain)

    def notes(self, context: Context) -> list[str]:
        """Return notes on what was not checked, as `RememberedToolchain` does: none."""
        return []

    def record(self, digests: FileDigests) -> dict[str, object]:
        """Return the toolchain as artifacts record it."""
        return toolchain_record(self.toolchain, digests.digest)


def prepare(ptxas: Path | None = None, *, base: Mapping[str, str] = os.environ) -> Setup:
    """Find the toolchain and make the environment.

    Args:
        ptxas: an assembler to use instead of the installed one.
        base: the environment to start from.

    Raises:
        ToolError: a part is missing, or its version is not a tested one.
    """
    toolchain = find_toolchain(ptxas)
    folder, temporary = tool_folder(toolchain)
    environment = compiling_environment(base, folder)
    return Setup(toolchain, environment, folder.parent, temporary)
