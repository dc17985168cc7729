"""A flat plan held against the rules of launch plans and cubins in Python."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import flat

from pallasc.errors import PallascError
from pallasc.specs.artifacts.cubin import parse_cubin
from pallasc.specs.artifacts.plan import (
    DTYPES,
    INTERLEAVES,
    PROMOTIONS,
    SWIZZLES,
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Im2col,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
    broken_rule,
    check_ranges,
)
from pallasc.specs.gpus import ARCH

ROLES = ("input", "output", "constant", "temporary")
_FILL, _COPY = 0, 1
_POINTER, _VALUE = 0, 1
_RANKS = slice(3, 8), slice(8, 12), slice(12, 17), slice(17, 22), slice(22, 25), slice(25, 28)


def broken(data: bytes, find: Callable[[str], bytes | None] = lambda key: None) -> str | None:
    """Return which rule a flat plan breaks that C opens, None where it breaks none.

    Args:
        data: the plan.
        find: returns a cubin that it names by digest; None leaves it out.
    """
    try:
        plan = launch_plan(data)
        check_ranges(plan)
        for launch in plan.launches:
            for parameter in launch.parameters:
                if isinstance(parameter, Bytes):
                    rules = (broken_rule(m) for _, m in parameter.tensor_maps)
                    if rule := next(filter(None, rules), None):
                        return rule
        return _broken_cubins(data, plan, find)
    except (PallascError, UnicodeDecodeError, ValueError) as error:
        return str(error)


def _broken_cubins(
    data: bytes, plan: LaunchPlan, find: Callable[[str], bytes | None]
) -> str | None:
    arch = ARCH.fullmatch(flat.text(data, flat.rows(data, "facts")[0][1]))
    if arch is None:
        return "its architecture is unknown"
    for launch in plan.launches:
        content = blob(data, launch.cubin) or find(launch.cubin)
        if content is None:
            continue
        if hashlib.sha256(content).hexdigest() != launch.cubin:
            return "a cubin does not match its digest"
        cubin = parse_cubin(content)
        if cubin.sm != 10 * int(arch[1]) + int(arch[2]):
            return f"a cubin for sm_{cubin.sm}"
        sizes = [p.size if isinstance(p, Bytes) else 8 for p in launch.parameters]
        own = cubin.kernels.get(launch.kernel)
        if own is None or [parameter.size for parameter in own.parameters] != sizes:
            return f"{launch.kernel} takes other parameters than {sizes}"
    return None


def blob(data: bytes, key: str) -> bytes | None:
    """Return a blob that lies inside."""
    for digest, offset, size, inside, _ in flat.rows(data, "blobs"):
        if digest.hex() == key and inside:
            return flat.raw(data, "data")[offset : offset + size]
    return None


def launch_plan(data: bytes) -> LaunchPlan:
    """Return the launch plan that a flat plan is of, without trees."""
    tables: Any = {name: flat.rows(data, name) for name in flat.ROWS}
    keys = [row[0].hex() for row in tables["blobs"]]
    buffers = [
        Buffer(ROLES[role], size, digest=None if number == 0xFFFFFFFF else keys[number])
        for size, _, role, number, _ in tables["buffers"]
    ]
    inputs = tables["facts"][0][5]
    bound = [_binding(data, tables, row) for row in tables["arrays"]]
    outputs = tuple(_binding(data, tables, row) for row in tables["outputs"])
    launches = [_launch(data, tables, keys, row) for row in tables["launches"]]
    return LaunchPlan(
        tuple(buffers),
        tuple(bound[:inputs]),
        outputs,
        tuple(_step(row, launches) for row in tables["steps"]),
        list(range(inputs)),
        {"tuple": list(range(len(outputs)))},
    )


def _binding(data: bytes, tables: Any, row: Any) -> Binding:
    path, dtype, _, rank, first, _, buffer, _ = row
    shape = tuple(number for (number,) in tables["numbers"][first : first + rank])
    return Binding(flat.text(data, path), flat.text(data, dtype), shape, buffer)


def _step(row: Any, launches: list[Launch]) -> Step:
    kind, target, source, width, target_offset, source_offset, size, value = row
    if kind == _FILL:
        return Fill(target, target_offset, size, value, width)
    if kind == _COPY:
        return Copy(source, source_offset, target, target_offset, size)
    return launches[target]


def _launch(data: bytes, tables: Any, keys: list[str], row: Any) -> Launch:
    kernel = tables["kernels"][row[0]]
    cluster = row[4:7]
    return Launch(
        kernel=flat.text(data, kernel[0]),
        cubin=keys[tables["cubins"][kernel[1]][0]],
        grid=row[1:4],
        cluster=cluster if any(cluster) else None,
        block=row[7:10],
        dynamic_smem_bytes=row[10],
        pdl=bool(row[11]),
        parameters=tuple(
            _parameter(data, tables, entry)
            for entry in tables["parameters"][row[12] : row[12] + row[13]]
        ),
    )


def _parameter(data: bytes, tables: Any, row: Any) -> Parameter:
    kind, buffer, offset, size, first, count, _ = row
    if kind == _POINTER:
        return Pointer(buffer, offset)
    value = flat.raw(data, "values")[offset : offset + size] if kind == _VALUE else b""
    maps = tuple((entry[0], _map(entry)) for entry in tables["maps"][first : first + count])
    return Bytes(size, value.hex(), maps)


def _map(row: Any) -> TensorMap:
    dims, strides, box, elements, lower, upper = (row[places] for places in _RANKS)
    channels, pixels, kind, rank, swizzle, interleave, promotion, nan_fill, im2col, _ = row[28:]
    window = Im2col(
        lower=list(lower[: rank - 2]), upper=list(upper[: rank - 2]),
        channels_per_pixel=channels, pixels_per_column=pixels,
    )  # fmt: skip
    return TensorMap(
        row[1], row[2], _name(DTYPES, kind), dims[:rank], strides[: rank - 1],
        () if im2col else box[:rank], elements[:rank], swizzle=_name(SWIZZLES, swizzle),
        interleave=_name(INTERLEAVES, interleave), l2_promotion=_name(PROMOTIONS, promotion),
        nan_fill=bool(nan_fill), im2col=window if im2col else None,
    )  # fmt: skip


def _name(numbers: Any, number: int) -> Any:
    return next(name for name, value in numbers.items() if value == number)
