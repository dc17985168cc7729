"""What is packed for a machine with a GPU, and what is refused."""

from __future__ import annotations

import glob
import os
import zipfile
from pathlib import Path, PurePath

from gpu_scripts import SCRIPTS, run_script

import pallasc


def test_the_wheel_that_is_packed_has_every_package(tmp_path: Path) -> None:
    code = "import pathlib, pack, sys; pack.build_wheel(pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]))
    done = run_script("-c", code, tmp_path, environment={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    package = Path(pallasc.__file__).parent
    found_here = glob.glob("**/__init__.py", root_dir=package, recursive=True)  # through links too
    wanted = {str(PurePath("pallasc", name).parent) for name in found_here}
    with zipfile.ZipFile(wheel) as file:
        found = {str(PurePath(name).parent) for name in file.namelist() if name.endswith(".py")}
    assert found == wanted


def test_packing_does_not_write_into_a_folder_that_is_there(tmp_path: Path) -> None:
    done = run_script(SCRIPTS / "pack.py", tmp_path)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_packing_for_a_machine_with_another_jax_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("jax==0.1.2\nnumpy==2.0\n")
    done = run_script(SCRIPTS / "pack.py", tmp_path / "new", "--there", tmp_path / "there.txt")
    assert done.returncode == 1
    assert "and 0.1.2 on the machine with the GPU" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_list_of_packages_in_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("Package Version\n------- -------\nnumpy   2.0\n")
    done = run_script(SCRIPTS / "pack.py", tmp_path / "new", "--there", tmp_path / "there.txt")
    assert done.returncode == 1
    assert "there.txt does not list packages" in done.stderr
