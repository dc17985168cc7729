"""Profiled kernels: their plans carry the buffer and how it is read, and nothing calls the host."""

from typing import Any

import pytest

from pallasc.specs.artifacts.plan import Pointer, Profile


@pytest.fixture(scope="module")
def profiled(build: Any) -> Any:
    return build("profiled")


def test_a_profiled_kernel_writes_into_a_temporary_of_its_own(profiled: Any) -> None:
    plan = profiled["region"].plan
    (profile,) = plan.profiles
    assert profile == Profile(0, len(plan.buffers) - 1, 64, 1, ("Init", "add"))
    buffer = plan.buffers[profile.buffer]
    assert (buffer.role, buffer.size) == ("temporary", 4 * 64 * 2)
    (launch,) = plan.launches
    assert launch.parameters[-1] == Pointer(profile.buffer, 0)
    assert [(binding.path, binding.shape) for binding in plan.outputs] == [("out", (128,))]
    assert "%globaltimer" in profiled["region"].artifact.ptx()


def test_each_profiled_launch_has_a_profile(profiled: Any) -> None:
    plan = profiled["two"].plan
    found = {plan.launches[profile.launch].grid: profile for profile in plan.profiles}
    assert len(plan.profiles) == 2
    assert len({profile.buffer for profile in plan.profiles}) == 2
    assert (found[1, 1, 1].traces, found[1, 1, 1].names) == (4, ("Init", "signal"))
    assert (found[2, 1, 1].traces, found[2, 1, 1].names) == (1, ("Init", "add"))
    used = [p.buffer for launch in plan.launches for p in launch.parameters]
    assert all(used.count(profile.buffer) == 1 for profile in plan.profiles)
