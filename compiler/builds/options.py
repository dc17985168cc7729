"""The options of a build, its remote store, and the baseline of its budgets.

A baseline is a lock file with earlier resources of variants, for budget rules such as `+10 %`.
Without `--baseline` it is `pallasc.lock` in the current folder, if a rule needs one. A variant that
is not in the baseline is new: it is not compared, and a note reports it. Only `pallasc build`
checks rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from pallasc.errors import BudgetError, SpecError
from pallasc.specs.artifacts.artifact import Artifact, Resources, check_budget
from pallasc.specs.settings import build_settings
from pallasc.specs.spec import Variant
from pallasc.specs.spelling import listed

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.compiler.builds.locked import Locked


class Options(Struct, frozen=True, kw_only=True):
    """Options of a build.

    Attributes:
        jobs: number of compiling processes; by default as many as cores and memory allow.
        keep_going: whether to continue after a variant fails.
        ptxas: an assembler to use instead of the installed wheel's.
        timeout_s: time limit of one variant; None for no limit.
        memory_bytes: memory limit of one compiling process; None for its share of the machine.
        compile: whether to compile misses; otherwise they are `missing`.
        frozen: whether misses fail instead of being compiled.
        frozen_by: the option or setting that requires `frozen`, for messages.
        explain: whether to compare each miss with the nearest entry of the store.
        baseline: baseline for relative budget rules; None checks no such rule.
        locked: lock that all variants must match; see the module `locked`.
        require_store: whether a variant fails if it cannot be stored.
        fail_on_warning: patterns; a variant fails if one matches a warning of its compilation, in
            this build or when it was stored.
        remote: the remote store, None for none.
        executor: the scheduler of the cluster that compiles misses, as parsed by `scheduler_url`;
            None compiles locally.
        alone: whether each variant is compiled in a new process.
        environment: environment variables of the compiler; None for this process's variables.
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
    alone: bool = False
    environment: Mapping[str, str] | None = None

    @property
    def compiles(self) -> bool:
        """True if misses are compiled."""
        return self.compile and not self.frozen


DEFAULTS = Options()
"""The options of a build that compiles all misses and has no lock."""


URL = "PALLASC_REMOTE"
NONE = ("none", "off", "0")
"""Values of `PALLASC_REMOTE` and `--remote` that disable the project's remote."""


def remote_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    write: bool | None = None,
    folder: str | Path = ".",
    timeout_s: float = 60.0,
) -> RemoteSettings | None:
    """Return the settings of a build's remote store, None if it has none.

    Args:
        environ: environment variables.
        url: the URL from the command line.
        write: whether to write to the remote, from the command line.
        folder: the folder whose project settings are used.
        timeout_s: as in `RemoteSettings`.

    Raises:
        SpecError: a setting is wrong; the message names it, without credentials.
    """
    named = url or environ.get(URL, "")
    if named.lower() in NONE:
        return None
    project = build_settings(folder)
    if not (named or project.remote):
        return None
    from pallasc.cache.remote.settings import read_settings

    return read_settings(environ, project, url=url, write=write, timeout_s=timeout_s)


class Baseline(Struct, frozen=True):
    """Earlier resources of variants.

    Attributes:
        name: the file, for messages.
        resources: resources of variants by their id.
        absent: ids of variants that `check` could not compare, for lack of earlier resources.
    """

    name: str
    resources: Mapping[str, Resources]
    absent: list[str] = field(default_factory=list)

    def check(self, artifact: Artifact, variant: Variant) -> BudgetError | None:
        """Return the error of an artifact that exceeds its budget, None if it does not."""
        rules = _rules(variant)
        if not rules:
            return check_budget(artifact, variant.budget)
        before = self.resources.get(variant.id, Resources())
        if any(getattr(before, name) is None for name in rules):
            self.absent.append(variant.id)
        return check_budget(artifact, variant.budget, before=before, baseline=self.name)

    def notes(self) -> list[str]:
        """Return a note on the variants whose rules could not be checked."""
        if not self.absent:
            return []
        shown = ", ".join(listed(self.absent, 3))
        return [
            f"{self.name} has no resources of these variants, so their relative budgets were not "
            f"checked: {shown}"
        ]


def _rules(variant: Variant) -> list[str]:
    """Return the fields of a budget whose limit is relative to a baseline."""
    return [name for name, limit in variant.budget.items() if isinstance(limit, str)]


def load_baseline(path: Path | None, variants: Iterable[Variant]) -> Baseline | None:
    """Return the baseline of a build, None if no budget needs one.

    Args:
        path: a lock; None for the lock in the current folder.
        variants: the variants of the build.

    Raises:
        SpecError: the file does not exist, cannot be read, or has no resources to compare with; or
            a rule needs a baseline, and there is none.
    """
    first = next((variant for variant in variants if _rules(variant)), None)
    if path is None and first is None:
        return None
    from pallasc.specs.loading.lock import LOCK_FILE, read_lock, update_command

    place = path or LOCK_FILE
    lock = read_lock(place)
    if lock is not None:
        return Baseline(str(place), lock.resources)
    if path is not None or first is None:
        raise SpecError(
            f"--baseline: there is no {path}.", hint=f"Make it with: {update_command(place)}"
        )
    rule = _rules(first)[0]
    raise SpecError(
        f"{first.name}.budget.{rule}: {first.budget[rule]!r} is relative to a "
        f"baseline, and there is no {LOCK_FILE} here.",
        location=first.where(f"budget.{rule}"),
        hint=f"Make one with: {update_command(LOCK_FILE)}; or name one with --baseline.",
    )
