"""Run one computation of an executable's HLO module on the CPU, as the kernel that XLA made of it.

`hlo_to_stablehlo` of jaxlib takes a serialised `HloModuleProto`; a computation becomes the entry of
a module of its own. What the GPU's compiler noted of how to make kernels is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax._src.lib import _jax

from pallasc.compiler.lowering.serialized import message_type

_TUPLE = 13
_PROGRAM_SHAPE, _ENTRY_NAME, _ID = 4, 2, 5
_BACKEND_NOTES = {43, 99}
_DTYPES = {
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
    8: np.uint32, 9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64,
    16: ml_dtypes.bfloat16,
}  # fmt: skip


def array_of(shape: Any, data: bytes) -> np.ndarray:
    """Return the array of an XLA shape, in the order of its dimensions, that lies in memory so."""
    order = list(reversed(shape.layout.minor_to_major))
    stored = np.frombuffer(data, _DTYPES[shape.element_type])
    stored = stored.reshape([shape.dimensions[dimension] for dimension in order])
    return stored.transpose(np.argsort(order)) if order else stored


def bytes_of(shape: Any, array: Any) -> bytes:
    """Return an array as it lies in memory with an XLA shape."""
    order = list(reversed(shape.layout.minor_to_major))
    array = np.asarray(array, _DTYPES[shape.element_type])
    return array.reshape(list(shape.dimensions)).transpose(order).tobytes()


def size_of(shape: Any) -> int:
    """Return the bytes that an array of an XLA shape takes."""
    return (
        int(np.prod(list(shape.dimensions), dtype=np.int64))
        * np.dtype(_DTYPES[shape.element_type]).itemsize
    )


class Computations:
    """The computations of an `HloModule`."""

    def __init__(self, module: Any) -> None:
        self._by_id = {computation.id: computation for computation in module.computations}
        self._calls = {
            instruction.name: instruction
            for computation in module.computations
            for instruction in computation.instructions
        }
        self._compiled: dict[int, Callable[..., Any]] = {}
        self._results: dict[tuple[int | bytes, ...], list[np.ndarray]] = {}
        self.shapes = functools.cache(self._shapes)

    def _shapes(self, call: str) -> tuple[list[Any], list[Any]]:
        """Return the shapes of operands and results of the instruction with this name."""
        computation = self._by_id[self._calls[call].called_computation_ids[0]]
        parameters = [
            instruction
            for instruction in computation.instructions
            if instruction.opcode == "parameter"
        ]
        parameters.sort(key=_parameter_number)
        result = self._calls[call].shape
        results = list(result.tuple_shapes) if result.element_type == _TUPLE else [result]
        return [parameter.shape for parameter in parameters], results

    def run(self, call: str, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return what the instruction with this name gives; plans that differ later ask again."""
        number = self._calls[call].called_computation_ids[0]
        if number not in self._compiled:
            self._compiled[number] = _compile(self._module(number))
        asked = (number, *(operand.tobytes() for operand in operands))
        if asked not in self._results:
            self._results[asked] = self._compiled[number](operands)
        return self._results[asked]

    def _module(self, number: int) -> bytes:
        needed: list[int] = []
        self._add(number, needed)
        part = message_type("HloModule")(name="part", entry_computation_id=number)
        for one in needed:
            computation = part.computations.add()
            computation.CopyFrom(self._by_id[one])
            del computation.instructions[:]
            for instruction in self._by_id[one].instructions:
                data = _without(instruction.SerializeToString(), _BACKEND_NOTES)
                copied = computation.instructions.add()
                copied.MergeFromString(data)
                if copied.opcode == "bitcast" and _is_row_major(copied.shape):
                    copied.opcode = "reshape"  # on the CPU, layouts are chosen again
        entry = self._by_id[number]
        shape = next(d for n, d in _fields(entry.SerializeToString()) if n == _PROGRAM_SHAPE)
        extra = _field(_PROGRAM_SHAPE, shape) + _field(_ENTRY_NAME, entry.name.encode())
        return bytes(part.SerializeToString() + extra + bytes([_ID << 3]) + _varint(number))

    def _add(self, number: int, found: list[int]) -> None:
        if number in found:
            return
        for instruction in self._by_id[number].instructions:
            for called in instruction.called_computation_ids:
                self._add(called, found)
        found.append(number)


def _is_row_major(shape: Any) -> bool:
    return list(shape.layout.minor_to_major) == list(reversed(range(len(shape.dimensions))))


def _parameter_number(instruction: Any) -> int:
    """Return `parameter_number` of an instruction, 0 where it is not written down."""
    for number, value in _fields(instruction.SerializeToString()):
        if number == 9:
            return _read_varint(value, 0)[0]
    return 0


def _compile(module: bytes) -> Callable[..., Any]:
    cpu = jax.devices("cpu")[0]
    devices: Any = _jax.DeviceList((cpu,))
    code = _jax.mlir.hlo_to_stablehlo(module)
    loaded: Any = cpu.client.compile_and_load(code, devices)

    def run(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        placed = [jax.device_put(operand, cpu) for operand in operands]
        answer = loaded.execute_sharded(placed)
        return [np.asarray(array[0]) for array in answer.disassemble_into_single_device_arrays()]

    return run


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each field of a serialised message."""
    for number, _, _, value in _pieces(data):
        yield number, value


def _without(data: bytes, numbers: set[int]) -> bytes:
    """Return a serialised message without the fields of these numbers."""
    return b"".join(data[s:e] for number, s, e, _ in _pieces(data) if number not in numbers)


def _pieces(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        size = {1: 8, 5: 4}.get(tag & 7, 0)
        value_at = at
        if tag & 7 == 0:
            _, at = _read_varint(data, at)
        elif tag & 7 == 2:
            size, value_at = _read_varint(data, at)
            at = value_at
        at += size
        yield tag >> 3, start, at, data[value_at:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
