"""A package with the structure of Tokamax: made-up tables, and a kernel that compiles."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

H100 = "nvidia_h100_80gb_hbm3"
GLU = "pallas_mosaic_gpu_gated_linear_unit"

Configs = Iterable[tuple[dict[str, Any], dict[str, Any]]]
Entries = list[tuple[dict[str, Any], Configs]]

OP = '''\
import dataclasses

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class PallasMosaicGpuGatedLinearUnit:
    config: object = None

    def __call__(self, x, weights, *, activation, precision):
        """Square x, `tile_m` rows at a time."""
        assert precision == "BF16_BF16_F32"
        rows = 128 if self.config is None else self.config.tile_m
        if x.shape[0] % rows:
            raise NotImplementedError(f"{x.shape[0]} rows are not supported.")

        def body(x_gmem, out_gmem):
            here = pl.ds(lax.axis_index("block") * rows, rows)
            out_gmem[here] = x_gmem[here] * x_gmem[here]

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[0] // rows,),
            grid_names=("block",),
            compiler_params=plgpu.CompilerParams(
                lowering_semantics=plgpu.LoweringSemantics.Warpgroup
            ),
        )(x)
'''

CONFIG = """\
import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    tile_m: int
    tile_n: int
    wg_dimension: int
"""


def times(*milliseconds: float) -> dict[str, Any]:
    """Return what a table has of a configuration."""
    return {"evaluation_times_ms": list(milliseconds), "compile_time_ms": 9.0, "metadata": {}}


def glu(rows: int = 256, **changed: Any) -> dict[str, Any]:
    """Return the arguments of a gated linear unit."""
    return {
        "x": f"bf16[{rows},128]",
        "weights": "bf16[128,2,256]",
        "activation": "jax._src.nn.functions.silu",
        "precision": "BF16_BF16_F32",
        "return_residuals": False,
        **changed,
    }


def tiles(tile_m: int = 64, **changed: Any) -> dict[str, Any]:
    """Return a configuration of it."""
    return {"tile_m": tile_m, "tile_n": 64, "wg_dimension": 1, **changed}


def write_package(folder: Path, tables: dict[tuple[str, str], Entries]) -> Path:
    """Write a package with these entries of a device and an op, version 9.8.7; return it."""
    root = folder / "tokamax"
    for (device, op), entries in tables.items():
        file = root / "data" / "autotuning" / device / f"{op}.json"
        table = {
            json.dumps(call): {json.dumps(config): of for config, of in configs}
            for call, configs in entries
        }
        _write(file, json.dumps(table))
    here = root / "_src" / "ops" / "gated_linear_unit"
    _write(here / "pallas_mosaic_gpu.py", OP)
    _write(here / "pallas_mosaic_gpu_common.py", CONFIG)
    for inner in (root, *(path for path in (root / "_src").rglob("*") if path.is_dir())):
        (inner / "__init__.py").touch()
    (root / "_src" / "__init__.py").touch()
    _write(folder / "tokamax-9.8.7.dist-info" / "METADATA", "Name: tokamax\nVersion: 9.8.7\n")
    return root


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
