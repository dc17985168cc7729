"""A compiled variant to check, and the callbacks of its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.checks.findings import LevelResult
    from pallasc.compiler.inputs.lookup import Request
    from pallasc.errors import Location, PallascError
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compiled variant to check.

    Attributes:
        id: its display name.
        artifact: the compiled artifact.
        action_key: its action key, "" if unknown.
        variant: the variant it was compiled from, None without source.
        request: the look-up keys of that variant, None if not known yet.
        origin: the bundle that contains it, None for others.
        wrong_in_jax: the part that the installed JAX miscompiles, with its line; "" if none.
    """

    id: str
    artifact: Artifact
    action_key: str = ""
    variant: Variant | None = None
    request: Request | None = None
    origin: Location | None = None
    wrong_in_jax: str = ""


OnResult = Callable[["Candidate", "LevelResult", bool], None]
"""Called with each result, and True if it came from the store."""

OnUnbuilt = Callable[["Variant", "PallascError"], None]
"""Called with each variant that did not compile, and the error."""

OnTick = Callable[[Sequence[tuple[str, float]], int, int], None]
"""Called with the running jobs and their seconds, the number done, and the total."""


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks of a check: for each result, at regular ticks, and at the end."""

    on_result: OnResult = lambda candidate, result, from_store: None
    on_unbuilt: OnUnbuilt = lambda variant, error: None
    on_tick: OnTick = lambda running, done, total: None
    on_end: Callable[[], None] = lambda: None
