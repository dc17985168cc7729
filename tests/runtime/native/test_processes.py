"""The C library in threads, after forks, without a driver, and as a file of its own."""

import shutil
import subprocess
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

from pallasc.errors import ArgumentError, ToolError
from pallasc.runtime.device import devices
from pallasc.runtime.native import library
from pallasc.runtime.native.library import Library
from pallasc.specs.artifacts.flat_plan import flat_plan

THREADS, LAUNCHES = 8, 200
"""Sources that launches from C do not go through."""


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


# ---- processes of their own


_PLAN = """
import os, sys
from pathlib import Path
from pallasc.errors import PallascError
from pallasc.runtime.native.library import open_library
plan = open_library(Path(sys.argv[1])).open(Path(sys.argv[2]).read_bytes())
def say(work, *arguments):
    try:
        work(*arguments)
        print("ok", flush=True)
    except PallascError as error:
        print(error, flush=True)
"""


@pytest.fixture
def run(native_file: Path, tmp_path: Path, fresh_process: Callable[..., Any]) -> Any:
    """Give a function that runs code that has opened a plan; it returns what it prints."""
    file = tmp_path / "made.plan"
    file.write_bytes(flat_plan(made.add(), name="made"))

    def run_here(code: str, **options: Any) -> list[str]:
        done = fresh_process(_PLAN + code, str(native_file), str(file), **options)
        assert done.returncode == 0, done.stderr
        return list(done.stdout.splitlines())

    return run_here


def test_the_child_of_a_fork_is_told(run: Any) -> None:
    code = """
for number in range(2):
    if child := os.fork():
        os.waitpid(child, 0)
        say(plan.prepare, 0)
    else:
        if number:
            say(plan.launch, [256, 512, 768])
        say(plan.prepare, 0)
        os._exit(0)
"""
    assert run(code) == [
        *("ok", "ok"),  # in a child before the driver is used, then in its parent
        "made is not prepared on GPU 0.",
        "  Call pallasc_prepare for this device before.",
        "this process was forked from one that uses the GPU; CUDA does not work in it.",
        '  Start processes with multiprocessing.get_context("spawn").',
        "ok",
    ]


def test_without_a_driver_it_opens_plans_and_says_what_is_missing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file of that name that is no library hides a driver that the machine may have.
    (tmp_path / "libcuda.so.1").write_text("nothing")
    monkeypatch.setattr(control, "build", lambda: tmp_path / "libcuda.so.1")
    assert run("say(plan.prepare, 0)") == [
        "no NVIDIA driver here: libcuda.so.1 cannot be loaded.",
        f"  {devices.INSTALL}",
    ]


@pytest.mark.parametrize("hidden", ["cuLibraryLoadData", "cuFuncLoad", "cuLaunchKernelEx"])
def test_a_function_that_the_driver_lacks_is_told(hidden: str, run: Any) -> None:
    first, second = run("say(plan.prepare, 0)", hide=[hidden])
    assert first.endswith(f"the driver for CUDA 13.0 has no {hidden}.")
    assert second == "  Install a newer NVIDIA driver."


def test_a_launch_allocates_nothing_and_takes_no_lock(tmp_path: Path) -> None:
    if (cc := control.compiler()) is None:
        pytest.skip(control.why_not())
    own = native_build.sources("xla.c")  # launches do not go through it
    seen = ("malloc", "calloc", "realloc", "aligned_alloc", "pthread_mutex_lock")
    program = tmp_path / "launches"
    subprocess.run(
        [
            *(cc, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *(f"-I{native_build.SOURCES / 'include'}", Path(__file__).parent / "quiet_launches.c"),
            *(*own, "-o", program, *(f"-Wl,--wrap={name}" for name in seen), "-ldl"),
        ],
        check=True,
    )
    for name in ("pointers", "a value", "maps", "temporaries", "constants"):
        (tmp_path / "plan").write_bytes(flat_plan(PLANS[name](), name=name))
        command, environment = [program, tmp_path / "plan"], control.environment(devices="9.0")
        before, after = subprocess.check_output(command, env=environment, text=True).splitlines()
        assert all(int(count) > 0 for count in before.split())
        assert after == "0 0", name


# ---- the file


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm on the PATH")
def test_only_its_own_functions_are_visible_and_nothing_of_cuda_is_linked(
    native_file: Path,
) -> None:
    symbols = subprocess.check_output(["nm", "-D", native_file], text=True).splitlines()
    defined = [line.split()[-1] for line in symbols if " T " in line or " D " in line]
    assert {name.partition("_")[0] for name in defined} == {"pallasc"}
    assert [line for line in symbols if " cu" in line or "Py" in line] == []


def test_a_library_of_another_version_or_older_than_its_sources_is_not_used(
    native_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_library, version = library.open_library.__wrapped__, native_build.VERSION
    with monkeypatch.context() as patch:
        patch.setattr(library, "installed_version", lambda: "9.9")
        with pytest.raises(ToolError) as caught:
            open_library(native_file)
        told = f"the C library {native_file} is of pallasc {version}, and this is pallasc 9.9."
        assert caught.value.message == told
        hint = "Unset PALLASC_NATIVE, or let it name a library of this version."
        assert caught.value.hint == hint
        patch.setattr(library, "installed_version", lambda: library.UNKNOWN)
        assert open_library(native_file).version == version
    monkeypatch.delenv("PALLASC_NATIVE", raising=False)
    folder = tmp_path / "runtime" / "native"
    folder.mkdir(parents=True)
    monkeypatch.setattr(library, "FOLDER", folder)
    shutil.copy(native_file, folder / "libpallasc.so")
    (folder / "plan.c").write_text("int changed;")
    assert open_library().version  # sources in an install do not change
    (tmp_path / "setup.py").touch()
    with pytest.raises(ToolError, match="was built before its sources changed") as caught:
        open_library()
    assert caught.value.hint == "Install pallasc again: pip install -e ."


def test_the_variable_switches_it_off_or_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PALLASC_NATIVE", "0")
    with pytest.raises(ToolError, match="switched off: PALLASC_NATIVE is 0"):
        library.library_file()
    monkeypatch.setenv("PALLASC_NATIVE", str(tmp_path / "gone.so"))
    with pytest.raises(ToolError, match=r"PALLASC_NATIVE names .*gone\.so, which is not a file"):
        library.library_file()
    (tmp_path / "gone.so").touch()
    assert library.library_file() == tmp_path / "gone.so"
