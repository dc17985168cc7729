"""The kernels that are mutated: their sources, at sizes where each synchronisation matters.

Sizes are a few tiles, more steps than a pipeline has stages, and more than one block. JAX's
persistent kernels have as many blocks as a GPU has multiprocessors; here they have two, so that a
block has more than one tile.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_JAX = "jax.experimental.pallas.ops.gpu."
_LIBRARY = "pallasc.specs.library."
_DTYPES = {"f16": np.float16, "f32": np.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A kernel whose source is changed.

    Attributes:
        name: the kernel's name.
        module: the module with its source.
        functions: names of the functions that are changed.
        entry: the function that is compiled.
        args: its arrays.
        static: its other arguments.
        target: the architecture that it is compiled for.
        reference: the function of `references` that returns the correct result.
        changes: pairs of texts: the first is replaced by the second in the source, for small sizes.
        own: names of the kernel's own functions that synchronize.
        swaps: names of barriers that mutants exchange.
        tolerance: relative and absolute tolerance.
    """

    name: str
    module: str
    functions: tuple[str, ...]
    entry: str
    args: Mapping[str, str | None]
    static: Mapping[str, Any] = field(default_factory=dict)
    target: str = "sm_90a"
    reference: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    own: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    tolerance: tuple[float, float] = (4e-3, 4e-2)

    def source(self) -> str:
        """Return the source without a mutation."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise LookupError(f"there is no module {self.module}")
        text = Path(spec.origin).read_text(encoding="utf-8")
        for old, new in self.changes:
            if old not in text:
                raise LookupError(f"{self.module} does not have {old!r}")
            text = text.replace(old, new + "\n" * (old.count("\n") - new.count("\n")))
        return text

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return arrays by their names."""
        random = np.random.default_rng(seed)
        return {name: _array(text, random) for name, text in self.args.items() if text is not None}


def _array(text: str, random: np.random.Generator) -> np.ndarray:
    dtype, _, rest = text.partition("[")
    shape = [int(size) for size in rest.rstrip("]").split(",")]
    if dtype == "i8":
        return random.integers(-8, 8, shape).astype(np.int8)
    return random.uniform(-1, 1, shape).astype(_DTYPES[dtype])


def _jax_config(module: str, **fields: Any) -> dict[str, Any]:
    return {"config": {"$call": f"{_JAX}{module}:TuningConfig", **fields}}


def _library(
    name: str, *, module: str = "", entry: str = "", reference: str = "", **fields: Any
) -> Subject:
    """Return a kernel of pallasc's library; its module and reference have its name by default."""
    entry = entry or name
    return Subject(
        name=name,
        module=_LIBRARY + (module or name),
        functions=(entry,),
        entry=entry,
        reference=reference or entry,
        **fields,
    )


def _tiles(m: int) -> dict[str, int]:
    """Return the arguments for tiles with m rows and for a pipeline of two steps."""
    return {"tile_m": m, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}


_OPERANDS = {"a": "f16[256, 320]", "b": "f16[320, 64]"}
SUBJECTS: tuple[Subject, ...] = (
    _library(
        "add",
        module="elementwise",
        args={"x": "f32[2, 1024]", "y": "f32[2, 1024]"},
        static={"block_size": 512},
    ),
    _library("row_sum", module="reduction", args={"x": "f32[3, 1024]"}, static={"chunk_size": 256}),
    _library(
        "softmax",
        args={"x": "f32[4, 256]"},
        static={"rows_per_block": 2},
        tolerance=(1e-4, 1e-6),
    ),
    _library(
        "rms_norm",
        args={"x": "f32[4, 256]", "weight": "f32[256]"},
        static={"rows_per_block": 2},
        tolerance=(1e-4, 1e-5),
    ),
    _library("hopper_matmul", entry="matmul", args=_OPERANDS, static=_tiles(128)),
    _library(
        "blackwell_matmul",
        entry="matmul",
        args=_OPERANDS,
        static=_tiles(128),
        target="sm_100a",
        swaps=("loaded", "consumed"),
    ),
    _library(
        "dequant_matmul",
        args={"x": "f16[128, 320]", "weights": "i8[320, 64]", "scales": "f32[64]"},
        static=_tiles(64),
        tolerance=(4e-3, 2e-1),
    ),
    _library(
        "fused_matmul",
        entry="matmul_bias_activation",
        args={"a": "f16[128, 320]", "b": "f16[320, 64]", "bias": "f32[64]"},
        static={**_tiles(64), "activation": "relu"},
        reference="matmul_bias_relu",
    ),
    Subject(
        name="jax_hopper_matmul",
        module=_JAX + "hopper_matmul_mgpu",
        functions=("kernel",),
        entry="matmul",
        args={"a": "f16[256, 256]", "b": "f16[256, 256]", "c": None},
        static=_jax_config("hopper_matmul_mgpu", **_tiles(64), epi_tile_n=32),
        reference="matmul",
        changes=(("num_sms = get_num_sms()", "num_sms = 2"),),
    ),
    Subject(
        name="jax_blackwell_matmul",
        module=_JAX + "blackwell_matmul_mgpu",
        functions=("matmul_kernel",),
        entry="matmul_kernel",
        args={"a": "f16[640, 192]", "b": "f16[192, 64]"},
        static=_jax_config(
            "blackwell_matmul_mgpu", **_tiles(128), collective=False, epilogue_tile_n=16
        ),
        target="sm_100a",
        reference="matmul",
        swaps=("ab_tma_barrier", "consumed_barrier", "mma_done_barrier", "store_done_barrier"),
        # JAX 0.12 ends without a wait for the last copy.
        changes=(("wait_smem_to_gmem(1, wait_read_only", "wait_smem_to_gmem(0, wait_read_only"),),
    ),
    Subject(
        name="jax_attention",
        module=_JAX + "attention_mgpu",
        functions=("_attention_forward",),
        entry="attention",
        args=dict.fromkeys("qkv", "f16[1, 256, 1, 64]"),
        static=_jax_config("attention_mgpu", block_q=64, block_kv=64, max_concurrent_steps=2),
        reference="attention",
        own=("perform_schedule_barrier", "end_softmax_barriers"),
        swaps=("k_barriers", "v_barriers", "k_consumed_barriers", "v_consumed_barriers"),
        tolerance=(1e-2, 1e-2),
    ),
)
