"""Which files a folder of specs stands for, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.yaml_loader import spec_files

YAML = "schema: 1\nkernels: []\n"
DECORATED = "import pallasc\n@pallasc.kernel(args={})\ndef f(x): ...\n"


def found(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of what a folder stands for, and what is said."""
    told: list[str] = []
    files = spec_files([folder], on_skip=told.append)
    return [Path(file).name for file in files], told


@pytest.mark.parametrize(
    "text",
    [
        "import pallasc as p\n@p.kernel(args={})\nasync def f(x): ...\n",
        "from pallasc import kernel as k\nk(args={})(print)\n",
        "from pallasc import *\nkernel(args={})(print)\n",
        "from pallasc.specs.loading.decorator import kernel\n"
        "class A:\n    kernel(args={})(print)\n",
        "import pallasc\nif True:\n    for n in (1, 2):\n        pallasc.declare(entry='a:b')\n",
        "from pallasc import declare\n[declare(entry=e) for e in ()]\n",
        "import pallasc\npallasc.kernel(\n",
        f"import pallasc  # kernel\nx = {'1 + ' * 20_000}1\n",
    ],
    ids=range(8),
)
def test_python_files_that_declare_kernels_are_specs(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "b.py").write_text(text)
    (tmp_path / "c.yml").write_text(YAML)
    assert found(tmp_path) == (["a.yaml", "b.py", "c.yml"], [])


@pytest.mark.parametrize(
    "text",
    [
        "def kernel(): ...\nkernel()\n",
        "import pallasc\nartifact = pallasc.compile(print)\n",
        "from other import kernel\n# not of pallasc\nkernel()\n",
        "import other as pallasc_kernel\n",
    ],
)
def test_other_python_files_are_not_and_need_no_word(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "b.py").write_text(text)
    assert found(tmp_path) == (["a.yaml"], [])


def test_folders_inside_are_named_where_they_have_specs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    for name in ("sub", "deep", ".hidden", "__pycache__", "venv", "plain"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sub" / "b.yaml").write_text(YAML)
    (tmp_path / "deep" / "c.py").write_text(DECORATED)
    (tmp_path / ".hidden" / "d.yaml").write_text(YAML)
    (tmp_path / "__pycache__" / "d.yaml").write_text(YAML)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "venv" / "e.yaml").write_text(YAML)
    (tmp_path / "plain" / "config.yaml").write_text("kernels: 3\n")
    assert found(tmp_path) == (
        ["a.yaml"],
        [
            f"specs in {tmp_path}/deep, {tmp_path}/sub, {tmp_path}/venv are not read: name the "
            "folders to read them."
        ],
    )
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(SpecError, match=r"in this folder\. .*/deep has some: name it\."):
        found(tmp_path)
