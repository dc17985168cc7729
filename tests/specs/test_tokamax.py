"""Kernels from tables that are laid out as Tokamax's are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokamax_package import (
    ATTENTION,
    GLU,
    H100,
    RAGGED_DOT,
    Entries,
    glu,
    tiles,
    times,
    write_package,
)

from pallasc.errors import SpecError
from pallasc.specs.gpus import MODELS
from pallasc.specs.imports.tokamax_kernels import Kernel, config_names, kernels_of
from pallasc.specs.imports.tokamax_specs import MARK, files_of
from pallasc.specs.imports.tokamax_tables import (
    Package,
    chosen,
    devices,
    installed_package,
    other_devices,
    package_in,
)
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import parse_table
from pallasc.specs.loading.yaml_loader import load_yaml

Make = Callable[..., Package]


def attention(**changed: Any) -> dict[str, Any]:
    missing = ("q_start", "q_end", "k_start", "k_end", "bool_mask", "causal_mask")
    nothing = ("bias", "logits_soft_cap", "dropout_mask", "paging_info", "q_indices", "k_indices")
    return {
        **dict.fromkeys("qkv", "f16[2,512,4,64]"),
        "precision": [["DEFAULT", "DEFAULT"], ["DEFAULT", "DEFAULT"]],
        "logits_dtype": "float32",
        "logits_scale": 0.125,
        "mask": dict.fromkeys(missing),
        **dict.fromkeys(nothing),
        "dropout_rate": 0.0,
        "normalize_output": True,
        "return_residuals": False,
        **changed,
    }


def causal(**changed: Any) -> dict[str, Any]:
    own = attention()
    return {**own, "mask": {**own["mask"], "causal_mask": {"offset": 0, "window_size": None}}}


def backward(mask: str | None) -> dict[str, Any]:
    own = attention(bias=mask and "f16[1,4,512,512]")
    arrays = {"residuals": ["f32[2,4,512]"] * 2, "out": own["q"], "dout": own["q"]}
    return {**arrays, **own, "mask": {**own["mask"], "bool_mask": mask}}


def ragged(**changed: Any) -> dict[str, Any]:
    nothing = ("activation", "manual_axis_type", "group_offset", "fuse_gateup_activation")
    return {
        "lhs": "bf16[1024,256]",
        "rhs": "bf16[8,256,512]",
        "group_sizes": {"num_groups": 8, "total_size": 1024},
        "ragged_dot_dimension_numbers": {
            "dot_dimension_numbers": [[[1], [2]], [[], []]],
            "lhs_ragged_dimensions": [0],
            "rhs_group_dimensions": [0],
        },
        "precision": ["DEFAULT", "DEFAULT"],
        "preferred_element_type": "bfloat16",
        "return_residuals": False,
        **dict.fromkeys(nothing),
        "zero_initialize": False,
        **changed,
    }


def quantised(**changed: Any) -> dict[str, Any]:
    """Return a ragged dot of rows that the call quantises, by weights that are quantised."""
    rows = {"value": "bf16[1024,256]", "qtype": "jax.numpy.float8_e4m3fn", "channelwise_axes": []}
    weights = {"qvalue": "f8_e4m3fn[8,256,512]", "scale": "bf16[8,1,512]", "zero_point": None}
    return {
        **ragged(fuse_gateup_activation="silu"),
        "lhs": {**rows, "tiled_axes": None, "calibration_method": "absmax"},
        "rhs": {**weights, "qtype": "float8_e4m3fn", **changed},
    }


@pytest.fixture
def package(tmp_path: Path) -> Make:
    """Return what writes a package: of a device and an op, the entries."""

    def package(tables: dict[tuple[str, str], Entries]) -> Package:
        write_package(tmp_path / "lib", tables)
        return package_in(tmp_path / "lib")

    return package


def kernels(package: Package, device: str = H100, model: str = "h100-sxm") -> list[Kernel]:
    return list(kernels_of(package, device, MODELS[model]))


def test_the_fastest_configuration_is_the_row(package: Make) -> None:
    entries: Entries = [
        (glu(), [(tiles(64), times(0.4, 0.5, 0.6)), (tiles(128), times(0.2, 0.3, 0.3))]),
        (glu(512), [(tiles(64), times(0.7))]),
    ]
    made = package({(H100, GLU): entries})
    (kernel,) = kernels(made)
    assert (kernel.name, len(kernel.points), kernel.several) == ("gated_linear_unit", 2, 1)
    table = parse_table(files_of([kernel], made.source)["tokamax-h100.tuned.yaml"], "t")
    rows = {row.key[0]: row for row in table["gated_linear_unit"].rows}
    fast = rows["bf16[256,128]"]
    assert fast.use == {"config": "tm128"}
    assert (fast.source, fast.gpu, fast.artifact) == ("tokamax 9.8.7", "h100-sxm", None)
    assert fast.measured is not None
    assert (fast.measured.us, fast.measured.rounds) == (300.0, 3)
    assert fast.measured.spread_percent == 16.7
    assert fast.measured.device == "NVIDIA H100 80GB HBM3"


def test_what_is_written_expands_to_the_points_of_the_rows(package: Make, tmp_path: Path) -> None:
    mask = "bool[2,1,1,512]"
    two = {"block_q": 64, "num_stages": 2}, {"block_q": 128, "num_stages": 2}
    made = package(
        {
            (H100, ATTENTION): [
                (attention(), [(two[0], times(1.0))]),
                (causal(), [(two[1], times(1.0))]),
            ],
            (H100, f"{ATTENTION}_vjp"): [
                (backward(None), [({"block_q_dkv": 64, "block_q_dq": 64}, times(1.0))]),
                (backward(mask), [({"block_q_dkv": 64, "block_q_dq": 64}, times(1.0))]),
            ],
            (H100, GLU): [(glu(), [(tiles(), times(1.0))]), (glu(x="f32[256,128]"), [])],
            (H100, RAGGED_DOT): [(ragged(), [({"block_m": 64, "persistent": True}, times(1.0))])],
        }
    )
    texts = files_of(kernels(made), made.source, untuned=True)
    assert all(text.isascii() for text in texts.values())
    assert texts["tokamax-h100.yaml"].startswith(MARK)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tokamax").symlink_to(made.root)
    variants = {
        v.id.partition("@")[0]: v for v in expand(load_yaml(tmp_path / "tokamax-h100.yaml"))
    }
    assert [text.partition("[")[0] for text in variants] == [
        "attention",
        "attention",
        "attention_vjp",
        "attention_vjp_masked",
        "gated_linear_unit",
        "ragged_dot",
        "gated_linear_unit_untuned",
    ]
    is_causal = [v.static["is_causal"] for v in variants.values() if "is_causal" in v.static]
    assert is_causal == [False, True]
    one = next(v for key, v in variants.items() if key.startswith("ragged_dot"))
    assert str(one.args["group_sizes"]) == "i32[8]"  # type: ignore[call-overload]
    own: Any = one.static["self"]
    assert own["config"]["block_m"] == 64
    assert own["config"]["persistent"] is True
    dimensions: Any = one.static["ragged_dot_dimension_numbers"]
    assert dimensions["$ref"].endswith(":TRANS_RHS_RAGGED_DOT_DIM_NUMS")


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        (GLU, glu(x={"qvalue": "i8[8]"}), "an array that is quantised"),
        (GLU, glu(activation=None), "no activation"),
        (GLU, glu(return_residuals=True), "return_residuals is true"),
        (GLU, glu(extra=1), "an argument that is not known: extra"),
        (GLU, glu(precision=["DEFAULT", "HIGH"]), "precision is a list"),
        (GLU, glu(x="bf16[8"), "'bf16[8' in place of an array"),
        (GLU, {"x": "bf16[8]"}, "arguments of another form than Tokamax 0.0.17 has"),
        (ATTENTION, attention(logits_soft_cap=3.0), "logits_soft_cap is 3.0"),
        (
            ATTENTION,
            attention(logits_scale=1.0),
            "logits_scale is not 1 / sqrt(the size of a head)",
        ),
        (RAGGED_DOT, ragged(fuse_gateup_activation="silu"), "fuse_gateup_activation is 'silu'"),
        (
            RAGGED_DOT,
            quantised(qtype="float4_e2m1fn"),
            "values of float4_e2m1fn in an array of another type",
        ),
        (RAGGED_DOT, quantised(zero_point="bf16[8,1,512]"), "zero_point is 'bf16[8,1,512]'"),
    ],
)
def test_entries_that_are_left_out_are_counted_by_reason(
    package: Make, op: str, arguments: dict[str, Any], reason: str
) -> None:
    made = package({(H100, op): [(arguments, [(tiles(), times(1.0))])]})
    (kernel,) = kernels(made)
    assert (kernel.points, kernel.untuned, dict(kernel.left)) == ([], [], {reason: 1})


def test_quantised_arrays_are_pytrees_of_their_values_and_scales(
    package: Make, tmp_path: Path
) -> None:
    tuned = ragged(), [({"block_m": 64}, times(1.0))]
    made = package({(H100, RAGGED_DOT): [tuned, (quantised(), [])]})
    for name, text in files_of(kernels(made), made.source, untuned=True).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tokamax").symlink_to(made.root)
    (tmp_path / "qwix.py").write_text("class QArray: ...\n")
    variants = expand(load_yaml(tmp_path / "tokamax-h100.yaml"))
    assert [v.name for v in variants] == ["ragged_dot", "ragged_dot_quantised_untuned"]
    args: Any = variants[1].args
    assert args["lhs"]["$call"] == "tokamax._src.quantization:AsQArray"
    assert args["lhs"]["qtype"] == {"$ref": "jax.numpy:float8_e4m3fn"}
    assert (args["rhs"]["$call"], str(args["rhs"]["qvalue"]), str(args["rhs"]["scale"])) == (
        "qwix:QArray",
        "f8e4m3fn[8, 256, 512]",
        "bf16[8, 1, 512]",
    )
    assert variants[1].static["fuse_gateup_activation"] == "silu"


def test_the_same_call_twice_is_one_entry(package: Make) -> None:
    sizes = ragged(group_sizes=[100] * 8)
    entries: Entries = [(call, [(tiles(), times(1.0))]) for call in (ragged(), sizes)]
    (kernel,) = kernels(package({(H100, RAGGED_DOT): entries}))
    assert len(kernel.points) == 1
    assert dict(kernel.left) == {"the arguments of an earlier entry": 1}


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ([{"block_q": 64, "split": 1}, {"block_q": 128, "split": 1}], ["bq64", "bq128"]),
        ([{"block_q": 64}], ["bq64"]),
        ([{"on": True}, {"on": None}], ["o1", "onull"]),
        ([{"block_q_dkv": 64, "block_q_dq": 64}], ["bqdkv64-bqdq64"]),
    ],
)
def test_configurations_are_named_after_what_differs(configs: Any, names: list[str]) -> None:
    assert config_names(configs) == names


def test_names_that_cannot_be_short_are_digests() -> None:
    long = [{f"a{i}_{i}": "x" * 10 for i in range(9)}, {"a0_0": 1}]
    assert [len(name) for name in config_names(long)] == [13, 13]
    assert len(set(config_names([{"a_x": 1, "b x": 2}, {"a_x": 1, "b x": 3}]))) == 2


def test_devices_are_models_by_the_name_of_their_driver(package: Make) -> None:
    folders = (H100, "nvidia_b200", "nvidia_a100-sxm4-40gb", "nvidia_v100", "tpu_v5")
    made = package({(name, GLU): [(glu(), [])] for name in folders})
    names = {model.name for model in devices(made).values()}
    assert names == {"a100-sxm-40gb", "h100-sxm", "b200"}
    assert other_devices(made) == ["nvidia_v100"]
    assert list(chosen(devices(made), ("h100",))) == [H100]
    assert list(chosen(devices(made), ("a100",))) == ["nvidia_a100-sxm4-40gb"]
    assert len(chosen(devices(made), ())) == 3
    with pytest.raises(SpecError, match="no tables for 'h20'"):
        chosen(devices(made), ("h20",))


@pytest.mark.parametrize("asked", ["v100", "v100-sxm2-16gb", "nvidia_v100-sxm2-16gb"])
def test_a_gpu_that_is_no_model_is_not_said_to_have_no_tables(package: Make, asked: str) -> None:
    made = package({(name, GLU): [(glu(), [])] for name in (H100, "nvidia_v100-sxm2-16gb")})
    with pytest.raises(SpecError) as caught:
        chosen(devices(made), (asked,), other_devices(made))
    assert caught.value.message == (
        "pallasc has no model of 'nvidia_v100-sxm2-16gb', whose tables Tokamax has."
    )
    assert caught.value.hint == "Models with tables: h100-sxm"


@pytest.mark.parametrize("text", ["[]", '{"a": {}}', '{"{}": {"{}": {}}}', "{", '{"{}": []}'])
def test_a_file_of_another_form_is_an_error(package: Make, tmp_path: Path, text: str) -> None:
    made = package({(H100, GLU): []})
    file = tmp_path / f"lib/tokamax/data/autotuning/{H100}/{GLU}.json"
    file.write_text(text)
    with pytest.raises(SpecError, match="is not a table of Tokamax") as caught:
        kernels(made)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "figures", "message"),
    [
        ("[1, 2]", "[0.5]", "the configuration [1, 2] is not a JSON object."),
        ("null", "[0.5]", "the configuration null is not a JSON object."),
        ("{", "[0.5]", "is not JSON"),
        ("{}", "[0.5, NaN]", "evaluation_times_ms of {} has NaN, which is no time."),
        ("{}", "[-1]", "evaluation_times_ms of {} has -1, which is no time."),
        ("{}", "[0]", "evaluation_times_ms of {} has 0, which is no time."),
        ("{}", "[Infinity]", "has Infinity, which is no time."),
        ("{}", "[true]", "has true, which is no time."),
        ("{}", "[]", "evaluation_times_ms of {} has no times."),
    ],
)
def test_a_damaged_configuration_is_an_error_with_its_file_and_key(
    package: Make, tmp_path: Path, config: str, figures: str, message: str
) -> None:
    made = package({(H100, GLU): []})
    file = tmp_path / f"lib/tokamax/data/autotuning/{H100}/{GLU}.json"
    call = '{"x": "f32[8]"}'
    own = f'{{{json.dumps(config)}: {{"evaluation_times_ms": {figures}}}}}'
    file.write_text(f"{{{json.dumps(call)}: {own}}}")
    with pytest.raises(SpecError, match="is not a table of Tokamax") as caught:
        kernels(made)
    assert all(text in caught.value.message for text in (str(file), message))
    assert f"under {call}" in caught.value.message or "not JSON" in message
    assert caught.value.hint is not None


def test_a_model_of_which_every_entry_is_left_out_has_no_files(package: Make) -> None:
    (kernel,) = kernels(package({(H100, GLU): [(glu(x={"qvalue": "i8[8]"}), [])]}))
    assert files_of([kernel], "tokamax", untuned=True) == {}


def test_a_package_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no tables of Tokamax"):
        package_in(tmp_path)


def test_the_installed_package_is_found_and_not_imported(
    package: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = package({(H100, GLU): []})
    (made.root / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(made.root.parent))
    monkeypatch.delitem(sys.modules, "tokamax", raising=False)  # another test may import it
    (tmp_path / "lib/tokamax-9.8.7.dist-info/METADATA").write_text(
        "Name: tokamax\nVersion: 9.8.7\n"
    )
    assert installed_package() == made
