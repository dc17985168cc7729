"""Many threads, two devices, forks in between: no wrong byte."""

from typing import Any

import pytest

_THREADS = 8
_LAUNCHES = 2_000

_PROGRAM = """
import ctypes, os, struct, sys, threading
import made, standin
from pallasc.runtime.device import devices

threads, launches, checks = (int(word) for word in sys.argv[1:])
driver = standin.load()
driver.reset()
driver.devices("9.0", "9.0")
framework = made.install()
maps = made.maps(*[made.tensor_map(buffer) for buffer in (0, 1, 1, 0)])
step = made.launch("mapped", 0, maps, grid=(8, 2, 1), cluster=(2, 1, 1), dynamic_smem_bytes=1024)
artifact = made.artifact(step, outputs=["f16[32, 64]"], inputs={"a": "f16[32, 64]"})
kernel = made.kernel(artifact, checks=bool(checks))
kernel.preload("cuda:0")
kernel.preload("cuda:1")
driver.configure(log=0)

# A matrix of f16, 32 by 64, in boxes of 8 by 8: the driver's own encoding, without the runtime's.
room = ctypes.create_string_buffer(256)
place = -(-ctypes.addressof(room) // 128) * 128
dims, strides = (ctypes.c_uint64 * 2)(64, 32), (ctypes.c_uint64 * 1)(128)
box, steps = (ctypes.c_uint32 * 2)(8, 8), (ctypes.c_uint32 * 2)(1, 1)

def encoded(address):
    encode = driver.library.cuTensorMapEncodeTiled
    float16 = 6
    with devices.active(devices.get_device(0)):
        code = encode(ctypes.c_void_p(place), float16, 2, ctypes.c_void_p(address), dims, strides,
                      box, steps, 0, 0, 0, 0)
    assert code == 0, code
    return ctypes.string_at(place, 128)

PAIRS = 40
pairs = [
    [[framework.tensor("f16[32, 64]", device=number % 2) for _ in range(2)] for _ in range(PAIRS)]
    for number in range(threads)
]
shape = [8, 2, 1, 128, 1, 1, 2, 1, 1, 1024, 1]
for number, own in enumerate(pairs):
    for a, out in own:
        first, second = encoded(a.pointer), encoded(out.pointer)
        data = struct.pack("<Q", a.pointer) + first + second + second + first
        driver.expect(data, shape, number % 2)
gate = threading.Barrier(threads + 1)
failed = []

def work(number):
    try:
        gate.wait()
        for turn in range(launches):
            a, out = pairs[number][(turn * 7 + number) % PAIRS]
            kernel.into(a, out=out)
    except BaseException as error:
        failed.append(repr(error))

running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for one in running:
    one.start()
gate.wait()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            kernel.into(pairs[0][0][0], out=pairs[0][0][1])
            code = 1
        except Exception as error:
            code = 42 if "was forked from one that uses the GPU" in str(error) else 2
        os._exit(code)
    children.append(child)
for one in running:
    one.join()
codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
seen = [sum(driver.seen(a.pointer) for a, _ in own) for own in pairs]
wrong = driver.unexpected
kernel.into(framework.tensor("f16[32, 64]"), out=pairs[0][0][1])  # which nobody expects
print(failed, codes, wrong, driver.unexpected, seen == [launches] * threads)
"""


@pytest.mark.parametrize("checks", [True, False])
def test_threads_launch_on_two_devices_while_the_process_forks(
    checks: bool, fresh_process: Any
) -> None:
    """Every launch is compared by the stand-in: its device, its shape, each byte it is given."""
    words = (str(_THREADS), str(_LAUNCHES), str(int(checks)))
    done = fresh_process(_PROGRAM, *words)
    assert done.stdout == "[] {42} 0 1 True\n", done.stderr
