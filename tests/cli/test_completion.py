"""What a shell completes: commands and targets; without JAX, in no time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Prints what a shell gets, and then the packages that this took.
PROGRAM = """
import sys
from pallasc.cli.main import main
try:
    main()
finally:
    print({name for name in ("jax", "numpy", "yaml", "google") if name in sys.modules} or "light",
          file=sys.stderr)
"""


def _complete(words: list[str], *, instruction: str = "bash_complete") -> tuple[list[str], str]:
    environment = {
        **os.environ,
        "_PALLASC_COMPLETE": instruction,
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.splitlines(), result.stderr


def test_a_shell_gets_the_words_without_jax() -> None:
    words, loaded = _complete(["pallasc", "build", "spec.yaml", "--target", "h20"])
    assert words == ["plain,h200"]
    assert "jax" not in loaded
    assert _complete(["pallasc", "bu"])[0] == ["plain,build", "plain,bundle"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    lines, _ = _complete(["pallasc"], instruction=f"{shell}_source")
    script = tmp_path / "script"
    script.write_text("\n".join(lines))
    assert any("pallasc" in line for line in lines)
    if shutil.which(shell):
        subprocess.run([shell, "-n", script], check=True)
