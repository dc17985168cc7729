"""What the user's code changes in the compiling process: counted where it acts, else undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.specs.loading.matrix import expand

COMMON = """
import jax
import jax.numpy as jnp


def run(x):
    return jnp.sin(x).T, jnp.cumsum(x), x @ x
"""
SETTING = 'import jax\njax.config.update("jax_disable_most_optimizations", True)\n'
SHARED = {
    "plain": "from common import run\n",
    "setting": SETTING + "from common import run\n",
    "late": f"from common import run as plain\n\n\ndef run(x):\n"
    f"    {SETTING.splitlines()[0]}\n    {SETTING.splitlines()[1]}\n    return plain(x)\n",
    "flags": 'import os\nos.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"\n'
    'os.environ.pop("LC_ALL", None)\nfrom common import run\n',
    "again": "from common import run\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    kernels = [
        {"name": name, "entry": f"{name}.py:run", "args": {"x": "f32[128, 128]"}} for name in files
    ]
    for name, text in {**files, "common": COMMON}.items():
        (folder / f"{name}.py").write_text(text)
    spec = folder / "spec.yaml"
    spec.write_text(json.dumps({"schema": 1, "targets": ["sm_90a"], "kernels": kernels}))
    return spec


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the reports of a first and a second build of all kernels, in one process each."""
    place = tmp_path_factory.mktemp("settings")
    variants = expand(SpecReader(store=Store(place / "store")).specs([str(write(place, SHARED))]))
    return [
        build(variants, store=Store(place / "store"), options=Options(jobs=1)) for _ in range(2)
    ]


def results(report: Any) -> dict[str, Any]:
    return {result.variant.name: result for result in report.results}


def test_a_setting_of_jax_that_acts_after_lowering_counts(reports: list[Any]) -> None:
    found = results(reports[0])
    keys = {name: result.action_key for name, result in found.items()}
    assert keys["plain"] == keys["again"] == keys["flags"]
    assert keys["setting"] == keys["late"] != keys["plain"]
    digests = {name: result.artifact.digest for name, result in found.items()}
    assert digests["setting"] == digests["late"] != digests["plain"]


def test_a_variable_that_xla_reads_once_has_no_effect_and_the_report_says_so(
    reports: list[Any],
) -> None:
    notes = [note for note in reports[0].notes if "has no effect" in note]
    assert notes == [
        "flags sets LC_ALL, XLA_FLAGS, which has no effect: set it where the build is started"
    ]


def test_all_of_them_are_hits_the_second_time(reports: list[Any]) -> None:
    assert {result.status for result in reports[1].results} == {"hit"}
    first, second = (results(report) for report in reports)
    assert {n: r.artifact.digest for n, r in first.items()} == {
        n: r.artifact.digest for n, r in second.items()
    }


DECLARING = """
import os
from pathlib import Path

import pallasc

try:
    import optional_sizes
except ImportError:
    optional_sizes = None
SIZE = int((Path(__file__).parent / "size.txt").read_text()) + int(os.environ.get("MORE", "0"))
SIZE += int(os.environ.get("EVEN_MORE", "0"))
SIZE += 1000 * (optional_sizes is not None)


@pallasc.kernel(args={"x": f"f32[{SIZE}, 128]"}, targets=["sm_90a"], env=["MORE"])
def scale(x):
    return x * 2
"""


def another_size(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "size.txt").write_text("16")


def more(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MORE", "8")


def undeclared(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("EVEN_MORE", "8")


def installed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "optional_sizes.py").write_text("")


@pytest.mark.parametrize(
    ("change", "size"),
    [(another_size, 16), (more, 16), (undeclared, 8), (installed, 1008)],
)
def test_what_a_python_spec_looks_at_is_an_input_of_what_it_declares(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
    size: int,
) -> None:
    (tmp_path / "size.txt").write_text("8")
    (tmp_path / "declared.py").write_text(DECLARING)
    store = Store(tmp_path / "store")

    def sizes() -> list[str]:
        specs = SpecReader(store=store).specs([str(tmp_path / "declared.py")])
        return [str(spec.args["x"]) for spec in specs]  # type: ignore[call-overload]

    assert sizes() == ["f32[8, 128]"]
    change(tmp_path, monkeypatch)
    assert sizes() == [f"f32[{size}, 128]"]
    assert sizes() == [f"f32[{size}, 128]"]


def test_what_a_python_spec_asks_for_and_does_not_get_to_see_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "size.txt").write_text("8")
    (tmp_path / "declared.py").write_text(DECLARING)
    monkeypatch.setenv("MORE", "8")
    monkeypatch.setenv("EVEN_MORE", "8")
    for _ in range(2):  # executed, and remembered
        store = Store(tmp_path / "store")
        (spec,) = SpecReader(store=store).specs([str(tmp_path / "declared.py")])
        assert str(spec.args["x"]) == "f32[16, 128]"  # type: ignore[call-overload]
        (note,) = store.warnings
        assert note.startswith("declared.py asks for EVEN_MORE (declared.py:12), which is set here")
