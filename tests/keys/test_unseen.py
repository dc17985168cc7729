"""What has no digest is not remembered, and the build says so; it never fails the build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.build import build
from pallasc.compiler.collect import collect
from pallasc.errors import SpecError
from pallasc.specs.matrix import expand

KERNELS = {
    "plain": "def run(x): return x * 2\n",
    "program": "import subprocess\ndef run(x):\n    subprocess.run(['true'])\n    return x * 3\n",
    "system": "import os\ndef run(x):\n    os.system('true')\n    return x * 4\n",
    "proc": "def run(x):\n    open('/proc/cpuinfo').close()\n    return x * 5\n",
    "bytes": "import os\ndef run(x):\n    try: os.environ[b'PATH']\n    except TypeError: pass\n"
    "    return x * 6\n",
}
SAID = {
    "program": "_pallasc_spec_program ran another program, of which no digest can be taken",
    "system": "_pallasc_spec_system ran another program, of which no digest can be taken",
    "proc": "_pallasc_spec_proc read /proc/cpuinfo, of which no digest can be taken",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the reports of a first and a second build."""
    place = tmp_path_factory.mktemp("unseen")
    for name, text in KERNELS.items():
        (place / f"{name}.py").write_text(text)
    kernels = [{"name": n, "entry": f"{n}.py:run", "args": {"x": "f32[128]"}} for n in KERNELS]
    spec = place / "spec.yaml"
    spec.write_text(json.dumps({"schema": 1, "targets": ["sm_90a"], "kernels": kernels}))
    variants = expand(collect([str(spec)], store=Store(place / "store")))
    return [build(variants, store=Store(place / "store"), jobs=1) for _ in range(2)]


def test_everything_compiles_whatever_it_did(reports: list[Any]) -> None:
    assert [str(result.error) for result in reports[0].failed] == []
    assert len(reports[0].compiled) == len(KERNELS)


def test_what_has_no_digest_is_said_by_both_builds(reports: list[Any]) -> None:
    for report in reports:
        for name, sentence in SAID.items():
            assert f"{name}@h100-sxm will be lowered again: {sentence}" in report.notes


def test_what_has_no_digest_is_lowered_again_and_the_rest_is_a_hit(reports: list[Any]) -> None:
    reasons = {result.variant.name: result.reason for result in reports[1].results}
    assert {name for name, reason in reasons.items() if reason} == set(SAID)
    assert {result.status for result in reports[1].results} == {"hit"}


def test_a_wrong_limit_is_said_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "bogus")
    with pytest.raises(SpecError, match="bogus"):
        build([], store=Store(tmp_path))
