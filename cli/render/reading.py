"""Reports while Python specs are executed, and collects those that cannot be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pallasc.cli.render.failures import error_text
from pallasc.cli.terminal.screen import Heartbeat

if TYPE_CHECKING:
    from pallasc.cli.render.progress import Progress
    from pallasc.errors import SpecError

_FIRST_SILENCE_S = 2.0


class Reading:
    """Listens to the loading of specs.

    Args:
        progress: where to report.
        keep_going: go on with the others where a spec cannot be executed.

    Attributes:
        errors: of the specs that could not be executed.
    """

    def __init__(self, progress: Progress, *, keep_going: bool) -> None:
        self._progress = progress
        self._keep_going = keep_going
        self._heartbeat = Heartbeat(time.monotonic(), first_s=_FIRST_SILENCE_S)
        self.errors: list[SpecError] = []

    def tick(self, path: str, seconds: float) -> None:
        """Report from time to time, less and less often, that a spec is still being executed."""
        if self._heartbeat.is_due(time.monotonic()):
            self._progress.mention(f"reading {path} {seconds:.0f} s")

    def broken(self, error: SpecError) -> None:
        """Note the error of a spec whose process died or was stopped.

        Raises:
            SpecError: that error, unless the others go on.
        """
        if not self._keep_going:
            raise error
        self.errors.append(error)
        self._progress.say(f"error: {error_text(error)}")
