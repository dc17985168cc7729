"""The GPU at hand: its name, and the limits of its model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pallasc.specs.gpus import MODELS, device_names

if TYPE_CHECKING:
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.gpus import Target


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model reaches at most.

    Attributes:
        model: its name.
        memory_gb_per_s: bandwidth of its memory, in 10^9 bytes a second.
        fp32_tflop_per_s: its units for single precision, without tensor cores.
        l2_bytes: its L2 cache.
    """

    model: str
    memory_gb_per_s: float
    fp32_tflop_per_s: float
    l2_bytes: int


def model_of(device: Device, more: Iterable[Target] = ()) -> Target | None:
    """Return the model that a GPU is, by its name; None where it is not known.

    Args:
        device: the GPU.
        more: models that specs add.
    """
    for model in (*MODELS.values(), *more):
        same = (model.major, model.minor) == (device.major, device.minor)
        if same and device.name in device_names(model.description):
            return model
    return None


def limits_of(model: Target) -> Limits:
    """Return the limits of a model, at its boost clock."""
    # A fused multiply-add counts as two operations.
    flop_per_s = 2e9 * model.sm_count * model.fpus_per_sm * model.clock_ghz
    return Limits(
        model=model.name,
        memory_gb_per_s=model.memory_bandwidth_bytes_per_s / 1e9,
        fp32_tflop_per_s=flop_per_s / 1e12,
        l2_bytes=model.l2_bytes,
    )


class DeviceRow(TypedDict):
    """A GPU, as `--json` prints it."""

    ordinal: int
    name: str
    arch: str
    driver: str


def device_json(device: Device) -> DeviceRow:
    """Return what `--json` prints of a GPU."""
    from pallasc.runtime.device.answers import version_text

    return {
        "ordinal": device.ordinal,
        "name": device.name,
        "arch": f"sm_{device.major}{device.minor}",
        "driver": version_text(device.driver_version),
    }
