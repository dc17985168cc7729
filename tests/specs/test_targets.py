"""Targets and models."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from pallasc.compiler.toolchain.identity import COMPILING, reached
from pallasc.errors import Location, SpecError
from pallasc.specs import gpus
from pallasc.specs.gpus import (
    ARCHITECTURES,
    DEFAULT_MODELS,
    IN_NO_KEY,
    LINUX_DRIVERS,
    MODELS,
    Architecture,
    Feature,
    Target,
    capability,
    check_arch,
    make_model,
    resolve_target,
)


def test_keys_hold_every_column_of_an_architecture_that_is_not_named_as_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = MODELS["h100-sxm"]
    row, before = ARCHITECTURES[9, 0], target.facts()
    other = {
        "name": "sm_90",
        "model": "h200",
        "driver": (13, 0),
        "blocks_per_sm": 16,
        "features": frozenset[Feature](),
        "reserved_smem_bytes": 2048,
        "embedded": True,
    }
    assert other.keys() == {*Architecture._fields} > IN_NO_KEY
    for column, value in other.items():
        changed = row._replace(**{column: value})  # type: ignore[arg-type]
        monkeypatch.setattr(gpus, "ARCHITECTURES", {**ARCHITECTURES, (9, 0): changed})
        assert (target.facts() != before) is (column not in IN_NO_KEY)


def test_nothing_that_compiles_reads_a_column_that_is_in_no_key() -> None:
    top = Path(gpus.__file__).resolve().parents[1]
    left_out = IN_NO_KEY - {"name"}  # what else has a name, and keys hold its two parts
    for file, module in reached(COMPILING, top).items():
        nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert read & left_out == set(), module


def test_every_model_is_a_target_by_its_name() -> None:
    assert len(MODELS) >= 14
    for name, target in MODELS.items():
        assert resolve_target(name) is target
        assert target.name == name


@pytest.mark.parametrize(("arch", "model"), DEFAULT_MODELS.items())
def test_an_architecture_alone_means_its_default_model(arch: str, model: str) -> None:
    assert resolve_target(arch) is MODELS[model]
    assert MODELS[model].arch == arch


@pytest.mark.parametrize("target", MODELS.values(), ids=lambda target: target.name)
def test_one_kibibyte_of_shared_memory_belongs_to_the_system(target: Target) -> None:
    assert target.smem_optin_bytes <= target.smem_per_sm_bytes - 1024


@pytest.mark.parametrize(
    ("arch", "parts"),
    [("sm_80", (8, 0, "")), ("sm_90a", (9, 0, "a")), ("sm_103a", (10, 3, "a"))],
)
def test_an_architecture_splits_into_major_minor_and_suffix(
    arch: str, parts: tuple[int, int, str]
) -> None:
    target = resolve_target(arch)
    assert (target.major, target.minor, target.suffix) == parts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sm_90", "unknown target 'sm_90'.\n  Did you mean 'sm_90a'?"),
        ("sm_100", "unknown target 'sm_100'.\n  Did you mean 'sm_100a'?"),
        ("sm_120", "unknown target 'sm_120'.\n  Did you mean 'sm_120a'?"),
        ("sm_100f", "unknown target 'sm_100f'.\n  Did you mean 'sm_100a'?"),
        ("sm_121f", "unknown target 'sm_121f'.\n  Did you mean 'sm_121a'?"),
        ("sm_80a", "unknown target 'sm_80a'.\n  Did you mean 'sm_80'?"),
        ("h100-smx", "unknown target 'h100-smx'.\n  Did you mean 'h100-sxm'?"),
        ("H100-SXM", "unknown target 'H100-SXM'.\n  Did you mean 'h100-sxm'?"),
        ("h100", "unknown target 'h100'.\n  Did you mean 'h100-sxm' or 'h100-pcie'?"),
        (
            "A100",
            "unknown target 'A100'.\n  Did you mean 'a100-sxm', 'a100-sxm-40gb' or 'a100-pcie'?",
        ),
        ("h", "unknown target 'h'.\n  Did you mean 'h100-sxm', 'h100-pcie' or 'h200'?"),
        ("rtx", "unknown target 'rtx'.\n  Did you mean 'rtx-pro-6000'?"),
        ("b200-sxm", "unknown target 'b200-sxm'.\n  Did you mean 'b200'?"),
        ("compute_90a", "unknown target 'compute_90a'.\n  Did you mean 'sm_90a'?"),
        ("90a", "unknown target '90a'.\n  Did you mean 'sm_90a'?"),
        ("sm90a", "unknown target 'sm90a'.\n  Did you mean 'sm_90a'?"),
        ("SM_90a", "unknown target 'SM_90a'.\n  Did you mean 'sm_90a'?"),
        ("sm_9.0", "unknown target 'sm_9.0'.\n  Did you mean 'sm_90a'?"),
        ("compute_100", "unknown target 'compute_100'.\n  Did you mean 'sm_100a'?"),
        ("80", "unknown target '80'.\n  Did you mean 'sm_80'?"),
    ],
)
def test_a_wrong_target_is_refused_with_the_right_name(name: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_target(name)
    assert str(caught.value) == text


def test_models_of_the_user_are_suggested_too() -> None:
    mine = {"h100-half": make_model("h100-half", {"sm_count": 60}, like="h100-sxm")}
    with pytest.raises(SpecError) as caught:
        resolve_target("h100", mine)
    assert caught.value.hint == "Did you mean 'h100-sxm', 'h100-pcie' or 'h100-half'?"


@pytest.mark.parametrize("name", ["90a", "compute_90", "SM90A"])
def test_an_architecture_is_known_however_it_is_written(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_arch(name)
    assert caught.value.hint == "Did you mean 'sm_90a'?"


def test_what_is_like_nothing_gets_the_list() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_target("")
    assert str(caught.value.hint).startswith("Targets: a100-pcie, ")


def test_in_a_spec_the_hint_says_what_to_write() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_target("sm_90", location=Location("specs.yaml", 2, 11))
    assert str(caught.value) == (
        "specs.yaml:2:11: unknown target 'sm_90'.\n  Did you mean 'sm_90a'?"
    )


def test_a_users_model_takes_what_it_does_not_say_from_another() -> None:
    model = make_model("my-h20", {"sm_count": 78}, arch="sm_90a", like="h200")
    assert model == replace(
        MODELS["h200"], name="my-h20", sm_count=78, description="my-h20", arch="sm_90a"
    )
    assert resolve_target("my-h20", {"my-h20": model}) is model


def test_a_users_model_can_be_like_another_of_the_user() -> None:
    first = make_model("first", {"sm_count": 78}, arch="sm_90a")
    second = make_model("second", {"l2_bytes": 1}, like="first", known={"first": first})
    assert (second.sm_count, second.l2_bytes, second.arch) == (78, 1, "sm_90a")


def test_figures_leave_only_the_name_out() -> None:
    target = resolve_target("h200")
    assert target.figures().keys() == {*Target.__slots__} - {"name"}
    assert replace(target, name="other").figures() == target.figures()


def test_a_row_of_an_architecture_has_every_column() -> None:
    assert Architecture._field_defaults == {}
    with pytest.raises(TypeError, match="missing"):
        Architecture("sm_130a", "", (13, 0), 32, embedded=False)  # type: ignore[call-arg]


def test_every_architecture_is_one_row_with_a_model_of_it() -> None:
    rows = ARCHITECTURES.values()
    assert [row.name for row in rows] == sorted({row.name for row in rows}, key=capability)
    for row in rows:
        assert not row.model or MODELS[row.model].arch == row.name
        assert row.blocks_per_sm in (16, 24, 32)
        assert row.driver in LINUX_DRIVERS, (
            f"{row.name} needs a CUDA release without a Linux driver"
        )
        assert row.features <= {*get_args(Feature)}
        assert row.reserved_smem_bytes in (0, 1024)
    assert {model.arch for model in MODELS.values()} == set(DEFAULT_MODELS)
