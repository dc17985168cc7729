"""Arrays of JAX: inside `jit` and outside, under transformations, and where they are loaded."""

import sys
from types import SimpleNamespace
from typing import Any

import made
import native_build
import processes
import pytest

from pallasc.runtime.adapters.jax_arrays import _load
from pallasc.runtime.device.devices import state


@pytest.mark.parametrize("way", ["handlers", "callback"])
def test_calls_with_arrays_of_jax_are_right_or_refused(way: str) -> None:
    library = str(native_build.build()) if way == "handlers" else "0"
    processes.run_program("jax_ways.py", way, PALLASC_NATIVE=library)


def test_vmap_derivatives_and_shard_map_do_what_a_kernel_declares_or_are_refused() -> None:
    processes.run_program(
        "jax_rules.py",
        PALLASC_NATIVE=str(native_build.build()),
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )


def test_the_warm_up_loads_on_every_local_device(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.devices("9.0", "8.0", "9.0")
    local = [SimpleNamespace(local_hardware_id=number) for number in (2, 1, 0)]
    fake = SimpleNamespace(default_backend=lambda: "gpu", local_devices=lambda: local)
    monkeypatch.setitem(sys.modules, "jax", fake)
    kernel = made.kernel(made.add())
    _load(kernel, [("f32", (4, 64))] * 2)
    (candidate,) = kernel.variants
    # There is no code for the second one, which the callback will say.
    assert set(state.programs[candidate.artifact]) == {0, 2}
