"""The text of `--executor`."""

import sys
from pathlib import Path

import pytest

from pallasc.cli.main import main
from pallasc.compiler.workers.cluster import scheduler_url
from pallasc.errors import SpecError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (" dask: ", ""),
        ("dask://head", "tcp://head:8786"),
        ("dask://head:8786/", "tcp://head:8786"),
        ("dask://[::1]:8786", "tcp://[::1]:8786"),
        ("dask+tls://head.example.org", "tls://head.example.org:8786"),
    ],
)
def test_an_address_is_a_scheduler(text: str, url: str) -> None:
    assert scheduler_url(text) == url


@pytest.mark.parametrize(
    "text",
    ["", "dask", "dask:/", "dask://", "dask://:8786", "dask://a:0", "dask://a:70000", "tcp://a:1",
     "dask://a b", "dask://user:secret@a:1", "ray://a", "dask://a:1/path", "dask://a:x"],
)  # fmt: skip
def test_what_is_no_scheduler_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not the address of a scheduler") as caught:
        scheduler_url(text)
    assert "dask://HOST:8786" in str(caught.value)
    assert "secret" not in str(caught.value)


SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: k, entry: "kernel.py:run", args: {x: "f32[8]"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a spec, which is the current one."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "kernel.py").write_text("def run(x): return x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BUILD = ["build", "spec.yaml", "--store", "store"]


def test_a_build_refuses_what_is_no_scheduler_wherever_it_is_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = "'ray://head' is not the address of a scheduler."
    assert main([*BUILD, "--executor", "ray://head"]) == 2
    assert f"error: --executor: {wrong}" in capfd.readouterr().err
    project = folder / "pyproject.toml"
    project.write_text('[tool.pallasc]\nexecutor = "ray://head"\n')
    assert main(BUILD) == 2
    assert f"error: {project}:2: executor: {wrong}" in capfd.readouterr().err
    monkeypatch.setenv("PALLASC_EXECUTOR", "ray://head")
    assert main(BUILD) == 2
    assert f"error: PALLASC_EXECUTOR: {wrong}" in capfd.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_build_without_dask_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main([*BUILD, "--executor", "dask:"]) == 4
    assert 'pip install "pallasc[dask]"' in capfd.readouterr().err
