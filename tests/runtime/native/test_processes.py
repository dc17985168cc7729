"""The C library in threads, after forks, without a driver, and as a file of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import native_build
import native_comparison
import pytest
import standin as control
from native_plans import PAIR, PLANS, matrices

from pallasc.errors import ArgumentError, DeviceError
from pallasc.runtime.device import devices
from pallasc.runtime.native.library import Library
from pallasc.specs.artifacts.flat_plan import flat_plan

THREADS, LAUNCHES = 8, 200
OUTSIDE = {*native_build.OF_PYTHON, "host.c", "xla.c"}
"""Sources that launches from C do not go through."""

_PLAN = """
import sys
from pathlib import Path
from pallasc.errors import PallascError
from pallasc.runtime.native.library import open_library
plan = open_library(Path(sys.argv[1])).open(Path(sys.argv[2]).read_bytes())
def said(work, *arguments):
    try:
        work(*arguments)
    except PallascError as error:
        return str(error)
    return "ok"
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Give a file with a flat plan."""
    file = tmp_path / "made.plan"
    file.write_bytes(flat_plan(made.add(), name="made"))
    return file


def test_threads_launch_one_plan_at_once_without_a_mix_up(
    native: Library, runtime: control.Standin
) -> None:
    artifact = made.artifact(made.launch("mapped", 2, PAIR), inputs=matrices())
    plan = native.open(flat_plan(artifact, name="made"))
    plan.prepare(0)
    start = native_comparison.memory().start
    native_comparison.memory().adopt(runtime, 1 << 28)
    problems: list[BaseException] = []
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        try:
            together.wait()
            for turn in range(LAUNCHES):
                first = start + (number << 24) + (turn % 7 << 14)
                plan.launch([first, first + (1 << 22), first + (2 << 22)])
                # In between each thread fails, too: its message is its own.
                with pytest.raises(ArgumentError, match=f"takes 3 buffers, not {number}"):
                    plan.launch([0] * (number if number != 3 else 9))
        except BaseException as error:
            problems.append(error)

    numbers = [n for n in range(THREADS + 1) if n != 3]
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    launches = runtime.launches
    assert len(launches) == THREADS * LAUNCHES
    for launch in launches:
        first = launch.pointer(0) - (2 << 22)
        (at, one), (other_at, two) = launch.maps(1)[:2]
        assert (at, one.address, other_at, two.address) == (0, first, 128, first + (1 << 22) + 64)
    assert runtime.count("cuTensorMapEncodeTiled") >= 2


def test_a_launch_can_be_captured(native: Library, runtime: control.Standin) -> None:
    from cuda.bindings import driver

    plan = native.open(flat_plan(made.add(), name="made"))
    plan.prepare(0)
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    runtime.configure(check_pointers=0)
    _, stream = driver.cuStreamCreate(1)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert int(driver.cuStreamBeginCapture(stream, mode)[0]) == 0
    plan.launch([1 << 20, 2 << 20, 3 << 20], stream=int(stream))
    other = native.open(flat_plan(PLANS["constants"](), name="made"))
    other.prepare(0)  # loads and uploads beside the capture
    code, graph = driver.cuStreamEndCapture(stream)
    assert int(code) == 0
    assert runtime.launches == []
    _, made_graph = driver.cuGraphInstantiate(graph, 0)
    assert int(driver.cuGraphLaunch(made_graph, stream)[0]) == 0
    (launch,) = runtime.launches
    assert launch.replayed
    driver.cuCtxSetCurrent(None)


def test_the_child_of_a_fork_is_told(
    native_file: Path, plan_file: Path, fresh_process: Callable[..., Any]
) -> None:
    code = _PLAN + (
        "import os\n"
        "before = os.fork()\n"
        "if not before:\n"
        "    print('first', said(plan.prepare, 0), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(before, 0)\n"
        "print(said(plan.prepare, 0), flush=True)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    print(said(plan.launch, [256, 512, 768]), flush=True)\n"
        "    print(said(plan.prepare, 0), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    done = fresh_process(code, str(native_file), str(plan_file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "first ok",
        "ok",
        "made is not prepared on GPU 0.",
        "  Call pallasc_prepare for this device before.",
        "this process was forked from one that uses the GPU; CUDA does not work in it.",
        f"  {devices.INIT_HINTS[3]}",
    ]


def test_without_a_driver_it_opens_plans_and_says_what_is_missing(
    native_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    code = _PLAN + "print(said(plan.prepare, 0))\n"
    # A file of that name that is no library hides a driver that the machine may have.
    (tmp_path / "libcuda.so.1").write_text("nothing")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, native_file, plan_file],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "no NVIDIA driver here: libcuda.so.1 cannot be loaded.",
        f"  {devices.INSTALL}",
    ]


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        ("cuLibraryLoadData", "the driver for CUDA 13.0 has no cuLibraryLoadData."),
        ("cuKernelGetParamInfo", "the driver for CUDA 13.0 has no cuKernelGetParamInfo."),
        ("cuFuncLoad", "the driver for CUDA 13.0 has no cuFuncLoad."),
        ("cuLaunchKernelEx", "the driver for CUDA 13.0 has no cuLaunchKernelEx."),
    ],
)
def test_a_function_that_the_driver_lacks_is_told(
    hidden: str, words: str, native_file: Path, plan_file: Path, fresh_process: Callable[..., Any]
) -> None:
    code = _PLAN + "print(said(plan.prepare, 0))\n"
    done = fresh_process(code, str(native_file), str(plan_file), hide=[hidden])
    first, second = done.stdout.splitlines()
    assert first.endswith(words)
    assert second == "  Install a newer NVIDIA driver."


@pytest.fixture(scope="module")
def quiet_launches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a program of the library's sources that counts what launches allocate and lock."""
    cc = control.compiler()
    if reason := control.why_not():
        pytest.skip(reason)
    assert cc is not None
    own = (path for path in native_build.SOURCES.glob("*.c") if path.name not in OUTSIDE)
    made = tmp_path_factory.mktemp("quiet") / "launches"
    seen = ("malloc", "calloc", "realloc", "aligned_alloc", "pthread_mutex_lock")
    subprocess.run(
        [
            *(cc, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *(f"-I{native_build.SOURCES / 'include'}", Path(__file__).parent / "quiet_launches.c"),
            *sorted(own),
            *("-o", made, *(f"-Wl,--wrap={name}" for name in seen), "-ldl"),
        ],
        check=True,
    )
    return made


@pytest.mark.parametrize("name", ["pointers", "a value", "maps", "temporaries", "constants"])
def test_a_launch_allocates_nothing_and_takes_no_lock(
    name: str, quiet_launches: Path, tmp_path: Path
) -> None:
    (tmp_path / "plan").write_bytes(flat_plan(PLANS[name](), name=name))
    done = subprocess.run(
        [quiet_launches, tmp_path / "plan"],
        env={**os.environ, **control.environment(devices="9.0")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert all(int(count) > 0 for count in before.split())
    assert after == "0 0"


# ---- the file


def _symbols(file: Path) -> list[str]:
    done = subprocess.run(["nm", "-D", file], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm on the PATH")
def test_only_its_own_functions_are_visible_and_nothing_of_cuda_is_linked(
    native_file: Path,
) -> None:
    symbols = _symbols(native_file)
    defined = [line.split()[-1] for line in symbols if " T " in line or " D " in line]
    assert defined
    assert [name for name in defined if not name.startswith("pallasc_")] == []
    assert [line for line in symbols if " cu" in line or "Py" in line] == []
    needed = subprocess.run(
        ["readelf", "-d", native_file], capture_output=True, text=True, check=True
    ).stdout
    assert "libcuda" not in needed
    assert "libpython" not in needed


def test_a_library_of_another_version_is_refused(
    native_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallasc.errors import ToolError
    from pallasc.runtime.native import library

    monkeypatch.setattr(library, "installed_version", lambda: "9.9")
    with pytest.raises(ToolError) as caught:
        library.open_library.__wrapped__(native_file)
    version = native_build.VERSION
    told = f"the C library {native_file} is of pallasc {version}, and this is pallasc 9.9."
    assert caught.value.message == told
    assert caught.value.hint == "Unset PALLASC_NATIVE, or let it name a library of this version."
    monkeypatch.setattr(library, "installed_version", lambda: library.UNKNOWN)
    assert library.open_library.__wrapped__(native_file).version == version


def test_a_library_older_than_the_sources_beside_it_is_not_used(
    native_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallasc.errors import ToolError
    from pallasc.runtime.native import library

    monkeypatch.delenv("PALLASC_NATIVE", raising=False)
    folder = tmp_path / "runtime" / "native"
    folder.mkdir(parents=True)
    monkeypatch.setattr(library, "FOLDER", folder)
    shutil.copy(native_file, folder / "libpallasc.so")
    (folder / "plan.c").write_text("int changed;")
    library.open_library.cache_clear()
    assert library.open_library().version  # sources in an install do not change
    (tmp_path / "setup.py").touch()
    library.open_library.cache_clear()
    with pytest.raises(ToolError, match="was built before its sources changed") as caught:
        library.open_library()
    assert caught.value.hint == "Install pallasc again: pip install -e ."
    library.open_library.cache_clear()


def test_the_variable_switches_it_off_or_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pallasc.errors import ToolError
    from pallasc.runtime.native.library import library_file

    monkeypatch.setenv("PALLASC_NATIVE", "0")
    with pytest.raises(ToolError, match="switched off: PALLASC_NATIVE is 0"):
        library_file()
    monkeypatch.setenv("PALLASC_NATIVE", str(tmp_path / "gone.so"))
    with pytest.raises(ToolError, match=r"PALLASC_NATIVE names .*gone\.so, which is no file"):
        library_file()
    (tmp_path / "gone.so").touch()
    assert library_file() == tmp_path / "gone.so"


def test_errors_of_the_gpu_are_those_of_python(native: Library, runtime: control.Standin) -> None:
    runtime.devices()
    with pytest.raises(DeviceError):
        native.open(flat_plan(made.add(), name="made")).prepare(0)
