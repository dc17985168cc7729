"""Builds: what is compiled, how often, and what the store can do to it."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.evict import Limits
from pallasc.cache.store import Store
from pallasc.compiler.builds import build as building
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Event
from pallasc.errors import ToolError


def write_kernels(project: Any, **factors: float) -> list[dict[str, Any]]:
    for name, factor in factors.items():
        project.write(f"{name}.py", f"def run(x): return x * {factor}\n")
    return [{"name": name, "entry": f"{name}.py:run"} for name in factors]


def test_two_architectures_are_built_at_once_and_each_request_once(project: Any) -> None:
    add = {
        "entry": "pallasc.specs.library.elementwise:add",
        "args": {"x": "f32[128, {n}]", "y": "f32[128, {n}]"},
        "static": {"block_size": 2048},
        "matrix": {"n": [128, 256]},
    }
    project.spec({"name": "add", **add}, {"name": "plus", **add}, targets=["sm_90a", "sm_100a"])
    report = project.build(jobs=2)
    assert [str(r.error) for r in report.failed] == []
    assert [(r.variant.id, r.status) for r in report.results] == [
        (f"{name}[n={n}]@{target}", "compiled" if name == "add" else "shared")
        for name in ("add", "plus")
        for n in (128, 256)
        for target in ("h100-sxm", "b200")
    ]
    half = len(report.results) // 2
    digests = [result.artifact.digest for result in report.results]
    assert digests[:half] == digests[half:]
    assert len(set(digests)) == 4
    assert {r.artifact.target.arch for r in report.results} == {"sm_90a", "sm_100a"}
    events = [event for event in project.events if isinstance(event, Event)]
    assert Counter(e.kind for e in events) == {"started": 4, "compiled": 4, "shared": 4}
    assert [event.done for event in events if event.result] == list(range(1, 9))
    assert {event.total for event in project.events} == {8}
    again = project.build(jobs=2)
    assert (len(again.hits), again.exit_code) == (8, 0)


def test_a_budget_that_is_exceeded_fails_hits_too(project: Any, results: Any) -> None:
    kernels = write_kernels(project, small=43, large=44)
    kernels[1]["budget"] = {"registers": 1}
    project.spec(*kernels)
    for status in ("compiled", "hit"):
        report = project.build()
        found = results(report)
        assert found["small"].status == status
        error = found["large"].error
        assert "registers; the budget is 1" in str(error)
        assert error.location == found["large"].variant.where("budget.registers")
        assert error.location != found["large"].variant.location
        assert error.hint == "Change the kernel, such as its tile sizes, or the limit."
        assert found["large"].artifact is not None
        assert report.exit_code == 5
    project.write("later.py", "def run(x): return x * 45\n")
    project.spec(kernels[1], {"name": "later", "entry": "later.py:run"})
    stopped = results(project.build(keep_going=False))
    assert (stopped["large"].status, stopped["later"].status) == ("failed", "skipped")


def test_a_build_keeps_what_it_compiled_even_if_the_store_is_too_large(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(max_bytes=1000, grace_s=0)
    monkeypatch.setattr("pallasc.cache.prune.read_limits", lambda: limits)
    project.spec(*write_kernels(project, first=61, second=62))
    report = project.build()
    assert [result.status for result in report.results] == ["compiled", "compiled"]
    assert len(project.build().hits) == 2
    monkeypatch.setattr("pallasc.cache.prune.TIDY_EVERY_S", 0)
    project.spec(*write_kernels(project, first=61, second=62, third=63))
    assert [result.status for result in project.build().results] == ["hit", "hit", "compiled"]
    assert len(project.build().hits) == 3


def test_a_missing_data_file_fails_one_variant_at_its_place(project: Any) -> None:
    (kernel,) = write_kernels(project, reads=46)
    project.write("table.txt", "1\n")
    project.spec({**kernel, "files": ["table.txt"]})
    variants = project.variants()
    (project.folder / "table.txt").unlink()
    (found,) = building.build(variants, store=project.store, options=Options(jobs=1)).results
    assert found.status == "failed"
    assert "table.txt: cannot be hashed" in str(found.error)
    assert found.error.location == found.variant.location
    empty = building.build([], store=project.store)
    assert (empty.results, empty.exit_code, empty.notes) == ((), 0, ())


def test_padding_that_no_array_can_have_fails_the_variant(project: Any) -> None:
    project.write("kernel.py", "def run(x, tile): return x * tile\n")
    pad = {"m": {"x": 0, "y": 0}}
    tune = {"over": {"tile": [1]}, "buckets": {"m": "pow2"}, "pad": pad}
    matrix = {"args": {"x": "f32[{m}]"}, "static": {"tile": "{tile}"}, "matrix": {"m": [8]}}
    project.spec({"name": "kernel", "entry": "kernel.py:run", **matrix, "tune": tune})
    (result,) = project.build().results
    assert (result.status, result.error.exit_code) == ("failed", 2)
    assert "pad: there is no dimension 0 of y" in result.error.message
    assert result.error.location.file.endswith(".yaml")


def test_two_builds_at_once_compile_each_variant_once(
    project: Any, start_program: Callable[..., subprocess.Popen[str]]
) -> None:
    spec = project.spec(*write_kernels(project, a=51, b=52, c=53))
    builds = [start_program("build.py", project.store.root, 1, spec) for _ in range(2)]
    counts: Counter[str] = Counter()
    digests = set()
    for process in builds:
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        results = json.loads(output)
        counts.update(status for status, _ in results)
        digests.add(tuple(digest for _, digest in results))
    # The build that comes second finds it, or has lowered it already.
    assert counts.pop("compiled") == counts.total() == 3
    assert set(counts) <= {"hit", "lowered"}
    assert len(digests) == 1


# ---- stores that do not work


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return what mounts a small file system and returns its folder, where this process may."""
    place = tmp_path / "mounted"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def protect(place: Path) -> None:
    """Let a mounted file system only be read from now on."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


def _check_uncached(project: Any, root: Path, note: str) -> None:
    project.spec(*write_kernels(project, a=61, b=62))
    report = project.build(store=Store(root))
    assert [(r.status, str(r.error)) for r in report.results] == [("compiled", "None")] * 2
    assert all(r.artifact.cubin() and r.artifact.plan.steps for r in report.results)
    assert report.exit_code == 0
    (found,) = [text for text in report.notes if "nothing is stored" in text]
    assert found.startswith(f"the store {root} cannot be written, so nothing is stored:")
    assert note in found
    again = project.build(store=Store(root), compile=False)
    assert [result.status for result in again.results] == ["missing"] * 2


def test_a_store_below_a_file_fails_no_build_unless_it_is_required(
    project: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "store"
    _check_uncached(project, below, "Not a directory")
    with pytest.raises(ToolError, match=r"the store /.*file/store cannot be written: .*Not a dir"):
        project.build(require_store=True, store=Store(below))
    assert project.events == []  # nothing was compiled for nothing


def test_a_store_that_cannot_be_written_fails_no_build_unless_it_is_required(
    project: Any, mounted: Callable[[str], Path]
) -> None:
    place = mounted("size=16m")
    shutil.copytree(project.store.folder, Store(place).folder)
    project.spec(*write_kernels(project, c=63))
    assert project.build(require_store=True, store=Store(place)).exit_code == 0
    protect(place)
    again = project.build(require_store=True, store=Store(place))
    assert [result.status for result in again.results] == ["hit"]  # reading is enough for that
    _check_uncached(project, place, "Read-only file system")
    with pytest.raises(ToolError, match="Read-only file system") as refused:
        project.build(require_store=True, store=Store(place))
    assert project.events == []  # nothing was compiled for nothing
    assert refused.value.exit_code == 4
    assert "PALLASC_REQUIRE_STORE=0" in str(refused.value)


def test_a_required_store_that_fills_up_fails_its_variants(
    project: Any, mounted: Callable[[str], Path]
) -> None:
    project.spec(*write_kernels(project, a=61, b=62))
    report = project.build(require_store=True, store=Store(mounted("size=16k")))
    assert report.exit_code == 4
    assert report.failed
    for result in report.failed:
        assert "could not keep it: " in str(result.error)
        assert "No space left on device" in str(result.error)
