"""Texts for the driver's `CUresult` codes. Hints are based on comments in cuda.h."""

from __future__ import annotations

STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})
"""Codes after which the process cannot use the GPU again, whichever call returns them.

For each of them, cuda.h states that the process is left in an inconsistent state or that the
context can no longer be used, or (214 and 220) that there was an uncorrectable memory or NVLink
error.
"""

ODD_ANSWERS = (ValueError, RuntimeError)
"""Exceptions that cuda-bindings raises for a code it does not know, and for a missing function."""

INIT_REASONS = {
    3: "it is shutting down, or this process was forked after it was opened",
    100: "it finds no GPU",
    101: "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
    802: "the GPUs are not ready yet",
    803: "its library does not match the kernel module that is loaded",
    804: "a library for forward compatibility does not support this GPU",
    999: "it does not say why",
}
"""Meaning of each `cuInit` code."""

INIT_HINTS = {
    3: 'Start processes with multiprocessing.get_context("spawn").',
    100: "Run nvidia-smi; in a container, start it with --gpus all.",
    101: "Set CUDA_VISIBLE_DEVICES to numbers that nvidia-smi lists, or unset it.",
    802: "Start nvidia-fabricmanager, or wait for it.",
    803: "Restart the machine, or load the kernel module of the installed driver.",
    804: "Remove the package cuda-compat, or install a newer driver.",
    999: "Run nvidia-smi; restarting the machine often helps.",
}
"""Remedy for each `cuInit` code."""

INSTALL = (
    "Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for those "
    "built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus all."
)
"""Remedy if the driver is missing or too old."""

_EARLIER = "It comes from an earlier asynchronous error: this process cannot use the GPU any more."
HINTS = {
    **dict.fromkeys(STICKY, _EARLIER),
    1: "An argument is out of the driver's range.",
    2: "Free GPU memory, or use smaller arrays.",
    201: "Make a device current in this thread, or pass a stream of a device.",
    209: "The cubin is for another GPU: compile for this one.",
    708: "Set its flags before anything uses the GPU.",
    709: "The context was destroyed or reset: keep it for as long as kernels are called.",
    222: "The file was made by a newer toolkit: install a newer driver.",
    400: "The stream does not exist, or belongs to another device.",
    701: "The kernel takes more registers or threads than a block may have here.",
    900: "This cannot be done while a stream is captured: call preload() before.",
    906: "This cannot be done while a stream is captured: call preload() before.",
    912: "The cluster does not fit this GPU.",
}
"""Remedy for each code from other functions."""


def version_text(version: int) -> str:
    """Return a version such as 13020 as text: `13.2`."""
    return f"{version // 1000}.{version % 1000 // 10}"
