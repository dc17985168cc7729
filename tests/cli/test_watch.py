"""`pallasc build --watch`: edits of real files; what is compiled is what a plain build compiles."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from consoles import without_heartbeats

from pallasc.cache.store import Store
from pallasc.cli.build import Before
from pallasc.cli.output.outcome import built
from pallasc.compiler.builds.report import Report

DEADLINE_S = 1200

SPEC = """
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: kernels.py:run
    args: {x: "f32[1024, 2048]", y: "f32[1024, 2048]"}
    static: {block_size: 2048}
"""
KERNELS = """
from pallasc.specs.library.elementwise import add
from scale import FACTOR


def run(x, y, *, block_size):
    return add(x, FACTOR * y, block_size=block_size)
"""


def save(path: Path, text: str) -> None:
    """Save as editors do: another file takes the place of the first."""
    new = path.with_name(f".{path.name}.swp")
    new.write_text(text)
    new.replace(path)


class Watching:
    """A watch that runs, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, *words: str) -> str:
        """Read up to a line that has these words, and return it."""
        assert self.process.stderr is not None
        for line in map(without_heartbeats, self.process.stderr):
            self.lines += [line] if line else []
            if all(word in line for word in words):
                return line
        raise AssertionError("".join(self.lines))

    def end(self) -> int:
        """Interrupt it, and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=DEADLINE_S)


@contextmanager
def watching(place: Path, spec: str) -> Iterator[Watching]:
    command = [sys.executable, "-P", "-m", "pallasc", "build", spec, "--store", "store", "--watch"]
    with subprocess.Popen(
        [*command, "--jobs", "1"], cwd=place, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        timer = threading.Timer(DEADLINE_S, process.kill)  # then the pipe ends, and a test fails
        timer.start()
        try:
            yield Watching(process)
        finally:
            timer.cancel()
            process.kill()


@pytest.fixture
def place(tmp_path: Path, warm_store: Store) -> Path:
    """Return a folder with a spec, its kernel in two modules, and a store."""
    shutil.copytree(warm_store.root, tmp_path / "store")
    for name, text in {
        "spec.yaml": SPEC,
        "kernels.py": KERNELS,
        "scale.py": "FACTOR = 2.0\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def digest(run: Any, spec: str, store: str, *more: str) -> str:
    """Return the digest of the spec's artifact, by a plain build."""
    result = run("build", spec, "--store", store, "--json", *more)
    assert result.code == 0, result.err
    return str(json.loads(result.out)["variants"][0]["digest"])


def test_edits_of_a_spec_and_of_every_module_are_compiled_as_a_plain_build_does(
    place: Path, run: Any, warm_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    kernels, spec, scale = place / "kernels.py", place / "spec.yaml", place / "scale.py"
    with watching(place, "spec.yaml") as watch:
        watch.until("[1/1] compiled", "registers")
        watch.until("watching", "Ctrl-C ends")
        save(kernels, f"{KERNELS}# a comment\n")
        assert watch.until("[1/1]").rstrip().endswith("unchanged")
        assert watch.lines[-2] == "kernels.py changed\n"
        save(spec, SPEC.replace("block_size: 2048", "block_size: 1024"))
        line = watch.until("[1/1] compiled")
        assert " → " in line
        assert "(better)" in line
        save(scale, "FACTOR = 3.0\n")  # a module that is not fresh would keep the factor
        watch.until("[1/1] compiled", "different code, same figures")
        shutil.copytree(warm_store.root, place / "other")
        now = digest(run, "spec.yaml", "store", "--frozen")
        assert now == digest(run, "spec.yaml", "other")
        save(scale, "FACTOR = 2.0\n")
        save(spec, SPEC)
        watch.until("hit ", "28 → 40 registers", "(worse)")  # the store has the first version
        assert watch.end() == 130


def test_mistakes_and_missing_files_are_told_and_the_watch_goes_on(
    place: Path, tmp_path: Path
) -> None:
    kernels, spec = place / "kernels.py", place / "spec.yaml"
    save(kernels, KERNELS.replace("FACTOR * y", "FACTOR *"))
    with watching(place, "spec.yaml") as watch:
        watch.until("[1/1] failed")
        watch.until("SyntaxError")
        watch.until("watching")
        save(kernels, KERNELS)
        watch.until("[1/1] compiled")
        spec.unlink()
        watch.until("error: spec.yaml: there is no such file.")
        spec.write_text("schema: 1\nkernels: [")
        watch.until("error: spec.yaml:")
        spec.write_text(SPEC)
        watch.until("1 variant: nothing to compile, no changes")
        (place / "scale.py").unlink()
        watch.until("No module named 'scale'")
        (place / "scale.py").write_text("FACTOR = 4.0\n")
        watch.until("[1/1] compiled", "different code, same figures")
        assert watch.end() == 130


@pytest.mark.parametrize(
    "more",
    [
        "--json", "--junit r.xml", "--annotations github", "--frozen", "--dry-run", "--locked",
        "--lock pallasc.lock", "--shard 1/2", "--reproduce 1", "--executor dask:",
    ],
)  # fmt: skip
def test_options_that_a_watch_has_no_use_for_are_refused(more: str, run: Any, spec: Path) -> None:
    result = run("build", spec, "--watch", *more.split())
    assert result.code == 2
    assert result.err.startswith(f"error: --watch cannot be used with {more.split()[0]}.")


def test_the_first_build_of_a_missing_spec_ends_the_watch(run: Any) -> None:
    result = run("build", "nowhere.yaml", "--watch")
    assert (result.code, result.err) == (2, "error: nowhere.yaml: there is no such file.\n")


# ---- the line of an edit


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"registers": 48}, "40 → 48 registers (worse)"),
        (
            {"registers": 255},
            {"spill_store_bytes": 64},
            "255 → 40 registers (better), 0 → 64 spill bytes (worse)",
        ),
        ({}, {"barriers": 2}, "different code, same figures"),
        ({}, {}, "unchanged"),
    ],
)
def test_the_line_of_an_edit_compares_with_the_last_success_of_the_kernel(
    first: dict[str, int], second: dict[str, int], words: str, pretended: Any
) -> None:
    before = Before()
    of = pretended.variant(m=1)
    for result in (pretended.compiled(of, **first), pretended.failed(of)):
        before.note(Report((result,), 1.0))
    assert before.line(built(pretended.failed(of))) == "failed    add[m=1]@h100-sxm"
    again = before.line(built(pretended.compiled(of, **second)))
    assert again == f"compiled  add[m=1]@h100-sxm  1.24 → 1.24 s, {words}"
