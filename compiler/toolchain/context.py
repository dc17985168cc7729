"""What all variants of a build share: the identity of the toolchain, and the digests of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.toolchain.identity import TRACED_WITH

if TYPE_CHECKING:
    from pallasc.specs.lock import Component


class Context(NamedTuple):
    """What all variants of a build share: the toolchain's identity and the digests of files.

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
