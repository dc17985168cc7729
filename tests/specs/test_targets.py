"""Targets and models."""

from typing import get_args

import pytest
from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs import gpus
from pallasc.specs.gpus import (
    ARCHITECTURES,
    DEFAULT_MODELS,
    IN_NO_KEY,
    LINUX_DRIVERS,
    MODELS,
    Architecture,
    Feature,
    capability,
    make_model,
    resolve_target,
)


def test_keys_hold_every_column_of_an_architecture_that_is_not_named_as_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = MODELS["h100-sxm"]
    row, before = ARCHITECTURES[9, 0], target.facts()
    other = {
        "name": "sm_90", "model": "h200", "driver": (13, 0), "blocks_per_sm": 16,
        "features": frozenset[Feature](), "reserved_smem_bytes": 2048, "embedded": True,
    }  # fmt: skip
    assert other.keys() == {*Architecture._fields} > IN_NO_KEY
    for column, value in other.items():
        changed = row._replace(**{column: value})  # type: ignore[arg-type]
        monkeypatch.setattr(gpus, "ARCHITECTURES", {**ARCHITECTURES, (9, 0): changed})
        assert (target.facts() != before) is (column not in IN_NO_KEY)


def test_an_architecture_alone_means_its_default_model() -> None:
    for arch, model in DEFAULT_MODELS.items():
        assert resolve_target(arch) is MODELS[model]
        assert MODELS[model].arch == arch
    found = [resolve_target(arch) for arch in ("sm_80", "sm_103a")]
    assert [(t.major, t.minor, t.suffix) for t in found] == [(8, 0, ""), (10, 3, "a")]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sm_90", "'sm_90a'"), ("sm_121f", "'sm_121a'"), ("sm_80a", "'sm_80'"), ("80", "'sm_80'"),
        ("h100-smx", "'h100-sxm'"), ("H100-SXM", "'h100-sxm'"), ("rtx", "'rtx-pro-6000'"),
        ("h100", "'h100-sxm', 'h100-pcie' or 'h100-half'"), ("b200-sxm", "'b200'"),
        ("A100", "'a100-sxm', 'a100-sxm-40gb' or 'a100-pcie'"), ("compute_90a", "'sm_90a'"),
        ("90a", "'sm_90a'"), ("sm90a", "'sm_90a'"),
        ("sm_9.0", "'sm_90a'"), ("compute_100", "'sm_100a'"), ("SM_90a", "'sm_90a'"),
    ],
)  # fmt: skip
def test_a_wrong_target_is_refused_with_the_right_name(name: str, hint: str) -> None:
    mine = {"h100-half": make_model("h100-half", {"sm_count": 60, "like": "h100-sxm"})}
    with pytest.raises(SpecError) as caught:
        resolve_target(name, mine)
    assert str(caught.value) == f"unknown target {name!r}.\n  Did you mean {hint}?"


def test_a_users_model_takes_what_it_does_not_say_from_another() -> None:
    model = make_model("my-h20", {"sm_count": 78, "arch": "sm_90a", "like": "h200"})
    assert model == replace(
        MODELS["h200"], name="my-h20", sm_count=78, description="my-h20", arch="sm_90a"
    )
    assert resolve_target("my-h20", {"my-h20": model}) is model
    second = make_model("second", {"l2_bytes": 1, "like": "my-h20"}, {"my-h20": model})
    assert (second.sm_count, second.l2_bytes, second.arch) == (78, 1, "sm_90a")


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
    assert len(MODELS) >= 14
    for name, target in MODELS.items():
        assert resolve_target(name) is target
        assert target.name == name
        assert target.smem_optin_bytes <= target.smem_per_sm_bytes - 1024
