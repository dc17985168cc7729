"""`pallasc.compile` against plain JAX, over the kernels of a test file of JAX, in one process.

Usage: corpus.py TESTFILE, for example `tests/pallas/mosaic_gpu_test.py` of JAX's sources at the
version that is installed. Each test runs until its first call of a kernel with arrays, which is
recorded instead of executed. Each recorded kernel is compiled for sm_90a by
`jax.jit(…).trace(…).lower(…).compile()` and by `pallasc.compile`, each time from empty caches; the
order alternates from kernel to kernel. Kernels that plain JAX rejects, as some tests intend, and
calls without a Mosaic GPU kernel are left out and counted.

pallasc compiles the first kernel of the process. JAX keeps the assembler that it finds first, so
plain JAX uses the same assembler.

Goals: pallasc takes at most 1.10 times as long as plain JAX, in sum and at the median, and compiles
all kernels that JAX compiles.
"""

import argparse
import contextlib
import functools
import gc
import importlib.util
import io
import os
import statistics
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

from harness import Figure, run_benchmark, say

import pallasc
from pallasc.compiler.lowering.jax_versions import devices_for, patched
from pallasc.specs.gpus import Target, resolve_target

TARGET = "sm_90a"
GOAL = 1.10
LEAST = 200
"""Minimum number of kernels for meaningful figures."""


@dataclass(frozen=True)
class Kernel:
    """A recorded call: a function whose only arguments are arrays, and their shapes and types."""

    test: str
    function: Callable[..., Any]
    arrays: tuple[Any, ...]


@dataclass(frozen=True)
class Timing:
    """Seconds that plain JAX and pallasc take for a kernel."""

    test: str
    plain_s: float
    ours_s: float

    @property
    def ratio(self) -> float:
        """The time of pallasc, divided by the time of plain JAX."""
        return self.ours_s / self.plain_s


class Stopped(BaseException):
    """Ends a test whose first call of a kernel has been recorded."""


class Recorder:
    """Records the first call of each test, and lets all other calls through."""

    def __init__(self) -> None:
        self._listening = False
        self._call: Any = None

    def made_by(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `make` (`jax.jit` or similar): calls of the functions that it makes are recorded."""

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

        JAX traces the test instead of running it, so that no input data are computed.
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
def loaded(
    file: Path, target: Target, made_by: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[list[unittest.TestCase]]:
    """Yield the shuffled tests of a file; they see a GPU and make their kernels with `made_by`."""
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
    """Run the tests until their first calls, and yield these calls."""
    for test in tests:
        call = recorder.first_call(test)
        if call is not None:
            yield kernel_of(test.id().partition(".")[2].partition(" ")[0], *call)


def kernel_of(test: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Kernel:
    """Return a call as a function of its arrays; its other arguments are fixed."""
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


def plain(kernel: Kernel, target: Target) -> None:
    """Compile with JAX alone, ahead of time, as JAX's documentation describes."""
    import jax

    device = devices_for(target)[0]
    own = jax.sharding.SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=own) for a in kernel.arrays]
    with jax.default_device(device):
        traced = jax.jit(lambda *given: kernel.function(*given)).trace(*arrays)
        traced.lower(lowering_platforms=("cuda",)).compile()


def ours(kernel: Kernel, target: Target) -> Any:
    """Compile with pallasc, without a store."""
    function = kernel.function
    return pallasc.compile(lambda *given: function(*given), *kernel.arrays, target=target.name)


def timed_alone(
    compile_it: Callable[[Kernel, Target], Any], kernel: Kernel, target: Target
) -> tuple[float, Any]:
    """Return the seconds of a compilation from empty caches, and its result."""
    import jax

    jax.clear_caches()
    gc.collect()
    began = time.perf_counter()
    result = compile_it(kernel, target)
    return time.perf_counter() - began, result


def compare(
    kernels: Iterable[Kernel], count: int, target: Target
) -> tuple[list[Timing], Counter[str]]:
    """Time up to `count` kernels; return the timings, and the number left out for each reason."""
    timings: list[Timing] = []
    left_out: Counter[str] = Counter()
    for kernel in kernels:
        if len(timings) == count:
            break
        seconds: dict[Any, float] = {}
        results: dict[Any, Any] = {}
        for side in (plain, ours) if len(timings) % 2 == 0 else (ours, plain):
            try:
                seconds[side], results[side] = timed_alone(side, kernel, target)
            except Exception as error:  # noqa: BLE001 - tests provoke all kinds of failures
                results[side] = error
        if plain not in seconds:
            left_out["JAX"] += 1
        elif ours not in seconds:
            left_out["pallasc"] += 1
            traceback.print_exception(results[ours], file=sys.stderr)
        elif all(kernel.origin != "mosaic" for kernel in results[ours].kernels):
            left_out["no kernel"] += 1
        else:
            timings.append(Timing(kernel.test, seconds[plain], seconds[ours]))
            last = timings[-1]
            say(f"{len(timings)}: {last.plain_s:.3f} s, {last.ratio:.3f}  {last.test}")
    return timings, left_out


def measure(options: argparse.Namespace, _: Path) -> list[Figure]:
    """Record the kernels and time them."""
    target = resolve_target(TARGET)
    use_cpu(target)
    recorder = Recorder()
    with loaded(options.testfile, target, recorder.made_by) as tests:
        kernels = captured(recorder, tests)
        warm_up(kernels, target)
        timings, left_out = compare(kernels, options.kernels, target)
    if not timings:
        raise SystemExit("No kernel of this file compiles.")
    return [
        Figure("kernels", len(timings), goal=LEAST, at_least=True),
        *figures(timings),
        Figure("compiled by plain JAX alone", left_out["pallasc"], goal=0),
        Figure("left out, plain JAX refuses them", left_out["JAX"]),
        Figure("left out, no Mosaic GPU kernel", left_out["no kernel"]),
    ]


def use_cpu(target: Target) -> None:
    """Have JAX compute on the CPU, and find devices of the target."""
    import jax

    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is neither GPU nor driver
    devices_for(target)  # before JAX looks for devices of this machine
    jax.config.update("jax_platforms", "cpu")


def warm_up(kernels: Iterator[Kernel], target: Target) -> None:
    """Compile one kernel both ways, to exclude imports and the digests of the toolchain."""
    kernel = next(kernels, None)
    with contextlib.suppress(Exception):  # some kernels are meant to fail
        if kernel is not None:
            ours(kernel, target)
            plain(kernel, target)


def figures(timings: Sequence[Timing]) -> list[Figure]:
    """Return the times in sum, and the ratios."""
    plain_s, ours_s = (sum(getattr(t, name) for t in timings) for name in ("plain_s", "ours_s"))
    ratios = sorted(timing.ratio for timing in timings)
    return [
        Figure("plain JAX, in sum", plain_s, "s"),
        Figure("pallasc / plain JAX, in sum", ours_s / plain_s, goal=GOAL),
        Figure("pallasc / plain JAX, median", statistics.median(ratios), goal=GOAL),
        Figure("pallasc / plain JAX, 95th percentile", ratios[int(0.95 * len(ratios))]),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, positional="testfile", kernels=LEAST))
