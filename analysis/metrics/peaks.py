"""Peak tensor-core operations per second, for the models of `specs/gpus.py`.

Dense figures, half of the data sheets' figures "with sparsity", at the boost clock. From NVIDIA's
data sheets "A100 Tensor Core GPU" (2021), "RTX A6000" (2020), "L40S" (2023), "H100 Tensor Core GPU"
(2023), "H200 Tensor Core GPU" (2024), "GH200 Grace Hopper Superchip" (2023) and "Blackwell" (B200
and GB200: HGX and GB200 NVL72, 2025; B300 and GB300: HGX and GB300 NVL72, 2025), with the digits of
the architectures' whitepapers where a data sheet rounds. The sources have no figure for a missing
type. A missing model has no figures at all: those of Jetson are for mixes of units.

The figures are only for reports: no module that compiles imports this one, so they are in no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TERA = 10**12

_H100 = {"f16": 989.4, "tf32": 494.7, "f8": 1978.9, "i8": 1978.9, "f64": 66.9}
_B200 = {"f16": 2250.0, "tf32": 1125.0, "f8": 4500.0, "i8": 4500.0}
_GB200 = {"f16": 2500.0, "tf32": 1250.0, "f8": 5000.0, "i8": 5000.0}
_A100 = {"f16": 312.0, "tf32": 156.0, "i8": 624.0, "f64": 19.5}

_TERA_OPERATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "a100-sxm": _A100,
        "a100-sxm-40gb": _A100,
        "a100-pcie": _A100,
        "a6000": {"f16": 154.8, "tf32": 77.4, "i8": 309.7},
        "l40s": {"f16": 362.05, "tf32": 183.2, "f8": 733.0, "i8": 733.0},
        "h100-sxm": _H100,
        "h100-pcie": {"f16": 756.5, "tf32": 378.0, "f8": 1513.0, "i8": 1513.0, "f64": 51.0},
        "h200": _H100,
        "gh200": _H100,
        "b200": _B200,
        "gb200": _GB200,
        "b300": {"f16": 2250.0, "tf32": 1125.0, "f8": 4500.0},
        "gb300": {"f16": 2500.0, "tf32": 1250.0, "f8": 5000.0},
    }
)
"""By model and type; "f16" includes bf16, "f8" includes all 8-bit types that are not integers."""


def peak_operations_per_s(model: str, kind: str) -> float | None:
    """Return the peak of a model for operands of a type, None if unknown."""
    peak = _TERA_OPERATIONS.get(model, {}).get(kind)
    return None if peak is None else peak * _TERA
