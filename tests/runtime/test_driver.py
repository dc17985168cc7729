"""The driver: opened once, its answers in words."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from pallasc.errors import DriverError, OutOfMemoryError
from pallasc.runtime.device.devices import STICKY, open_driver

_OPEN = """
from pallasc.errors import PallascError
from pallasc.runtime.device.devices import get_device
try:
    print(get_device(0))
except PallascError as error:
    print(type(error).__name__, error.exit_code, error)
"""


@pytest.mark.parametrize("code", [700, 719, 2, 201, 713])
def test_an_error_has_name_number_and_text(code: int, runtime: Any) -> None:
    driver = open_driver()
    runtime.fault("cuDeviceGetCount", code)
    with pytest.raises(DriverError) as caught:
        driver.call("cuDeviceGetCount", what="the count fails")
    error = caught.value
    assert error.code == code
    assert "the count fails: cuDeviceGetCount answers CUDA_ERROR_" in error.message
    assert f" ({code}), " in error.message
    assert isinstance(error, OutOfMemoryError) == (code == 2)
    assert ("earlier asynchronous error" in str(error)) == (code in STICKY)


def test_errors_that_stay_are_those_that_cuda_h_says_so_of() -> None:
    from cuda.bindings import driver

    texts = {int(code): " ".join((code.__doc__ or "").split()) for code in driver.CUresult}
    if not any(texts.values()):
        pytest.skip("this cuda-bindings does not quote cuda.h")
    ends = ("process must be terminated", "context cannot be used")
    assert {code for code, text in texts.items() if any(end in text for end in ends)} <= STICKY
    assert {214, 220, 226, 911} <= STICKY
    assert not STICKY & {708, 709, 713}, "these tell what the call itself did wrong"


def test_a_function_that_the_driver_has_not(fresh_process: Any) -> None:
    done = fresh_process(_OPEN, hide=["cuDevicePrimaryCtxRetain"])
    assert done.stdout == (
        "DeviceError 4 GPU 0 cannot be read: the driver for CUDA 13.0 has no "
        "cuDevicePrimaryCtxRetain.\n  Install a newer NVIDIA driver.\n"
    )


def test_no_driver_at_all() -> None:
    if _real_driver():
        pytest.skip("this machine has an NVIDIA driver")
    hidden = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _OPEN], env=hidden, capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "DeviceError 4 no NVIDIA driver here: libcuda.so.1 cannot be loaded.\n"
        "  Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for "
        "those built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus "
        "all.\n"
    )


def _real_driver() -> bool:
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def test_no_cuda_bindings(fresh_process: Any) -> None:
    done = fresh_process("import sys; sys.modules['cuda'] = None\n" + _OPEN)
    assert done.stdout.startswith("DeviceError 4 cuda-bindings cannot be imported: ")
    assert done.stdout.endswith("\n  Run pip install cuda-bindings.\n")


def test_two_threads_open_it_once(fresh_process: Any) -> None:
    code = """
import threading
from pallasc.runtime.device.devices import open_driver
found, gate = [], threading.Barrier(8)
def work():
    gate.wait()
    found.append(open_driver())
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(set(map(id, found))), len(found))
"""
    assert fresh_process(code).stdout == "1 8\n"


def test_a_fork_is_refused_with_a_reason(fresh_process: Any) -> None:
    code = """
import os
from pallasc.runtime.device.devices import get_device
get_device(0)
child = os.fork()
if child == 0:
    try:
        get_device(0)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(get_device(0))
"""
    assert fresh_process(code).stdout == (
        "DeviceError this process was forked from one that uses the GPU; CUDA does not work in "
        'it.\n  Start processes with multiprocessing.get_context("spawn").\n'
        "GPU 0 (Stand-in H100, sm_90)\n"
    )


def test_a_fork_while_another_thread_opens_the_driver_does_not_hang(fresh_process: Any) -> None:
    code = """
import os, signal, threading
from pallasc.runtime.device import devices
inside, go = threading.Event(), threading.Event()
real = devices._open
def slow():
    inside.set()
    go.wait()
    return real()
devices._open = slow
thread = threading.Thread(target=devices.open_driver)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(900)
    try:
        devices.open_driver()
    except Exception as error:
        print(str(error).partition(";")[0], flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
go.set()
thread.join()
print(devices.open_driver().version)
"""
    said = "this process was forked from one that uses the GPU\n"
    assert fresh_process(code).stdout == f"{said}0\n13000\n"


def test_a_fork_while_another_thread_loads_does_not_hang(fresh_process: Any) -> None:
    """Whatever lock is held when a process forks is nobody's in the child."""
    code = """
import os, signal, threading
import made
from pallasc.runtime.device.devices import state
framework = made.install()
kernel = made.kernel(made.add())
a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
kernel(a, b)
held = state.lock
inside, go = threading.Event(), threading.Event()
def hold():
    with held:
        inside.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(900)
    again = made.kernel(made.add())
    for call in (kernel, again, kernel.unchecked, lambda *_: kernel.preload(0)):
        try:
            call(a, b)
        except Exception as error:
            print(str(error).partition(";")[0], flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
go.set()
thread.join()
"""
    done = fresh_process(code)
    said = "this process was forked from one that uses the GPU\n"
    assert done.stdout == f"{said * 4}0\n", done.stderr


def test_a_child_tries_a_driver_again_that_its_parent_could_not_start(fresh_process: Any) -> None:
    code = """
import os
import standin
from pallasc.runtime.device.devices import open_driver
try:
    open_driver()
except Exception as error:
    print(error.code, flush=True)
child = os.fork()
if child == 0:
    standin.load().configure(init_code=0)
    print(open_driver().version, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = fresh_process(code, init=100)
    assert done.stdout == "100\n13000\n", done.stderr


def test_an_old_driver_without_newer_functions_works(fresh_process: Any) -> None:
    """12.0 has neither cuFuncLoad nor cuKernelGetParamInfo."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import made
framework = made.install()
older = made.cubin().replace(b"release 13", b"release 12")
kernel = made.kernel(made.add(minimum_driver=None, code=older))
a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
print(kernel(a, b).shape)
"""
    from pathlib import Path

    done = fresh_process(code, str(Path(__file__).parent), driver=12000)
    assert done.stdout == "(4, 64)\n", done.stderr
