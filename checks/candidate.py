"""A compiled variant that is to be checked, and who listens to its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.checks.findings import LevelResult
    from pallasc.compiler.inputs.request import Request
    from pallasc.errors import Location, PallascError
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compiled variant that is to be checked.

    Attributes:
        id: its name for people.
        artifact: what was compiled.
        action_key: its action key, "" if unknown.
        variant: what it was compiled from, None without source.
        request: the look-up keys of that variant, None if they are not known yet.
        origin: the bundle that it lies in, None for others.
        wrong_in_jax: what the JAX in use compiles wrongly in it, with its line; "" for nothing.
    """

    id: str
    artifact: Artifact
    action_key: str = ""
    variant: Variant | None = None
    request: Request | None = None
    origin: Location | None = None
    wrong_in_jax: str = ""


OnResult = Callable[["Candidate", "LevelResult", bool], None]
"""Called with each result, and whether the store had it."""

OnUnbuilt = Callable[["Variant", "PallascError"], None]
"""Called with each variant that did not compile, and the error."""

OnTick = Callable[[Sequence[tuple[str, float]], int, int], None]
"""Called with what is running and for how many seconds, how much is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Events:
    """Who listens to a check: to each result, from time to time, to its end."""

    on_result: OnResult = lambda candidate, result, from_store: None
    on_unbuilt: OnUnbuilt = lambda variant, error: None
    on_tick: OnTick = lambda running, done, total: None
    on_end: Callable[[], None] = lambda: None
