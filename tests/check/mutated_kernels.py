"""The kernels that are mutated: their sources, at sizes where each synchronisation matters.

Sizes are a few tiles, more steps than a pipeline has stages, and more than one block. JAX's
persistent kernels have as many blocks as a GPU has multiprocessors; here they have two, so that a
block has more than one tile.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_JAX = "jax.experimental.pallas.ops.gpu."
_LIBRARY = "pallasc.specs.library."
_DTYPES = {"f16": np.float16, "f32": np.float32, "i8": np.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A kernel whose source is changed.

    Attributes:
        name: of the kernel.
        module: where its source is.
        functions: those of its functions that are changed.
        entry: the function that is compiled.
        args: its arrays.
        static: other arguments.
        target: what it is compiled for.
        reference: the function of `mutant_references` with right numbers.
        changes: texts of the source and what they become, for small sizes.
        more: text behind the source.
        own: functions inside that synchronise.
        swaps: barriers that mutants exchange.
        scales: what the random numbers of an array are multiplied by.
        offsets: what is added to them.
        tolerance: relative and absolute.
        only: the functions inside, if not all, whose mutants are taken: others are those of another
            subject with the same source.
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
    more: str = ""
    own: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    scales: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)
    tolerance: tuple[float, float] = (4e-3, 4e-2)
    only: tuple[str, ...] = ()

    def source(self) -> str:
        """Return the source, as it is compiled without a mutation."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise LookupError(f"there is no module {self.module}")
        text = Path(spec.origin).read_text(encoding="utf-8")
        for old, new in self.changes:
            if old not in text:
                raise LookupError(f"{self.module} does not have {old!r}")
            text = text.replace(old, new + "\n" * (old.count("\n") - new.count("\n")))
        return text + self.more

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return arrays by their names."""
        random = np.random.default_rng(seed)
        return {
            name: self._array(name, text, random)
            for name, text in self.args.items()
            if text is not None
        }

    def _array(self, name: str, text: str, random: np.random.Generator) -> np.ndarray:
        dtype, _, rest = text.partition("[")
        shape = [int(size) for size in rest.rstrip("]").split(",")]
        if dtype == "i8":
            return random.integers(-8, 8, shape).astype(np.int8)
        values = random.uniform(-1, 1, shape) * self.scales.get(name, 1)
        return (values + self.offsets.get(name, 0)).astype(_DTYPES[dtype])


def _jax_config(module: str, **fields: Any) -> dict[str, Any]:
    return {"config": {"$call": f"{_JAX}{module}:TuningConfig", **fields}}


def _library(
    name: str, *, module: str = "", entry: str = "", reference: str = "", **fields: Any
) -> Subject:
    """Return a kernel of pallasc's own, by default with a module and a reference of its name."""
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
    """Return arguments for tiles of m rows and a pipeline of two steps."""
    return {"tile_m": m, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}


_OPERANDS = {"a": "f16[256, 320]", "b": "f16[320, 64]"}
_HOPPER = {
    "module": _JAX + "hopper_matmul_mgpu",
    "functions": ("kernel",),
    "entry": "matmul",
    "reference": "matmul",
    "changes": (("num_sms = get_num_sms()", "num_sms = 2"),),
}
_BLACKWELL: dict[str, Any] = {
    "module": _JAX + "blackwell_matmul_mgpu",
    "functions": ("matmul_kernel",),
    "entry": "matmul_kernel",
    "reference": "matmul",
    "target": "sm_100a",
    "swaps": ("ab_tma_barrier", "consumed_barrier", "mma_done_barrier", "store_done_barrier"),
    # JAX 0.12 ends without a wait for the last copy.
    "changes": (("wait_smem_to_gmem(1, wait_read_only", "wait_smem_to_gmem(0, wait_read_only"),),
}
_ATTENTION = {
    "module": _JAX + "attention_mgpu",
    "args": {"q": "f16[1, 256, 1, 64]", "k": "f16[1, 256, 1, 64]", "v": "f16[1, 256, 1, 64]"},
    "own": ("perform_schedule_barrier", "end_softmax_barriers"),
    "tolerance": (1e-2, 1e-2),
}
_BLOCKS = {"block_q": 64, "block_kv": 64, "max_concurrent_steps": 2}
_BACKWARD = {
    **_BLOCKS, "compute_wgs_bwd": 2,
    "block_q_dkv": 64, "block_kv_dkv": 64, "block_q_dq": 64, "block_kv_dq": 64,
}  # fmt: skip

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
        args={"a": "f16[256, 256]", "b": "f16[256, 256]", "c": None},
        static=_jax_config("hopper_matmul_mgpu", **_tiles(64), epi_tile_n=32),
        **_HOPPER,
    ),
    Subject(
        name="jax_hopper_matmul_added",
        args={"a": "f16[256, 192]", "b": "f16[192, 128]", "c": "f16[256, 128]"},
        static=_jax_config("hopper_matmul_mgpu", **_tiles(64), epi_tile_n=16),
        **{**_HOPPER, "reference": "matmul_added", "only": ("_acc_scope", "_pipeline_scope")},
    ),
    Subject(
        name="jax_blackwell_matmul",
        args={"a": "f16[640, 192]", "b": "f16[192, 64]"},
        static=_jax_config(
            "blackwell_matmul_mgpu", **_tiles(128), collective=False, epilogue_tile_n=16
        ),
        **_BLACKWELL,
    ),
    Subject(
        name="jax_blackwell_matmul_pair",
        args={"a": "f16[1280, 192]", "b": "f16[192, 128]"},
        static=_jax_config(
            "blackwell_matmul_mgpu", **_tiles(128), collective=True, epilogue_tile_n=16
        ),
        # JAX 0.12 leaves the axis out, and lets one warp arrive before others have read the answer.
        **{
            **_BLACKWELL,
            "only": ("_loop_body", "_wait_store", "_compute", "matmul_kernel"),
            "changes": (
                *_BLACKWELL["changes"],
                ("@plgpu.dynamic_scheduling_loop(", "@_loop("),
                ('thread_axis="wg")', 'thread_axis="wg", cluster_axes=("x",))'),
            ),
        },
        more="""
def _loop(**options):
  from jax._src.pallas.mosaic_gpu import primitives
  from jax.experimental.mosaic.gpu import utils
  query = primitives.query_cluster_cancel

  def query_together(*args, **kwargs):
    answer = query(*args, **kwargs)

    @primitives.inline_mgpu()
    def wait_for_each_other(_):
      utils.warpgroup_barrier()

    wait_for_each_other()
    return answer

  def decorate(body):
    primitives.query_cluster_cancel = query_together
    try:
      return plgpu.dynamic_scheduling_loop(**options)(body)
    finally:
      primitives.query_cluster_cancel = query

  return decorate
""",
    ),
    Subject(
        name="jax_attention",
        functions=("_attention_forward",),
        entry="attention",
        static=_jax_config("attention_mgpu", **_BLOCKS),
        reference="attention",
        swaps=("k_barriers", "v_barriers", "k_consumed_barriers", "v_consumed_barriers"),
        **_ATTENTION,
    ),
    Subject(
        name="jax_causal_attention",
        functions=("_attention_forward",),
        entry="attention",
        static=_jax_config("attention_mgpu", **_BLOCKS, causal=True),
        reference="causal_attention",
        only=("epilogue_kv_loop", "_compute_wg"),
        **_ATTENTION,
    ),
    Subject(
        name="jax_attention_pipeline",
        functions=("attention_with_pipeline_emitter",),
        entry="attention_with_pipeline_emitter",
        static=_jax_config("attention_mgpu", **_BLOCKS),
        reference="attention",
        swaps=("k_consumed_barrier", "v_consumed_barrier"),
        **_ATTENTION,
    ),
    Subject(
        name="jax_attention_gradients",
        functions=("_attention_bwd",),
        entry="gradients",
        changes=(
            ("q, k, v, out, lse = res", "q, k, v, delta, lse = res"),
            (
                "  delta = jnp.einsum(\n"
                '      "bqhd,bqhd->bhq",\n'
                "      out.astype(jnp.float32),\n"
                "      do.astype(jnp.float32),\n"
                '      precision="high",\n'
                "  )\n"
                "  del out  # Not needed anymore.\n",
                "\n" * 7,
            ),
        ),
        more="""
def gradients(q, k, v, lse, delta, do, config):
    return _attention_bwd(config, True, (q, k, v, delta, lse), do)
""",
        static=_jax_config("attention_mgpu", **_BACKWARD),
        reference="attention_gradients",
        swaps=("k_consumed_barrier", "v_consumed_barrier"),
        scales={"q": 0.5, "k": 0.5},
        offsets={"lse": 4},
        **{
            **_ATTENTION,
            "args": {
                **_ATTENTION["args"],  # type: ignore[dict-item]
                "lse": "f32[1, 1, 256]",
                "delta": "f32[1, 1, 256]",
                "do": "f16[1, 256, 1, 64]",
            },
        },
    ),
    Subject(
        name="jax_ragged_dot",
        module=_JAX + "ragged_dot_mgpu",
        functions=("ragged_dot",),
        entry="grouped",
        args={"lhs": "f16[128, 256]", "rhs": "f16[2, 256, 128]"},
        changes=(("num_sms = 132", "num_sms = 2"),),
        more="""
def grouped(lhs, rhs, **options):
    return ragged_dot(lhs, rhs, group_sizes=jnp.array([40, 88], jnp.int32), **options)
""",
        static={
            "block_m": 64,
            "block_n": 64,
            "block_k": 64,
            "max_concurrent_steps": 4,
            "grid_block_n": 1,
        },
        reference="ragged_dot",
    ),
)
