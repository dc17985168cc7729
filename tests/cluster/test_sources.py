"""The files that are sent to a cluster."""

import os
from pathlib import Path

import pytest

from pallasc.compiler.workers import cluster_worker as module
from pallasc.compiler.workers.cluster_worker import SentSources, sources_of
from pallasc.errors import ToolError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: k, entry: "ENTRY", args: {x: "f32[8]"}FILES}
"""


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent(folder: Path, entry: str = "kernel.py:run", files: str = "") -> SentSources:
    (folder / "spec.yaml").write_text(
        SPEC.replace("ENTRY", entry).replace("FILES", files and f", files: [{files}]")
    )
    return sources_of(expand(load_yaml(folder / "spec.yaml")), without=[str(folder / "left_out")])


def names(result: SentSources, folder: Path) -> set[str]:
    return {os.path.relpath(path, folder) for path in result.files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    write(tmp_path / "specs", kernel="def run(x): return x\n")
    return tmp_path / "specs"


def test_all_below_the_folder_is_sent_but_what_no_kernel_needs(folder: Path) -> None:
    for name in (
        "data/table.json", ".hidden/x", ".env", "__pycache__/k.pyc", "venv/pyvenv.cfg",
        "venv/lib/x.py", "left_out/x", "store/v1/cas/aa", "node_modules/x", "deep/er/h.py",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert names(sent(folder), folder) == {
        "spec.yaml", "kernel.py", "data/table.json", "deep/er/h.py"
    }  # fmt: skip


def test_files_with_credentials_and_keys_stay_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, kernel="import inner.deep\ndef run(x): return x\n", inner_in_deep="")
    for name in ("gha-creds-1.json", "store.key", "inner/token"):
        (folder / name).write_text("secret")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "gha-creds-1.json"))
    monkeypatch.setenv("PALLASC_STORE_KEY", "store.key")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(folder / "inner" / "token"))
    result = sent(folder)
    assert names(result, folder) == {"spec.yaml", "kernel.py", "inner/deep.py"}
    assert b"secret" not in result.files.values()
    assert "store.key" in names(sent(folder, files="store.key"), folder)


@pytest.mark.parametrize(
    "variable",
    [
        *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AZURE_FEDERATED_TOKEN_FILE"),
        *("CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE", "GOOGLE_GHA_CREDS_PATH", "NETRC"),
    ],
)
def test_the_file_of_a_variable_for_credentials_stays_here(
    variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "secret").write_text("secret")
    assert "secret" in names(sent(folder), folder)
    monkeypatch.setenv(variable, str(folder / "secret"))
    assert "secret" not in names(sent(folder), folder)


def test_large_files_are_sent_where_a_spec_declares_them_and_not_too_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_FILE_BYTES", 500)
    (folder / "large.bin").write_bytes(b"x" * 501)
    (folder / "small.bin").write_bytes(b"x" * 500)
    assert names(sent(folder), folder) == {"spec.yaml", "kernel.py", "small.bin"}
    assert "large.bin" in names(sent(folder, files="large.bin"), folder)
    monkeypatch.setattr(module, "MOST_FILES", 2)
    with pytest.raises(ToolError, match="there is too much to send to a cluster"):
        sent(folder)


def test_an_entry_that_is_a_module_elsewhere_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder.parent / "other"
    write(other, mine_in___init__="", mine_in_kernels="def run(x): return x\n")
    monkeypatch.syspath_prepend(str(other))
    result = sent(folder, "mine.kernels:run")
    assert {"mine/__init__.py", "mine/kernels.py"} <= names(result, other)
    assert result.path == [str(other)]
