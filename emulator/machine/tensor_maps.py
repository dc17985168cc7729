"""Tensor maps as kernels see them: 128 opaque bytes that identify a map and its address.

The format that NVIDIA's driver writes is not documented; here the bytes hold the map's index in the
machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pallasc.emulator.machine.faults import Fault
from pallasc.specs.artifacts.plan import ELEMENT_BYTES, MAP_BYTES, TensorMap

_MAGIC = b"tensor map"


@dataclass(slots=True)
class TensorMaps:
    """The encoded maps, by index."""

    maps: list[tuple[TensorMap, int]] = field(default_factory=list)

    @property
    def element_bytes(self) -> int:
        """Size of the smallest element of any map, at most 4; packed elements count as a byte."""
        return min([4, *(max(1, ELEMENT_BYTES.get(each.dtype, 1)) for each, _ in self.maps)])

    def encode(self, tensor_map: TensorMap, address: int) -> bytes:
        """Return 128 bytes that identify a map over the memory at `address`."""
        self.maps.append((tensor_map, address))
        data = _MAGIC + (len(self.maps) - 1).to_bytes(8, "little")
        return data.ljust(MAP_BYTES, b"\0")

    def decode(self, data: bytes) -> tuple[TensorMap, int]:
        """Return the map and the address that 128 bytes identify.

        Raises:
            Fault: they are not a tensor map.
        """
        number = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little")
        if not data.startswith(_MAGIC) or number >= len(self.maps):
            raise Fault(
                "no-tensor-map",
                "the address that a tensor copy is given does not hold a tensor map",
            )
        return self.maps[number]
