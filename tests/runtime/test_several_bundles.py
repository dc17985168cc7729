"""Kernels from several bundles: providers, wheels in zip files, and the order in which they win."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made
import pytest
from bundle_files import add_artifact, write_bundle

import pallasc
from pallasc.errors import SelectionError, ToolError
from pallasc.runtime.opening import PATH
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.user_files import replace_file


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install packages with bundles into a folder; a distribution makes one a provider."""
    monkeypatch.delenv(PATH, raising=False)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(package: str, *targets: str, distribution: str = "", **changes: Any) -> Path:
        folder = site / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        if distribution:
            info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(f"[pallasc.bundles]\nmylib = {package}\n")
        path = folder / "kernels.pallasc"
        return write_bundle(path, *targets, **changes) if targets else path

    yield add
    assert not {name for name in sys.modules if name.startswith("mylib")}


def test_providers_add_architectures(
    install: Callable[..., Path], framework: made.Framework
) -> None:
    install("mylib", "a100-sxm")
    install("mylib_sm90", "h100-sxm", distribution="mylib-sm90")
    kernels = pallasc.load("mylib")
    assert [kernel.provider for kernel in kernels.origins] == ["mylib", "mylib-sm90 1.0"]
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
    assert {candidate.arch for candidate in kernels["add"].variants} == {"sm_80", "sm_90a"}


def test_a_missing_provider_is_named_and_no_other_architecture_runs(
    install: Callable[..., Path], framework: made.Framework
) -> None:
    base = install("mylib", "a100-sxm")
    blackwell = install("mylib_sm100", "b200", distribution="mylib-sm100")
    with pytest.raises(SelectionError) as caught:
        pallasc.load("mylib")["add"].prepare("f32[4, 64]", "f32[4, 64]")
    assert caught.value.exit_code == 4
    gpu = "GPU 0 (Stand-in H100, sm_90)"
    assert caught.value.message == (
        f"no variant of add fits {gpu}:\n"
        "  add[n=64]@a100-sxm: sm_80 runs on sm_80 and newer ones of its family, and this GPU is "
        "sm_90\n"
        "  add[n=64]@b200: sm_100a runs on exactly sm_100, and this GPU is sm_90\n"
        "There are variants for other architectures only:\n"
        f"  sm_80 from mylib ({base})\n"
        f"  sm_100a from mylib-sm100 1.0 ({blackwell})"
    )
    assert caught.value.hint == (
        "No installed provider of mylib supports sm_90; installed: mylib, mylib-sm100 1.0."
    )


def test_the_same_artifact_in_two_bundles_is_one(install: Callable[..., Path]) -> None:
    install("mylib", "h100-sxm", "a100-sxm")
    install("mylib_sm90", "h100-sxm", distribution="mylib-sm90")
    variants = pallasc.load("mylib")["add"].variants
    assert [candidate.id for candidate in variants] == ["add[n=64]@a100-sxm", "add[n=64]@h100-sxm"]
    assert {str(candidate.origin.provider) for candidate in variants if candidate.origin} == {
        "mylib"
    }


def _write_another(path: Path) -> Path:
    """Write a bundle with another artifact of the same variant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = add_artifact(toolchain={"ptxas": "another"})
    replace_file(path, build_bundle([Item("add", {"n": 64}, other)], level=3))
    return path


def test_two_artifacts_of_one_variant_are_refused_with_both_files(
    install: Callable[..., Path],
) -> None:
    first = install("mylib", "h100-sxm")
    second = _write_another(install("mylib_sm90", distribution="mylib-sm90"))
    with pytest.raises(SelectionError, match=r"two artifacts of add\[n=64\]@h100-sxm") as caught:
        pallasc.load("mylib")["add"]
    assert f"from mylib ({first})" in caught.value.message
    assert f"from mylib-sm90 1.0 ({second})" in caught.value.message


def test_development_wins_for_the_architectures_that_it_has(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = install("mylib", "h100-sxm", "b200", columns=(64, 128))
    developed = _write_another(tmp_path / "built" / "mylib.pallasc")
    monkeypatch.setenv(PATH, str(developed.parent))
    variants = pallasc.load("mylib")["add"].variants
    assert {
        (candidate.id, candidate.origin.file) for candidate in variants if candidate.origin
    } == {
        ("add[n=64]@h100-sxm", str(developed)),
        ("add[n=64]@b200", str(installed)),
        ("add[n=128]@b200", str(installed)),
    }
    assert [origin.provider for origin in pallasc.load("mylib").origins] == [PATH, "mylib"]


def test_a_bundle_in_a_zip_file_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: made.Framework
) -> None:
    bundle = write_bundle(tmp_path / "k.pallasc", "h100-sxm")
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zipped_lib/__init__.py", "raise RuntimeError('imported')")
        file.write(bundle, "zipped_lib/kernels.pallasc")
    monkeypatch.syspath_prepend(archive)
    kernels = pallasc.load("zipped_lib")
    assert kernels.origins[0].file == str(archive / "zipped_lib" / "kernels.pallasc")
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


def test_no_bundle_is_an_error_that_says_where_was_looked(install: Callable[..., Path]) -> None:
    folder = install("mylib").parent
    with pytest.raises(ToolError, match="there are no kernels for mylib") as caught:
        pallasc.load("mylib")
    assert str(folder) in caught.value.message


_PACKAGE = """
import sys
sys.path.insert(0, sys.argv[1])
import ownlib
ownlib.kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
"""


def test_a_package_loads_its_kernels_while_it_is_imported(
    tmp_path: Path, fresh_process: Any
) -> None:
    write_bundle(tmp_path / "ownlib" / "kernels.pallasc", "h100-sxm")
    (tmp_path / "ownlib" / "__init__.py").write_text(
        "import pallasc\nkernels = pallasc.load(__name__)\n"
    )
    done = fresh_process(_PACKAGE, str(tmp_path))
    assert done.returncode == 0, done.stderr
