"""The work of a launch: tensor-core operations, bytes moved by TMA, and by loads and stores.

The work is counted along the paths of threads through the PTX (`threads.py`), for every block whose
path differs. Shapes are in the opcodes of `wgmma` and `mma`, and in the instruction descriptor of
`tcgen05.mma` (PTX ISA 9.0, 9.7.17.4.2: N / 8 in bits 17 to 22, M / 16 in bits 24 to 28). Boxes are
in the plan's tensor maps.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from pallasc.analysis.threads import Event, UnknownWayError, Walk, parameter_offset
from pallasc.emulator.ptx.parse import parse
from pallasc.emulator.ptx.syntax import Address, Instruction, Kernel, Operand
from pallasc.errors import UnsupportedError
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, Bytes, Launch, TensorMap

MOST_STEPS = 1_000_000
"""Maximum number of instructions computed for a launch: 1 s of Python."""

_MOST_BLOCKS = 1 << 16
_WARP = 32
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_TYPES = {
    **dict.fromkeys(("f16", "bf16"), "f16"),
    **dict.fromkeys(("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"), "f8"),
    **dict.fromkeys(("s8", "u8"), "i8"),
    "tf32": "tf32",
    "f64": "f64",
}
"""The peak that applies to an operand type."""

_KINDS = {"f16": ("f16", 16), "tf32": ("tf32", 8), "f8f6f4": ("f8", 32), "i8": ("i8", 32)}
"""For `tcgen05.mma`: the peak, and the K of one instruction."""

_SPACES = ("shared", "param", "const", "local")


@dataclass(slots=True)
class Work:
    """The work of a launch; unknown fields are None, with the reason in `reasons` by field name.

    Attributes:
        tensor_flops: operations by type ("f16" includes bf16); a multiply-add counts as 2.
        tma_load_bytes, tma_store_bytes: moved by TMA, counting full boxes.
        global_load_bytes, global_store_bytes: moved by loads, stores and `cp.async`, for all 32
            lanes.
    """

    tensor_flops: dict[str, int] | None = None
    tma_load_bytes: int | None = None
    tma_store_bytes: int | None = None
    global_load_bytes: int | None = None
    global_store_bytes: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)


FIELDS = tuple(each.name for each in fields(Work) if each.name != "reasons")


def unknown_work(reason: str) -> Work:
    """Return a work whose fields are all unknown."""
    return Work(reasons=dict.fromkeys(FIELDS, reason))


def work_of(launch: Launch, ptx: str, kernel: str) -> Work:
    """Return the work of a launch, from the PTX of its kernel."""
    try:
        entry = parse(ptx).kernel(kernel)
        counts = _counts(launch, Walk(entry, _wanted, MOST_STEPS))
    except UnknownWayError as error:
        return unknown_work(str(error))
    except (UnsupportedError, KeyError) as error:
        return unknown_work(f"its PTX cannot be read: {error}")
    return _total(launch, entry, counts)


def _wanted(each: Instruction) -> Operand | bool:
    """Return the operand that holds an instruction's size, else True if it is counted."""
    opcode, operands = each.opcode, each.operands
    if opcode.startswith(("wgmma.mma", "mma.")):
        return True
    if opcode.startswith("tcgen05.mma"):
        return operands[3] if len(operands) > 3 and ".sp" not in opcode else True
    if opcode.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
        return next((o.base for o in operands if isinstance(o, Address) and o.coordinates), True)
    if opcode.startswith(("cp.async.bulk.shared", "cp.async.bulk.global", "cp.reduce.async.bulk.")):
        return operands[2] if "global" in each.parts and len(operands) > 2 else False
    if opcode.startswith(("cp.async.ca", "cp.async.cg")):
        return operands[2] if len(operands) > 2 else True
    if each.parts[0] in ("ld", "st", "multimem"):
        return not any(part.partition("::")[0] in _SPACES for part in each.parts)
    return False


def _counts(launch: Launch, walk: Walk) -> Counter[Event]:
    """Return how many times the threads of a launch execute each counted instruction.

    The first lane of each warp is followed; if `elect.sync` matters, also as a lane not elected.
    """
    if walk.is_split(launch.block):
        raise UnknownWayError("the lanes of a warp take different paths")
    total: Counter[Event] = Counter()
    lanes = ((1, 1), (0, _WARP - 1)) if "elect" in walk.depends else ((1, _WARP),)
    warps = list(_warps(launch))
    for block, blocks in _blocks(launch, walk.depends).items():
        for warp in warps:
            for elected, threads in lanes:
                specials = {**dict(block), **warp, "elect": elected}
                for event, count in walk.follow(specials).items():
                    total[event] += count * threads * blocks
    return total


def _warps(launch: Launch) -> Iterator[dict[str, int]]:
    """Yield the special registers of the first lane of each warp."""
    x, y, z = launch.block
    for first in range(0, x * y * z, _WARP):
        yield {
            "%tid.x": first % x,
            "%tid.y": first // x % y,
            "%tid.z": first // (x * y),
            "%laneid": 0,
        }


def _blocks(launch: Launch, depends: frozenset[str]) -> Counter[tuple[tuple[str, int], ...]]:
    """Group blocks by their decisive special registers, with the number of blocks in each group."""
    cluster = launch.cluster or (1, 1, 1)
    same = {
        **_named("%ntid", launch.block),
        **_named("%nctaid", launch.grid),
        **_named("%cluster_nctaid", cluster),
        "%cluster_nctarank": math.prod(cluster),
    }
    if not any(name.startswith(("%ctaid", "%cluster")) for name in depends):
        return Counter({tuple(same.items()): math.prod(launch.grid)})
    if math.prod(launch.grid) > _MOST_BLOCKS:
        raise UnknownWayError(f"more than {_MOST_BLOCKS:,} blocks may take different paths")
    found: Counter[tuple[tuple[str, int], ...]] = Counter()
    for z, y, x in itertools.product(*map(range, reversed(launch.grid))):
        place = (x, y, z)
        inner = tuple(p % c for p, c in zip(place, cluster, strict=True))
        own = {
            **_named("%ctaid", place),
            **_named("%cluster_ctaid", inner),
            **_named("%clusterid", [p // c for p, c in zip(place, cluster, strict=True)]),
            "%cluster_ctarank": inner[0] + cluster[0] * (inner[1] + cluster[1] * inner[2]),
        }
        decisive = ((name, value) for name, value in own.items() if name in depends)
        found[tuple(same.items()) + tuple(decisive)] += 1
    return found


def _named(name: str, values: tuple[int, ...] | list[int]) -> dict[str, int]:
    return {f"{name}.{axis}": value for axis, value in zip("xyz", values, strict=True)}


def _total(launch: Launch, kernel: Kernel, counts: Mapping[Event, int]) -> Work:
    flops: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for event, count in counts.items():
        each = kernel.instructions[event.number]
        if "mma" in each.opcode and each.parts[0] != "multimem":
            kind, operations = _product(each, event.value)
            if operations is None:
                reasons["tensor_flops"] = f"the shape of {each.opcode} is not known"
            else:
                # Every lane counted it, but a warpgroup or a warp executes it together.
                lanes = {"wgmma": 4 * _WARP, "mma": _WARP}.get(each.parts[0], 1)
                flops[kind] += operations * count // lanes
            continue
        if "tensor" in each.parts:
            name, size = _tensor_copy(launch, kernel, each, event.value)
            reason = f"the tensor map in line {each.line} is not one of the plan's"
        else:
            name, size = _access(each, event.value)
            reason = f"how much {each.opcode} moves is not known"
        if size is None:
            reasons[name] = reason
        else:
            moved[name] += size * count

    def known(name: str) -> int | None:
        return None if name in reasons else moved[name]

    return Work(
        tensor_flops=None if "tensor_flops" in reasons else dict(flops),
        tma_load_bytes=known("tma_load_bytes"),
        tma_store_bytes=known("tma_store_bytes"),
        global_load_bytes=known("global_load_bytes"),
        global_store_bytes=known("global_store_bytes"),
        reasons=reasons,
    )


def _product(each: Instruction, descriptor: int | None) -> tuple[str, int | None]:
    """Return type and operations of a product of matrices; None if its shape is unknown."""
    return _of_descriptor(each, descriptor) if each.parts[0] == "tcgen05" else _of_shape(each)


def _of_shape(each: Instruction) -> tuple[str, int | None]:
    shape = next(filter(None, map(_SHAPE.fullmatch, each.parts)), None)
    types = [_TYPES[part] for part in each.parts if part in _TYPES]
    if shape is None or not types or "sp" in each.parts:
        return "", None
    kind = types[-1] if each.parts[0] == "wgmma" else types[min(1, len(types) - 1)]
    return kind, 2 * math.prod(map(int, shape.groups()))


def _of_descriptor(each: Instruction, value: int | None) -> tuple[str, int | None]:
    kind = next((part[6:] for part in each.parts if part.startswith("kind::")), "")
    if value is None or kind not in _KINDS:
        return "", None
    name, depth = _KINDS[kind]
    columns, rows = (value >> 17 & 63) << 3, (value >> 24 & 31) << 4
    return name, 2 * rows * columns * depth


def _tensor_copy(
    launch: Launch, kernel: Kernel, each: Instruction, address: int | None
) -> tuple[str, int | None]:
    tensor_map = None if address is None else _tensor_map(launch, kernel, address)
    # `….shared::cta.global…` loads, `….global.shared::cta…` stores.
    spaces = [part.partition("::")[0] for part in each.parts]
    name = "tma_store_bytes"
    if "global" in spaces and "shared" in spaces[: spaces.index("global")]:
        name = "tma_load_bytes"
    return name, None if tensor_map is None else box_bytes(tensor_map)


def _tensor_map(launch: Launch, kernel: Kernel, address: int) -> TensorMap | None:
    place = parameter_offset(kernel, address)
    if place is None or place[0] >= len(launch.parameters):
        return None
    parameter = launch.parameters[place[0]]
    return dict(parameter.tensor_maps).get(place[1]) if isinstance(parameter, Bytes) else None


def box_bytes(tensor_map: TensorMap) -> int:
    """Return the bytes that one copy with a tensor map moves."""
    size = ELEMENT_BYTES[tensor_map.dtype]
    if tensor_map.im2col is not None:
        window = tensor_map.im2col
        return size * window["channels_per_pixel"] * window["pixels_per_column"]
    steps = zip(tensor_map.box, tensor_map.element_strides, strict=True)
    return size * math.prod(-(-length // step) for length, step in steps)


def _access(each: Instruction, value: int | None) -> tuple[str, int | None]:
    is_bulk = each.parts[0] == "cp" and "bulk" in each.parts
    if each.parts[0] == "cp":
        loads, size = not is_bulk or "global" not in each.parts[:4], value
    else:
        loads, size = each.parts[0] == "ld", access_bytes(each.opcode)
        if "global" not in each.parts:
            size = None  # a generic address, which may be in shared memory
    kind = "tma" if is_bulk else "global"
    return f"{kind}_{'load' if loads else 'store'}_bytes", size


def access_bytes(opcode: str) -> int | None:
    """Return the bytes that a lane moves with `ld` or `st`: 16 for `ld.global.v4.b32`."""
    match = re.search(r"(?:\.v(\d))?\.[busf](\d+)$", opcode)
    return None if match is None else int(match[1] or 1) * int(match[2]) // 8
