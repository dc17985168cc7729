"""Write `kernels.yaml`: the calls of Tokamax's ops that get kernels, from Tokamax's tuning tables.

Usage: `python select_calls.py [--all]`. Without `--all` it takes a few of each op.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tokamax_prebuilt.calls import TOKAMAX, array_text, call_key, parse, split

SPEC = Path(__file__).parent / "kernels.yaml"
TABLES = {
    "h100-sxm": (
        "nvidia_h100_80gb_hbm3",
        {
            "attention": "pallas_mosaic_gpu_flash_attention",
            "attention_vjp": "pallas_mosaic_gpu_flash_attention_vjp",
            "gated_linear_unit": "pallas_mosaic_gpu_gated_linear_unit",
            "ragged_dot": "pallas_mosaic_gpu_ragged_dot",
        },
    ),
    "b200": ("nvidia_b200", {"ragged_dot": "pallas_mosaic_gpu_ragged_dot"}),
}
HEAD = """\
# Calls of Tokamax {version} that get kernels; select_calls.py writes this file.
# Tile sizes are those that Tokamax itself chooses for the GPU.
schema: 1
defaults:
  entry: tokamax_prebuilt.compiled:run
  args: {{arrays: "{{call.arrays}}"}}
kernels:
"""
KERNEL = """\
  - name: {name}
    targets: [{gpu}]
    static: {{op: {name}, key: "{{call.key}}", text: "{{call.text}}"}}
    matrix:
      call:
"""
FEW = 2
"""Calls of each kind that are taken without `--all`."""

_LABELLED_BY = {"attention": "q", "attention_vjp": "q", "gated_linear_unit": "x"}
_BACKWARD_ALONE = ("residuals", "out", "dout")

Call = dict[str, Any]
"""The arguments of a call, as Tokamax's tables have them."""


def tuned_calls(device: str, table: str) -> list[Call]:
    """Return the calls that a table of Tokamax has tile sizes for."""
    folder = resources.files("tokamax") / "data" / "autotuning" / device
    tuned = json.loads((folder / f"{table}.json").read_text())
    # Kernels under jax.vmap are for shapes that their keys do not have.
    return [json.loads(t) for t, times in tuned.items() if times and "vmap_axes" not in t]


def few(name: str, calls: list[Call]) -> list[Call]:
    """Return the first calls of each kind."""
    counts: dict[str, int] = {}
    taken = []
    for call in calls:
        kind = str(call.get("ragged_dot_dimension_numbers"))
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= FEW:
            taken.append(call)
    return taken


def forward_of(call: Call, *, has_residuals: bool) -> Call:
    """Return the forward call of a backward one."""
    forward = {key: value for key, value in call.items() if key not in _BACKWARD_ALONE}
    return {**forward, "return_residuals": has_residuals}


def row(name: str, call: Call) -> dict[str, Any]:
    """Return what the spec needs of a call."""
    text = json.dumps(call, separators=(",", ":"))
    arguments = parse(name, text)
    key = call_key(name, arguments)
    arrays, _ = split(arguments)
    shape = "x".join(map(str, arguments[_LABELLED_BY.get(name, "lhs")].shape))
    return {
        "$name": f"{shape}-{key}",
        "key": key,
        "arrays": [array_text(array) for array in arrays],
        "text": text,
    }


def selection(device: str, tables: Mapping[str, str], *, takes_all: bool) -> dict[str, Any]:
    """Return the rows of each op for a GPU, by key."""
    calls = {name: tuned_calls(device, table) for name, table in tables.items()}
    if not takes_all:
        calls = {name: few(name, own) for name, own in calls.items() if name != "attention"}
    # A gradient needs the forward kernel that keeps residuals, too; a call without gradient none.
    for has_residuals in (True, False) if "attention_vjp" in calls else ():
        forward = [forward_of(c, has_residuals=has_residuals) for c in calls["attention_vjp"]]
        calls["attention"] = [*calls.get("attention", ()), *forward]
    rows = {name: [row(name, call) for call in own] for name, own in sorted(calls.items())}
    # Calls whose precision is spelt in two ways are one.
    return {name: list({one["key"]: one for one in own}.values()) for name, own in rows.items()}


def spec_text(rows: Mapping[str, Mapping[str, list[Any]]]) -> str:
    """Return the spec; `rows` are those of each op by GPU."""
    lines = [HEAD.format(version=TOKAMAX)]
    for gpu, ops in rows.items():
        for name, own in ops.items():
            lines.append(KERNEL.format(name=name, gpu=gpu))
            lines += [f"        - {json.dumps(one)}\n" for one in own]
    return "".join(lines)


def main() -> None:
    """Write the spec, and say how many calls it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="take every call that was tuned")
    takes_all = parser.parse_args().all
    rows = {gpu: selection(*own, takes_all=takes_all) for gpu, own in TABLES.items()}
    SPEC.write_text(spec_text(rows))
    for gpu, ops in rows.items():
        for name, own in ops.items():
            print(f"{gpu}: {len(own)} calls of {name}")


if __name__ == "__main__":
    main()
