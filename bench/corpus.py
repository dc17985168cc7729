"""`pallasc.compile` against plain JAX, over the kernels of a test file of JAX, in one process.

Usage: corpus.py TESTFILE, for example `tests/pallas/mosaic_gpu_test.py` of JAX's sources at the
version that is installed. Its tests are run as far as their first call of a kernel with arrays,
which is taken down and not run. Then each is compiled for sm_90a by `jax.jit(…).trace(…).lower(…)
.compile()` and by `pallasc.compile`, from empty caches each time, first the one and then the other,
the next kernel in the other order. What plain JAX refuses, as some tests want it, and what holds no
kernel of Mosaic GPU is left out and counted.

pallasc goes first in the process. JAX keeps the assembler that it found first, so plain JAX starts
the same one afterwards. Otherwise pallasc would have XLA compile in a separate process. It also
does so if the system has a CUDA toolkit of another version, or if libnvJitLink is loaded. That
costs time, and the figures show whether it happened. To measure without it, put the toolkit of
NVIDIA's wheel where JAX looks first: start Python with `-X PLACE`, where
`PLACE.runfiles/cuda_nvcc` and `PLACE.runfiles/rules_ml_toolchain++cuda_redist_init_ext+cuda_nvcc`
are links to it.

Goals: at most 1.10 times plain JAX's time in sum and at the median; pallasc compiles all that JAX
does.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import io
import os
import resource
import statistics
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

from harness import Figure, run_benchmark

import pallasc
from pallasc.compiler import api
from pallasc.compiler.lowering.jax_versions import devices_for, patched
from pallasc.specs.gpus import Target, resolve_target

TARGET = "sm_90a"
GOAL = 1.10
LEAST = 200
"""With fewer kernels than this the figures say little."""


@dataclass(frozen=True)
class Kernel:
    """A call that a test made: a function of arrays alone, and their shapes and types."""

    test: str
    function: Callable[..., Any]
    arrays: tuple[Any, ...]


@dataclass(frozen=True)
class Timing:
    """Seconds of both, by the clock and of processors, those of the assembler's process too."""

    test: str
    plain: tuple[float, float]
    ours: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Return how many times plain JAX's time pallasc took, by the clock."""
        return self.ours[0] / self.plain[0]


class Stopped(BaseException):
    """Ends a test whose first call of a kernel has been taken down."""


class Recorder:
    """Takes down the first call of each test, and lets all calls through in between."""

    def __init__(self) -> None:
        self._listening = False
        self._call: Any = None

    def made_by(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return `jax.jit` or the like, so that the functions it makes are taken down."""

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            if not self._listening:
                return make(*args, **kwargs)
            if args and callable(args[0]):
                return self._recorded(make(*args, **kwargs))
            decorate = make(*args, **kwargs)
            return lambda function: self._recorded(decorate(function))

        return made

    def _recorded(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._listening:
                return function(*args, **kwargs)
            self._call = (function, args, kwargs)
            raise Stopped

        return call

    def first_call(self, test: unittest.TestCase) -> Any:
        """Run a test; return the function and the arguments of its first call, None without one.

        JAX traces the test instead of running it, so that no data are made for its kernel.
        """
        import jax

        self._listening, self._call = True, None
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                jax.eval_shape(lambda: test.run(unittest.TestResult()) and None)
        except Stopped:
            pass
        finally:
            self._listening = False
        return self._call


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[tuple[Recorder, list[unittest.TestCase]]]:
    """Load a test file whose tests believe that the GPU is there; give its tests, mixed."""
    recorder = Recorder()
    with loaded(file, resolve_target(TARGET), recorder.made_by) as tests:
        yield recorder, tests


@contextlib.contextmanager
def loaded(
    file: Path, target: Target, made_by: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[list[unittest.TestCase]]:
    """Yield the tests of a file, mixed, which see a GPU and make their kernels with `made_by`."""
    import jax
    from jax._src import test_util, xla_bridge
    from jax.experimental import pallas
    from jax.experimental.pallas import mosaic_gpu

    def capability(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    def local_devices(*args: Any, backend: Any = None, **kwargs: Any) -> Any:
        return list(devices_for(target)) if backend == "gpu" else asked(*args, **kwargs)

    asked, here = xla_bridge.local_devices, (target.major, target.minor)
    answers: dict[str, Callable[..., Any]] = {
        "is_device_cuda": lambda: True,
        "test_device_matches": lambda kinds: bool({"gpu", "cuda"} & set(kinds)),
        "is_cuda_compute_capability_at_least": lambda text: capability(text) <= here,
        "is_cuda_compute_capability_equal": lambda text: capability(text) == here,
    }
    with contextlib.ExitStack() as stack:
        for module, name in ((jax, "jit"), (mosaic_gpu, "kernel"), (pallas, "pallas_call")):
            made = made_by(getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, made))
        stack.enter_context(patched(test_util, answers))
        stack.enter_context(patched(xla_bridge, {"local_devices": local_devices}))
        yield sorted(_tests_in(file), key=lambda test: sha256(test.id().encode()).digest())


def _tests_in(file: Path) -> Iterator[unittest.TestCase]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{file} is not a Python file.")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while waiting:
        test = waiting.pop()
        if isinstance(test, unittest.TestCase):
            yield test
        else:
            waiting.extend(test)


def captured(recorder: Recorder, tests: Sequence[unittest.TestCase]) -> Iterator[Kernel]:
    """Run the tests as far as their first calls; yield these."""
    for test in tests:
        call = recorder.first_call(test)
        if call is not None:
            yield kernel_of(test.id().partition(".")[2].partition(" ")[0], *call)


def kernel_of(test: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Kernel:
    """Make arrays the only arguments; whatever else a call was given stays as it is."""
    import jax
    import numpy

    flat, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, jax.Array | numpy.ndarray)]

    def call(*arrays: Any) -> Any:
        leaves = list(flat)
        for place, array in zip(places, arrays, strict=True):
            leaves[place] = array
        again, more = jax.tree.unflatten(tree, leaves)
        return function(*again, **more)

    shapes = [jax.ShapeDtypeStruct(flat[i].shape, flat[i].dtype) for i in places]
    return Kernel(test, call, tuple(shapes))


def plain(kernel: Kernel) -> None:
    """Compile as JAX's documentation has it."""
    import jax

    device = devices_for(resolve_target(TARGET))[0]
    own = jax.sharding.SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=own) for a in kernel.arrays]
    with jax.default_device(device):
        traced = jax.jit(lambda *given: kernel.function(*given)).trace(*arrays)
        traced.lower(lowering_platforms=("cuda",)).compile()


def ours(kernel: Kernel) -> Any:
    """Compile with pallasc, without a store."""
    return pallasc.compile(lambda *given: kernel.function(*given), *kernel.arrays, target=TARGET)


def timed(compile_it: Callable[[Kernel], Any], kernel: Kernel) -> tuple[tuple[float, float], Any]:
    """Return the seconds of a compilation from empty caches, and what it returned."""
    import jax

    jax.clear_caches()
    gc.collect()
    before, began = _processor_seconds(), time.perf_counter()
    result = compile_it(kernel)
    return (time.perf_counter() - began, _processor_seconds() - before), result


def _processor_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def compare(kernels: Iterable[Kernel], count: int) -> tuple[list[Timing], dict[str, list[str]]]:
    """Time up to `count` kernels; return the timings, and the tests that were left out, by why."""
    timings: list[Timing] = []
    left_out: dict[str, list[str]] = {"JAX": [], "no kernel": [], "pallasc": []}
    for kernel in kernels:
        if len(timings) == count:
            break
        sides = (plain, ours) if len(timings) % 2 == 0 else (ours, plain)
        seconds: dict[Any, tuple[float, float]] = {}
        failed: dict[Any, BaseException] = {}
        artifact: Any = None
        for side in sides:
            try:
                seconds[side], result = timed(side, kernel)
            except Exception as error:  # noqa: BLE001 - tests want all kinds of failures
                failed[side] = error
            else:
                artifact = result if side is ours else artifact
        if plain in failed:
            left_out["JAX"].append(kernel.test)
        elif ours in failed:
            left_out["pallasc"].append(kernel.test)
            traceback.print_exception(failed[ours], file=sys.stderr)
        elif all(kernel.origin != "mosaic" for kernel in artifact.kernels):
            left_out["no kernel"].append(kernel.test)
        else:
            timings.append(Timing(kernel.test, seconds[plain], seconds[ours]))
            _say(len(timings), timings[-1])
    return timings, left_out


def _say(number: int, timing: Timing) -> None:
    print(
        f"{number}: {timing.plain[0]:.3f} s, {timing.ours[0]:.3f} s, "
        f"{timing.ratio:.3f}  {timing.test}",
        file=sys.stderr,
    )


def measure(options: argparse.Namespace) -> list[Figure]:
    """Take the kernels down, time them, sum up."""
    import jax

    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is neither GPU nor driver
    devices_for(resolve_target(TARGET))  # before JAX looks for devices of this machine
    jax.config.update("jax_platforms", "cpu")
    loads = [os.getloadavg()[0]]
    with recorded(options.testfile) as (recorder, tests):
        kernels = captured(recorder, tests)
        warm_up(kernels)
        timings, left_out = compare(kernels, options.kernels)
    loads.append(os.getloadavg()[0])
    return figures(timings, left_out, statistics.mean(loads))


def warm_up(kernels: Iterator[Kernel]) -> None:
    """Compile one kernel both ways: imports and the toolchain's digests happen once a process."""
    for kernel in kernels:
        with contextlib.suppress(Exception):  # some are to fail
            ours(kernel)
            plain(kernel)
            return


def figures(timings: Sequence[Timing], left_out: dict[str, list[str]], load: float) -> list[Figure]:
    """Return what is reported of all kernels."""
    if not timings:
        raise SystemExit("No kernel of this file compiles.")
    sums = [sum(getattr(t, side)[i] for t in timings) for i in (0, 1) for side in ("plain", "ours")]
    ratios = sorted(timing.ratio for timing in timings)
    slowest = max(timings, key=lambda timing: timing.ours[0])
    found = [
        Figure("kernels", len(timings), goal=LEAST, at_least=True),
        Figure("plain JAX, in sum", sums[0], "s"),
        Figure("pallasc / plain JAX, in sum", sums[1] / sums[0], goal=GOAL),
        Figure("pallasc / plain JAX, median", statistics.median(ratios), goal=GOAL),
        Figure("pallasc / plain JAX, 95th percentile", ratios[int(0.95 * len(ratios))]),
        Figure(f"slowest, {slowest.test}, pallasc", slowest.ours[0], "s"),
        Figure(f"slowest, {slowest.test}, plain JAX", slowest.plain[0], "s"),
        Figure("compiled by plain JAX alone", len(left_out["pallasc"]), goal=0),
        Figure("left out, plain JAX refuses them", len(left_out["JAX"])),
        Figure("left out, no Mosaic GPU kernel", len(left_out["no kernel"])),
        Figure("load of the machine", load),
        Figure("processes of their own for XLA", len(api._processes)),
    ]
    if not api._processes:  # whose time would be missing
        found.append(Figure("pallasc / plain JAX, processor seconds in sum", sums[3] / sums[2]))
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("testfile", type=Path, metavar="TESTFILE", help="a test file of JAX")
    parser.add_argument(
        "--kernels", type=int, default=LEAST, help="how many of the file are timed (default: 200)"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
