"""The work of a launch: operations of tensor cores, and bytes moved by TMA.

The executions of the instructions are counted by following the threads through the PTX
(`threads.py`). Shapes are in the opcodes of `wgmma` and `mma`, and in the instruction descriptor of
`tcgen05.mma` (PTX ISA 9.0, 9.7.17.4.2: N / 8 in bits 17 to 22, M / 16 in bits 24 to 28). The plan's
tensor maps have the boxes that TMA copies.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallasc.emulator.ptx.parse import parse
from pallasc.emulator.ptx.syntax import Address, Immediate, Instruction, Kernel, Operand
from pallasc.errors import UnsupportedError
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, Bytes, Launch, TensorMap

FIELDS = ("tensor_flops", "tma_load_bytes", "tma_store_bytes")
"""The fields of `Work` that may be unknown."""

_PARAMETERS = 1 << 62
_PARAMETER_BYTES = 1 << 32
"""Address of the kernel's first parameter, and the distance between parameters."""

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_TYPES = {
    **dict.fromkeys(("f16", "bf16"), "f16"),
    **dict.fromkeys(("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"), "f8"),
    **dict.fromkeys(("s8", "u8"), "i8"),
    "tf32": "tf32",
    "f64": "f64",
}
"""For each operand type, the type whose peak applies."""

_KINDS = {
    "kind::f16": ("f16", 16),
    "kind::tf32": ("tf32", 8),
    "kind::f8f6f4": ("f8", 32),
    "kind::i8": ("i8", 32),
}
"""For each kind of `tcgen05.mma`: the type whose peak applies, and the K of one instruction."""

_TOGETHER = {"wgmma": 128, "mma": 32, "tcgen05": 1}
"""The number of threads that execute a product of matrices together."""


@dataclass(slots=True)
class Work:
    """The work of a launch; unknown fields are None, with the reason in `reasons` by field name.

    Attributes:
        tensor_flops: operations by type ("f16" includes bf16); a multiply-add counts as 2.
        tma_load_bytes, tma_store_bytes: bytes moved by TMA, counting full boxes.
    """

    tensor_flops: dict[str, int] | None = None
    tma_load_bytes: int | None = None
    tma_store_bytes: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def unknown_work(reason: str) -> Work:
    """Return a work whose fields are all unknown."""
    return Work(reasons=dict.fromkeys(FIELDS, reason))


def work_of(launch: Launch, ptx: str) -> Work:
    """Return the work of a launch, from the PTX of its kernel."""
    try:
        kernel = parse(ptx).kernel(launch.kernel)
    except (UnsupportedError, KeyError) as error:
        return unknown_work(f"its PTX cannot be read: {error}")
    instructions = list(enumerate(kernel.instructions))
    counted = {number: _operand(each) for number, each in instructions if _is_counted(each)}
    if not counted:
        return Work({}, 0, 0)
    try:
        from pallasc.analysis.threads import UnknownWayError, Walk
    except ImportError:
        return unknown_work("pallasc[emulate] is not installed")
    try:
        addresses = {
            parameter.name: _PARAMETERS + number * _PARAMETER_BYTES
            for number, parameter in enumerate(kernel.parameters)
        }
        return _total(launch, kernel, Walk(kernel, launch, counted, addresses).follow())
    except UnknownWayError as error:
        return unknown_work(str(error))


def _is_counted(each: Instruction) -> bool:
    if each.parts[0] == "cp":
        return "bulk" in each.parts and "global" in each.parts and "prefetch" not in each.parts
    return each.opcode.startswith(("wgmma.mma", "mma.", "tcgen05.mma"))


def _operand(each: Instruction) -> Operand:
    """Return the operand that determines how much a counted instruction does."""
    if each.parts[0] == "cp":
        maps = [o.base for o in each.operands if isinstance(o, Address) and o.coordinates]
        return maps[0] if maps else each.operands[2]
    return each.operands[3] if each.parts[0] == "tcgen05" else Immediate(0)


def _total(launch: Launch, kernel: Kernel, counts: Mapping[tuple[int, int | None], int]) -> Work:
    flops: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for (number, value), threads in counts.items():
        each = kernel.instructions[number]
        if each.parts[0] == "cp":
            # `….shared::cta.global…` loads, `….global.shared::cta…` stores.
            is_load = ".shared" in each.opcode.partition(".global")[0]
            name = "tma_load_bytes" if is_load else "tma_store_bytes"
            amount = _copied_bytes(launch, each, value)
            moved[name] += threads * (amount or 0)
        else:
            name = "tensor_flops"
            kind, amount = _product(each, value)
            flops[kind] += threads // _TOGETHER[each.parts[0]] * (amount or 0)
        if amount is None:
            reasons[name] = f"the size of {each.opcode} in line {each.line} of the PTX is not known"
    return Work(
        None if "tensor_flops" in reasons else dict(flops),
        None if "tma_load_bytes" in reasons else moved["tma_load_bytes"],
        None if "tma_store_bytes" in reasons else moved["tma_store_bytes"],
        reasons,
    )


def _product(each: Instruction, descriptor: int | None) -> tuple[str, int | None]:
    """Return type and operations of a product of matrices; None if its shape is unknown."""
    if "sp" in each.parts:
        return "", None
    if each.parts[0] == "tcgen05":
        kind = next((part for part in each.parts if part.startswith("kind::")), "")
        if descriptor is None or kind not in _KINDS:
            return "", None
        name, depth = _KINDS[kind]
        columns, rows = (descriptor >> 17 & 63) << 3, (descriptor >> 24 & 31) << 4
        return name, 2 * rows * columns * depth
    shape = next(filter(None, map(_SHAPE.fullmatch, each.parts)), None)
    types = [_TYPES[part] for part in each.parts if part in _TYPES]
    if shape is None or not types:
        return "", None
    # `wgmma` has the types of D, A and B; `mma` has C's, too.
    kind = types[-1] if each.parts[0] == "wgmma" else types[min(1, len(types) - 1)]
    return kind, 2 * math.prod(map(int, shape.groups()))


def _copied_bytes(launch: Launch, each: Instruction, value: int | None) -> int | None:
    """Return how many bytes a copy moves; `value` is its size or its tensor map's address."""
    if value is None or "tensor" not in each.parts:
        return value
    number, offset = divmod(value - _PARAMETERS, _PARAMETER_BYTES)
    parameter = launch.parameters[number] if 0 <= number < len(launch.parameters) else None
    maps = dict(parameter.tensor_maps) if isinstance(parameter, Bytes) else {}
    return box_bytes(maps[offset]) if offset in maps else None


def box_bytes(tensor_map: TensorMap) -> int:
    """Return the bytes that one copy with a tensor map moves."""
    size = ELEMENT_BYTES[tensor_map.dtype]
    if tensor_map.im2col is not None:
        window = tensor_map.im2col
        return size * window["channels_per_pixel"] * window["pixels_per_column"]
    steps = zip(tensor_map.box, tensor_map.element_strides, strict=True)
    return size * math.prod(-(-length // step) for length, step in steps)
