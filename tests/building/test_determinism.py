"""The same inputs give the same bytes, whatever else is different."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KERNEL = '''
import jax.numpy as jnp
from pallasc.specs.library.elementwise import add


def run(x):
    """A Mosaic kernel between kernels of XLA's, and a constant."""
    return jnp.sin(add(x, x, block_size=1024).T) + jnp.arange(8.0)


def other(x):
    return add(x, x, block_size=1024)
'''
KERNELS = [
    {"name": "run", "entry": "kernel.py:run"},
    {"name": "other", "entry": "kernel.py:other"},
    {
        "name": "softmax",
        "entry": "pallasc.specs.library.softmax:softmax",
        "args": {"x": "f32[128, 256]"},
        "static": {"rows_per_block": 4},
    },
]


@pytest.fixture(scope="module")
def build_digests(run_program: Callable[..., Any]) -> Callable[..., dict[str, str]]:
    """Return what builds a project in a process of its own and gives the artifacts' digests."""

    def build(project: Any, **options: Any) -> dict[str, str]:
        spec = project.folder / "spec.yaml"
        answer = run_program("build.py", project.store.root, 1, spec, **options)
        assert [r["error"] for r in answer["results"]] == [None] * len(answer["results"])
        assert {r["status"] for r in answer["results"]} == {"compiled"}
        return {r["id"]: r["digest"] for r in answer["results"]}

    return build


@pytest.fixture(scope="module")
def expected(make_project: Any, build_digests: Callable[..., dict[str, str]]) -> dict[str, str]:
    """Return the digests of one build."""
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.spec(*KERNELS)
    digests = build_digests(project)
    assert len(set(digests.values())) == len(KERNELS)
    return digests


def test_another_folder_order_hash_seed_and_lines_above_change_nothing(
    make_project: Any,
    build_digests: Callable[..., dict[str, str]],
    expected: dict[str, str],
    tmp_path: Path,
) -> None:
    project = make_project()
    project.write("kernel.py", "# One more line.\n\n" + KERNEL)
    project.spec(*reversed(KERNELS))
    moved = tmp_path / "a clone" / "somewhere else"
    shutil.copytree(project.folder, moved)
    project.folder = moved
    digests = build_digests(project, PYTHONHASHSEED="4711", HOME=str(tmp_path), LC_ALL="C")
    assert digests == expected
    assert list(digests) == list(reversed(expected))


def test_another_python_with_the_same_jax_gives_the_same_bytes(
    make_project: Any, build_digests: Callable[..., dict[str, str]], expected: dict[str, str]
) -> None:
    """Takes the interpreter `$PALLASC_OTHER_PYTHON`; without it, another run of this one.

    The other one needs the same versions of JAX and ptxas: artifacts name them, so they count.
    """
    other = os.environ.get("PALLASC_OTHER_PYTHON", sys.executable)
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.spec(*KERNELS)
    assert build_digests(project, python=other, PYTHONHASHSEED="1") == expected


def test_yaml_and_the_decorator_give_the_same_artifact(make_project: Any) -> None:
    project = make_project()
    text = (
        "import jax.numpy as jnp\nimport pallasc\n"
        "@pallasc.kernel(args={'x': 'f32[8, {n}]'}, static={'factor': 81.0},\n"
        "                matrix={'n': [128, 256]}, targets=['sm_90a'])\n"
        "def scaled(x, *, factor): return x * factor\n"
    )
    project.write("kernel.py", text)
    project.spec(
        {
            "name": "named_otherwise",
            "entry": "kernel.py:scaled",
            "args": {"x": "f32[8, {n}]"},
            "static": {"factor": 81.0},
            "matrix": {"n": [128, 256]},
        }
    )
    first = project.build("kernel.py")
    second = project.build("spec.yaml")
    assert [r.status for r in first.results] == ["compiled"] * 2
    assert [(r.status, r.reason) for r in second.results] == [("hit", "")] * 2
    for before, after in zip(first.results, second.results, strict=True):
        assert before.artifact.digest == after.artifact.digest
        assert json.dumps(before.artifact.record) == json.dumps(after.artifact.record)
