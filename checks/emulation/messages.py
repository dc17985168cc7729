"""Messages between `pallasc run` and the emulating worker: a plan with inputs, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pallasc.checks.findings import Finding
from pallasc.compiler.workers.messages import Reply, Request


class Emulated(Reply, frozen=True, kw_only=True):
    """The result of an emulation.

    Attributes:
        outputs: the bytes of each output as in device memory, all devices concatenated; empty if a
            kernel failed.
        printed: the text printed by kernels.
        fault: the fault that ended a kernel, None if all kernels completed.
    """

    outputs: tuple[bytes, ...] = ()
    printed: str = ""
    fault: Finding | None = None


class Emulate(Request, frozen=True, kw_only=True):
    """Run a plan.

    Attributes:
        record: the artifact's record.
        blobs: the blobs that the record names, by digest.
        xla_ptx: see `subject.Subject`.
        inputs: the bytes of each input as in device memory; the arrays of all devices are joined.
    """

    reply: ClassVar[type[Reply]] = Emulated
    record: Mapping[str, object]
    blobs: Mapping[str, bytes]
    xla_ptx: Mapping[str, str]
    inputs: tuple[bytes, ...]
