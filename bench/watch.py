"""From saving a file to the report line of `pallasc build --watch`, against a separate build.

A copy of the library's kernel `add` is edited twenty times while a watch runs. Half of the edits
add a comment. The others change the kernel's block size, each to a size that no store has. The
user's wait is timed: from the rename that saves the file until the variant's line has come through
the pipe. After most edits there is a pause, as a person would make, in which the watch starts JAX
in its next process; some edits come without a pause.

Goal: at most a second in the median after a pause, for a kernel that compiles in at most 0.4 s.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import ROOT, Figure, build_command, run_benchmark, say, timed_process

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


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Edit a kernel while it is watched; then build it again without a watch."""
    kernel = place / "elementwise.py"
    source = (ROOT / "specs/library/elementwise.py").read_text()
    save(kernel, source)
    (place / "spec.yaml").write_text(SPEC)
    command = build_command(Path("spec.yaml"), place / "store")
    waits: dict[str, list[float]] = {"comments": [], "block size": [], "without a pause": []}
    compiled_s, plain_s = [], []
    with watching([*command, "--watch"], place) as lines:
        for number in range(options.edits + 4):
            is_hurried = number >= options.edits
            time.sleep(0 if is_hurried else options.pause)
            source, kind = edited(source, number)
            took_s, status, seconds = time_edit(kernel, source, lines)
            waits["without a pause" if is_hurried else kind].append(took_s)
            compiled_s += [seconds] * (status == "compiled" and not is_hurried)
            say(f"edit {number + 1}: {status}, {took_s:.3f} s")
    for number in range(3):
        save(kernel, f"{source}\n# plain {number}\n")
        plain_s.append(timed_process(command, cwd=place))
    paused_s = [*waits["comments"], *waits["block size"]]
    return [
        Figure("saved to report line", statistics.median(paused_s), "s", goal=1.0),
        Figure("saved to report line, slowest", max(paused_s), "s"),
        *(Figure(f"edits, {name}", statistics.median(own), "s") for name, own in waits.items()),
        Figure("compiling", statistics.median(compiled_s), "s", goal=0.4),
        Figure("a separate pallasc build", statistics.median(plain_s), "s"),
    ]


def edited(source: str, number: int) -> tuple[str, str]:
    """Return another version of the kernel, and what was changed."""
    if number % 2 == 0:
        return f"{source}\n# edit {number}\n", "comments"
    size, threads = SIZES[number // 2 % len(SIZES)], number // 2 // len(SIZES)
    text = re.sub(r"block_size: int = \d+", f"block_size: int = {size}", source)
    # There are more edits than sizes, but another constant in the sum also makes another kernel.
    return re.sub(r"y_gmem\[elements\].*", f"y_gmem[elements] + {threads}.0", text), "block size"


def time_edit(kernel: Path, source: str, lines: Iterator[str]) -> tuple[float, str, float]:
    """Save a version; return the time until its line, and the status and seconds in the line."""
    began_s = time.perf_counter()
    save(kernel, source)
    for line in lines:
        if found := RESULT.search(line):
            return time.perf_counter() - began_s, found[1], float(found[2])
    raise SystemExit("watch: it has ended")


def save(path: Path, text: str) -> None:
    """Replace a file as editors do."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


@contextmanager
def watching(command: Sequence[str], place: Path) -> Iterator[Iterator[str]]:
    """Yield the lines of a watch, after its first build."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        next(line for line in lines if line.startswith("watching"))
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, edits=20, pause=4.0))
