"""Commands that tests run in other processes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command; return how it ended and what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def output_of(command: Sequence[str | Path], **options: Any) -> str:
    """Run a command that must succeed; return what it printed."""
    done = captured(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
