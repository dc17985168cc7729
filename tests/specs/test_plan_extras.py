"""What only some plans have: a mesh with tables of peers, and profiles."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.peers import Peers, PeerTable
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Launch,
    LaunchPlan,
    Pointer,
    TensorMap,
)
from pallasc.specs.artifacts.plan_json import plan_from_json, plan_to_json
from pallasc.specs.artifacts.profile import Profile

_MAP = TensorMap(
    buffer=0, offset=0, dtype="float16", dims=(64, 16), strides=(128,), box=(64, 8),
    element_strides=(1, 1), peers=(1, -1),
)  # fmt: skip
_TABLE = PeerTable(2, ((0, 0), (1, 128)), (1,), multicast=True, barrier=False)

PLAN = LaunchPlan(
    buffers=(Buffer("input", 4096), Buffer("output", 256), Buffer("temporary", 4 * 16 * 3 * 8)),
    inputs=(Binding("x", "f16", (16, 128), 0),),
    outputs=(Binding("out", "f32", (64,), 1),),
    steps=(
        Launch(
            kernel="k", cubin="1" * 64, grid=(2, 4, 1), cluster=None, block=(384, 1, 1),
            dynamic_smem_bytes=0, pdl=False,
            parameters=(Peers(), Pointer(1, 0), Pointer(2, 0), Bytes(128, "", ((0, _MAP),))),
            peer_table=_TABLE,
        ),
    ),
    input_tree=[0],
    output_tree=0,
    mesh=(("y", 1), ("x", 2)),
    profiles=(Profile(0, 2, 16, 3, ("Init", "load")),),
)  # fmt: skip


def _json() -> Any:
    return json.loads(json.dumps(plan_to_json(PLAN)))


def test_they_survive_json() -> None:
    assert plan_from_json(_json()) == PLAN
    assert PLAN.device_count == 2
    assert _TABLE.words == 4 + 2 * 2 + 2


def test_a_plan_without_them_says_nothing_of_them() -> None:
    launch = replace(PLAN.launches[0], parameters=(Pointer(1, 0),), peer_table=None)
    plain = plan_to_json(replace(PLAN, steps=(launch,), mesh=(), profiles=()))
    assert sorted(plain) == [
        "buffers", "input_tree", "inputs", "output_tree", "outputs", "steps",
    ]  # fmt: skip
    text = json.dumps(plain)
    assert "peer" not in text
    assert plan_from_json(json.loads(text)).device_count == 1


def test_the_order_of_parameters_survives_json_and_is_that_of_the_tree() -> None:
    tree = {"x": 0, "bias": None}
    plan = replace(PLAN, input_tree=tree, parameters=("bias", "x"))
    data = json.loads(json.dumps(plan_to_json(plan)))
    assert plan_from_json(data) == plan
    for wrong in (["bias"], ["bias", "y"], ["x", "x"]):
        with pytest.raises(CorruptError, match="are not those of its pytree"):
            plan_from_json({**data, "parameters": wrong})
    for wrong in (5, [1, 2]):
        with pytest.raises(CorruptError, match="damaged"):
            plan_from_json({**data, "parameters": wrong})


def _launch(plan: Any) -> Any:
    return plan["steps"][0]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["mesh"], [], "a table of 2 peers for 1 devices"),
        (["mesh", 1, 1], 3, "a table of 2 peers for 3 devices"),
        (["mesh", 1, 1], 0, "an axis of the mesh is"),
        (["mesh", 1, 0], 7, "an axis of the mesh is"),
        (["mesh"], 5, "is damaged"),
        (["steps", 0, "peer_table"], None, "takes a table of peers that nothing describes"),
        (["steps", 0, "peer_table", "symmetric"], [2], "with 2 arrays names"),
        (["steps", 0, "peer_table", "arrays", 0], [9, 0], "names buffer 9 of 3"),
        (["steps", 0, "peer_table", "arrays", 0], [1, 999], "takes bytes 999 to 999 of buffer 1"),
        (["steps", 0, "peer_table", "multicast"], 1, "multicast of a peer table: expected true"),
        (["steps", 0, "peer_table", "barrier"], None, "barrier of a peer table: expected true"),
        (["steps", 0, "peer_table", "ranks"], "2", "ranks of a peer table: expected a whole"),
        (["steps", 0, "peer_table", "more"], 1, "is damaged"),
        (["steps", 0, "parameters", 3, "tensor_maps", 0, 1, "peers"], [0], "names peers"),
        (["steps", 0, "parameters", 3, "tensor_maps", 0, 1, "peers"], [0, 2], "names peers"),
        (["steps", 0, "parameters", 3, "tensor_maps", 0, 1, "peers"], [0, -2], "names peers"),
        (["steps", 0, "parameters", 3, "tensor_maps", 0, 1, "peers"], None, "is damaged"),
        (["profiles", 0, "launch"], 1, "a profile is of launch 1 of 1"),
        (["profiles", 0, "buffer"], 3, "a profile names buffer 3 of 3"),
        (["profiles", 0, "buffer"], 1, "a profile lies in output buffer 1"),
        (["profiles", 0, "words"], 15, "15 words takes 1536 bytes"),
        (["profiles", 0, "words"], 3, "3 traces of 3 words"),
        (["profiles", 0, "traces"], 0, "has 0 traces"),
        (["profiles", 0, "names", 0], 1, "names of a profile: expected text"),
        (["profiles", 0, "launch"], None, "launch of a profile: expected a whole"),
        (["profiles", 0], 7, "is damaged"),
    ],
)
def test_what_contradicts_itself_is_refused(path: list[Any], value: Any, words: str) -> None:
    data = container = _json()
    for part in path[:-1]:
        container = container[part]
    container[path[-1]] = value
    with pytest.raises(CorruptError, match=words):
        plan_from_json(data)


def test_a_profile_takes_room_for_the_traces_of_every_block() -> None:
    profile, launch = PLAN.profiles[0], PLAN.launches[0]
    blocks = math.prod(launch.grid)
    assert PLAN.buffers[2].size == 4 * profile.words * profile.traces * blocks
