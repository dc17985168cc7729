"""Python, C and the extension ask the driver for the same, for plans with everything there is.

Kernels of the library, JAX's own and those of the coverage are compared where they are built:
`../test_all_kernels.py`, `tests/coverage/test_coverage.py`.
"""

from __future__ import annotations

import extension_comparison
import made
import native_comparison
import pytest
import standin as control
from native_plans import PAIR, PLANS, matrices

from pallasc.runtime.native.extension import why_not
from pallasc.runtime.native.library import Library

needs_extension = pytest.mark.skipif(why_not() != "", reason=why_not())


@pytest.mark.parametrize("name", PLANS)
def test_c_asks_the_driver_for_what_python_asks(
    name: str, native: Library, runtime: control.Standin
) -> None:
    python, c = native_comparison.compare(runtime, native, PLANS[name]())
    assert c.ready == python.ready
    assert c.maps == python.maps
    assert c.steps == python.steps
    assert all(step[1] == 0 for steps in c.steps for step in steps)


def test_a_difference_would_be_seen(native: Library, runtime: control.Standin) -> None:
    python, _ = native_comparison.compare(runtime, native, PLANS["pdl"]())
    other = made.artifact(made.launch("two", 0, 2), made.launch("two", 1, 2))
    _, c = native_comparison.compare(runtime, native, other)
    assert c.ready == python.ready
    assert c.steps != python.steps


@needs_extension
@pytest.mark.parametrize("name", PLANS)
def test_the_extension_asks_the_driver_for_what_python_asks(
    name: str, runtime: control.Standin
) -> None:
    found = extension_comparison.compare(runtime, PLANS[name]())
    assert (found is None) == (name == "no parameters, no arrays")
    if found is None:
        return
    python, native = found
    assert native.maps == python.maps
    assert native.steps == python.steps
    assert native.ready == python.ready
    assert all(step[1] == 0 for steps in native.steps for step in steps)


@needs_extension
@pytest.mark.parametrize(
    "changed",
    [
        made.launch("two", 1, 2),
        made.launch("two", 2, 1, pdl=True),
        made.launch("two", 1, 2, pdl=True, grid=(2, 1, 1)),
        made.launch("two", 1, 2, pdl=True, cluster=(1, 1, 1)),
        made.launch("two", 1, 2, pdl=True, dynamic_smem_bytes=16),
    ],
)
def test_a_difference_of_the_extension_would_be_seen(
    changed: made.Launch, runtime: control.Standin
) -> None:
    first = made.launch("two", 0, 2)
    own = made.artifact(first, made.launch("two", 1, 2, pdl=True))
    found = extension_comparison.compare(runtime, own)
    other = extension_comparison.compare(runtime, made.artifact(first, changed))
    assert found is not None
    assert other is not None
    assert found[0] == found[1]
    assert found[0].steps != other[1].steps


@needs_extension
def test_arrays_that_dlpack_cannot_name_are_left_to_python(runtime: control.Standin) -> None:
    small = made.artifact(made.launch("two", 0, 1), inputs={"a": "i4[64]"}, outputs=["i4[64]"])
    assert extension_comparison.compare(runtime, small) is None


@pytest.mark.parametrize("version", [12000, 12080])
def test_older_drivers_are_asked_alike(
    version: int, native: Library, runtime: control.Standin
) -> None:
    artifact = made.artifact(
        made.launch("mapped", 0, PAIR, grid=(16, 2, 1), cluster=(16, 1, 1)),
        inputs=matrices(),
        code=made.cubin().replace(b"release 13.", b"release 12."),
        minimum_driver={"cuda": "12.0", "linux": "525.60.13"},
    )
    runtime.configure(driver_version=version)
    python = native_comparison.asked_by_python(runtime, artifact)
    runtime.reset()
    runtime.configure(driver_version=version)
    c = native_comparison.asked_by_c(runtime, native, artifact, inside=True)
    assert c == native_comparison.without_needless(python)
    names = {call[0] for call in c.ready}
    assert ("cuFuncLoad" in names) == (version >= 12040)
