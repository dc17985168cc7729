"""Write a spec of small calls of Tokamax's ops into `kernels.yaml`, with the example's own code.

Usage: tokamax_spec.py, in the folder of the example.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

import select_calls

# As the keys of Tokamax's tables have them.
ATTENTION = """{
"q": "bf16[1,128,2,64]", "k": "bf16[1,128,1,64]", "v": "bf16[1,128,1,64]",
"precision": [["DEFAULT", "DEFAULT"], ["DEFAULT", "DEFAULT"]],
"logits_dtype": "float32", "logits_scale": 0.125, "bias": null, "logits_soft_cap": null,
"mask": {"bool_mask": null, "q_start": null, "q_end": null, "k_start": null, "k_end": null,
"causal_mask": {"offset": 0, "window_size": null}},
"dropout_mask": null, "dropout_rate": 0.0, "paging_info": null, "q_indices": null,
"k_indices": null, "normalize_output": true, "return_residuals": false}"""
BACKWARD = """{
"residuals": ["f32[1,2,128]", "f32[1,2,128]"],
"out": "bf16[1,128,2,64]", "dout": "bf16[1,128,2,64]"}"""
GATED_LINEAR_UNIT = """{
"x": "bf16[128,128]", "weights": "bf16[128,2,128]", "precision": ["DEFAULT", "DEFAULT"],
"activation": "jax._src.nn.functions.silu", "return_residuals": false}"""
RAGGED_DOT = """{
"lhs": "bf16[256,128]", "rhs": "bf16[2,128,128]", "precision": ["DEFAULT", "DEFAULT"],
"group_sizes": {"num_groups": 2, "total_size": 256},
"ragged_dot_dimension_numbers": {"dot_dimension_numbers": [[[1], [1]], [[], []]],
"lhs_ragged_dimensions": [0], "rhs_group_dimensions": [0]},
"preferred_element_type": null, "activation": null, "manual_axis_type": null,
"group_offset": null, "zero_initialize": false, "fuse_gateup_activation": null,
"return_residuals": false}"""


def main() -> None:
    row, forward = select_calls.row, json.loads(ATTENTION)
    backward = {**json.loads(BACKWARD), **forward}
    both = [select_calls.forward_of(backward, has_residuals=own) for own in (False, True)]
    ragged = {"ragged_dot": [row("ragged_dot", json.loads(RAGGED_DOT))]}
    hopper = {
        "attention": [row("attention", call) for call in both],
        "attention_vjp": [row("attention_vjp", backward)],
        "gated_linear_unit": [row("gated_linear_unit", json.loads(GATED_LINEAR_UNIT))],
        **ragged,
    }
    select_calls.SPEC.write_text(select_calls.spec_text({"h100-sxm": hopper, "b200": ragged}))


main()
