"""The parameters of a launch: what Mosaic's host function passes, and the kernel's signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pallasc.compiler.executable.host_stub import locate
from pallasc.compiler.executable.tensor_maps import from_mosaic
from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import Kernel
from pallasc.specs.artifacts.peers import Peers
from pallasc.specs.artifacts.plan import Bytes, Launch, Parameter, Pointer


def mosaic_parameter(
    argument: Any, positions: list[tuple[int, int]], sizes: Sequence[int]
) -> Parameter:
    """Turn a recorded argument of Mosaic's into a parameter of the plan.

    Args:
        argument: what the host function passed (`compiler/executable/host_stub.py`).
        positions: where its operands and then its results lie: (buffer, byte offset).
        sizes: of each, as a `Pointer` has it.

    Raises:
        CompileError: it points to no buffer of the call, or a tensor map breaks a rule.
    """
    if argument.address is not None:
        index, inner = locate(argument.address)
        if (index, inner) == (len(positions), 0):
            return Peers()
        buffer, offset = _resolve(argument.address, positions)
        return Pointer(buffer, offset, max(sizes[index] - inner, 0))
    maps = []
    for at, tensor_map in argument.maps:
        buffer, offset = _resolve(tensor_map.address, positions)
        maps.append((at, from_mosaic(tensor_map, buffer=buffer, offset=offset)))
    data = argument.data.hex() if any(argument.data) or not maps else ""
    return Bytes(len(argument.data), data, tuple(maps))


def _resolve(address: int, positions: list[tuple[int, int]]) -> tuple[int, int]:
    index, inner = locate(address)
    if index >= len(positions):
        raise CompileError(f"the host function uses buffer {index} of {len(positions)}")
    buffer, offset = positions[index]
    return buffer, offset + inner


def check_signature(launch: Launch, kernels: Mapping[str, Kernel]) -> None:
    """Check a launch's parameters against what the cubin says of its kernel.

    Raises:
        CompileError: the kernel is not in the cubin, or count or sizes differ.
    """
    kernel = kernels.get(launch.kernel)
    if kernel is None:
        raise CompileError(f"the cubin does not contain the kernel {launch.kernel}")
    passed = [p.size if isinstance(p, Bytes) else 8 for p in launch.parameters]
    declared = [parameter.size for parameter in kernel.parameters]
    if passed != declared:
        raise CompileError(
            f"the plan passes parameters of {passed} bytes to {launch.kernel}, "
            f"whose signature has {declared}"
        )
