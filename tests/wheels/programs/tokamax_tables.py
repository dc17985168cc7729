"""Write tables of small calls as Tokamax has them, for `import_tables.py --from FOLDER`.

Usage: tokamax_tables.py FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

H100, B200 = "nvidia_h100_80gb_hbm3", "nvidia_b200"
ATTENTION = json.loads("""{
"q": "bf16[1,128,2,64]", "k": "bf16[1,128,1,64]", "v": "bf16[1,128,1,64]",
"precision": [["DEFAULT", "DEFAULT"], ["DEFAULT", "DEFAULT"]],
"logits_dtype": "float32", "logits_scale": 0.125, "bias": null, "logits_soft_cap": null,
"mask": {"bool_mask": null, "q_start": null, "q_end": null, "k_start": null, "k_end": null,
"causal_mask": {"offset": 0, "window_size": null}},
"dropout_mask": null, "dropout_rate": 0.0, "paging_info": null, "q_indices": null,
"k_indices": null, "normalize_output": true, "return_residuals": false}""")
NO_MASK = dict.fromkeys(ATTENTION["mask"])
BACKWARD = json.loads("""{
"residuals": ["f32[1,2,128]", "f32[1,2,128]"],
"out": "bf16[1,128,2,64]", "dout": "bf16[1,128,2,64]"}""")
MASKED = {
    **BACKWARD,
    **ATTENTION,
    "bias": "bf16[1,2,128,128]",
    "mask": {**NO_MASK, "bool_mask": "bool[1,1,1,128]"},
}
TILES = json.loads("""{
"block_q": 64, "block_kv": 64, "num_stages": 2, "fold_q_sequence_heads": false, "split_k": 1,
"persistent": false}""")
TILES_BACKWARD = json.loads("""{
"block_q_dkv": 64, "block_kv_dkv": 64, "block_q_dq": 64, "block_kv_dq": 64, "num_stages": 2,
"compute_wgs": 1}""")
GATED_LINEAR_UNIT = json.loads("""{
"x": "bf16[128,128]", "weights": "bf16[128,2,128]", "precision": "BF16_BF16_F32",
"activation": "jax._src.nn.functions.silu", "return_residuals": false}""")
TILES_GATED = json.loads("""{
"tile_m": 128, "tile_n": 64, "tile_k": 64, "num_stages": 2, "epi_tile_n": 64, "epi_tile_m": 64,
"grid_minor_dim": 0, "grid_tile_width": 1, "wg_dimension": 1, "cluster_size_m": 1,
"cluster_size_n": 1}""")
RAGGED_DOT = json.loads("""{
"lhs": "bf16[256,128]", "rhs": "bf16[2,128,128]", "precision": ["DEFAULT", "DEFAULT"],
"group_sizes": {"num_groups": 2, "total_size": 256},
"ragged_dot_dimension_numbers": {"dot_dimension_numbers": [[[1], [1]], [[], []]],
"lhs_ragged_dimensions": [0], "rhs_group_dimensions": [0]},
"preferred_element_type": null, "activation": null, "manual_axis_type": null,
"group_offset": null, "zero_initialize": false, "fuse_gateup_activation": null,
"return_residuals": false}""")
TILES_RAGGED = json.loads("""{
"block_m": 64, "block_n": 64, "block_k": 64, "num_stages": 2, "split_k": 1, "split_m": 1,
"persistent": false, "post_scale": false, "collective": false, "grid_minor_dim": 0,
"grid_tile_width": 1, "epilogue_quant_qtype": null, "epilogue_quant_subchannel_size": null}""")
TILES_B200 = {**TILES_RAGGED, "block_n": 128, "collective": True}
TIMES = {"evaluation_times_ms": [0.25, 0.26, 0.24], "compile_time_ms": 9.0, "metadata": {}}


def write(
    folder: Path, device: str, op: str, tiles: dict[str, Any], *calls: dict[str, Any]
) -> None:
    """Write the table of an op."""
    file = folder / "tokamax" / "data" / "autotuning" / device / f"pallas_mosaic_gpu_{op}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    tuned = {json.dumps(tiles): TIMES}
    file.write_text(json.dumps({json.dumps(call): tuned for call in calls}))


def main(folder: Path) -> None:
    write(
        folder, H100, "flash_attention", TILES, ATTENTION, {**ATTENTION, "return_residuals": True}
    )
    backward = {**BACKWARD, **ATTENTION}
    write(folder, H100, "flash_attention_vjp", TILES_BACKWARD, backward, MASKED)
    write(folder, H100, "gated_linear_unit", TILES_GATED, GATED_LINEAR_UNIT)
    write(folder, H100, "ragged_dot", TILES_RAGGED, RAGGED_DOT)
    write(folder, B200, "ragged_dot", TILES_B200, RAGGED_DOT)


main(Path(sys.argv[1]))
