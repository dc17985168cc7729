"""From saving a file to the new report line of `pallasc build --watch`, against a build anew.

A copy of the library's kernel `add` is edited twenty times while a watch runs. Half the edits add
a comment, the rest change the size of its blocks, each to a size that no store has. Timed is what a
user waits: from the rename that saves the file until the variant's line has come through the pipe.
The next edit comes after a pause, as from a person; a watch needs about the start of JAX to get its
next process ready, and the last figure is an edit that does not wait for that.

Goals: at most a second in the median, for a kernel that compiles in at most 0.4 s.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import Figure, run_benchmark, timed_process

ROOT = Path(__file__).resolve().parents[1]
SPEC = """
schema: 1
targets: [h100-sxm]
kernels:
  - name: add
    entry: elementwise.py:add
    args: {x: "f32[1024, 4096]", y: "f32[1024, 4096]"}
"""
RESULT = re.compile(r"\] (compiled|lowered|failed) .*?(?:→ )?([0-9.]+) s")
SIZES = [128 * n for n in (1, 2, 4, 8, 16, 32, 64)]


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Edit a kernel while it is watched; then build it again without a watch."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        place = Path(name)
        kernel = place / "elementwise.py"
        source = (ROOT / "specs/library/elementwise.py").read_text()
        _save(kernel, source)
        (place / "spec.yaml").write_text(SPEC)
        comments, tiles, compiled_s = [], [], []
        with _watching(place) as lines:
            for number in range(options.edits):
                time.sleep(options.pause)
                source, is_tile = _edited(source, number)
                took_s, status, seconds = _time_edit(kernel, source, lines)
                (tiles if is_tile else comments).append(took_s)
                if status == "compiled":
                    compiled_s.append(seconds)
                print(f"edit {number + 1}: {status}, {took_s:.3f} s", file=sys.stderr)
            hurried_s = []
            for number in range(options.edits, options.edits + 4):
                source, _ = _edited(source, number)
                hurried_s.append(_time_edit(kernel, source, lines)[0])
        plain_s = [_plain(place, kernel, source, number) for number in range(3)]
    return [
        Figure("saved to report line", statistics.median([*comments, *tiles]), "s", goal=1.0),
        Figure("saved to report line, slowest", max([*comments, *tiles]), "s"),
        Figure("edits of comments", statistics.median(comments), "s"),
        Figure("edits of the size of blocks", statistics.median(tiles), "s"),
        Figure("of these compiling", statistics.median(compiled_s), "s", goal=0.4),
        Figure("edits without a pause", statistics.median(hurried_s), "s"),
        Figure("pallasc build anew", statistics.median(plain_s), "s"),
    ]


def _edited(source: str, number: int) -> tuple[str, bool]:
    """Return another version of the kernel, and whether its blocks have another size."""
    if number % 2 == 0:
        return f"{source}\n# edit {number}\n", False
    size, threads = SIZES[number // 2 % len(SIZES)], number // 2 // len(SIZES)
    text = re.sub(r"block_size: int = \d+", f"block_size: int = {size}", source)
    # Sizes run out before edits do; another constant in the sum is another kernel as well.
    return re.sub(r"y_gmem\[elements\].*", f"y_gmem[elements] + {threads}.0", text), True


def _time_edit(kernel: Path, source: str, lines: Iterator[str]) -> tuple[float, str, float]:
    """Save a version; return how long the line took, what it says, and its seconds."""
    began_s = time.perf_counter()
    _save(kernel, source)
    for line in lines:
        if found := RESULT.search(line):
            return time.perf_counter() - began_s, found[1], float(found[2])
    raise SystemExit("watch: it has ended")


def _save(path: Path, text: str) -> None:
    """Replace a file as editors do."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


@contextmanager
def _watching(place: Path) -> Iterator[Iterator[str]]:
    """Yield the lines of a watch, after its first build."""
    command = [*_build(place), "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        for line in lines:
            if line.startswith("watching"):
                break
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)


def _plain(place: Path, kernel: Path, source: str, number: int) -> float:
    _save(kernel, f"{source}\n# plain {number}\n")
    return timed_process(_build(place), cwd=place, stderr=subprocess.DEVNULL)


def _build(place: Path) -> list[str]:
    store = str(place / "store")
    return [sys.executable, "-P", "-m", "pallasc", "build", "spec.yaml", "--store", store]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--edits", type=int, default=20, help="how often the kernel is edited")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds before each edit")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
