"""The same kernel gives the same bytes and keys: in any folder, at any line, with any hash seed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NAMES = ("around", "zeros_and_constant", "matmul", "nested", "all_dtypes")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, run_build: Any) -> list[dict[str, Any]]:
    """Compile the same functions from two folders, in processes that differ as they can."""
    results = []
    for seed, lines in (("0", 0), ("4242", 37)):
        folder = tmp_path_factory.mktemp(f"folder{seed}") / ("deep" * (lines > 0))
        folder.mkdir(exist_ok=True)
        text = (PROGRAMS / "functions.py").read_text()
        docstring, rest = text.split("\n\n", 1)
        moved = docstring + "\n\n" + "# A comment more.\n" * lines + rest
        moved = moved.replace(
            "from constants", f"import sys\n\nsys.path[:0] = [{str(PROGRAMS)!r}]\nfrom constants"
        )
        file = folder / f"copy_{seed}.py"
        file.write_text(moved)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "HOME": str(folder)}
        results.append(
            run_build(folder / "out.json", file, "h100-sxm", *NAMES, cwd=folder, env=environment)
        )
    return results


@pytest.mark.parametrize("name", NAMES)
def test_artifacts_are_equal(pair: list[dict[str, Any]], name: str) -> None:
    first, other = (results[name] for results in pair)
    assert first.record == other.record
    assert first.artifact.digest == other.artifact.digest
    assert first.blobs == other.blobs


@pytest.mark.parametrize("name", NAMES)
def test_action_keys_are_equal(pair: list[dict[str, Any]], name: str) -> None:
    first, other = (results[name] for results in pair)
    assert first.key == other.key


@pytest.mark.parametrize("name", NAMES)
def test_kernels_compiled_before_in_the_same_process_change_nothing(
    build: Any, pair: list[dict[str, Any]], name: str
) -> None:
    among_many = build("functions")[name]
    assert among_many.artifact.digest == pair[0][name].artifact.digest
    assert among_many.key == pair[0][name].key


def test_errors_that_were_explained_before_change_nothing(build: Any, build_alone: Any) -> None:
    after, alone = build("failing")["fine"], build_alone("failing", "h100-sxm", "fine")["fine"]
    assert after.key == alone.key
    assert after.artifact.digest == alone.artifact.digest


def test_different_functions_have_different_keys(pair: list[dict[str, Any]]) -> None:
    assert len({pair[0][name].key for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_an_artifact_names_a_folder(pair: list[dict[str, Any]], name: str) -> None:
    result = pair[0][name]
    text = repr(result.record).encode() + b"".join(result.blobs.values())
    for word in (b"copy_0", b"site-packages", str(PROGRAMS).encode(), b"/folder0"):
        assert word not in text
