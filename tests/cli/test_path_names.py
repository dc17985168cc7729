"""Folders whose names are not UTF-8, or not in the character set of the locale."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pallasc.cache.store import Store

KERNELS = """\
import pathlib

from jax.experimental.pallas import mosaic_gpu as plgpu

TABLE = (pathlib.Path(__file__).parent / "table.txt").read_text()


def good(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    return plgpu.kernel(body, out_type=x)(x)


def twice(x):
    return x * 2


def bad(x):
    raise ValueError(f"not in {__file__}")
"""
SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: good, entry: "kernels.py:good", args: {x: "f32[128]"}, reference: "kernels.py:twice"}
  - {name: bad, entry: "kernels.py:bad", args: {x: "f32[128]"}}
"""
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_commands_work_in_a_folder_of_any_name_in_any_locale(
    tmp_path: Path, warm_store: Store
) -> None:
    folder, shown = tmp_path / os.fsdecode(b"caf\xe9"), r"caf\xe9"
    folder.mkdir()
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "table.txt").write_text("1")
    (folder / "spec.yaml").write_text(SPEC)
    shutil.copytree(warm_store.folder, tmp_path / "store" / "v1")

    def run(*arguments: str, code: int = 0, **locale: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pallasc", *arguments],
            cwd=folder, check=False, capture_output=True, encoding="utf-8",
            env={**os.environ, **locale, "PALLASC_CACHE_DIR": str(tmp_path / "store")},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    spec = str(folder / "spec.yaml")
    first = run("build", spec, "--jobs", "1", "--junit", "junit.xml", code=1)
    assert f"{shown}/kernels.py: ValueError: not in {tmp_path}/{shown}/kernels.py" in (
        first.stderr.replace(":20:", ":")
    )
    assert shown in (folder / "junit.xml").read_text(encoding="utf-8")
    again = run("build", spec, "-k", "good", **ASCII_ONLY)
    assert "hit       good@h100-sxm" in again.stderr
    listed = json.loads(run("list", spec, "--json", **ASCII_ONLY).stdout)
    assert listed["variants"][0]["file"] == f"{tmp_path}/{shown}/spec.yaml"
    run("check", spec, "-k", "good", "--level", "interpreter", "--sarif", "found.sarif")
    run("report", spec, "-k", "good", "--output", "report.html")
    run("bundle", "create", spec, "-k", "good", "--output", "good.pallasc")
    run("lock", spec, "-k", "good", "--update", **ASCII_ONLY)
    run("build", spec, "-k", "good", "--frozen", **ASCII_ONLY)
