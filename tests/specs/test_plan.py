"""Launch plans: exact through JSON, and refused wherever something in them does not fit."""

import copy
import json
import random
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Peers,
    PeerTable,
    Pointer,
    TensorMap,
    check_ranges,
    plan_from_json,
    plan_to_json,
)

_MAP = TensorMap(
    buffer=0, offset=64, dtype="float16", dims=(64, 16), strides=(128,), box=(64, 8),
    element_strides=(1, 1), swizzle=128, l2_promotion=128,
)  # fmt: skip
_IM2COL = TensorMap(
    buffer=1, offset=0, dtype="float32", dims=(4, 8, 8), strides=(16, 128), box=(),
    element_strides=(1, 1, 1),
    im2col={"lower": [0], "upper": [0], "channels_per_pixel": 4, "pixels_per_column": 8},
)  # fmt: skip

PLAN = LaunchPlan(
    buffers=(
        Buffer("input", 4096),
        Buffer("output", 2048),
        Buffer("constant", 12, digest="0" * 64),
        Buffer("temporary", 256),
    ),
    inputs=(Binding("x", "f16", (16, 128), 0),),
    outputs=(Binding("out.a", "f32", (16, 32), 1), Binding("out.b", "i4", (3,), 1)),
    steps=(
        Fill(3, 0, 256),
        Fill(1, 16, 32, 0x3FC00000, 4),
        Copy(2, 0, 3, 4, 12),
        Launch(
            kernel="k", cubin="1" * 64, grid=(132, 1, 1), cluster=(2, 1, 1), block=(128, 3, 1),
            dynamic_smem_bytes=65536, pdl=True, label="mul",
            parameters=(
                Pointer(1, 128),
                Bytes(384, "", ((0, _MAP), (128, _MAP), (256, _IM2COL))),
                Bytes(4, "01020304", ()),
            ),
        ),
        Launch("f", "2" * 64, (1, 1, 1), None, (1, 1, 1), 0, False, (), origin="xla"),
    ),
    input_tree={"x": 0},
    output_tree={"dict": {"a": 0, "b": [1, None]}},
)  # fmt: skip

_PEER_MAP = TensorMap(
    buffer=0, offset=0, dtype="float16", dims=(64, 16), strides=(128,), box=(64, 8),
    element_strides=(1, 1), peers=(1, -1),
)  # fmt: skip
_TABLE = PeerTable(2, ((0, 0), (1, 128)), (1,), multicast=True, barrier=False)

SHARED = LaunchPlan(
    buffers=(Buffer("input", 4096), Buffer("output", 256), Buffer("temporary", 256)),
    inputs=(Binding("x", "f16", (16, 128), 0),),
    outputs=(Binding("out", "f32", (64,), 1),),
    steps=(
        Launch(
            kernel="k", cubin="1" * 64, grid=(2, 4, 1), cluster=None, block=(384, 1, 1),
            dynamic_smem_bytes=0, pdl=False,
            parameters=(Peers(), Pointer(1, 0), Pointer(2, 0), Bytes(128, "", ((0, _PEER_MAP),))),
            peer_table=_TABLE,
        ),
    ),
    input_tree=[0],
    output_tree=0,
    mesh=(("y", 1), ("x", 2)),
)  # fmt: skip


def _json(plan: LaunchPlan = PLAN) -> Any:
    return json.loads(json.dumps(plan_to_json(plan)))


def test_plans_come_back_from_json_as_they_were() -> None:
    assert plan_from_json(_json()) == PLAN
    assert plan_from_json(_json(SHARED)) == SHARED
    assert [launch.kernel for launch in PLAN.launches] == ["k", "f"]
    assert (SHARED.device_count, _TABLE.words) == (2, 4 + 2 * 2 + 2)


def _set(plan: LaunchPlan, path: str, value: Any) -> Any:
    """Return a plan's JSON with the value at a dotted path changed."""
    data = _json(plan)
    *inner, last = path.split(".")
    place = data
    for part in inner:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("buffers.0.role", "scratch", r"'scratch' - at `\$.buffers\[0\].role`"),
        ("buffers.0.size", -1, "takes bytes 0 to 4096"),
        ("buffers.0.color", 1, r"unknown field `color` - at `\$.buffers\[0\]`"),
        ("buffers.2.digest", None, "constant buffer 2 of 12 bytes has digest None"),
        ("buffers.3.digest", "0" * 64, "temporary buffer 3"),
        ("inputs.0.buffer", 9, "array x names buffer 9 of 4"),
        ("inputs.0.dtype", "f17", "unknown dtype 'f17'"),
        ("inputs.0.shape", [16, 129], "array x takes bytes 0 to 4128 of buffer 0"),
        ("steps.0.kind", "jump", r"'jump' - at `\$.steps\[0\].kind`"),
        ("steps.0.size", 257, "step 0 takes bytes 0 to 257 of buffer 3, which has 256"),
        ("steps.0.width", 2, r"value 2 - at `\$.steps\[0\].width`"),
        ("steps.0.value", 256, "step 0 fills 256 bytes with 0x100"),
        ("steps.1.size", 30, "step 1 fills 30 bytes"),
        ("steps.2.source", True, "Expected `int`, got `bool`"),
        ("steps.2.target_offset", 250, "step 2 takes bytes 250 to 262"),
        (
            "steps.2",
            {"kind": "fill", "buffer": 2, "offset": 0, "size": 12, "value": 0, "width": 1},
            "step 2 writes to constant 2, which all plans share",
        ),
        (
            "steps.2",
            {
                "kind": "copy",
                "source": 3,
                "source_offset": 0,
                "target": 2,
                "target_offset": 0,
                "size": 12,
            },
            "step 2 writes to constant 2, which all plans share",
        ),
        ("steps.3.grid", [0, 1, 1], "Expected `int` >= 1"),
        ("steps.3.block", None, "Expected `array`, got `null`"),
        ("steps.3.pdl", 1, "Expected `bool`, got `int`"),
        ("steps.3.parameters.0.offset", 2049, "step 3 takes bytes 2049"),
        ("steps.3.parameters.2.data", "0102", "that does not fit its 4 bytes"),
        ("steps.3.parameters.2.data", "zz020304", "non-hexadecimal"),
        ("steps.3.parameters.1.tensor_maps.0.0", -128, "that does not fit its 384 bytes"),
        ("steps.3.parameters.1.tensor_maps.0.1.buffer", 4, "step 3 names buffer 4 of 4"),
        ("input_tree", {"x": 0, "y": 0}, "a pytree does not name each of 1 arrays once"),
        ("output_tree", None, "a pytree does not name each of 2 arrays once"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(path: str, value: Any, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        plan_from_json(_set(PLAN, path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("mesh", [], "a peer table has 2 ranks for a mesh of 1"),
        ("mesh.1.1", 0, "Expected `int` >= 1"),
        ("steps.0.peer_table", None, "takes a peer table, but its launch has none"),
        ("steps.0.peer_table.symmetric", [2], "of 2 arrays has symmetric arrays"),
        ("steps.0.peer_table.arrays.0", [1, 999], "takes bytes 999 to 999 of buffer 1"),
        ("steps.0.peer_table.multicast", 1, "Expected `bool`, got `int`"),
        ("steps.0.parameters.3.tensor_maps.0.1.peers", [0, 2], "names peers"),
        ("steps.0.parameters.3.tensor_maps.0.1.peers", [0, -2], "names peers"),
    ],
)
def test_a_plan_of_several_devices_that_does_not_fit_is_refused(
    path: str, value: Any, words: str
) -> None:
    with pytest.raises(CorruptError, match=words):
        plan_from_json(_set(SHARED, path, value))


def test_parts_are_needed_and_ranges_are_checked_on_a_plan_that_was_made_here() -> None:
    with pytest.raises(CorruptError, match="missing required field `steps`"):
        plan_from_json({key: value for key, value in _json().items() if key != "steps"})
    plan = LaunchPlan((Buffer("output", 4),), (), (), (Fill(0, 0, 8),), {}, None)
    with pytest.raises(CorruptError, match="step 0 takes bytes 0 to 8 of buffer 0, which has 4"):
        check_ranges(plan)


def test_any_value_of_another_type_is_refused_with_an_error_of_ours_or_harmless() -> None:
    dice, good = random.Random(3), _json()
    wrong = (None, -1, 1 << 70, "x", [], {}, [[]], True, 1.5)
    for _ in range(1500):
        data = inner = copy.deepcopy(good)
        while inner:
            container, key = (
                inner,
                dice.choice([*(inner if isinstance(inner, dict) else range(len(inner)))]),
            )
            inner = container[key]
            if not isinstance(inner, dict | list) or dice.random() < 0.2:
                break
        container[key] = dice.choice(wrong)
        try:
            plan_from_json(data)
        except CorruptError:
            continue


def test_the_order_of_parameters_survives_json_and_is_that_of_the_tree() -> None:
    tree = {"x": 0, "bias": None}
    plan = replace(SHARED, input_tree=tree, parameters=("bias", "x"))
    data = json.loads(json.dumps(plan_to_json(plan)))
    assert plan_from_json(data) == plan
    for wrong, words in (
        (["bias"], "do not match its"),
        (["x", "x"], "do not match"),
        (5, "damaged"),
    ):
        with pytest.raises(CorruptError, match=words):
            plan_from_json({**data, "parameters": wrong})
