"""A carried kernel as JAX compiles, runs and profiles it, where JAX is installed and has a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from carried import Carried
from desk import MissingError

FLUSH_BYTES = 1 << 28


def why_not() -> str | None:
    """Return why JAX cannot be asked here, None where it can."""
    try:
        import jax

        platform = jax.default_backend()
    except Exception as error:  # noqa: BLE001 - it belongs into the results
        return f"JAX: {type(error).__name__}: {error}"
    return None if platform == "gpu" else f"JAX runs on {platform} here"


def jitted(variant: Carried) -> Callable[..., Any]:
    """Return the function that a variant was compiled from, to be compiled by JAX when called."""
    import jax

    from pallasc.compiler.lowering.entry import import_function, static_value

    function = import_function(variant.entry, "")
    static = {name: static_value(value, "") for name, value in variant.static.items()}
    static |= {name: None for name, text in variant.args.items() if text is None}

    def call(**arrays: Any) -> Any:
        return function(**arrays, **static)

    return jax.jit(call)


def compare_code(variant: Carried, function: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return whether JAX has compiled the same cubins, and the same instructions."""
    compiled = function.lower(**arrays).compile()
    theirs = mosaic_cubins(compiled.runtime_executable().serialize())
    artifact = variant.opened()
    names = {kernel.name for kernel in artifact.kernels if kernel.origin == "mosaic"}
    launches = [launch for launch in artifact.plan.launches if launch.kernel in names]
    ours = [artifact.blob(launch.cubin) for launch in launches]
    return {
        "same_cubins": ours == theirs,
        "same_code": code(ours) == code(theirs),
        "kernels": [len(ours), len(theirs)],
    }


def mosaic_cubins(executable: bytes) -> list[bytes]:
    """Return the cubins of the Mosaic kernels in a serialised executable of JAX 0.11 or later.

    Wherever the calls lie: XLA may have put them into a graph.
    """
    from pallasc.compiler.executable.serialized import message_type, parse_executable

    kind = message_type("MosaicGpuKernelProto")
    found = map(kind.FromString, _states(parse_executable(executable)))
    return [state.gpu_binary for state in found if state.gpu_binary]


def _states(message: Any) -> Iterator[bytes]:
    """Yield what custom calls have prepared, in order."""
    for field, value in message.ListFields():
        if field.name == "execution_state":
            yield value.state
        elif hasattr(value, "ListFields"):
            yield from _states(value)
        elif field.message_type is not None and not hasattr(value, "keys"):
            for item in value:
                yield from _states(item)


def code(cubins: Sequence[bytes]) -> list[list[bytes]]:
    """Return the instructions in cubins, without names, tables of lines and the like."""
    from pallasc.specs.artifacts.cubin import parse_elf

    return [
        [
            section.content
            for section in parse_elf(data).sections
            if section.name.startswith(".text.")
        ]
        for data in cubins
    ]


def flusher() -> Callable[[], object]:
    """Return what has JAX write so much memory that the L2 cache holds nothing else."""
    import jax

    fill = jax.jit(lambda value: jax.numpy.full((FLUSH_BYTES,), value, "uint8"))
    values = itertools.cycle(jax.device_put(list(map(jax.numpy.uint8, range(2)))))
    return lambda: fill(next(values))


@dataclass(frozen=True)
class Profiler:
    """JAX's own profiler of kernels, CUPTI.

    Attributes:
        launches: how many are measured at once.
    """

    launches: int

    def measure(
        self,
        work: Callable[..., None],
        before: Callable[[], object] = lambda: None,
        names: Collection[str] | None = None,
    ) -> tuple[set[str], list[float]]:
        """Return the kernels that ran, and the microseconds of each launch.

        Args:
            work: launches so many times, with something before each, and waits.
            before: that.
            names: count these kernels only, all that run where None.

        Raises:
            MissingError: nothing was seen.
        """
        try:
            from jax._src.lib import mosaic_gpu

            extension = mosaic_gpu._mosaic_gpu_ext
            extension._cupti_init()
        except Exception as error:
            raise MissingError(f"JAX's profiler: {type(error).__name__}: {error}") from error
        try:
            work(self.launches, before)
        finally:
            timings = extension._cupti_get_timings(True)
        counted = [(n, ms * 1e3) for n, ms in timings if names is None or n in names]
        each, rest = divmod(len(counted), self.launches)
        if not each or rest:
            raise MissingError(
                f"the profiler saw {len(counted)} kernels in {self.launches} launches"
            )
        times = [us for _, us in counted]
        sums = [sum(times[at : at + each]) for at in range(0, len(times), each)]
        return {name for name, _ in counted}, sums
