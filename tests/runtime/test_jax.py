"""Arrays of JAX: inside `jit` and outside, and under transformations."""

from typing import Any

import native_build
import processes


def test_calls_with_arrays_of_jax_are_right_or_refused() -> None:
    processes.run_program("jax_ways.py", PALLASC_NATIVE=str(native_build.build()))


def test_vmap_derivatives_and_shard_map_do_what_a_kernel_declares_or_are_refused() -> None:
    processes.run_program(
        "jax_rules.py",
        PALLASC_NATIVE=str(native_build.build()),
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )


def test_arrays_on_the_cpu_are_refused(fresh_process: Any) -> None:
    code = """
import jax.numpy as jnp
import made
import pallasc
kernel = made.kernel(made.add())
try:
    kernel(jnp.ones((4, 64)), jnp.ones((4, 64)))
except pallasc.ArgumentError as error:
    print(error.message)
"""
    done = fresh_process(code)
    expected = "made: the arrays are on JAX's CPU, and kernels run on GPUs.\n"
    assert done.stdout == expected, done.stderr
