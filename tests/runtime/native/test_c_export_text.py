"""`pallasc bundle export --c`: what it writes, what it refuses, and names that strangers chose."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_files
import c_exports
import made
import pytest

from pallasc.cli.main import main
from pallasc.runtime.native.library import FOLDER
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.c_export import LIBRARY_SOURCES, name_from
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `pallasc bundle export --c`."""

    def run_here(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["bundle", "export", "--c", *map(str, arguments)])
        return (code, *capfd.readouterr())

    return run_here


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the small bundle."""
    return c_exports.small_bundle(tmp_path_factory.mktemp("bundle") / "my-kernels.pallasc")


def _written(path: Path, *items: Any) -> Path:
    path.write_bytes(build_bundle(items, level=3))
    return path


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_json_names_functions_and_plans(run: Run, bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code, out, err = run(bundle, "-o", folder, "--json", "-k", "spread or n=64")
    assert (code, err) == (0, f"wrote 2 kernels with 4 variants to {folder}\n")
    told = json.loads(out)
    add, spread = told.pop("kernels")
    assert told == {
        "schema": 1, "file": str(bundle), "folder": str(folder), "name": "my_kernels"
    }  # fmt: skip
    assert (add["name"], add["function"], len(add["variants"])) == ("add", "my_kernels_add", 3)
    (variant,) = spread["variants"]
    file = folder / variant["file"]
    assert variant == {
        "id": "spread@h100-sxm",
        "arch": "sm_90a",
        "file": "plans/spread-h100-sxm.plan",
        "bytes": file.stat().st_size,
        "chosen_by": None,
    }
    assert file.read_bytes()[:8] == b"PALLASC\n"
    header = (folder / "include" / "my_kernels" / "my_kernels.h").read_text()
    row = "add[n=64]@b200: a: f32[4, 64], b: f32[4, 64] -> out: f32[4, 64]"
    assert f"/* add\n *   {row}\n" in header


def test_the_same_variants_give_the_same_bytes(run: Run, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "my-kernels.pallasc"
    copy.parent.mkdir()
    shutil.copy(bundle, copy)
    for file, folder in ((bundle, "first"), (copy, "second")):
        assert run(file, "-o", tmp_path / folder)[0] == 0
    assert _content(tmp_path / "first") == _content(tmp_path / "second")


def test_an_export_is_replaced_and_other_work_is_not(
    run: Run, bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    assert run(bundle, "-o", folder)[0] == 0
    assert run(bundle, "-o", folder, "--name", "other", "--target", "b200")[0] == 0
    assert (folder / "include" / "other" / "other.h").is_file()
    assert not (folder / "include" / "my_kernels").exists()
    (folder / "notes.txt").write_text("mine")
    before = _content(folder)
    assert run(bundle, "-o", folder) == (
        2,
        "",
        f"error: {folder}: notes.txt is not from an export.\n"
        "  Remove it, or give another folder.\n",
    )
    assert _content(folder) == before


@pytest.mark.parametrize("name", ["1st", "a-b", "", "ä", "x" * 41])
def test_a_name_must_be_one_for_c(run: Run, bundle: Path, tmp_path: Path, name: str) -> None:
    code, _, err = run(bundle, "-o", tmp_path / "out", "--name", name)
    assert code == 2
    assert err.startswith("error: --name must begin with a letter and go on with at most 39 ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("add.pallasc", "add"),
        ("my-kernels.v2.pallasc", "my_kernels_v2"),
        ("2nd.pallasc", "kernels"),
        ("pallasc.pallasc", "kernels"),
        ("x" * 60, "x" * 40),
    ],
)
def test_the_name_is_that_of_the_bundle(file: str, name: str) -> None:
    assert name_from(file) == name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pallasc", "begin with pallasc, as functions of the C library do"),
        ("pallasc_last", "begin with pallasc, as functions of the C library do"),
    ],
)
def test_names_of_other_things_are_refused(
    run: Run, bundle: Path, tmp_path: Path, name: str, told: str
) -> None:
    assert run(bundle, "-o", tmp_path / "out", "--name", name) == (
        2,
        "",
        f"error: --name must not {told}, got {name!r}.\n"
        "  C functions and the library are named after it.\n",
    )
    assert not (tmp_path / "out").exists()


def test_sources_that_an_install_lacks_are_named(
    run: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = tmp_path / "native"
    shutil.copytree(FOLDER, native)
    (native / "export" / "kernels.c").unlink()
    monkeypatch.setattr("pallasc.runtime.native.library.FOLDER", native)
    assert run(bundle, "-o", tmp_path / "out") == (
        4,
        "",
        "error: this pallasc has no sources of its C library to export: "
        f"{native / 'export' / 'kernels.c'}: No such file or directory.\n"
        "  Install pallasc again.\n",
    )
    assert not (tmp_path / "out").exists()


def test_every_source_of_the_library_is_for_programs_or_not() -> None:
    """A new source is taken along, or is for Python and JAX alone."""
    found = {
        path.relative_to(FOLDER).as_posix()
        for pattern in ("*.[ch]", "include/*.h", "export/*.[ch]")
        for path in FOLDER.glob(pattern)
    }
    others = {"host.c", "host.h", "python.c", "xla.c", "xla_ffi.h"}
    assert found - others == set(LIBRARY_SOURCES)


def test_without_a_form_nothing_is_written(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "export", str(bundle), "-o", str(tmp_path / "out")]) == 2
    assert "Missing option '--c'" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_variants_that_only_parameters_tell_apart_are_refused(run: Run, tmp_path: Path) -> None:
    items = [Item("add", {"tile": n}, bundle_files.add_artifact()) for n in (1, 2)]
    file = _written(tmp_path / "tiles.pallasc", *items)
    assert run(file, "-o", tmp_path / "out") == (
        2,
        "",
        "error: add[tile=1]@h100-sxm and add[tile=2]@h100-sxm take the same arrays, and C "
        "functions choose by them.\n  Choose one of them with -k.\n",
    )
    assert run(file, "-o", tmp_path / "out", "-k", "tile=2")[0] == 0


@pytest.mark.parametrize(
    ("names", "function"),
    [
        (("a-b", "a.b"), "k_a_b"),
        (("add", "add_prepare"), "k_add_prepare"),
        (("last_error",), "k_last_error"),
    ],
)
def test_kernels_of_one_name_in_c_are_refused(
    run: Run, tmp_path: Path, names: tuple[str, ...], function: str
) -> None:
    items = [Item(name, {}, bundle_files.add_artifact()) for name in names]
    file = _written(tmp_path / "k.pallasc", *items)
    code, _, err = run(file, "-o", tmp_path / "out")
    assert code == 2
    assert f" would both be {function} in C.\n  Choose variants with -k.\n" in err


def test_more_than_the_limit_is_not_written(run: Run, bundle: Path, tmp_path: Path) -> None:
    code, _, err = run(bundle, "-o", tmp_path / "out", "--max-size", "20KiB")
    assert code == 2
    assert "take more than 20,480 bytes" in err
    assert not (tmp_path / "out").exists()


def test_a_damaged_bundle_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "k.pallasc"
    file.write_bytes(b"no bundle")
    code, _, err = run(file, "-o", tmp_path / "out")
    assert code == 5
    assert str(file) in err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc on the PATH")
def test_names_of_strangers_stay_names(run: Run, tmp_path: Path) -> None:
    bad = '*/ int evil; /* "\\ ??/ %s @NAME@ ü'
    artifact = made.artifact(
        made.launch("three", 0, 1, 2), inputs={bad: "f32[4, 64]", "b": "f32[4, 64]"}
    )
    items = [Item(bad, {"a b": bad}, artifact), Item("../../up", {}, artifact)]
    file = _written(tmp_path / "k.pallasc", *items)
    folder = tmp_path / "out"
    assert run(file, "-o", folder)[0] == 0
    names = sorted(path.name for path in (folder / "plans").iterdir())
    assert names == [
        "int-evil-s-NAME-a-b-int-evil-s-NAME-h100-sxm.plan",
        "up-h100-sxm.plan",
    ]
    source = tmp_path / "use.c"
    source.write_text('#include "k/k.h"\nchar evil;\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-trigraphs", "-std=gnu11", "-DPALLASC_API="]
    includes = [f"-I{folder / name}" for name in (".", "include", "pallasc/include")]
    for compiled in (source, folder / "k.c"):
        command = ["cc", *flags, *includes, "-c", compiled, "-o", tmp_path / "made.o"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with open_bundle(file) as opened:
        ids = [entry.id for entry in opened.entries()]
    text = (tmp_path / "made.o").read_bytes()
    assert all(own.encode() in text for own in ids)
