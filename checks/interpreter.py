"""The interpreter level: numbers, bounds, uninitialized memory, races and deadlocks.

JAX's interpreter executes the kernel as JAX traced it, not as Mosaic compiles it, and ignores
`wgmma_wait`. `docs/check.md` lists the mistakes that it does not find. JAX 0.11 and newer report
races through `logging`; JAX 0.10 calls `print` in the module that detects races. Both are replaced
to record the text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from pallasc.checks.arrays import (
    difference,
    expected_results,
    input_arrays,
    remarks,
    stacked,
)
from pallasc.checks.findings import (
    DEADLOCK,
    Finding,
    LevelResult,
    Place,
    from_findings,
    not_checked,
)
from pallasc.checks.interpreter_messages import (
    failure_finding,
    missing_part,
    race_findings,
    raised_text,
)
from pallasc.checks.levels import Options, Subject
from pallasc.checks.waiting import Waiting, Watch, failures, user_place
from pallasc.compiler.lowering.diagnose import definition, failed_line
from pallasc.compiler.lowering.entry import import_function
from pallasc.compiler.lowering.jax_versions import (
    jax_mesh,
    lines_of_rules,
    on_one_device,
    source_locations,
)
from pallasc.compiler.references import kernel_call, leaves_of
from pallasc.errors import Location, PallascError
from pallasc.specs.spec import Variant

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"
_RACES = "jax._src.pallas.mosaic.interpret.race_detection_state"
_RANGES = "jax._src.pallas.mosaic.interpret.utils"
_OUTSIDE = {"clip_range_to_shape": None, "is_range_out_of_bounds_for_shape": True}
"""JAX's functions of index ranges, with the result of each for a range that is out of bounds."""
_RACE = "RACE DETECTED"
_MOST_RACES = 1000
TMA_CLOCKS = 64
"""Number of copies that the interpreter distinguishes. With fewer, a later copy can hide a missing
wait for an earlier one."""


@dataclass(slots=True)
class Heard:
    """Messages that the interpreter sent.

    Attributes:
        races: the text of each race.
        failure: the exception of the first thread that failed, if this JAX version reports it.
    """

    races: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *texts: object) -> None:
        """Record a race; ignore any other text."""
        text = " ".join(map(str, texts))
        with self._lock:
            if text.startswith(_RACE) and len(self.races) < _MOST_RACES:
                self.races.append(text)

    def fail(self, error: BaseException) -> None:
        """Record the exception of a failed thread; the first one is kept."""
        with self._lock:
            self.failure = self.failure or error


@contextlib.contextmanager
def interpreting(heard: Heard) -> Iterator[None]:
    """Run kernels that this thread calls in JAX's interpreter, until the end of the block.

    Args:
        heard: collects the interpreter's messages.
    """
    import jax

    params: Any = importlib.import_module(f"{_INTERPRETER}.params")
    checks = jax.config.values.get("jax_pallas_enable_debug_checks")
    with _recording(heard), params.force_gpu_interpret_mode(_parameters(params)):
        try:
            yield
        finally:
            if checks is not None:  # a kernel may turn debug checks on, but only for itself
                jax.config.update("jax_pallas_enable_debug_checks", checks)


def _from_zero(function: Callable[..., Any], outside: object) -> Callable[..., Any]:
    """Return one of JAX's functions, changed to treat negative indices as out of bounds.

    Unchanged, it fails an assertion for them, or counts them from the end of the array.
    """

    def checked(ranges: tuple[slice | int, ...], shape: tuple[int, ...]) -> Any:
        starts = (each.start if isinstance(each, slice) else each for each in ranges)
        return outside if min(starts, default=0) < 0 else function(ranges, shape)

    return checked


def forget() -> None:
    """Reset the interpreter's state after a kernel failed."""
    importlib.import_module(
        f"{_INTERPRETER}.interpret_pallas_call"
    ).reset_gpu_interpret_mode_state()


def _parameters(params: Any) -> Any:
    wanted = {
        "detect_races": True,
        "on_race": "warn",
        "num_tma_threads_per_device": TMA_CLOCKS,
        "uninitialized_memory": "nan",
        "out_of_bounds_reads": "raise",
        "inline_mgpu": "error",
    }
    known = {each.name for each in dataclasses.fields(params.InterpretGPUParams)}
    return params.InterpretGPUParams(**{k: v for k, v in wanted.items() if k in known})


@contextlib.contextmanager
def _recording(heard: Heard) -> Iterator[None]:
    races: Any = importlib.import_module(_RACES)
    memory: Any = importlib.import_module(f"{_INTERPRETER}.shared_memory")
    ranges: Any = importlib.import_module(_RANGES)
    plain_handle = logging.Logger.handle
    plain_fail = getattr(memory.GPUSharedMemory, "set_failed", None)

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(_RACE):
            heard.add(text)
        else:
            plain_handle(self, record)

    def set_failed(own: Any, exception: BaseException, *args: Any, **options: Any) -> Any:
        heard.fail(exception)
        return plain_fail(own, exception, *args, **options)  # type: ignore[misc]

    patches: list[Any] = [
        mock.patch.object(logging.Logger, "handle", handle),
        mock.patch.object(races, "print", heard.add, create=True),
    ]
    for name, outside in _OUTSIDE.items():
        checked = _from_zero(getattr(ranges, name), outside)
        patches.append(mock.patch.object(ranges, name, checked))
    if plain_fail is not None:
        patches.append(mock.patch.object(memory.GPUSharedMemory, "set_failed", set_failed))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


NAME = "interpreter"
_LOOK_S = 0.2
"""Time between samples of the threads. Three equal samples are a deadlock."""
_NO_REFERENCE = "the spec names no reference, so numbers are not compared"
_ENDED = "the error ended the kernel; races in the rest of it may be missing"


def run(subject: Subject, options: Options) -> LevelResult:
    """Check a variant.

    Raises:
        PallascError: the reference fails, or inputs do not fit.
    """
    variant = subject.variant
    if variant is None:
        return not_checked(NAME, "it needs the source of the kernel; name the spec instead")
    if not any(kernel.origin == "mosaic" for kernel in subject.artifact.kernels):
        return not_checked(NAME, "it has no Mosaic GPU kernel, and JAX interprets no other")
    inputs = input_arrays(subject, options)
    call = _call(variant, inputs)
    place = definition(import_function(variant.entry, variant.base_dir)) or variant.location
    outcome, heard = _Outcome(), Heard()
    waits = _watched(lambda: outcome.run(call, heard))
    races = race_findings(heard.races)
    if waits:
        return from_findings(NAME, (*races, _deadlock(waits)))
    if outcome.error is not None:
        return _failed(outcome.error, heard, races, place)
    results = _of_each(leaves_of(outcome.result), len(inputs))
    found = [*races, *_wrong_numbers(subject, variant, inputs, results, place)]
    result = from_findings(NAME, tuple(found))
    return result if variant.reference else _noted(result, _NO_REFERENCE)


def _noted(result: LevelResult, note: str) -> LevelResult:
    return replace(result, notes=(*result.notes, note))


def _wrong_numbers(
    subject: Subject,
    variant: Variant,
    inputs: list[dict[str, Any]],
    results: list[list[Any]],
    place: Location,
) -> list[Finding]:
    outputs = subject.plan.outputs
    if variant.reference is None:
        return []
    expected = expected_results(variant, outputs, inputs)
    findings = []
    for device, (own, rights) in enumerate(zip(results, expected, strict=True)):
        for output, got, right in zip(outputs, own, rights, strict=True):
            found = difference(output, got, right, variant.tolerance, location=place)
            if found is not None:
                where = f" on device {device}" if device else ""
                findings.append(replace(found[0], message=f"{found[0].message}{where}"))
    return [*findings, *remarks(outputs, results, expected, place)]


@dataclass(slots=True)
class _Outcome:
    """The result or error of the thread that calls the kernel."""

    result: Any = None
    error: BaseException | None = None

    def run(self, call: Callable[[], Any], heard: Heard) -> None:
        import jax

        try:
            with interpreting(heard), lines_of_rules(), source_locations(enabled=False):
                self.result = jax.block_until_ready(call())
        except Exception as error:  # noqa: BLE001 - any error of the interpreter is a result
            self.error = error


def _watched(call: Callable[[], None]) -> list[Waiting]:
    """Run a call in another thread; return its deadlocked threads, or [] once it has returned.

    Deadlocked threads cannot be stopped, so this process must not check anything else.
    """
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    watch = Watch()
    while True:
        thread.join(_LOOK_S)
        if not thread.is_alive():
            return []
        if waits := watch.look():
            return waits


def _call(variant: Variant, inputs: list[dict[str, Any]]) -> Callable[[], Any]:
    """Return a callable that runs the kernel, on the devices of the variant's mesh if it has one.

    With several devices, the first dimension of arguments and results is the device.
    """
    call = kernel_call(variant, inputs[0])
    if not variant.mesh:
        return call
    import jax

    mesh = jax_mesh(variant.mesh, jax.devices())
    together = stacked(inputs)

    def own(arrays: list[Any]) -> Any:
        parts = {path: array[0] for path, array in zip(together, arrays, strict=True)}
        return jax.tree.map(lambda leaf: leaf[None], kernel_call(variant, parts)())

    return lambda: on_one_device(own, mesh, split=True)(list(together.values()))


def _of_each(results: list[Any], devices: int) -> list[list[Any]]:
    if devices == 1:
        return [results]
    return [[result[device] for result in results] for device in range(devices)]


def _deadlock(waits: list[Waiting]) -> Finding:
    ordered = sorted(waits, key=lambda wait: wait.thread)
    first = ordered[0]
    others = failures()
    raised = f"; a thread failed before: {raised_text(others[0])}" if others else ""
    count = "the only running thread" if len(waits) == 1 else f"all {len(waits)} threads"
    waiting = "waits" if len(waits) == 1 else "wait"
    return Finding(
        rule=DEADLOCK.name,
        message=f"{count} {waiting} forever: {first.sentence()}{raised}",
        location=next((wait.location for wait in ordered if wait.location), None),
        instruction="barrier_wait",
        places=tuple(Place(wait.sentence(), wait.location, waits=True) for wait in ordered),
    )


def _failed(
    error: BaseException, heard: Heard, races: list[Finding], place: Location
) -> LevelResult:
    """Return the result of a kernel that the interpreter could not complete."""
    forget()
    cause = heard.failure or error
    text = raised_text(cause) or failed_line(cause)
    found = failure_finding(text, _place_of(cause) or place)
    if found is not None:
        return _noted(from_findings(NAME, (*races, found)), _ENDED)
    if races:
        return _noted(from_findings(NAME, tuple(races)), _ENDED)
    if isinstance(cause, PallascError):
        raise cause
    reason = text.partition("\n")[0].strip().rstrip(".")
    why = missing_part(reason) or f"{type(cause).__name__}: {reason}"
    return not_checked(NAME, f"JAX's interpreter cannot run it: {why}")


def _place_of(error: BaseException) -> Location | None:
    """Return the user's line from the interpreter frames in an error's traceback."""
    trace, place = error.__traceback__, None
    while trace is not None:
        place = user_place(trace.tb_frame.f_locals) or place
        trace = trace.tb_next
    return place
