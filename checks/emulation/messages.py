"""Messages between a run and the worker that emulates: a plan with inputs, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pallasc.checks.findings import Finding
from pallasc.compiler.workers.messages import Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated(Reply):
    """What an emulation gave.

    Attributes:
        outputs: the bytes of each output as in device memory, those of all devices one after the
            other; none where a kernel failed.
        printed: what kernels printed.
        fault: the fault that ended a kernel, None if all kernels completed.
    """

    outputs: tuple[bytes, ...] = ()
    printed: str = ""
    fault: Finding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulate(Request):
    """Run a plan.

    Attributes:
        record: the artifact's record.
        blobs: what the record names, by digest.
        xla_ptx: see `subject.Subject`.
        inputs: the bytes of each input as in device memory, those of all devices as one array.
    """

    reply: ClassVar[type[Reply]] = Emulated
    record: Mapping[str, object]
    blobs: Mapping[str, bytes]
    xla_ptx: Mapping[str, str]
    inputs: tuple[bytes, ...]
