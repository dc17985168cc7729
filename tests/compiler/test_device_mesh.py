"""Kernels over several devices: compiled without them, and their plans say what they need."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.specs.artifacts.plan import Bytes, Launch, Peers, PeerTable


@pytest.fixture(scope="module")
def meshes(build: Any) -> Any:
    return build("meshes")


def _launch(result: Any) -> Launch:
    (launch,) = [step for step in result.plan.launches if step.origin == "mosaic"]
    return launch  # type: ignore[no-any-return]


def _table(result: Any) -> PeerTable:
    table = _launch(result).peer_table
    assert table is not None
    return table


def _peers(launch: Launch) -> list[Any]:
    """Return whom each tensor map shows."""
    return [
        tensor_map.peers
        for parameter in launch.parameters
        if isinstance(parameter, Bytes)
        for _, tensor_map in parameter.tensor_maps
    ]


@pytest.mark.parametrize(
    "name", ["all_gather", "reduce_scatter", "collective_matmul", "signal", "fetch", "reduced"]
)
def test_a_plan_over_several_devices_is_that_of_one_of_them(meshes: Any, name: str) -> None:
    plan = meshes[name].plan
    assert (plan.mesh, plan.device_count) == ((("x", 4),), 4)
    table = _table(meshes[name])
    assert (table.ranks, table.words) == (4, 4 + 5 * len(table.arrays))
    # All that `fetch` needs of its peers is in its tensor map.
    assert (Peers() in _launch(meshes[name]).parameters) == (name != "fetch")


def test_a_kernel_with_multicast_says_which_arrays_all_devices_must_reach(meshes: Any) -> None:
    for name, symmetric in (("all_gather", (2, 3)), ("reduce_scatter", (0, 3)), ("reduced", (0,))):
        table = _table(meshes[name])
        assert (table.multicast, table.symmetric) == (True, symmetric)
    for name in ("collective_matmul", "signal", "fetch"):
        assert (_table(meshes[name]).multicast, _table(meshes[name]).symmetric) == (False, ())


def test_a_function_that_needs_no_peers_is_one_of_its_mesh_still(meshes: Any) -> None:
    plan = meshes["alone"].plan
    assert plan.device_count == 4
    assert all(launch.peer_table is None for launch in plan.launches)
    assert meshes["alone"].key != meshes["alone_on_two"].key


def test_a_tensor_map_names_the_peer_of_each_rank(meshes: Any) -> None:
    assert _peers(_launch(meshes["fetch"])) == [(1, 2, 3, 0)]
    assert sorted(_peers(_launch(meshes["collective_matmul"])), key=str) == [
        (3, 0, 1, 2),
        *[None] * 4,
    ]


def test_several_axes_are_numbered_with_the_last_one_fastest(meshes: Any) -> None:
    assert meshes["two_axes"].plan.mesh == (("a", 2), ("b", 2))
    assert _table(meshes["two_axes"]).ranks == 4


def test_collectives_of_xla_and_axes_without_a_mesh_are_refused(meshes: Any) -> None:
    assert "a collective over devices (all reduce)" in meshes["summed"].error["message"]
    error = meshes["without_a_mesh"].error
    assert "unbound axis name: x" in error["message"]
    assert error["hint"].endswith("; devices are declared in the spec: mesh: {x: 4}.")
