"""Where the bundles of a package are found: for development, in the package, in provider wheels."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pallasc.errors import ArgumentError, SpecError, ToolError
from pallasc.runtime.opening import PATH, find_bundles


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

    def provider(self, distribution: str, adds_to: str, value: str) -> Path:
        """Install what says that a distribution adds to a package."""
        folder = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (folder / "entry_points.txt").write_text(f"[pallasc.bundles]\n{adds_to} = {value}\n")
        return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.delenv(PATH, raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return Site(folder)


def _found(package: str = "mylib") -> list[tuple[str, str]]:
    """Return file name and provider of each bundle, in order."""
    return [
        (Path(bundle.origin.file).name, bundle.origin.provider) for bundle in find_bundles(package)
    ]


def _develop(monkeypatch: pytest.MonkeyPatch, *items: Path | str) -> None:
    monkeypatch.setenv(PATH, os.pathsep.join(map(str, items)))


def test_bundles_lie_directly_in_the_package(site: Site) -> None:
    folder = site.package("mylib", "b.pallasc", "a.pallasc", "kernels.txt")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "c.pallasc").touch()
    assert _found() == [("a.pallasc", "mylib"), ("b.pallasc", "mylib")]
    assert "mylib" not in sys.modules


def test_a_package_inside_another_is_found(site: Site) -> None:
    (site.package("group") / "__init__.py").write_text("")
    site.package("group.mylib", "a.pallasc")
    assert _found("group.mylib") == [("a.pallasc", "group.mylib")]


def test_a_package_can_ask_while_it_is_imported(site: Site, fresh_process: object) -> None:
    folder = site.package("mylib", "a.pallasc")
    (folder / "__init__.py").write_text(
        "from pallasc.runtime.opening import find_bundles\nfound = find_bundles(__name__)\n"
    )
    done = fresh_process(  # type: ignore[operator]
        f"import sys; sys.path.insert(0, {str(site.folder)!r})\n"
        "import mylib; print([one.file.name for one in mylib.found])"
    )
    assert done.stdout == "['a.pallasc']\n", done.stderr


def test_bundles_in_a_zip_file_are_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped/__init__.py", "")
        file.writestr("zipped/kernels.pallasc", b"content")
    monkeypatch.syspath_prepend(archive)
    (found,) = find_bundles("zipped")
    assert found.origin.file == str(archive / "zipped" / "kernels.pallasc")
    assert found.file.read_bytes() == b"content"


@pytest.mark.parametrize("adds_to", ["mylib", "MyLib"])
@pytest.mark.parametrize("value", ["mylib_sm90", "mylib_sm90:b.pallasc", "mylib_sm90 : b.pallasc"])
def test_providers_add_to_a_package(site: Site, adds_to: str, value: str) -> None:
    site.package("mylib", "a.pallasc")
    site.package("mylib_sm90", "b.pallasc", *(["c.pallasc"] if ":" in value else []))
    site.provider("mylib-sm90", adds_to, value)
    assert _found() == [("a.pallasc", "mylib"), ("b.pallasc", "mylib-sm90 1.0")]
    assert "mylib_sm90" not in sys.modules


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
def test_a_provider_without_its_bundle_is_refused(
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


def test_bundles_for_development_come_first(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.package("mylib", "kernels.pallasc")
    built = tmp_path / "built"
    (built / "mylib").mkdir(parents=True)
    for name in ("mylib.pallasc", "mylib-sm90.pallasc", "mylib2.pallasc", "mylib/x.pallasc"):
        (built / name).touch()
    (tmp_path / "mylib-b200.pallasc").touch()
    _develop(monkeypatch, tmp_path / "mylib-b200.pallasc", built)
    found = find_bundles("mylib")
    assert [(Path(bundle.origin.file).name, bundle.rank) for bundle in found] == [
        ("mylib-b200.pallasc", 0),
        ("mylib-sm90.pallasc", 1),
        ("mylib.pallasc", 1),
        ("x.pallasc", 1),
        ("kernels.pallasc", 2),
    ]
    assert {bundle.origin.provider for bundle in found[:-1]} == {PATH}


def test_development_needs_no_installed_package(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mylib.pallasc").touch()
    _develop(monkeypatch, tmp_path)
    assert _found() == [("mylib.pallasc", PATH)]


def test_an_item_can_name_the_package_that_it_is_for(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.package("other", "o.pallasc")
    (tmp_path / "k.pallasc").touch()
    _develop(monkeypatch, f"mylib={tmp_path / 'k.pallasc'}", f"other={tmp_path}")
    assert _found() == [("k.pallasc", PATH)]
    assert _found("other") == [("k.pallasc", PATH), ("o.pallasc", "other")]


@pytest.mark.parametrize("item", ["absent.pallasc", "absent", "mylib=absent.pallasc"])
def test_a_missing_item_is_refused(site: Site, item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.package("mylib", "kernels.pallasc")
    _develop(monkeypatch, item)
    with pytest.raises(SpecError, match=rf"absent\S*, which {PATH} names, does not exist"):
        find_bundles("mylib")


def test_a_file_that_is_for_nobody_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.package("mylib", "kernels.pallasc")
    (tmp_path / "my-own.pallasc").touch()
    _develop(monkeypatch, tmp_path / "my-own.pallasc")
    with pytest.raises(SpecError, match="is not named after a package") as caught:
        find_bundles("mylib")
    assert "package=" in str(caught.value.hint)


# ---- nothing


def test_what_was_looked_at_is_said_where_nothing_is_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.package("mylib")
    with pytest.raises(ToolError) as caught:
        find_bundles("mylib")
    assert caught.value.exit_code == 4
    assert caught.value.message == (
        f"there are no kernels for mylib: no *.pallasc in {folder}; none for it in "
        f"{PATH}, which is not set; and no provider, which would be an entry point named mylib in "
        "pallasc.bundles."
    )
    assert caught.value.hint == (
        "Install the package that has the kernels of mylib for this GPU, if there is one."
    )
    _develop(monkeypatch, tmp_path)
    with pytest.raises(ToolError, match=f"none for it in {tmp_path} "):
        find_bundles("mylib")


def test_a_package_that_is_not_installed_is_said_to_be_so(site: Site) -> None:
    with pytest.raises(ToolError, match=r"in mylibb, which is not installed") as caught:
        find_bundles("mylibb")
    assert "environment" in str(caught.value.hint)
    with pytest.raises(ToolError, match=r"in mylibb\.deep, which is not installed"):
        find_bundles("mylibb.deep")


@pytest.mark.parametrize("name", ["", "my-lib", ".mylib", "my lib", "mylib/x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="is not the name of a package"):
        find_bundles(name)
