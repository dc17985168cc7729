"""The driver: opened once, its answers in words."""

import os
import subprocess
import sys
from typing import Any

import pytest

from pallasc.runtime.device.devices import rows

_OPEN = """
from pallasc.errors import PallascError
from pallasc.runtime.device.devices import get_device
try:
    print(get_device(0))
except PallascError as error:
    print(type(error).__name__, error.exit_code, error)
"""


def test_errors_that_stay_are_those_that_cuda_h_says_so_of() -> None:
    from cuda.bindings import driver

    texts = {int(code): " ".join((code.__doc__ or "").split()) for code in driver.CUresult}
    if not any(texts.values()):
        pytest.skip("this cuda-bindings does not quote cuda.h")
    sticky = set(rows("STICKY")[0])
    ends = ("process must be terminated", "context cannot be used")
    assert {code for code, text in texts.items() if any(end in text for end in ends)} <= sticky
    assert {214, 220, 226, 911} <= sticky
    assert not sticky & {708, 709, 713}, "these tell what the call itself did wrong"


def test_no_driver_at_all() -> None:
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    if subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")
    hidden = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-P", "-c", _OPEN]
    assert subprocess.check_output(command, env=hidden, text=True) == (
        "DeviceError 4 no NVIDIA driver here: libcuda.so.1 cannot be loaded.\n"
        "  Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for "
        "those built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus "
        "all.\n"
    )


def test_no_cuda_bindings(fresh_process: Any) -> None:
    done = fresh_process("import sys; sys.modules['cuda'] = None\n" + _OPEN)
    assert done.stdout.startswith("DeviceError 4 cuda-bindings cannot be imported: ")
    assert done.stdout.endswith("\n  Run pip install cuda-bindings.\n")


# A child of a fork while another thread holds what it needs; `hold` is called in that thread.
_FORK = """
import os, signal, threading
inside, go = threading.Event(), threading.Event()
def wait():
    inside.set()
    go.wait()
def said(work, *arguments):
    try:
        work(*arguments)
    except Exception as error:
        print(str(error).partition(";")[0], flush=True)
def fork_while(hold, *works):
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    if not (child := os.fork()):
        signal.alarm(900)
        for work in works:
            said(work)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    go.set()
    thread.join()
"""
FORKED = "this process was forked from one that uses the GPU\n"


def test_two_threads_open_it_once_and_a_fork_at_that_time_does_not_hang(
    fresh_process: Any,
) -> None:
    code = """
from pallasc.runtime.device import devices
real, opened = devices._open, []
def slow():
    opened.append(1)
    wait()
    return real()
devices._open = slow
threads = [threading.Thread(target=devices.open_driver) for _ in range(4)]
for thread in threads: thread.start()
fork_while(lambda: None, devices.open_driver)
for thread in threads: thread.join()
print(devices.open_driver().version, len(opened))
"""
    assert fresh_process(_FORK + code).stdout == f"{FORKED}0\n13000 1\n"


def test_a_fork_while_another_thread_loads_does_not_hang(fresh_process: Any) -> None:
    """Whatever lock is held when a process forks is nobody's in the child."""
    code = """
import made
from pallasc.runtime.device.devices import get_device, state
framework = made.install()
kernel, again = made.kernel(made.add()), made.kernel(made.add())
a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
kernel(a, b)
def hold():
    with state.lock:
        wait()
calls = [lambda call=call: call(a, b) for call in (kernel, again, kernel.unchecked)]
fork_while(hold, *calls, lambda: kernel.preload(0), lambda: get_device(0))
"""
    done = fresh_process(_FORK + code)
    assert done.stdout == f"{FORKED * 5}0\n", done.stderr


def test_a_fork_is_refused_with_a_reason_and_its_parent_goes_on(fresh_process: Any) -> None:
    code = """
from pallasc.runtime.device.devices import get_device
get_device(0)
if not (child := os.fork()):
    try:
        get_device(0)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(get_device(0))
"""
    assert fresh_process(_FORK + code).stdout == (
        "DeviceError this process was forked from one that uses the GPU; CUDA does not work in "
        'it.\n  Start processes with multiprocessing.get_context("spawn").\n'
        "GPU 0 (Stand-in H100, sm_90)\n"
    )


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
import made
framework = made.install()
older = made.cubin().replace(b"release 13", b"release 12").replace(b", V13", b", V12")
needs = {"cuda": "12.0", "linux": "525.60.13"}
kernel = made.kernel(made.add(minimum_driver=needs, code=older))
a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
print(kernel(a, b).shape)
"""
    done = fresh_process(code, driver=12000)
    assert done.stdout == "(4, 64)\n", done.stderr
