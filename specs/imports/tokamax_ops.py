"""The ops of Tokamax that have Mosaic GPU kernels: how a table's arguments become parameters.

Tables hold the arguments of `Op.__call__` (`tokamax/_src/ops/op.py`) in their canonical form:
arrays as `bf16[8,128]`, precisions and dtypes by name, functions by path. Those that only have one
value in all kernels are part of the spec's text; an entry with another value is left out, and said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.arrays import resolve_array
from pallasc.specs.spelling import show

Row = dict[str, Any]
"""The parameters of a point, by name."""

_OPS = "tokamax._src.ops"
_ATTENTION = f"{_OPS}.attention"
_NOT_SUPPORTED = ("logits_soft_cap", "dropout_mask", "paging_info", "q_indices", "k_indices")
_ATTENTION_FIXED: Mapping[str, Any] = {
    **dict.fromkeys(_NOT_SUPPORTED),
    "dropout_rate": 0.0,
    "logits_dtype": "float32",
    "normalize_output": True,
}
_MASK_FIXED = dict.fromkeys(("q_start", "q_end", "k_start", "k_end"))
_CAUSAL = {"offset": 0, "window_size": None}
_RAGGED_FIXED: Mapping[str, Any] = {
    **dict.fromkeys(("activation", "manual_axis_type", "group_offset")),
    "zero_initialize": False,
}
_RAGGED_DIMENSIONS = {
    "DEFAULT_RAGGED": ([[[1], [1]], [[], []]], [0], [0]),
    "TRANS_RHS_RAGGED": ([[[1], [2]], [[], []]], [0], [0]),
    "RAGGED_CONTRACTING": ([[[0], [0]], [[], []]], [0], []),
}
"""Constants of `ragged_dot/base.py`, whose names go on with `_DOT_DIM_NUMS`."""


class Left(Exception):
    """An entry that is not taken; its text says why."""


class Op(NamedTuple):
    """A kernel of the spec.

    Attributes:
        kernel: its name.
        table: the file that its entries are in, without `.json`.
        op: the module and the class, `tokamax….pallas_mosaic_gpu:PallasMosaicGpuRaggedDot`.
        configs: the class of configurations, by architecture.
        text: `args` and `static` as YAML, less `self`, which has the configuration.
        row: parameters of an entry, None where another kernel of the same table takes it.
        redundant: parameters that follow from the others.
    """

    kernel: str
    table: str
    op: str
    configs: Mapping[str, str]
    text: str
    row: Callable[[dict[str, Any]], Row | None]
    redundant: tuple[str, ...] = ()


def _attention_row(arguments: dict[str, Any]) -> Row:
    mask, causal = _mask(arguments.pop("mask"))
    scale = arguments.pop("logits_scale")
    row = {
        **{name: _array(arguments.pop(name)) for name in ("q", "k", "v", "bias")},
        "mask": mask,
        "causal": causal,
        "precision": _same_precision(arguments.pop("precision")),
        "residuals": arguments.pop("return_residuals"),
    }
    if scale != 1 / math.sqrt(resolve_array(row["q"]).shape[-1]):
        raise Left("logits_scale is not 1 / sqrt(the size of a head)")
    _check(arguments, _ATTENTION_FIXED)
    return row


def _attention_vjp_row(arguments: dict[str, Any], *, masked: bool) -> Row | None:
    mask, causal = _mask(arguments.pop("mask"))
    if (mask is not None) is not masked:
        return None
    if causal and masked:
        raise Left("a mask that is both an array and causal")
    residuals = [_array(text) for text in arguments.pop("residuals")]
    if len(residuals) != 2 or residuals[0] != residuals[1]:
        raise Left("residuals other than two arrays of one shape")
    names = ("out", "dout", "q", "k", "v", "bias")
    row = {
        "residuals": residuals[0],
        **{name: _array(arguments.pop(name)) for name in names},
        **({"mask": mask} if masked else {"causal": causal}),
        "precision": _same_precision(arguments.pop("precision")),
        "scale": arguments.pop("logits_scale"),
    }
    _check(arguments, {**_ATTENTION_FIXED, "return_residuals": False})
    return row


def _gated_linear_unit_row(arguments: dict[str, Any]) -> Row:
    row = {
        "x": _array(arguments.pop("x")),
        "weights": _array(arguments.pop("weights")),
        "activation": _function(arguments.pop("activation")),
        "precision": _precision(arguments.pop("precision")),
    }
    _check(arguments, {"return_residuals": False})
    return row


def _ragged_dot_row(arguments: dict[str, Any]) -> Row | None:
    if _is_quantised(arguments):
        return None
    row = {
        "lhs": _array(arguments.pop("lhs")),
        "rhs": _array(arguments.pop("rhs")),
        **_ragged_dot_settings(arguments),
    }
    _check(arguments, {**_RAGGED_FIXED, "fuse_gateup_activation": None})
    return row


def _ragged_dot_quantised_row(arguments: dict[str, Any]) -> Row | None:
    if not _is_quantised(arguments):
        return None
    lhs, rhs = arguments.pop("lhs"), arguments.pop("rhs")
    row = {
        "lhs": _array(lhs.pop("value")),
        "qtype": _function(lhs.pop("qtype")),
        "rhs": _array(rhs.pop("qvalue")),
        "scale": _array(rhs.pop("scale")),
        **_ragged_dot_settings(arguments),
        "fused": arguments.pop("fuse_gateup_activation"),
    }
    _check(lhs, {"channelwise_axes": [], "tiled_axes": None, "calibration_method": "absmax"})
    _check_stored_as(rhs.pop("qtype"), row["rhs"])
    _check(rhs, {"zero_point": None})
    _check(arguments, _RAGGED_FIXED)
    return row


def _is_quantised(arguments: Mapping[str, Any]) -> bool:
    return isinstance(arguments["rhs"], dict)


def _ragged_dot_settings(arguments: dict[str, Any]) -> Row:
    sizes = arguments.pop("group_sizes")
    return {
        "group_sizes": f"i32[{sizes['num_groups'] if isinstance(sizes, dict) else len(sizes)}]",
        "dimensions": _dimensions(arguments.pop("ragged_dot_dimension_numbers")),
        "precision": _precision(arguments.pop("precision")),
        "out": arguments.pop("preferred_element_type"),
        "residuals": arguments.pop("return_residuals"),
    }


def _check_stored_as(qtype: str, array: str) -> None:
    """Refuse quantised values in an array of another type; the spec leaves theirs to the array."""
    if resolve_array(f"{qtype}[]").dtype != resolve_array(array).dtype:
        raise Left(f"values of {qtype} in an array of another type")


def _check(rest: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Refuse arguments that the spec does not pass on."""
    for name, value in rest.items():
        if name not in fixed:
            raise Left(f"an argument that is not known: {name}")
        if value != fixed[name]:
            raise Left(f"{name} is {show(value)}")


def _array(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Left("an array that is quantised")
    try:
        return str(resolve_array(value)).replace(" ", "")
    except SpecError:
        raise Left(f"{show(value)} in place of an array") from None


def _mask(value: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the array of a mask, and whether it is causal."""
    rest = {key: item for key, item in value.items() if key not in ("bool_mask", "causal_mask")}
    _check(rest, _MASK_FIXED)
    causal = value["causal_mask"]
    if causal not in (None, _CAUSAL):
        raise Left("a causal mask with an offset or a window")
    return _array(value["bool_mask"]), causal is not None


def _precision(value: object) -> str:
    """Return a precision by the name that JAX takes for it: `default` means a pair of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return str(value[0]).lower()
    raise Left(f"precision is {show(value)}")


def _same_precision(value: list[Any]) -> str:
    both = [_precision(item) for item in value]
    if len(both) != 2 or both[0] != both[1]:
        raise Left("different precisions of the two products")
    return both[0]


def _function(value: object) -> str:
    """Return an entry point; functions of `jax.nn` by their public name."""
    if not isinstance(value, str):
        raise Left("no activation")
    module, _, name = value.rpartition(".")
    return f"{'jax.nn' if module == 'jax._src.nn.functions' else module}:{name}"


def _dimensions(value: Mapping[str, Any]) -> str:
    given = (
        value["dot_dimension_numbers"],
        value["lhs_ragged_dimensions"],
        value["rhs_group_dimensions"],
    )
    for name, known in _RAGGED_DIMENSIONS.items():
        if given == known:
            return name
    raise Left(f"dimensions {show(value)}")


_PRECISION = '{$call: "tokamax._src.precision:canonicalize_precision", precision: "{precision}"}'
_VJP_TEXT = f"""\
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
        - {_PRECISION}
        - {_PRECISION}
      logits_dtype: {{$call: "numpy:dtype", dtype: float32}}
      logits_scale: "{{scale}}"
      dropout_rate: 0.0
      normalize_output: true
""" + "".join(f"      {name}: null\n" for name in _NOT_SUPPORTED)


def _vjp(kernel: str, *, masked: bool) -> Op:
    argument = "bool_mask" if masked else "is_causal"
    parameter = "mask" if masked else "causal"
    mask = f'      mask: {{$call: "{_ATTENTION}.base:Mask", {argument}: "{{{parameter}}}"}}\n'
    config = f"{_ATTENTION}.pallas_mosaic_gpu_vjp"
    return Op(
        kernel,
        "pallas_mosaic_gpu_flash_attention_vjp",
        f"{_ATTENTION}.pallas_mosaic_gpu_vjp:PallasMosaicGpuFlashAttentionVjp",
        {
            "sm_90a": f"{config}_common:Config",
            "sm_100a": f"{config}_kernel_sm100:Config",
        },
        _VJP_TEXT % ((mask, "") if masked else ("", mask)),
        lambda arguments: _attention_vjp_row(arguments, masked=masked),
        redundant=("scale",),
    )


def _for_all(config: str) -> dict[str, str]:
    return dict.fromkeys(("sm_80", "sm_90a", "sm_100a"), config)


_QUANTISED_ARGS = """\
    args:
      lhs: {$call: "tokamax._src.quantization:AsQArray", value: "{lhs}", qtype: {$ref: "{qtype}"}}
      rhs: {$call: "qwix:QArray", qvalue: "{rhs}", scale: "{scale}"}
      group_sizes: "{group_sizes}"
"""
_QUANTISED_STATIC = '      fuse_gateup_activation: "{fused}"\n'


def _ragged_dot(
    kernel: str, args: str, row: Callable[[dict[str, Any]], Row | None], static: str = ""
) -> Op:
    base = f"{_OPS}.ragged_dot"
    text = f"""\
    static:
      ragged_dot_dimension_numbers: {{$ref: "{base}.base:{{dimensions}}_DOT_DIM_NUMS"}}
      precision: "{{precision}}"
      preferred_element_type: "{{out}}"
      return_residuals: "{{residuals}}"
"""
    return Op(
        kernel,
        "pallas_mosaic_gpu_ragged_dot",
        f"{base}.pallas_mosaic_gpu:PallasMosaicGpuRaggedDot",
        _for_all(f"{base}.pallas_mosaic_gpu_common:Config"),
        args + text + static,
        row,
    )


OPS = (
    Op(
        "attention",
        "pallas_mosaic_gpu_flash_attention",
        f"{_ATTENTION}.pallas_mosaic_gpu:PallasMosaicGpuFlashAttention",
        {
            "sm_90a": f"{_ATTENTION}.pallas_mosaic_gpu_kernel_sm90:Config",
            "sm_100a": f"{_ATTENTION}.pallas_mosaic_gpu_kernel_sm100:Config",
        },
        """\
    args: {q: "{q}", k: "{k}", v: "{v}", bias: "{bias}", mask: "{mask}"}
    static:
      precision: "{precision}"
      logits_dtype: float32
      is_causal: "{causal}"
      return_residuals: "{residuals}"
""",
        _attention_row,
    ),
    _vjp("attention_vjp", masked=False),
    _vjp("attention_vjp_masked", masked=True),
    Op(
        "gated_linear_unit",
        "pallas_mosaic_gpu_gated_linear_unit",
        f"{_OPS}.gated_linear_unit.pallas_mosaic_gpu:PallasMosaicGpuGatedLinearUnit",
        _for_all(f"{_OPS}.gated_linear_unit.pallas_mosaic_gpu_common:Config"),
        """\
    args: {x: "{x}", weights: "{weights}"}
    static:
      activation: {$ref: "{activation}"}
      precision: "{precision}"
""",
        _gated_linear_unit_row,
    ),
    _ragged_dot(
        "ragged_dot",
        '    args: {lhs: "{lhs}", rhs: "{rhs}", group_sizes: "{group_sizes}"}\n',
        _ragged_dot_row,
    ),
    _ragged_dot(
        "ragged_dot_quantised", _QUANTISED_ARGS, _ragged_dot_quantised_row, _QUANTISED_STATIC
    ),
)
"""In the order of the spec."""
