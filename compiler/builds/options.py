"""How variants are built: what travels as one object from a command to the workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.compiler.builds.locked import Locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How variants are built.

    Attributes:
        jobs: how many processes compile at a time; as many as cores and memory allow by default.
        keep_going: go on with the others when a variant fails.
        ptxas: an assembler to use instead of the installed wheel's.
        timeout_s: how long one variant may take; None is for ever.
        memory_bytes: what one compiling process may hold; None is its share of the machine.
        compile: whether to compile at all: what is not in the store is `missing` otherwise.
        frozen: what is not in the store fails, and nothing is compiled.
        explain: say of each miss what has changed since the nearest entry of the store.
        locked: the lock that all of it must agree with; see `locked`.
        require_store: what is compiled and cannot be stored has failed.
        fail_on_warning: what compiles with a warning that one of these matches, now or when it was
            stored, has failed.
    """

    jobs: int | None = None
    keep_going: bool = True
    ptxas: Path | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None
    compile: bool = True
    frozen: bool = False
    explain: bool = False
    locked: Locked | None = None
    require_store: bool = False
    fail_on_warning: tuple[re.Pattern[str], ...] = ()

    @property
    def compiles(self) -> bool:
        """Tell whether misses are compiled."""
        return self.compile and not self.frozen


DEFAULTS = Options()
"""A build that compiles what is missing, held to nothing."""
