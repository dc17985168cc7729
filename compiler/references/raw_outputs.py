"""Compare outputs that are bytes, without JAX; numpy is imported where there is something to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pallasc.errors import ToolError

if TYPE_CHECKING:
    from pallasc.compiler.references.comparison import Comparison
    from pallasc.specs.artifacts.plan import Binding


def compare_samples(
    binding: Binding,
    data: bytes,
    positions: Sequence[int],
    values: Sequence[float],
    tolerance: tuple[float, float],
) -> Comparison:
    """Return how some elements of an output compare with what they should be.

    Args:
        binding: the output.
        data: its bytes.
        positions: which elements, counted in the order of its row-major form.
        values: what they should be.
        tolerance: `rtol` and `atol`.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with _needs_numpy():
        import numpy as np

        from pallasc.compiler.references.compare import compare_arrays

        actual = _array(binding, data).reshape(-1)[np.array(positions)]
        rtol, atol = tolerance
        return compare_arrays(actual, np.array(values, np.float64), rtol=rtol, atol=atol)


def compare_outputs(
    binding: Binding, data: bytes, wanted: bytes, tolerance: tuple[float, float] | None
) -> Comparison:
    """Return how an output compares with another of the same kind.

    Args:
        binding: the output.
        data: its bytes.
        wanted: the other's.
        tolerance: `rtol` and `atol`; None for kernels that may add up in another order.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with _needs_numpy():
        from pallasc.compiler.references.compare import compare_arrays

        actual, expected = _array(binding, data), _array(binding, wanted)
        rtol, atol = _loose_tolerance(expected) if tolerance is None else tolerance
        return compare_arrays(actual, expected, rtol=rtol, atol=atol)


def _array(binding: Binding, data: bytes) -> Any:
    import numpy as np

    from pallasc.compiler.references.compare import array_of

    flat = np.frombuffer(data, np.uint8)
    return array_of(flat, binding.dtype, binding.shape, binding.layout)


def _loose_tolerance(expected: Any) -> tuple[float, float]:
    """Return `rtol` and `atol` for results that may be added up in another order: half the digits.

    That is the square root of the distance from 1 to the next number, relative to an element or to
    the root mean square of all; whole numbers must be equal.
    """
    import ml_dtypes
    import numpy as np

    if expected.dtype.kind in "iub":
        return 0.0, 0.0
    limits: Any = ml_dtypes.finfo
    digits = math.sqrt(float(limits(expected.dtype).eps))
    wide = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    finite = wide[np.isfinite(wide)]
    return digits, digits * math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0


@contextmanager
def _needs_numpy() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ToolError(
            f"results cannot be compared: {error}.",
            hint="Run pip install 'pallasc[emulate]', which brings numpy and ml_dtypes.",
        ) from error
