"""The program of docs/tutorial.md launches what the page compiles, on the stand-in driver.

tests/test_docs.py runs the commands of the page; here the program runs where there is a GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import native_build
import page_programs
import pytest
import standin as control

from pallasc.cache.store import Store

PAGE = page_programs.DOCS / "tutorial.md"


def test_the_program_of_the_page_launches_its_kernel(tmp_path: Path, warm_store: Store) -> None:
    if reason := control.why_not():
        pytest.skip(reason)
    for block in page_programs.BLOCK.finditer(PAGE.read_text("utf-8")):
        if named := re.match(r"# ([\w./-]+)\n", block["text"]):
            file = tmp_path / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"])
    shutil.copytree(warm_store.root, tmp_path / "store")
    given = {**control.environment(devices="9.0"), "PALLASC_NATIVE": str(native_build.build())}
    environment = page_programs.environment(given, tmp_path)
    bundle = "pallasc bundle create kernels --target h100-sxm -o src/gated/kernels.pallasc"
    page_programs.run([["bash", "-c", bundle]], tmp_path, environment)
    done = subprocess.run(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.match(r"with_jax [-\d.e]+\nwith_torch ", done.stdout), done.stdout + done.stderr
