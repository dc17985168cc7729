"""Durations in words, how long a build will still take, and when to report that it goes on."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_SILENCE_S = 10.0
"""How long a build without a terminal may print nothing while something is compiled."""
LONGEST_SILENCE_S = 60.0


def duration(seconds: float) -> str:
    """Return `1.2 s`, `14 s`, `3 min 20 s` or `2 h 05 min`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else elapsed(round(seconds))


def elapsed(seconds: float) -> str:
    """Return a duration in whole seconds, as for something that still runs."""
    rounded = int(seconds)
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def about(seconds: float) -> str:
    """Return a rough estimate: `about 25 s`, `about 3 min`."""
    if seconds <= 5:
        return "a few seconds"
    if seconds <= 55:
        return f"about {-(-seconds // 5) * 5:.0f} s"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {round(seconds / 3600)} h"


def time_left_s(
    *, left: int, compiled_s: Sequence[float], running_s: Sequence[float], jobs: int
) -> float | None:
    """Estimate how long the rest of a build takes from what its compilations have taken so far.

    Args:
        left: how many variants are not finished, those that run included.
        compiled_s: what each finished compilation took.
        running_s: what each running one has taken so far.
        jobs: how many run at a time.

    Returns:
        Seconds, or None where nothing can be said: nothing is compiled yet, or all that is left
        has run longer than expected.
    """
    if not compiled_s or left < 1:
        return None
    mean_s = sum(compiled_s) / len(compiled_s)
    work_s = left * mean_s - sum(min(each, mean_s) for each in running_s)
    # No build ends before the compilation that began last.
    newest_s = max((mean_s - each for each in running_s), default=0.0)
    expected_s = max(work_s / max(1, min(jobs, left)), newest_s)
    return expected_s if expected_s > 0 else None


class Heartbeat:
    """Tells when to report that something is still going on: less and less often.

    Args:
        began_s: when it began, or last reported something.
        first_s: how long it may be silent at first; the silence doubles each time, up to a minute.
    """

    def __init__(self, began_s: float, *, first_s: float = FIRST_SILENCE_S) -> None:
        self._silence_s = first_s
        self._next_s = began_s + first_s

    def put_off(self, now_s: float) -> None:
        """Wait for as long again, since something else was reported now."""
        self._next_s = now_s + self._silence_s

    def is_due(self, now_s: float) -> bool:
        """Tell whether to report now; if so, the next report is due later."""
        if now_s < self._next_s:
            return False
        self._silence_s = min(2 * self._silence_s, LONGEST_SILENCE_S)
        self._next_s = now_s + self._silence_s
        return True
