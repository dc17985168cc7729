"""Bundles of a package: where they are found, and which wins where several have a kernel."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import made
import pytest
from bundle_files import add_artifact, write_bundle

import pallasc
from pallasc.errors import ArgumentError, SelectionError, SpecError, ToolError
from pallasc.runtime.opening import PATH, find_bundles
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.user_files import replace_file


class Site:
    """A folder that packages are installed into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def package(self, name: str, *bundles: str) -> Path:
        """Install a package whose import fails, with empty bundles."""
        folder = self.folder.joinpath(*name.split("."))
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        for bundle in bundles:
            (folder / bundle).touch()
        return folder

    def kernels(self, package: str, *targets: str, distribution: str = "", **changes: Any) -> Path:
        """Install a package with a bundle; a distribution makes it a provider of mylib."""
        folder = self.package(package)
        if distribution:
            self.provider(distribution, "mylib", package)
        path = folder / "kernels.pallasc"
        return write_bundle(path, *targets, **changes) if targets else path

    def provider(self, distribution: str, adds_to: str, value: str) -> None:
        """Install what says that a distribution adds to a package."""
        folder = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (folder / "entry_points.txt").write_text(f"[pallasc.bundles]\n{adds_to} = {value}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv(PATH, raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield Site(folder)
    assert not {name for name in sys.modules if name.startswith("mylib")}


def _found(package: str = "mylib") -> list[tuple[str, str]]:
    """Return file name and provider of each bundle, in order."""
    return [
        (Path(bundle.origin.file).name, bundle.origin.provider) for bundle in find_bundles(package)
    ]


def _develop(monkeypatch: pytest.MonkeyPatch, *items: Path | str) -> None:
    monkeypatch.setenv(PATH, os.pathsep.join(map(str, items)))


@pytest.mark.parametrize(
    ("value", "bundles", "reason"),
    [
        ("mylib_sm90", [], "its mylib_sm90 has no bundle"),
        ("mylib_sm90:b.pallasc", ["a.pallasc"], "its mylib_sm90 has no b.pallasc"),
        ("mylib_gone", ["a.pallasc"], "its mylib_gone cannot be found"),
        ("mylib_gone.deep", ["a.pallasc"], "its mylib_gone.deep cannot be found"),
        (".mylib_sm90", ["a.pallasc"], "its .mylib_sm90 cannot be found"),
        ("..", ["a.pallasc"], "its .. cannot be found"),
    ],
)
def test_a_broken_provider_is_refused(
    site: Site, value: str, bundles: Sequence[str], reason: str
) -> None:
    site.package("mylib", "a.pallasc")
    site.package("mylib_sm90", *bundles)
    site.provider("mylib-sm90", "mylib", value)
    with pytest.raises(ToolError, match=r"mylib-sm90 1\.0 is installed .* for mylib") as caught:
        find_bundles("mylib")
    assert reason in caught.value.message
    assert caught.value.hint == "Install it again, or remove it."


# ---- PALLASC_BUNDLE_PATH


def test_development_comes_first(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.package("mylib", "kernels.pallasc")
    built = tmp_path / "built"
    (built / "mylib").mkdir(parents=True)
    for name in ("mylib.pallasc", "mylib-sm90.pallasc", "mylib2.pallasc", "mylib/x.pallasc"):
        (built / name).touch()
    for name in ("mylib-b200.pallasc", "k.pallasc"):
        (tmp_path / name).touch()
    items = (tmp_path / "mylib-b200.pallasc", built, f"mylib={tmp_path / 'k.pallasc'}")
    _develop(monkeypatch, *items, f"other={tmp_path / 'k.pallasc'}")
    found = [(bundle.origin, bundle.rank) for bundle in find_bundles("mylib")]
    assert [(Path(origin.file).name, origin.provider, rank) for origin, rank in found] == [
        ("mylib-b200.pallasc", PATH, 0), ("mylib-sm90.pallasc", PATH, 1),
        ("mylib.pallasc", PATH, 1), ("x.pallasc", PATH, 1), ("k.pallasc", PATH, 2),
        ("kernels.pallasc", "mylib", 4),
    ]  # fmt: skip
    assert _found("other") == [("k.pallasc", PATH)]


@pytest.mark.parametrize("item", ["absent.pallasc", "absent", "mylib=absent.pallasc"])
def test_a_missing_item_is_refused(site: Site, item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.package("mylib", "kernels.pallasc")
    _develop(monkeypatch, item)
    with pytest.raises(SpecError, match=rf"absent\S*, which {PATH} names, does not exist"):
        find_bundles("mylib")


def test_a_file_of_no_package_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.package("mylib", "kernels.pallasc")
    (tmp_path / "my-own.pallasc").touch()
    _develop(monkeypatch, tmp_path / "my-own.pallasc")
    with pytest.raises(SpecError, match="is not named after a package") as caught:
        find_bundles("mylib")
    assert "PACKAGE=" in str(caught.value.hint)


# ---- nothing


def test_missing_kernels_say_where_was_looked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.package("mylib")
    with pytest.raises(ToolError) as caught:
        find_bundles("mylib")
    assert caught.value.exit_code == 4
    assert caught.value.message == (
        f"there are no kernels for mylib: no *.pallasc in {folder}; none for it in "
        f"{PATH}, which is not set; and no provider (an entry point named mylib in "
        "pallasc.bundles)."
    )
    assert caught.value.hint == (
        "Install the package that provides kernels of mylib for this GPU, if any."
    )
    _develop(monkeypatch, tmp_path)
    with pytest.raises(ToolError, match=f"none for it in {tmp_path} "):
        find_bundles("mylib")
    for name in ("mylibb", "mylibb.deep"):
        with pytest.raises(ToolError, match=rf"in {name}, which is not installed") as caught:
            find_bundles(name)
        assert "environment" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["", "my-lib", ".mylib", "my lib", "mylib/x", Path("mylib"), 3])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="is not the name of a package"):
        find_bundles(name)


# ---- kernels of several bundles


def test_providers_add_architectures(site: Site, framework: made.Framework) -> None:
    site.kernels("mylib", "a100-sxm")
    site.kernels("mylib_sm90", "h100-sxm", "a100-sxm", distribution="mylib-sm90")
    kernels = pallasc.load("mylib")
    assert [origin.provider for origin in kernels.origins] == ["mylib", "mylib-sm90 1.0"]
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
    # The artifact that is in both is there once, from the first.
    found = [(own.id, own.origin.provider) for own in kernels["add"].variants if own.origin]
    assert found == [("add[n=64]@a100-sxm", "mylib"), ("add[n=64]@h100-sxm", "mylib-sm90 1.0")]


def test_a_missing_provider_is_named(site: Site, framework: made.Framework) -> None:
    site.kernels("mylib", "a100-sxm")
    site.kernels("mylib_sm100", "b200", distribution="mylib-sm100")
    with pytest.raises(SelectionError) as caught:
        pallasc.load("mylib")["add"].prepare("f32[4, 64]", "f32[4, 64]")
    assert caught.value.exit_code == 4
    gpu = "GPU 0 (Stand-in H100, sm_90)"
    assert caught.value.message == (
        f"no variant of add fits {gpu}:\n"
        "  add[n=64]@a100-sxm: sm_80 runs on sm_80 and newer ones of its family, and this GPU is "
        "sm_90\n"
        "  add[n=64]@b200: sm_100a runs on exactly sm_100, and this GPU is sm_90"
    )
    assert caught.value.hint == (
        "No installed provider of mylib supports sm_90; installed: mylib, mylib-sm100 1.0."
    )


def _write_another(path: Path) -> Path:
    """Write a bundle with another artifact of the same variant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = add_artifact(toolchain={"ptxas": "another"})
    replace_file(path, build_bundle([Item("add", {"n": 64}, other)], level=3))
    return path


def test_two_artifacts_of_one_variant_are_refused_with_both_files(site: Site) -> None:
    first = site.kernels("mylib", "h100-sxm")
    second = _write_another(site.kernels("mylib_sm90", distribution="mylib-sm90"))
    with pytest.raises(SelectionError, match=r"two artifacts of add\[n=64\]@h100-sxm") as caught:
        pallasc.load("mylib")["add"]
    assert f"from mylib ({first})" in caught.value.message
    assert f"from mylib-sm90 1.0 ({second})" in caught.value.message
