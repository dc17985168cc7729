"""JAX's own tests of Mosaic GPU kernels, with kernels executed by the emulator.

Usage: sweep.py CHECKOUT, the sources of JAX at the version that is installed. Each test of
`tests/pallas/mosaic_gpu_test.py` runs in its own process, for sm_90a and for sm_100a. When a test
calls a kernel with arrays, `pallasc.compile` compiles the kernel, `pallasc.emulate` executes it,
and the test gets the results. JAX computes everything else on the CPU.

Each test ends as one of these:

* right: kernels were executed, and the test passes;
* wrong: kernels were executed, and the test fails, or the emulator reports a fault;
* unsupported: the emulator does not support an instruction, or pallasc cannot launch a step;
* refused by JAX: JAX does not compile the kernel, as some tests intend;
* no kernel: the test calls no kernel with arrays;
* explained: the test fails for a reason in `EXPLAINED`, which is not a fault of the emulator;
* skipped: the test is for another GPU;
* stopped: the test took longer than `--limit`.

`--target` names another GPU, `--k` a regular expression for names of tests, `--cases` the number of
cases of each test (0 for all), and `--limit` the seconds for one test.

Goals: no test is wrong, and no unsupported instruction blocks more than two tests.
"""

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from corpus import kernel_of, loaded
from harness import Figure, run_benchmark

import pallasc
from pallasc.compiler import api
from pallasc.compiler.lowering import compile  # noqa: F401 - once, before the forks
from pallasc.compiler.lowering.jax_versions import devices_for, devices_present
from pallasc.errors import CompileError, UnsupportedError
from pallasc.specs.gpus import Target, resolve_target

TARGETS = ("sm_90a", "sm_100a")
TESTS = Path("tests", "pallas", "mosaic_gpu_test.py")
STATES = (
    *("right", "wrong", "unsupported", "refused by JAX"),
    *("no kernel", "explained", "skipped", "stopped"),
)
EXPLAINED = {
    "test_profiler.*": "profiles a kernel, which pallasc does not support",
    "test_line_info|test_griddepcontrol_multi_kernel": "reads a dump that only JAX writes",
    "test_copy_gmem_to_smem_clamped_arrivals1": "copies past the end of an array, which is a fault",
    "test_copy_gmem_to_smem_predicate": "deadlocks with JAX 0.12: its predicate covers the arrival",
    "test_realistic_matmul": "expects exactly a product that CPUs round differently, by 1 ulp",
    "test_cluster_launch_control[45]": "both blocks ask for work, as before `collective_axes`",
}
"""Patterns of tests that fail for a known reason, and what each of these tests does."""


class Outcome(NamedTuple):
    """End of one test: one of `STATES`, and the reason, if any."""

    test: str
    state: str
    reason: str = ""


class Emulated:
    """Replaces `jax.jit` and similar: their functions are compiled and run in the emulator."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inside = False
        self.executed = 0
        self.error: BaseException | None = None

    def made_by(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `make` (`jax.jit` or similar): the functions that it makes run in the emulator."""

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            if args and callable(args[0]):
                return self._emulated(make(*args, **kwargs))
            decorate = make(*args, **kwargs)
            return lambda function: self._emulated(decorate(function))

        return made

    def _emulated(self, function: Callable[..., Any]) -> Any:
        import jax
        from jax._src.core import trace_state_clean

        @functools.wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs))
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            if self._inside or traced or not trace_state_clean():
                return function(*args, **kwargs)
            self._inside = True
            try:
                return self._run(function, args, kwargs)
            finally:
                self._inside = False

        def lower(*args: Any, **kwargs: Any) -> Any:
            with devices_present(devices_for(self._target)):
                return function.trace(*args, **kwargs).lower(lowering_platforms=("cuda",))

        if hasattr(function, "trace"):
            call.trace, call.lower = function.trace, lower  # type: ignore[attr-defined]
        return call

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import jax
        import numpy

        kernel = kernel_of("", function, args, kwargs)
        devices = devices_for(self._target)
        with devices_present(devices):
            traced = jax.make_jaxpr(kernel.function)(*kernel.arrays)
        if not re.search(r"\b(core_map|pallas_call|mosaic_gpu\w*|mpmd_map)\[", str(traced)):
            return function(*args, **kwargs)
        arrays = [
            numpy.asarray(leaf)
            for leaf in jax.tree.leaves((args, kwargs))
            if isinstance(leaf, jax.Array | numpy.ndarray)
        ]
        try:
            artifact = pallasc.compile(kernel.function, *kernel.arrays, target=self._target)
            if all(each.origin != "mosaic" for each in artifact.kernels):
                return function(*args, **kwargs)
            self.executed += 1
            results = pallasc.emulate(artifact, *arrays)
            sys.stdout.flush()
        except pallasc.PallascError as error:
            self.error = self.error or error
            raise _cause(error) from error
        return jax.tree.map(jax.numpy.asarray, results)


def _cause(error: pallasc.PallascError) -> BaseException:
    """Return JAX's or Mosaic's exception behind an error, because a test may expect it."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, UnsupportedError) or not isinstance(error, CompileError) or cause is None:
        return error
    return _cause(cause) if isinstance(cause, pallasc.PallascError) else cause


def outcome(test: unittest.TestCase, emulated: Emulated) -> Outcome:
    """Run one test."""
    emulated.executed, emulated.error = 0, None
    result = unittest.TestResult()
    test.run(result)
    failures = [text for _, text in (*result.errors, *result.failures)]
    said = _last_line(failures[0]) if failures else ""
    error = emulated.error
    method = _name(test).rpartition(".")[2]
    why = next((why for each, why in EXPLAINED.items() if re.fullmatch(each, method)), None)
    if result.skipped:
        state, reason = "skipped", result.skipped[0][1]
    elif isinstance(error, UnsupportedError):
        state, reason = ("explained", why) if why else ("unsupported", error.message)
    elif isinstance(error, CompileError):
        state, reason = "refused by JAX", error.message
    elif emulated.executed:
        state, reason = ("wrong" if failures else "right"), (error.message if error else said)
        if failures and why:
            state, reason = "explained", why
    else:
        state, reason = ("refused by JAX" if failures else "no kernel"), said
    return Outcome(_name(test), state, _last_line(reason)[:300])


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"\w[\w.]*(Error|Exception|Fault)\b", line)]
    return (errors or lines or [""])[-1]


def _name(test: unittest.TestCase) -> str:
    return test.id().partition(".")[2].partition(" ")[0]


def sweep(file: Path, target: Target, options: argparse.Namespace) -> Iterator[Outcome]:
    """Run the tests of a file, each in a process forked from one that has them loaded."""
    emulated = Emulated(target)
    context = multiprocessing.get_context("fork")
    with loaded(file, target, emulated.made_by) as tests, tempfile.TemporaryDirectory() as folder:
        left = [test for test in tests if re.search(options.k, _name(test))]
        left = _few_cases(left, options.cases)
        ended = Path(folder, "ended")
        while left:
            ended.write_text("")
            process = context.Process(target=_child, args=(left, emulated, target, ended))
            process.start()
            process.join(options.limit)
            stopped = process.is_alive()
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.join()
            found = [Outcome(*json.loads(line)) for line in ended.read_text().splitlines()]
            if stopped:
                found.append(Outcome(_name(left[len(found)]), "stopped", f"{options.limit:g} s"))
            elif process.exitcode:
                reason = f"the process ended with {process.exitcode}"
                found.append(Outcome(_name(left[len(found)]), "wrong", reason))
            left = left[len(found) :]
            for each in found:
                print(target.arch, *each, sep="\t", file=sys.stderr, flush=True)
            yield from found


def _few_cases(tests: list[unittest.TestCase], most: int) -> list[unittest.TestCase]:
    """Return at most `most` cases of each parameterized test; 0 for all."""
    seen: Counter[str] = Counter()
    chosen = []
    for test in tests:
        method = re.split(r"\d*$|_?\(", _name(test))[0]
        seen[method] += 1
        if not most or seen[method] <= most:
            chosen.append(test)
    return chosen


def _child(tests: list[unittest.TestCase], emulated: Emulated, target: Target, ended: Path) -> None:
    """Run tests up to and including the first that is not skipped."""
    import jax
    from jax._src.lib import mosaic_gpu

    os.setpgid(0, 0)
    devices = devices_for(target)  # before JAX looks for devices of this machine
    jax.config.update("jax_platforms", "cpu")
    mosaic_gpu._mosaic_gpu_ext._sync_all_devices = lambda: None
    with ended.open("a", buffering=1) as file:
        for test in tests:
            with contextlib.redirect_stderr(io.StringIO()), devices_present(devices):
                found = outcome(test, emulated)
            file.write(json.dumps(found) + "\n")
            if found.state != "skipped":
                break
    os._exit(0)


def measure(options: argparse.Namespace, _: Path) -> list[Figure]:
    """Run the tests for each target, and count."""
    file = options.checkout / TESTS
    if not file.is_file():
        raise SystemExit(f"{options.checkout}: no {TESTS} here. Give a checkout of JAX's sources.")
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is neither GPU nor driver
    api._setup(None)  # once, before the forks
    sys.argv = sys.argv[:1]  # JAX's test file parses it
    found = []
    for name in options.target or TARGETS:
        target = resolve_target(name)
        found += figures(target.arch, list(sweep(file, target, options)))
    return found


def figures(arch: str, outcomes: list[Outcome]) -> list[Figure]:
    """Return the counts of one architecture, and the reasons that block tests."""
    counts = Counter(each.state for each in outcomes)
    found = [
        Figure(f"{arch}: {state}", counts[state], goal=0 if state == "wrong" else None)
        for state in STATES
    ]
    blocked = Counter(each.reason for each in outcomes if each.state == "unsupported")
    found += [
        Figure(f"{arch}: blocked by {reason}", count, goal=2)
        for reason, count in sorted(blocked.items())
    ]
    return found


if __name__ == "__main__":
    options = {"target": (), "k": "", "cases": 0, "limit": 120.0}
    sys.exit(run_benchmark(__doc__, measure, positional="checkout", **options))
