"""What the user's code changes in the compiling process: counted where it acts, else undone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

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


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> list[Any]:
    """Return the reports of a first and a second build of all kernels, in one process each."""
    place = tmp_path_factory.mktemp("settings")
    shutil.copytree(warm_store.root, place / "store")
    for name, text in {**SHARED, "common": COMMON}.items():
        (place / f"{name}.py").write_text(text)
    kernels = [{"name": n, "entry": f"{n}.py:run", "args": {"x": "f32[128, 128]"}} for n in SHARED]
    spec = place / "spec.yaml"
    spec.write_text(json.dumps({"schema": 1, "targets": ["sm_90a"], "kernels": kernels}))
    variants, store = expand(load_yaml(spec)), Store(place / "store")
    return [build(variants, store=store, options=Options(jobs=1)) for _ in range(2)]


def test_a_setting_of_jax_that_acts_after_lowering_counts(reports: list[Any]) -> None:
    found = {result.variant.name: result for result in reports[0].results}
    keys = {name: result.action_key for name, result in found.items()}
    assert keys["plain"] == keys["again"] == keys["flags"]
    assert keys["setting"] == keys["late"] != keys["plain"]
    digests = {name: result.artifact.digest for name, result in found.items()}
    assert digests["setting"] == digests["late"] != digests["plain"]


def test_a_variable_that_xla_reads_once_has_no_effect_and_the_report_says_so(
    reports: list[Any],
) -> None:
    assert reports[0].notes == (
        "flags sets LC_ALL, XLA_FLAGS, which has no effect: set it where the build is started",
    )
    assert {result.status for result in reports[1].results} == {"hit"}


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


@pytest.mark.parametrize(
    ("name", "value", "size"),
    [("size.txt", "16", 16), ("MORE", "8", 16), ("EVEN_MORE", "8", 8),
     ("optional_sizes.py", "", 1008)],
)  # fmt: skip
def test_what_a_python_spec_looks_at_is_an_input_of_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, size: int
) -> None:
    (tmp_path / "size.txt").write_text("8")
    (tmp_path / "declared.py").write_text(DECLARING)

    def declared() -> tuple[str, list[str]]:
        store = Store(tmp_path / "store")
        (spec,) = SpecReader(store=store).specs([str(tmp_path / "declared.py")])
        return str(spec.args["x"]), store.warnings  # type: ignore[call-overload]

    assert declared() == ("f32[8, 128]", [])
    if name.isupper():
        monkeypatch.setenv(name, value)
    else:
        (tmp_path / name).write_text(value)
    for _ in range(2):  # executed, and remembered
        array, notes = declared()
        assert array == f"f32[{size}, 128]"
        assert len(notes) == (name == "EVEN_MORE")
        said = "declared.py asks for EVEN_MORE (declared.py:12), which is set here"
        assert all(note.startswith(said) for note in notes)
