"""What `pallasc bundle export --c` writes builds with CMake or a C compiler alone, and launches."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import c_exports
import numpy
import pytest
import standin as control
from c_exports import Export, Tensor, tensor

CUDA_SUCCESS, ARGUMENT, DEVICE = 0, 1, 3
BUILDERS = {"cmake": c_exports.build_with_cmake, "cc": c_exports.build_with_cc}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an export of the small bundle."""
    made = tmp_path_factory.mktemp("export")
    return c_exports.export(c_exports.small_bundle(made / "made.pallasc"), made / "kernels")


@pytest.fixture(scope="module", params=BUILDERS)
def built(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Give its shared library."""
    missing = [tool for tool in {request.param, "cc"} if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on the PATH")
    build = BUILDERS[request.param]
    return build(folder, tmp_path_factory.mktemp("built") / "build")


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
def arrays(standin: control.Standin) -> Callable[..., list[Tensor]]:
    """Give a function that returns two inputs and a result on a device."""

    def make(columns: int = 64, device: int = 0, **changes: Any) -> list[Tensor]:
        shape = (4, columns)
        held = [_aligned(numpy.full(shape, n, numpy.float32)) for n in (1, 2, 0)]
        return [tensor(standin.adopt(array, device), shape, **changes) for array in held]

    return make


def test_a_shared_library_shows_nothing_but_its_kernels(built: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm on the PATH")
    done = subprocess.run(
        ["nm", "-D", "--defined-only", built], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert names == {
        "kernels_last_error",
        *(f"kernels_{kernel}{end}" for kernel in ("add", "spread") for end in ("", "_prepare")),
        *("__tvm_ffi_add", "__tvm_ffi_spread"),
    }


@pytest.mark.parametrize("columns", [64, 128])
def test_a_function_launches_the_variant_for_its_arrays(
    export: Export, standin: control.Standin, arrays: Callable[..., list[Tensor]], columns: int
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
        ([control.Device("9.0", name="NVIDIA H200")], 0, "add[n=64]@h200"),
        ([control.Device("9.0", name="NVIDIA H100 80GB HBM3")], 0, "add[n=64]@h100-sxm"),
    ],
)
def test_the_variant_is_that_of_the_gpu(
    export: Export,
    standin: control.Standin,
    arrays: Callable[..., list[Tensor]],
    gpus: list[str | control.Device],
    device: int,
    chosen: str,
) -> None:
    standin.devices(*gpus)
    taken = arrays(64, device)
    assert export.prepare("add", *taken, device=device) == (CUDA_SUCCESS, 0), export.error
    taken[0].data += 1  # the message has the variant's name
    assert export.launch("add", *taken, device=device) == ARGUMENT
    assert export.error.startswith(f"{chosen}: a starts at ")


def test_a_workspace_is_asked_for_and_checked(
    export: Export, standin: control.Standin, arrays: Callable[..., list[Tensor]]
) -> None:
    taken = arrays()
    empty = [tensor(0, (4, 64)) for _ in taken]
    assert export.prepare("spread", *empty) == (CUDA_SUCCESS, 1024), export.error
    start = standin.adopt(_aligned(numpy.zeros(1024, numpy.uint8)))
    given = {"workspace": start, "workspace_bytes": 1023}
    assert export.launch("spread", *taken, **given) == ARGUMENT
    assert export.error == (
        "spread@h100-sxm: its temporaries take 1024 bytes of workspace, and 1023 are given.\n"
        "  Its function with _prepare tells how many it takes."
    )
    given["workspace_bytes"] = 1024
    assert export.launch("spread", *taken, **given) == CUDA_SUCCESS, export.error
    (launch,) = standin.launches
    assert launch.pointer(1) == start


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtype": "bf16"}, "bf16[4, 64], bf16[4, 64], bf16[4, 64]"),
        ({"columns": 65}, "f32[4, 65], f32[4, 65], f32[4, 65]"),
        (
            {"strides": (1, 4)},
            "f32[4, 64] with strides 1, 4, f32[4, 64] with strides 1, 4, f32[4, 64] with strides "
            "1, 4",
        ),
    ],
)
def test_other_arrays_are_refused(
    export: Export, arrays: Callable[..., list[Tensor]], changes: dict[str, Any], told: str
) -> None:
    assert export.launch("add", *arrays(**changes)) == ARGUMENT
    assert export.error == (
        f"add: none of 6 variants takes {told}.\n  The header lists the arrays of each variant."
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_gpu_that_no_variant_is_for_is_refused_each_time(
    export: Export, standin: control.Standin, arrays: Callable[..., list[Tensor]], times: int
) -> None:
    standin.devices("8.0")
    taken = arrays()
    for _ in range(times):
        assert export.launch("add", *taken) == DEVICE
    assert "runs on exactly sm_" in export.error
    assert "and this GPU is sm_80." in export.error


def test_eight_threads_may_begin_at_once(
    export: Export, standin: control.Standin, arrays: Callable[..., list[Tensor]]
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


USE = """
#include <cmath>
#include <math.h>
#include <stdio.h>
#include <math/math.h>

int main()
{
    const int64_t shape[] = {4, 64};
    pallasc_tensor arrays[3] = {};
    size_t size = ::fabs(7.);
    for (pallasc_tensor &array : arrays) {
        array.dtype = "f32";
        array.shape = shape;
        array.rank = 2;
    }
    int status = math_spread_prepare(0, arrays, 3, &size);
    printf("%d %zu\\n", status, size);
    puts(math_spread(0, arrays, 3, NULL, size, NULL) ? math_last_error() : "launched");
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs c++ on the PATH")
def test_the_header_is_one_for_cpp(folder: Path) -> None:
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    include = f"-I{folder / 'pallasc' / 'include'}"
    header = folder / "include" / "kernels" / "kernels.h"
    c_exports.run(["c++", *flags, include, "-x", "c++", header])


@pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "c++"))), reason="needs cmake and c++ on the PATH"
)
def test_a_static_library_called_like_a_header_of_the_system_becomes_part_of_a_program(
    tmp_path: Path,
) -> None:
    bundle = c_exports.small_bundle(tmp_path / "made.pallasc")
    c_exports.export(bundle, tmp_path / "math", name="math")
    (tmp_path / "use.cpp").write_text(USE)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.12)\nproject(user LANGUAGES C CXX)\n"
        "add_subdirectory(math)\nadd_executable(use use.cpp)\n"
        "target_link_libraries(use PRIVATE math m ${CMAKE_DL_LIBS})\n"
    )
    c_exports.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"])
    c_exports.run(["cmake", "--build", tmp_path / "build"])
    done = subprocess.run(
        [tmp_path / "build" / "use"],
        env=control.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "0 1024\nspread@h100-sxm needs 1024 bytes of workspace at a multiple of 256, not at 0.\n"
    )
