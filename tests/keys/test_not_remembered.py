"""What has no digest is not remembered, and the build says so; it never fails the build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

KERNELS = {
    "plain": "def run(x): return x * 2\n",
    "program": "import subprocess\ndef run(x):\n    subprocess.run(['true'])\n    return x * 3\n",
    "proc": "def run(x):\n    open('/proc/cpuinfo').close()\n    return x * 5\n",
    "bytes": "import os\ndef run(x):\n    try: os.environ[b'PATH']\n    except TypeError: pass\n"
    "    return x * 6\n",
    "asks": "import os\nDEBUG = os.path.exists(__file__ + '.debug')\n"
    "def run(x): return x * (9 + DEBUG)\n",
}
SAID = {
    "program": "program.py ran another program, whose digest cannot be computed",
    "proc": "proc.py read /proc/cpuinfo, whose digest cannot be computed",
}


def variants_of(place: Path, kernels: dict[str, str]) -> list[Variant]:
    for name, text in kernels.items():
        (place / f"{name}.py").write_text(text)
    declared = [{"name": n, "entry": f"{n}.py:run", "args": {"x": "f32[128]"}} for n in kernels]
    spec = place / "spec.yaml"
    spec.write_text(json.dumps({"schema": 1, "targets": ["sm_90a"], "kernels": declared}))
    return expand(load_yaml(spec))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> list[Any]:
    """Return the reports of a first, a second and a third build; a file came before the third."""
    place = tmp_path_factory.mktemp("unseen")
    shutil.copytree(warm_store.root, place / "store")
    variants, store = variants_of(place, KERNELS), Store(place / "store")
    found = [build(variants, store=store, options=Options(jobs=1)) for _ in range(2)]
    (place / "asks.py.debug").touch()
    return [*found, build(variants, store=Store(place / "store"), options=Options(jobs=1))]


def test_what_has_no_digest_is_said_and_lowered_again_and_the_rest_is_a_hit(
    reports: list[Any],
) -> None:
    assert [(r.status, r.error) for r in reports[0].results] == [("compiled", None)] * len(KERNELS)
    for report in reports:
        for name, sentence in SAID.items():
            assert f"{name}@h100-sxm will be lowered again: {sentence}" in report.notes
    assert {r.variant.name: (r.status, bool(r.reason)) for r in reports[1].results} == {
        name: ("lowered", True) if name in SAID else ("hit", False) for name in KERNELS
    }


def test_a_file_that_somebody_asked_for_is_noticed_when_it_comes(reports: list[Any]) -> None:
    assert [(r.variant.name, r.reason) for r in reports[2].compiled] == [
        ("asks", "asks.py.debug has been created since")
    ]


def test_a_wrong_limit_is_said_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "bogus")
    with pytest.raises(SpecError, match="bogus"):
        build(variants_of(tmp_path, {"late": "def run(x): return x\n"}), store=Store(tmp_path))
