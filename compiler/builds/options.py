"""The options of a build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.compiler.builds.baseline import Baseline
    from pallasc.compiler.builds.locked import Locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How variants are built.

    Attributes:
        jobs: number of compiling processes; by default as many as cores and memory allow.
        keep_going: whether to go on after a variant fails.
        ptxas: an assembler to use instead of the installed wheel's.
        timeout_s: time limit of one variant; None for no limit.
        memory_bytes: memory limit of one compiling process; None for its share of the machine.
        compile: whether to compile misses; otherwise they are `missing`.
        frozen: whether misses fail instead of being compiled.
        frozen_by: the option or setting that asked for `frozen`, for messages.
        explain: whether to compare each miss with the nearest entry of the store.
        baseline: what rules of budgets are relative to; None checks no such rule.
        locked: lock that all variants must match; see `locked`.
        require_store: whether a variant fails if it cannot be stored.
        fail_on_warning: patterns; a variant fails if one matches a warning of its compilation, now
            or when it was stored.
        remote: the remote store behind the local one, None for none.
        executor: the scheduler of the cluster that compiles misses, as `cluster/address` reads it;
            None compiles here.
        hold_rows: whether a variant fails if a row of its table is of another artifact.
        alone: whether each variant is compiled in a new process.
    """

    jobs: int | None = None
    keep_going: bool = True
    ptxas: Path | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None
    compile: bool = True
    frozen: bool = False
    frozen_by: str = "--frozen"
    explain: bool = False
    baseline: Baseline | None = None
    locked: Locked | None = None
    require_store: bool = False
    fail_on_warning: tuple[re.Pattern[str], ...] = ()
    remote: RemoteSettings | None = None
    executor: str | None = None
    hold_rows: bool = False
    alone: bool = False

    @property
    def compiles(self) -> bool:
        """Tell whether misses are compiled."""
        return self.compile and not self.frozen


DEFAULTS = Options()
"""The options of a build that compiles all misses and has no lock."""
