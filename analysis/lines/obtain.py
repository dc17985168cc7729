"""Source lines for commands that show them: read from the store, or found now and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pallasc.analysis.lines.find import Compiled, find_source_lines
from pallasc.analysis.lines.stored import read_source_lines
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_capacity
from pallasc.errors import PallascError
from pallasc.specs.artifacts.source_lines import SourceLines

Found = SourceLines | PallascError
"""Source lines, or the error why there are none."""


def obtain_source_lines(
    compiled: Sequence[Compiled],
    store: Store,
    *,
    jobs: int | None = None,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Found]:
    """Return the source lines of variants, from the store or newly found.

    A variant is compiled again if the store has no lines, or lines of another version of the
    source.

    Args:
        compiled: the variants; their sources must not have changed since compilation.
        store: contains the artifacts; the lines are stored there.
        jobs: number of concurrent compilations; None for as many as fit the machine.
        timeout_s: time limit for each.
        say: called with a message before slow steps.

    Raises:
        ToolError: the compiler is missing, or a compiling process cannot be started.
    """
    found: dict[int, Found] = {}
    for number, (variant, _, action_key) in enumerate(compiled):
        lines = read_source_lines(store, action_key, base_dir=variant.base_dir)
        if lines is not None:
            found[number] = lines
    missing = [number for number in range(len(compiled)) if number not in found]
    if missing:
        noun = "variant" if len(missing) == 1 else "variants"
        say(f"compiling {len(missing)} {noun} once more, for the lines of the source")
        with prepare() as setup:
            answers = find_source_lines(
                [compiled[number] for number in missing],
                setup,
                store,
                jobs=jobs or find_capacity().jobs(len(missing)),
                timeout_s=timeout_s,
            )
        found.update(zip(missing, answers, strict=True))
    return [found[number] for number in range(len(compiled))]
