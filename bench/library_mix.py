"""Kernels of the size that people build: ten of the library and of JAX, in as many sizes each."""

from __future__ import annotations

from pathlib import Path

SPEC = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {{x: "f32[{{m}}, 4096]", y: "f32[{{m}}, 4096]"}}
    static: {{block_size: 2048}}
    matrix: {{m: {sizes}}}
  - name: row_sum
    entry: pallasc.specs.library.reduction:row_sum
    args: {{x: "f32[{{m}}, 4096]"}}
    static: {{chunk_size: 1024}}
    matrix: {{m: {sizes}}}
  - name: softmax
    entry: pallasc.specs.library.softmax:softmax
    args: {{x: "f32[{{m}}, 4096]"}}
    static: {{rows_per_block: 4}}
    matrix: {{m: {sizes}}}
  - name: rms_norm
    entry: pallasc.specs.library.rms_norm:rms_norm
    args: {{x: "bf16[{{m}}, 4096]", weight: "bf16[4096]"}}
    static: {{epsilon: 1.0e-6, rows_per_block: 4}}
    matrix: {{m: {sizes}}}
  - name: dequant_matmul
    entry: pallasc.specs.library.dequant_matmul:dequant_matmul
    args: {{x: "bf16[{{m}}, 4096]", weights: "i8[4096, 4096]", scales: "f32[4096]"}}
    static: {{tile_m: 128, tile_n: 128, tile_k: 64, max_concurrent_steps: 4}}
    matrix: {{m: {sizes}}}
  - name: fused_matmul
    entry: pallasc.specs.library.fused_matmul:matmul_bias_activation
    args: {{a: "bf16[{{m}}, 4096]", b: "bf16[4096, 16384]", bias: "f32[16384]"}}
    static: {{activation: gelu, tile_m: 128, tile_n: 128, tile_k: 64, max_concurrent_steps: 4}}
    matrix: {{m: {sizes}}}
  - name: hopper_matmul
    entry: pallasc.specs.library.hopper_matmul:matmul
    args: {{a: "bf16[{{m}}, 4096]", b: "bf16[4096, 4096]"}}
    static: {{tile_m: 128, tile_n: 128, tile_k: 64, max_concurrent_steps: 3}}
    matrix: {{m: {sizes}}}
  - name: jax_attention
    entry: jax.experimental.pallas.ops.gpu.attention_mgpu:attention
    args: {{q: "f16[1, {{m}}, 16, 64]", k: "f16[1, {{m}}, 4, 64]", v: "f16[1, {{m}}, 4, 64]"}}
    static:
      config:
        $call: jax.experimental.pallas.ops.gpu.attention_mgpu:TuningConfig
        block_q: 64
        block_kv: 128
        max_concurrent_steps: 2
        causal: true
    matrix: {{m: {sizes}}}
  - name: jax_mixed_matmul
    entry: jax.experimental.pallas.ops.gpu.hopper_mixed_type_matmul_mgpu:mixed_matmul_kernel
    args: {{a: "i8[{{m}}, 4096]", b: "bf16[4096, 4096]"}}
    static:
      out_dtype: {{$ref: "jax.numpy:bfloat16"}}
      config:
        $call: jax.experimental.pallas.ops.gpu.hopper_mixed_type_matmul_mgpu:TuningConfig
        tile_m: 64
        tile_n: 128
        tile_k: 64
        max_concurrent_steps: 4
    matrix: {{m: {sizes}}}
  - name: jax_matmul
    entry: jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu:matmul
    args: {{a: "f16[{{m}}, 4096]", b: "f16[4096, 4096]", c: null}}
    static:
      config:
        $call: jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu:TuningConfig
        tile_m: 128
        tile_n: 128
        tile_k: 64
        max_concurrent_steps: 4
    matrix: {{m: {sizes}}}
"""
_KERNELS = 10


def write_mix(folder: Path, count: int) -> Path:
    """Write a spec of `count` variants, a multiple of ten; return its path."""
    if count % _KERNELS:
        raise SystemExit(f"{count} misses: give a multiple of {_KERNELS}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mix.yaml"
    sizes = [256 * (index + 1) for index in range(count // _KERNELS)]
    path.write_text(SPEC.format(sizes=sizes))
    return path
