"""Write specs and tables of tuned kernels from the tables that Tokamax ships.

Usage: python import_tables.py [-o FOLDER] [--from FOLDER]

Tokamax stores its measurements in `tokamax/data/autotuning/<device>/<op>.json`:
`{arguments: {configuration: {"evaluation_times_ms": [...]}}}`, where arguments and configurations
are JSON strings (`tokamax/_src/autotuning/cache.py`). For each GPU this script writes:

* `tokamax-h100.yaml`, the spec: one kernel per op, with its configurations under `tune`
* `tokamax-h100.json`, the points: the arguments of each call for which Tokamax has measurements
* `tokamax-h100.tuned.yaml`, the table: the fastest configuration of each point, and its time

Entries without a configuration are skipped. Entries with arguments that the specs do not support
are also skipped, and counted by reason. Neither Tokamax nor JAX is imported.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Point = dict[str, Any]
Config = dict[str, Any]
Tuned = list[tuple[Point, list[tuple[Config, list[float]]]]]
"""Points, each with its configurations and their times in ms, fastest first."""


class Gpu(NamedTuple):
    """A GPU for which Tokamax has tables: its model, architecture, and name in the driver."""

    model: str
    arch: str
    name: str


GPUS = {
    "nvidia_a100-sxm4-40gb": Gpu("a100-sxm-40gb", "sm_80", "NVIDIA A100-SXM4-40GB"),
    "nvidia_b200": Gpu("b200", "sm_100a", "NVIDIA B200"),
    "nvidia_h100_80gb_hbm3": Gpu("h100-sxm", "sm_90a", "NVIDIA H100 80GB HBM3"),
}
"""GPUs by the names of Tokamax's folders."""


class Skipped(Exception):
    """An entry that cannot be converted; the text is the reason."""


class Op(NamedTuple):
    """An op of Tokamax that has Mosaic GPU kernels.

    Attributes:
        kernel: name of the kernel in the spec.
        table: name of Tokamax's file, without `pallas_mosaic_gpu_`.
        op: module and class of Tokamax's op.
        configs: class of the configurations by architecture.
        text: `args` and `static` of the spec; `self`, the last of `static`, is added later.
        point: returns the parameters of an entry, None if another kernel handles the entry.
        derived: parameters that are computed from the others.
    """

    kernel: str
    table: str
    op: str
    configs: Mapping[str, str]
    text: str
    point: Callable[[dict[str, Any]], Point | None]
    derived: tuple[str, ...] = ()


# ---- arguments of entries as parameters of points

NOT_SUPPORTED = ("logits_soft_cap", "dropout_mask", "paging_info", "q_indices", "k_indices")
ATTENTION_FIXED: Mapping[str, Any] = {
    **dict.fromkeys(NOT_SUPPORTED),
    "dropout_rate": 0.0,
    "logits_dtype": "float32",
    "normalize_output": True,
}
MASK_FIXED = dict.fromkeys(("q_start", "q_end", "k_start", "k_end"))
RAGGED_FIXED: Mapping[str, Any] = {
    "activation": None,
    "fuse_gateup_activation": None,
    "group_offset": None,
    "manual_axis_type": None,
    "zero_initialize": False,
}
RAGGED_DIMENSIONS = {
    "DEFAULT_RAGGED": ([[[1], [1]], [[], []]], [0], [0]),
    "TRANS_RHS_RAGGED": ([[[1], [2]], [[], []]], [0], [0]),
    "RAGGED_CONTRACTING": ([[[0], [0]], [[], []]], [0], []),
}
"""Constants of `ragged_dot/base.py`, whose names end in `_DOT_DIM_NUMS`."""


def check(arguments: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Skip an entry with arguments that the spec does not support."""
    for name, value in arguments.items():
        if name not in fixed or value != fixed[name]:
            raise Skipped(f"{name} is {json.dumps(value)[:40]}")


def array(value: object) -> str | None:
    """Return the text of an array."""
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"\w+\[[\d,]*\]", value):
        raise Skipped(f"{json.dumps(value)[:40]} in place of an array")
    return value


def mask_of(value: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the array of a mask, and whether the mask is causal."""
    mask = dict(value)
    bool_mask, causal = array(mask.pop("bool_mask")), mask.pop("causal_mask")
    check(mask, MASK_FIXED)
    if causal is not None:
        check(causal, {"offset": 0, "window_size": None})
    return bool_mask, causal is not None


def precision_of(value: object) -> str:
    """Return the name of a precision; a pair of equal ones gives its name in lower case."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return precision_of(value[0]).lower()
    raise Skipped(f"precision is {json.dumps(value)[:40]}")


def precision_of_both(value: list[Any]) -> str:
    """Return the precision of both products of attention."""
    first, second = map(precision_of, value)
    if first != second:
        raise Skipped("the two products have different precisions")
    return first


def attention_point(arguments: dict[str, Any]) -> Point:
    """Return the parameters of a forward pass."""
    mask, causal = mask_of(arguments.pop("mask"))
    scale = arguments.pop("logits_scale")
    point = {
        **{name: array(arguments.pop(name)) for name in ("q", "k", "v", "bias")},
        "mask": mask,
        "causal": causal,
        "precision": precision_of_both(arguments.pop("precision")),
        "residuals": arguments.pop("return_residuals"),
    }
    check(arguments, ATTENTION_FIXED)
    head_size = int(re.findall(r"\d+", str(point["q"]))[-1])
    if scale != 1 / math.sqrt(head_size):
        raise Skipped("logits_scale is not 1 / sqrt(size of a head)")
    return point


def attention_vjp_point(arguments: dict[str, Any], *, masked: bool) -> Point | None:
    """Return the parameters of a backward pass; `masked` means that its mask is an array."""
    mask, causal = mask_of(arguments.pop("mask"))
    if (mask is not None) is not masked:
        return None
    if masked and causal:
        raise Skipped("the mask is both an array and causal")
    first, second = arguments.pop("residuals")
    if first != second:
        raise Skipped("the residuals have different shapes")
    names = ("out", "dout", "q", "k", "v", "bias")
    point = {
        "residuals": array(first),
        **{name: array(arguments.pop(name)) for name in names},
        **({"mask": mask} if masked else {"causal": causal}),
        "precision": precision_of_both(arguments.pop("precision")),
        "scale": arguments.pop("logits_scale"),
    }
    check(arguments, {**ATTENTION_FIXED, "return_residuals": False})
    return point


def gated_linear_unit_point(arguments: dict[str, Any]) -> Point:
    """Return the parameters of a gated linear unit."""
    module, _, name = str(arguments.pop("activation")).rpartition(".")
    point = {
        "x": array(arguments.pop("x")),
        "weights": array(arguments.pop("weights")),
        "activation": f"{'jax.nn' if module == 'jax._src.nn.functions' else module}:{name}",
        "precision": precision_of(arguments.pop("precision")),
    }
    check(arguments, {"return_residuals": False})
    return point


def ragged_dot_point(arguments: dict[str, Any]) -> Point:
    """Return the parameters of a ragged dot."""
    sizes = arguments.pop("group_sizes")
    numbers = arguments.pop("ragged_dot_dimension_numbers")
    given = (
        numbers["dot_dimension_numbers"],
        numbers["lhs_ragged_dimensions"],
        numbers["rhs_group_dimensions"],
    )
    dimensions = next((name for name, own in RAGGED_DIMENSIONS.items() if own == given), None)
    if dimensions is None:
        raise Skipped(f"dimensions {json.dumps(numbers)[:80]}")
    point = {
        "lhs": array(arguments.pop("lhs")),
        "rhs": array(arguments.pop("rhs")),
        "group_sizes": f"i32[{sizes['num_groups'] if isinstance(sizes, dict) else len(sizes)}]",
        "dimensions": dimensions,
        "precision": precision_of(arguments.pop("precision")),
        "out": arguments.pop("preferred_element_type"),
        "residuals": arguments.pop("return_residuals"),
    }
    check(arguments, RAGGED_FIXED)
    return point


# ---- the ops

OPS_MODULE = "tokamax._src.ops"
ATTENTION = f"{OPS_MODULE}.attention"
RAGGED = f"{OPS_MODULE}.ragged_dot"
GATED = f"{OPS_MODULE}.gated_linear_unit"
PRECISION = '{$call: "tokamax._src.precision:canonicalize_precision", precision: "{precision}"}'
VJP_TEXT = f"""\
    args:
      residuals: {{$tuple: ["{{residuals}}", "{{residuals}}"]}}
      out: "{{out}}"
      dout: "{{dout}}"
      q: "{{q}}"
      k: "{{k}}"
      v: "{{v}}"
      bias: "{{bias}}"
%s    static:
%s      precision:
        - {PRECISION}
        - {PRECISION}
      logits_dtype: {{$call: "numpy:dtype", dtype: float32}}
      logits_scale: "{{scale}}"
      dropout_rate: 0.0
      normalize_output: true
""" + "".join(f"      {name}: null\n" for name in NOT_SUPPORTED)


def attention_vjp(kernel: str, *, masked: bool) -> Op:
    """Return the op of backward passes; `masked` means that their mask is an array."""
    argument = 'bool_mask: "{mask}"' if masked else 'is_causal: "{causal}"'
    mask = f'      mask: {{$call: "{ATTENTION}.base:Mask", {argument}}}\n'
    module = f"{ATTENTION}.pallas_mosaic_gpu_vjp"
    return Op(
        kernel,
        "flash_attention_vjp",
        f"{module}:PallasMosaicGpuFlashAttentionVjp",
        {"sm_90a": f"{module}_common:Config", "sm_100a": f"{module}_kernel_sm100:Config"},
        VJP_TEXT % ((mask, "") if masked else ("", mask)),
        lambda arguments: attention_vjp_point(arguments, masked=masked),
        derived=("scale",),
    )


OPS = (
    Op(
        "attention",
        "flash_attention",
        f"{ATTENTION}.pallas_mosaic_gpu:PallasMosaicGpuFlashAttention",
        {
            "sm_90a": f"{ATTENTION}.pallas_mosaic_gpu_kernel_sm90:Config",
            "sm_100a": f"{ATTENTION}.pallas_mosaic_gpu_kernel_sm100:Config",
        },
        """\
    args: {q: "{q}", k: "{k}", v: "{v}", bias: "{bias}", mask: "{mask}"}
    static:
      precision: "{precision}"
      logits_dtype: float32
      is_causal: "{causal}"
      return_residuals: "{residuals}"
""",
        attention_point,
    ),
    attention_vjp("attention_vjp", masked=False),
    attention_vjp("attention_vjp_masked", masked=True),
    Op(
        "gated_linear_unit",
        "gated_linear_unit",
        f"{GATED}.pallas_mosaic_gpu:PallasMosaicGpuGatedLinearUnit",
        dict.fromkeys(("sm_80", "sm_90a", "sm_100a"), f"{GATED}.pallas_mosaic_gpu_common:Config"),
        """\
    args: {x: "{x}", weights: "{weights}"}
    static:
      activation: {$ref: "{activation}"}
      precision: "{precision}"
""",
        gated_linear_unit_point,
    ),
    Op(
        "ragged_dot",
        "ragged_dot",
        f"{RAGGED}.pallas_mosaic_gpu:PallasMosaicGpuRaggedDot",
        dict.fromkeys(("sm_80", "sm_90a", "sm_100a"), f"{RAGGED}.pallas_mosaic_gpu_common:Config"),
        f"""\
    args: {{lhs: "{{lhs}}", rhs: "{{rhs}}", group_sizes: "{{group_sizes}}"}}
    static:
      ragged_dot_dimension_numbers: {{$ref: "{RAGGED}.base:{{dimensions}}_DOT_DIM_NUMS"}}
      precision: "{{precision}}"
      preferred_element_type: "{{out}}"
      return_residuals: "{{residuals}}"
""",
        ragged_dot_point,
    ),
)


# ---- Tokamax's tables


def find_package(folder: Path | None) -> tuple[Path, str]:
    """Return the path of Tokamax's package and its version, in `folder` or as installed."""
    if folder is not None:
        infos = sorted(folder.glob("tokamax-*.dist-info"))
        version = infos[-1].name.removesuffix(".dist-info").partition("-")[2] if infos else ""
        return folder / "tokamax", version
    found = importlib.util.find_spec("tokamax")
    if found is None or not found.submodule_search_locations:
        sys.exit("Tokamax is not installed. Install it, or give a folder: --from FOLDER")
    return Path(found.submodule_search_locations[0]), importlib.metadata.version("tokamax")


def read_points(file: Path, op: Op, skipped: Counter[str]) -> Tuned:
    """Return the points of an op; count skipped entries by reason."""
    points: dict[str, tuple[Point, list[tuple[Config, list[float]]]]] = {}
    for key, configs in json.loads(file.read_bytes()).items() if file.exists() else ():
        if not configs:
            continue
        try:
            point = op.point(json.loads(key))
        except Skipped as reason:
            skipped[f"{op.kernel}: {reason}"] += 1
            continue
        if point is not None:
            timed = [(json.loads(one), own["evaluation_times_ms"]) for one, own in configs.items()]
            timed.sort(key=lambda each: statistics.median(each[1]))
            points.setdefault(json.dumps(point), (point, timed))
    return list(points.values())


# ---- files to write


def files_of(stem: str, gpu: Gpu, kernels: list[tuple[Op, Tuned]], source: str) -> dict[str, str]:
    """Return the texts of the spec, the points, and the table of one GPU, by file name."""
    spec = [
        f"# Written by import_tables.py from the tables of {source}; run it again to change it.",
        "# Building it needs Tokamax, launching its bundles does not.",
        f"schema: 1\ntargets: [{gpu.model}]\nkernels:",
    ]
    lists = []
    table = ["schema: 1", "kernels:"]
    for op, tuned in kernels:
        configs = {json.dumps(own): own for _, timed in tuned for own, _ in timed}
        names = dict(zip(configs, config_names(list(configs.values())), strict=True))
        by = [name for name in tuned[0][0] if name not in op.derived]
        spec.append(spec_text(op, gpu, f"{stem}.json", names, by))
        points = ",\n".join(json.dumps(point) for point, _ in tuned)
        lists.append(f'"{op.kernel}": [\n{points}\n]')
        table += [f"  {op.kernel}:", f"    by: [{', '.join(by)}]", "    rows:"]
        table += [row_text(gpu, point, by, timed[0], names, source) for point, timed in tuned]
    return {
        f"{stem}.yaml": "\n".join(spec),
        f"{stem}.json": "{\n" + ",\n".join(lists) + "\n}\n",
        f"{stem}.tuned.yaml": "\n".join([*table, ""]),
    }


def spec_text(op: Op, gpu: Gpu, points: str, names: Mapping[str, str], by: list[str]) -> str:
    """Return the spec of a kernel; fields that vary between configurations come from `config`."""
    configs = [json.loads(text) for text in names]
    varied = varying(configs)
    fields = "".join(
        f'          {name}: "{{config.{name}}}"\n'
        if name in varied
        else f"          {name}: {json.dumps(value)}\n"
        for name, value in configs[0].items()
    )
    values = "".join(
        f"          - {flow({'$name': name, **{field: own.get(field) for field in varied}})}\n"
        for name, own in zip(names.values(), configs, strict=True)
    )
    return (
        f'  - name: {op.kernel}\n    entry: "{op.op}.__call__"\n{op.text}'
        f'      self:\n        $call: "{op.op}"\n        config:\n'
        f'          $call: "{op.configs[gpu.arch]}"\n{fields}'
        f"    matrix:\n      $file: {{path: {points}, rows: {op.kernel}}}\n"
        f"    tune:\n      over:\n        config:\n{values}      by: [{', '.join(by)}]\n"
    )


def row_text(
    gpu: Gpu,
    point: Point,
    by: list[str],
    fastest: tuple[Config, list[float]],
    names: Mapping[str, str],
    source: str,
) -> str:
    """Return the row of a point: its fastest configuration with its times."""
    config, times_ms = fastest
    median = statistics.median(times_ms)
    low, _, high = statistics.quantiles(times_ms, method="inclusive") if times_ms[1:] else [0] * 3
    row = {
        "gpu": gpu.model,
        "key": [point[name] for name in by],
        "use": {"config": names[json.dumps(config)]},
        "source": source,
        "us": round(1000 * median, 3),
        "spread_percent": round(100 * (high - low) / median, 1),
        "rounds": len(times_ms),
        "device": gpu.name,
    }
    return f"      - {flow(row)}"


def flow(values: Mapping[str, Any]) -> str:
    """Return a mapping on one line of YAML."""
    return f"{{{', '.join(f'{name}: {json.dumps(own)}' for name, own in values.items())}}}"


def varying(configs: list[Config]) -> list[str]:
    """Return the fields that differ between configurations; all fields if there is only one."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    values = {name: {json.dumps(config.get(name)) for config in configs} for name in names}
    return [name for name in names if len(values[name]) > 1] or names


def config_names(configs: list[Config]) -> list[str]:
    """Return a name for each configuration: `bq64-bk128` for block_q 64 and block_k 128.

    If fields have the same initials, their last word is spelled out: `bqdkv64-bqdq64`.
    """
    fields = varying(configs)
    initials = {name: "".join(part[:1] for part in name.split("_")) for name in fields}
    counts = Counter(initials.values())
    short = {
        name: text if counts[text] == 1 else text[:-1] + name.rpartition("_")[2]
        for name, text in initials.items()
    }
    return ["-".join(_field(short[name], config.get(name)) for name in fields)
            for config in configs]  # fmt: skip


def _field(name: str, value: object) -> str:
    text = str(int(value)) if isinstance(value, bool) else json.dumps(value)
    return name + text.strip('"')


def written(package: Path, source: str) -> Iterator[tuple[str, str]]:
    """Yield the files to write: name and text."""
    for folder, gpu in GPUS.items():
        skipped = Counter[str]()
        kernels = []
        for op in OPS if (package / "data" / "autotuning" / folder).is_dir() else ():
            file = package / "data" / "autotuning" / folder / f"pallas_mosaic_gpu_{op.table}.json"
            try:
                tuned = read_points(file, op, skipped)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                sys.exit(f"{file} is not a table of Tokamax 0.0.17: {error!r}")
            if tuned:
                kernels.append((op, tuned))
                print(f"{gpu.model}: {len(tuned)} rows of {op.kernel}")
        for reason, number in skipped.items():
            print(f"{gpu.model}: {number} skipped, {reason}")
        if kernels:
            stem = f"tokamax-{gpu.model.removesuffix('-sxm')}"
            yield from files_of(stem, gpu, kernels, source).items()


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("kernels"), metavar="FOLDER")
    parser.add_argument(
        "--from", dest="folder", type=Path, metavar="FOLDER", help="folder that holds Tokamax"
    )
    options = parser.parse_args()
    package, version = find_package(options.folder)
    files = dict(written(package, f"tokamax {version}".strip()))
    if not files:
        sys.exit(f"{package} has no tables of Mosaic GPU kernels")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.output / name).write_text(text)
        print(f"wrote {options.output / name}")


if __name__ == "__main__":
    main()
