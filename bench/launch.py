"""The cost of a launch on the stand-in driver: a kernel with four arrays, against the raw call.

`cuLaunchKernelEx` of the stand-in returns at once, so only the code before it is timed. The raw
call is `cuLaunchKernelEx` of `cuda.bindings`, with parameters, configuration and function ready.
Arrays are pallasc's own device arrays, objects with `__cuda_array_interface__`, and CUDA tensors of
torch if torch with CUDA 13 is installed, on a stand-in of the CUDA runtime. `plain: …` are launches
without the C library.

Goals for tensors and device arrays: an unchecked launch takes at most 2 times as long as the raw
call, a checked launch 3 times, and a torch operator that allocates 10 times. With 2,048 sets of
addresses in turn, a launch takes at most 1.5 times as long as with 512. With `stream=`, a call that
allocates takes at most twice as long as without. Launches without the C library have no goal.
"""

import functools
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import timeit
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import PYTHON, ROOT, Figure, run_benchmark, say

TESTS = ROOT / "tests" / "runtime"
sys.path.append(str(TESTS))

REPEATS = 150
ADDRESS_SETS = (512, 2048)
TEXT = "f32[4, 64]"
GOALS = {
    "device arrays: unchecked / raw": 2.0,
    "device arrays: checked / raw": 3.0,
    "torch: unchecked / raw": 2.0,
    "torch: checked / raw": 3.0,
    "torch: operator, allocating / raw": 10.0,
    "torch: 2,048 address sets / 512 address sets": 1.5,
    "torch: allocating, stream given / allocating": 2.0,
}


def measure(options: Namespace, place: Path) -> Sequence[Figure]:
    """Measure launches in processes that find the stand-in driver."""
    import standin
    import standin_torch

    from pallasc.runtime.native.library import extension

    if standin.compiler() is None:
        raise SystemExit("launch: no C compiler (cc or gcc), so there is no stand-in driver")
    environment = standin.environment(log=False, raw_speed=True)
    kinds = {"device arrays": environment, "__cuda_array_interface__": environment}
    if (reason := standin_torch.why_not()) is None:
        kinds["torch"] = standin_torch.environment(place, log=False, raw_speed=True)
    else:
        say(f"no CUDA tensors: {reason}")
    figures = []
    for kind, own in kinds.items():
        if extension() is not None:
            figures += one_way(own, kind, options.rounds, f"{kind}: ")
        figures += one_way({**own, "PALLASC_NATIVE": "0"}, kind, options.rounds, f"plain: {kind}: ")
    return figures


def one_way(environment: dict[str, str], kind: str, rounds: int, prefix: str) -> list[Figure]:
    """Return the figures of one process, with a prefix to their names."""
    paths = [str(TESTS), str(ROOT / "bench"), environment.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*PYTHON, __file__, "--here", kind, str(rounds)],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    pairs = [(name, "raw") for name in found if name != "raw"]
    pairs += [(f"{count:,} address sets", "512 address sets") for count in ADDRESS_SETS[1:]]
    pairs.append(("allocating, stream given", "allocating"))
    ratios = {f"{a} / {b}": found[a] / found[b] for a, b in pairs if a in found and b in found}
    return [
        *(Figure(prefix + name, value, "ns") for name, value in found.items()),
        *(Figure(prefix + n, value, goal=GOALS.get(prefix + n)) for n, value in ratios.items()),
    ]


# ---- in a process with the stand-in driver


class Timer:
    """Times works in turn, in slices so short that other programs do not disturb all of them."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._work: dict[str, tuple[Callable[[], object], int]] = {}

    def add(self, name: str, work: Callable[[], object], *, every: int = 1) -> None:
        """Add a work to time; `every` divides the number of rounds, for works that take long."""
        for _ in range(3):
            work()
        self._work[name] = work, max(1, self._rounds // every)

    def run(self) -> dict[str, float]:
        """Return the shortest time of each work, in nanoseconds."""
        found = dict.fromkeys(self._work, math.inf)
        gc.disable()
        for _ in range(REPEATS):
            for name, (work, number) in self._work.items():
                time_ns = timeit.timeit(work, number=number) / number * 1e9
                found[name] = min(found[name], time_ns)
        gc.enable()
        return found


def arrays(kind: str, count: int) -> list[Any]:
    """Return arrays of a kind."""
    if kind == "torch":
        import torch

        return [torch.empty((4, 64), dtype=torch.float32, device="cuda") for _ in range(count)]
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    made = [DeviceArray((4, 64), "f32") for _ in range(count)]
    if kind == "device arrays":
        return made
    return [CudaArray(own) for own in made]


class CudaArray:
    """An array with only `__cuda_array_interface__`."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._fields = owner.__cuda_array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._fields


def four() -> Any:
    """Return the artifact of a kernel over four arrays."""
    import made

    return made.artifact(made.launch("four", 0, 1, 2, 3), inputs=dict.fromkeys("abc", TEXT))


def pointers(timer: Timer, kind: str) -> None:
    """Add launches of a kernel over four arrays to a timer."""
    import made

    kernel = made.kernel(four())
    a, b, c, out = arrays(kind, 4)
    timer.add("raw", raw())
    timer.add("checked", lambda: kernel.into(a, b, c, out=out))
    unchecked = kernel.unchecked
    timer.add("unchecked", lambda: unchecked.into(a, b, c, out=out))
    timer.add("allocating", lambda: kernel(a, b, c), every=2 if kind == "torch" else 8)
    if kind == "torch":
        import torch

        stream = torch.cuda.Stream()
        timer.add("allocating, stream given", lambda: kernel(a, b, c, stream=stream), every=2)
        operator = kernel.torch_operator("pallasc_bench::four")
        timer.add("operator, allocating", lambda: operator(a, b, c), every=2)
    for count in ADDRESS_SETS:
        address_sets(timer, kind, count)


def raw() -> Callable[[], object]:
    """Return the bare call of cuda.bindings, with its arguments ready."""
    from pallasc.runtime.calls.plain import Parameters, launch_config, ready_function
    from pallasc.runtime.device.devices import get_device, open_driver

    artifact, driver = four(), open_driver()
    (launch,) = artifact.plan.launches
    function = ready_function(driver, artifact, launch, get_device(0))
    held = arrays("device arrays", 4)
    memory, place = Parameters(driver, launch).for_buffers([own.pointer for own in held])
    config = launch_config(driver, launch, 0)

    call = functools.partial(driver.bindings.cuLaunchKernelEx, config, function, place, 0)
    call.held = memory, held  # type: ignore[attr-defined]
    return call


def address_sets(timer: Timer, kind: str, count: int) -> None:
    """Add launches with `count` results in turn, each at its own address, to a timer."""
    import made

    kernel = made.kernel(four())
    a, b, c = arrays(kind, 3)
    results = itertools.cycle(arrays(kind, count))

    def work() -> None:
        kernel.into(a, b, c, out=next(results))

    timer.add(f"{count:,} address sets", work, every=2)


def here(kind: str, rounds: int) -> None:
    """Time everything in this process, and print it."""
    from pallasc.runtime.device.devices import get_device, open_driver

    if kind == "torch":
        import standin_torch

        standin_torch.load()
    # A context is current in every program that has used the GPU before.
    open_driver().call("cuCtxSetCurrent", get_device(0).context, what="the context")
    timer = Timer(rounds)
    pointers(timer, kind)
    print(json.dumps(timer.run()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2], int(sys.argv[3]))
    sys.exit(run_benchmark(__doc__, measure, rounds=500))
