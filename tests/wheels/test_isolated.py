"""Builds in an environment of their own, as pip and `python -m build` make them by default.

They need an index with JAX and everything else, so they run where `PALLASC_TEST_ISOLATED` is set.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment, bundles_in, wheel_in

pytestmark = pytest.mark.skipif(
    not os.environ.get("PALLASC_TEST_ISOLATED"),
    reason="PALLASC_TEST_ISOLATED is not set: isolated builds need an index",
)


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    """Return a file that holds an isolated build to the versions of the tests' environment."""
    found = {installed.name: installed.version for installed in importlib.metadata.distributions()}
    file = tmp_path / "constraints.txt"
    lines = [f"{name}=={version}\n" for name, version in found.items() if name != "pallasc"]
    file.write_text("".join(sorted(lines)))
    return file


def test_an_isolated_build_finds_what_the_store_has_and_makes_the_same_bundle(
    pallasc_wheel: Path,
    example_wheel: Path,
    builder: Environment,
    copy_example: Callable[..., Path],
    constraints: Path,
    tmp_path: Path,
) -> None:
    clone, dist = copy_example("fused_ops"), tmp_path / "dist"
    printed = builder.succeed(
        "-P", "-m", "build", "--outdir", dist, clone, cwd=clone,
        PIP_FIND_LINKS=str(pallasc_wheel.parent), PIP_CONSTRAINT=str(constraints),
        PALLASC_FROZEN="1",
    )  # fmt: skip
    assert printed.count("Installing packages in isolated environment") == 2
    assert bundles_in(wheel_in(dist)) == bundles_in(example_wheel)
