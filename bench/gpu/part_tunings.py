"""Every tuning of JAX's kernels: its numbers, and its times, warm and cold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import is_asked, read_variants, why_not
from desk import Desk
from units import Unit

TITLE = "tunings of JAX's kernels"
SHARE = 0.16
AT_ONCE = 1


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each tuning; those for other GPUs say why they are not run."""
    return [
        Unit("tunings", variant.id, 60, 3, reason=why_not(variant, *machine["capability"]))
        for variant in read_variants(folder, "tunings")
        if is_asked(variant, options)
    ]


def run(desk: Desk) -> None:
    """Launch one tuning, compare its numbers, time it."""
    import numpy as np
    from judge import Judge
    from part_times import spread
    from references import make_inputs
    from work import flop

    from pallasc.cli.bench import moved_bytes
    from pallasc.cli.launching import Operands, Value
    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
    from pallasc.runtime.device.devices import get_device
    from pallasc.runtime.timing import time_launches

    variant, options = desk.variant(desk.name, "tunings"), desk.options
    inputs, kernel, device = make_inputs(variant), variant.kernel(), get_device(0)
    signature = kernel.signature
    values = [
        Value(binding, np.ascontiguousarray(array).tobytes())
        for binding, array in zip(signature.inputs, inputs.values(), strict=True)
    ]
    operands = Operands(signature, values, device)
    route = kernel.route(0, kernel.variants[0].arrays)

    def numbers() -> dict[str, Any]:
        route.enqueue(0, 0, operands.pointers)
        got = [
            np.frombuffer(output.data, numpy_dtype(output.binding.dtype)).reshape(
                output.binding.shape
            )
            for output in operands.read_outputs()
        ]
        return Judge(variant, inputs, options["rows"]).compare(*got)

    def times() -> dict[str, Any]:
        found = {}
        for way, cold in (("warm", False), ("cold", True)):
            repeats = options["repeats"]
            found[way] = spread(
                time_launches(
                    route, device, operands.pointers, repeats=repeats, warmup=25, cold=cold
                )
            )
        return {**found, "moved_bytes": moved_bytes(signature), "flop": flop(variant)}

    desk.ask("numbers", numbers)
    desk.ask("time", times)


def shape_of(variant_args: Mapping[str, Any], static: Mapping[str, Any], name: str) -> str:
    """Return what tunings have in common that compute the same: the kernel and its arrays."""
    config = static.get("config")
    causal = config.get("causal") if isinstance(config, dict) else None
    keeps = static.get("save_residuals")
    more = [f"causal={causal}" if causal else "", "residuals" if keeps else ""]
    arrays = ", ".join(_texts(variant_args))
    return " ".join(filter(None, [f"{name}({arrays})", *more]))


def _texts(args: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for tree in args.values():
        found += tree if isinstance(tree, list) else [tree] if tree is not None else []
    return found
