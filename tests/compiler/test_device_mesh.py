"""Kernels over several devices: compiled without them, and their plans say what they need."""

from typing import Any

import pytest

from pallasc.specs.artifacts.plan import Bytes, Peers


@pytest.fixture(scope="module")
def meshes(build: Any) -> Any:
    return build("meshes")


def _launch(result: Any) -> Any:
    (launch,) = [step for step in result.plan.launches if step.origin == "mosaic"]
    return launch


@pytest.mark.parametrize(
    ("name", "symmetric"), [("all_gather", (2, 3)), ("reduce_scatter", (0, 3)), ("fetch", ())]
)
def test_a_plan_is_of_one_device_and_names_the_arrays_that_all_must_reach(
    meshes: Any, name: str, symmetric: tuple[int, ...]
) -> None:
    plan, launch = meshes[name].plan, _launch(meshes[name])
    assert (plan.mesh, plan.device_count) == ((("x", 4),), 4)
    table = launch.peer_table
    assert (table.ranks, table.words) == (4, 4 + 5 * len(table.arrays))
    assert (table.multicast, table.symmetric) == (bool(symmetric), symmetric)
    # All that `fetch` needs of its peers is in its tensor map.
    assert (Peers() in launch.parameters) == (name != "fetch")
    maps = [m for p in launch.parameters if isinstance(p, Bytes) for _, m in p.tensor_maps]
    assert ([each.peers for each in maps] == [(1, 2, 3, 0)]) == (name == "fetch")


def test_several_axes_are_numbered_with_the_last_one_fastest(meshes: Any) -> None:
    assert meshes["two_axes"].plan.mesh == (("a", 2), ("b", 2))
    assert _launch(meshes["two_axes"]).peer_table.ranks == 4


def test_a_function_that_needs_no_peers_is_one_of_its_mesh_still(meshes: Any) -> None:
    plan = meshes["alone"].plan
    assert plan.device_count == 4
    assert all(launch.peer_table is None for launch in plan.launches)
    assert meshes["alone"].key != meshes["alone_on_two"].key


def test_collectives_of_xla_and_axes_without_a_mesh_are_refused(meshes: Any) -> None:
    assert "XLA's operation all_reduce" in meshes["summed"].error["message"]
    error = meshes["without_a_mesh"].error
    assert "unbound axis name: x" in error["message"]
    assert error["hint"].endswith("; devices are declared in the spec: mesh: {x: 4}.")
