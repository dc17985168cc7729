"""What a Mosaic custom call of an executable says of the other devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.compiler.executable.mosaic_kernel import MosaicKernel
from pallasc.errors import CompileError
from pallasc.specs.artifacts.peers import PeerTable

# The second name is JAX 0.10's, where only multicast asked for it.
_SYMMETRIC = ("symmetric_memory_parameters", "multimem_parameters")


def uses_peers(call: Any) -> bool:
    """Return whether a custom call reads the table of peers."""
    return _is_true(_attributes(call).get("uses_xla_collective_metadata"))


def peer_table(
    call: Any, places: Sequence[tuple[int, int]], kernel: MosaicKernel, ranks: int
) -> PeerTable | None:
    """Return the table that a custom call needs, None where it reads none.

    Args:
        call: the custom call.
        places: buffer and offset of its operands, then of its results.
        kernel: what Mosaic made of it.
        ranks: how many devices run it together.

    Raises:
        CompileError: the call names other devices, or other arrays.
    """
    if not uses_peers(call):
        return None
    attributes = _attributes(call)
    devices = _numbers(attributes.get("xla_replica_ids"))
    if devices != list(range(ranks)):
        raise CompileError(f"a Mosaic kernel for {ranks} devices names devices {devices}")
    flags = next((_numbers(attributes[name]) for name in _SYMMETRIC if name in attributes), [])
    if len(flags) not in (0, len(places)):
        raise CompileError(f"a Mosaic kernel says of {len(flags)} arrays where {len(places)} lie")
    symmetric = tuple(number for number, flag in enumerate(flags) if flag)
    barrier = not _is_true(attributes.get("skip_device_barrier"))
    return PeerTable(ranks, tuple(places), symmetric, kernel.uses_multimem, barrier)


def _attributes(call: Any) -> dict[str, Any]:
    return {entry.key: entry.value for entry in call.attributes.attrs}


def _is_true(attribute: Any) -> bool:
    return attribute is not None and bool(attribute.scalar.b)


def _numbers(attribute: Any) -> list[int]:
    if attribute is None:
        return []
    return [int(text) for text in bytes(attribute.str).decode().split(",") if text]
