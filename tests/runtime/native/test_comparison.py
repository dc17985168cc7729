"""Python and C ask the driver for the same, for plans with everything there is.

Kernels of the library, JAX's own and those of the coverage are compared where they are built:
`tests/coverage/test_coverage.py`.
"""

import made
import native_comparison
import pytest
import standin as control
from native_plans import PAIR, PLANS, matrices

from pallasc.runtime.native.library import Library


@pytest.mark.parametrize("name", PLANS)
def test_c_asks_the_driver_for_what_python_asks(
    name: str, native: Library, runtime: control.Standin
) -> None:
    python, c = native_comparison.compare(runtime, native, PLANS[name]())
    assert c.ready == python.ready
    assert c.steps == python.steps
    assert all(step[1] == 0 for steps in c.steps for step in steps)


def test_a_difference_would_be_seen(native: Library, runtime: control.Standin) -> None:
    python, _ = native_comparison.compare(runtime, native, PLANS["pdl"]())
    other = made.artifact(made.launch("two", 0, 2), made.launch("two", 1, 2))
    _, c = native_comparison.compare(runtime, native, other)
    assert c.ready == python.ready
    assert c.steps != python.steps


@pytest.mark.parametrize("version", [12000, 12020, 12080])
def test_older_drivers_are_asked_alike(
    version: int, native: Library, runtime: control.Standin
) -> None:
    artifact = made.artifact(
        made.launch("mapped", 0, PAIR, grid=(16, 2, 1), cluster=(16, 1, 1)),
        inputs=matrices(),
        code=made.cubin().replace(b"release 13.", b"release 12.").replace(b", V13.", b", V12."),
        minimum_driver={"cuda": "12.0", "linux": "525.60.13"},
    )
    runtime.configure(driver_version=version)
    python = native_comparison.asked_by_python(runtime, artifact)
    runtime.reset()
    runtime.configure(driver_version=version)
    c = native_comparison.asked_by_c(runtime, native, artifact, inside=True)
    assert c == python
    names = {call[0] for call in c.ready}
    assert ("cuFuncLoad" in names) == (version >= 12040)
