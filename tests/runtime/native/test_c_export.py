"""`pallasc bundle export --c`: what it writes builds with CMake or a C compiler, and launches."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_files
import c_exports
import made
import numpy
import pytest
import standin as control
from c_exports import WARNINGS, Export, Tensor, tensor

from pallasc.cli.main import main
from pallasc.runtime.native.library import FOLDER
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.c_export import LIBRARY_SOURCES
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

CUDA_SUCCESS, ARGUMENT, DEVICE = 0, 1, 3
Arrays = Callable[..., list[Tensor]]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a shared library that CMake built of an export."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake on the PATH")
    folder = tmp_path_factory.mktemp("export")
    flags = [f"-DCMAKE_C_FLAGS={' '.join(WARNINGS)}", "-DBUILD_SHARED_LIBS=ON"]
    c_exports.run(["cmake", "-S", c_exports.export(folder), "-B", folder / "build", *flags])
    c_exports.run(["cmake", "--build", folder / "build"])
    return next((folder / "build").glob("lib*.so"))


@pytest.fixture
def export(built: Path, tmp_path: Path, standin: control.Standin) -> Export:
    """Give the library as after its start."""
    return Export(built, tmp_path)


def _aligned(array: Any) -> Any:
    """Return a copy that begins at a multiple of 256."""
    room = numpy.zeros(array.nbytes + 256, numpy.uint8)
    skipped = -room.ctypes.data % 256
    copy = room[skipped : skipped + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


@pytest.fixture
def arrays(standin: control.Standin) -> Arrays:
    """Give a function that returns two inputs and a result on a device."""

    def make(columns: int = 64, device: int = 0, **changes: Any) -> list[Tensor]:
        shape = (4, columns)
        held = [_aligned(numpy.full(shape, n, numpy.float32)) for n in (1, 2, 0)]
        return [tensor(standin.adopt(array, device), shape, **changes) for array in held]

    return make


# ---- the library


def test_a_shared_library_shows_nothing_but_its_kernels(built: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm on the PATH")
    done = subprocess.check_output(["nm", "-D", "--defined-only", built], text=True)
    assert {line.split()[-1] for line in done.splitlines()} == {
        *("kernels_last_error", "kernels_add", "kernels_add_prepare", "kernels_spread"),
        "kernels_spread_prepare",
    }


@pytest.mark.parametrize("columns", [64, 128])
def test_a_function_launches_the_variant_for_its_arrays(
    export: Export, standin: control.Standin, arrays: Arrays, columns: int
) -> None:
    @standin.kernel("three")
    def _(launch: control.Launch) -> None:
        a, b, out = (launch.array(n, "float32", (4, columns)) for n in range(3))
        out[:] = a + b

    taken = arrays(columns)
    assert export.launch("add", *taken) == CUDA_SUCCESS, export.error
    (launch,) = standin.launches
    assert [launch.pointer(n) for n in range(3)] == [array.data for array in taken]
    assert (launch.array(2, "float32", (4, columns)) == 3).all()
    assert export.launch("add", *taken) == CUDA_SUCCESS
    assert standin.count("cuLibraryLoadData") == 1


@pytest.mark.parametrize(
    ("gpus", "device", "chosen"),
    [
        (["9.0", "10.0"], 0, "add[n=64]@h100-sxm"),
        (["9.0", "10.0"], 1, "add[n=64]@b200"),
        ([control.Device("9.0", name="NVIDIA H200 141GB HBM3e")], 0, "add[n=64]@h200"),
    ],
)
def test_the_variant_is_that_of_the_gpu(
    export: Export, standin: control.Standin, arrays: Arrays, gpus: Any, device: int, chosen: str
) -> None:
    standin.devices(*gpus)
    taken = arrays(64, device)
    assert export.prepare("add", *taken, device=device) == (CUDA_SUCCESS, 0), export.error
    taken[0].data += 1  # the message has the variant's name
    assert export.launch("add", *taken, device=device) == ARGUMENT
    assert export.error.startswith(f"{chosen}: a starts at ")


def test_a_workspace_is_asked_for_and_checked(
    export: Export, standin: control.Standin, arrays: Arrays
) -> None:
    taken = arrays()
    empty = [tensor(0, (4, 64)) for _ in taken]
    assert export.prepare("spread", *empty) == (CUDA_SUCCESS, 1024), export.error
    start = standin.adopt(_aligned(numpy.zeros(1024, numpy.uint8)))
    assert export.launch("spread", *taken, workspace=(start, 1023)) == ARGUMENT
    assert export.error == (
        "spread@h100-sxm: its temporaries take 1024 bytes of workspace, and 1023 are given.\n"
        "  The kernel's function with _prepare returns the size."
    )
    assert export.launch("spread", *taken, workspace=(start, 1024)) == CUDA_SUCCESS, export.error
    (launch,) = standin.launches
    assert launch.pointer(1) == start


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtype": "bf16"}, "bf16[4, 64]"),
        ({"columns": 65}, "f32[4, 65]"),
        ({"strides": (1, 4)}, "f32[4, 64] with strides 1, 4"),
    ],
)
def test_other_arrays_are_refused(
    export: Export, arrays: Arrays, changes: dict[str, Any], told: str
) -> None:
    assert export.launch("add", *arrays(**changes)) == ARGUMENT
    assert export.error == (
        f"add: none of 6 variants takes {told}, {told}, {told}.\n"
        "  The header lists the arrays of each variant."
    )


def test_eight_threads_may_begin_at_once(
    export: Export, standin: control.Standin, arrays: Arrays
) -> None:
    taken = [arrays(columns) for columns in (64, 128) * 4]
    begin, answers = threading.Barrier(8), []

    def work(own: list[Tensor]) -> None:
        begin.wait()
        answers.extend(export.launch("add", *own) for _ in range(20))

    threads = [threading.Thread(target=work, args=(own,)) for own in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [CUDA_SUCCESS] * 160
    assert len(standin.launches) == 160
    assert standin.count("cuLibraryLoadData") == 1


# ---- the command


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


def _content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


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
        "file": "plans/3.plan",
        "bytes": file.stat().st_size,
        "chosen_by": None,
    }
    assert file.read_bytes()[:8] == b"PALLASC\n"
    header = (folder / "include" / "my_kernels" / "my_kernels.h").read_text()
    row = "add[n=64]@b200: a: f32[4, 64], b: f32[4, 64] -> out: f32[4, 64]"
    assert f"/* add\n *   {row}\n" in header


def test_an_export_is_reproducible_and_replaced_and_other_work_is_not(
    run: Run, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    copy, folder = tmp_path / "elsewhere" / bundle.name, tmp_path / "out"
    shutil.copy(bundle, copy)
    for file, out in ((bundle, folder), (copy, tmp_path / "second")):
        assert run(file, "-o", out)[0] == 0
    assert _content(folder) == _content(tmp_path / "second")
    assert run(bundle, "-o", folder, "--name", "other", "--target", "b200")[0] == 0
    assert (folder / "include" / "other" / "other.h").is_file()
    assert not (folder / "include" / "my_kernels").exists()
    (folder / "notes.txt").write_text("mine")
    before = _content(folder)
    assert run(bundle, "-o", folder) == (
        2,
        "",
        f"error: {folder} holds files that pallasc did not write, or that were changed since.\n"
        "  Remove it, or give another folder.\n",
    )
    assert _content(folder) == before


_RULE = "error: --name must be a letter and up to 39 letters, digits and underscores, and must not "
_WRONG = ("1st", "a-b", "", "ä", "x" * 41, "pallasc", "pallasc_last")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *((["--name", name], _RULE) for name in _WRONG),
        (["--max-size", "20KiB"], "take more than 20,480 bytes"),
    ],
)
def test_options_that_cannot_be_are_refused(
    run: Run, bundle: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    code, _, err = run(bundle, "-o", tmp_path / "out", *options)
    assert code == 2
    assert words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (
            [("add", {"tile": 1}), ("add", {"tile": 2})],
            "error: add[tile=1]@h100-sxm and add[tile=2]@h100-sxm take the same arrays, but C "
            "functions choose a variant only by its arrays.\n  Choose one of them with -k.\n",
        ),
        ([("a-b", {}), ("a.b", {})], " would both be k_a_b in C.\n  Choose variants with -k.\n"),
        ([("add", {}), ("add_prepare", {})], " would both be k_add_prepare in C."),
        ([("last_error", {})], " would both be k_last_error in C."),
    ],
)
def test_kernels_that_c_cannot_tell_apart_are_refused(
    run: Run, tmp_path: Path, kernels: list[tuple[str, dict[str, int]]], words: str
) -> None:
    file = tmp_path / "k.pallasc"
    items = [Item(*kernel, bundle_files.add_artifact()) for kernel in kernels]
    file.write_bytes(build_bundle(items, level=3))
    code, _, err = run(file, "-o", tmp_path / "out")
    assert code == 2
    assert words in err
    if kernels[0][1]:
        assert run(file, "-o", tmp_path / "out", "-k", "tile=2")[0] == 0


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
    patterns = ("*.[ch]", "include/*.h", "export/*.[ch]")
    found = {path.relative_to(FOLDER).as_posix() for p in patterns for path in FOLDER.glob(p)}
    others = {"python.c", "xla.c", "xla_ffi.h"}
    assert found - others == set(LIBRARY_SOURCES)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc on the PATH")
def test_names_of_strangers_stay_names(run: Run, tmp_path: Path) -> None:
    bad = '*/ int evil; /* "\\ ??/ %s @NAME@ ü'
    artifact = made.add(inputs={bad: "f32[4, 64]", "b": "f32[4, 64]"})
    items = [Item(bad, {"a b": bad}, artifact), Item("../../up", {}, artifact)]
    file, folder = tmp_path / "k.pallasc", tmp_path / "out"
    file.write_bytes(build_bundle(items, level=3))
    assert run(file, "-o", folder)[0] == 0
    names = sorted(path.name for path in (folder / "plans").iterdir())
    assert names == ["0.plan", "1.plan"]
    source = tmp_path / "use.c"
    source.write_text('#include "k/k.h"\nchar evil;\n')
    includes = [f"-I{folder / name}" for name in (".", "include", "pallasc/include")]
    for compiled in (source, folder / "k.c"):
        flags = [*WARNINGS, "-trigraphs", "-std=gnu11", "-DPALLASC_API="]
        c_exports.run(["cc", *flags, *includes, "-c", compiled, "-o", tmp_path / "made.o"])
    with open_bundle(file) as opened:
        ids = [entry.id for entry in opened.entries()]
    text = (tmp_path / "made.o").read_bytes()
    assert all(own.encode() in text for own in ids)
