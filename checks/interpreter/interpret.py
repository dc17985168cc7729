"""Runs JAX's interpreter, and collects its errors and the races it finds.

The report of races depends on the JAX version: from 0.11 on they can be warnings, which go through
`logging`; 0.10 prints them with the `print` found in its module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"
_RACES = "jax._src.pallas.mosaic.interpret.race_detection_state"
_RACE = "RACE DETECTED"
_MOST_RACES = 1000
TMA_CLOCKS = 64
"""Number of copies that the interpreter distinguishes. With fewer, a later copy can hide a missing
wait for an earlier one."""


@dataclass(slots=True)
class Heard:
    """Messages of the interpreter.

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


def why_missing() -> str:
    """Return why there is no interpreter here, "" if there is one."""
    try:
        importlib.import_module(f"{_INTERPRETER}.params")
    except ImportError:
        import jax

        return f"JAX {jax.__version__} has no interpreter of Mosaic GPU kernels"
    return ""


@contextlib.contextmanager
def interpreting(heard: Heard) -> Iterator[None]:
    """Interpret the kernels of this thread until the end of the block.

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
            if checks is not None:  # a kernel may turn them on, for itself only
                jax.config.update("jax_pallas_enable_debug_checks", checks)


def forget() -> None:
    """Drop the interpreter's state of a kernel that failed."""
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
    plain_handle, plain_fail = (
        logging.Logger.handle,
        getattr(memory.GPUSharedMemory, "set_failed", None),
    )

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(_RACE):
            heard.add(text)
        else:
            plain_handle(self, record)

    def set_failed(own: Any, exception: BaseException, *args: Any, **options: Any) -> Any:
        heard.fail(exception)
        return plain_fail(own, exception, *args, **options)  # type: ignore[misc]

    logging.Logger.handle = handle  # type: ignore[method-assign]
    races.print = heard.add
    if plain_fail is not None:
        memory.GPUSharedMemory.set_failed = set_failed
    try:
        yield
    finally:
        logging.Logger.handle = plain_handle  # type: ignore[method-assign]
        del races.print
        if plain_fail is not None:
            memory.GPUSharedMemory.set_failed = plain_fail
