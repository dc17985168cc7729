"""Which variants are launched on a GPU: a decision over variants and device."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.cli.bench import limits_of
from pallasc.cli.launching import fitting, model_of
from pallasc.errors import Location, SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.specs.gpus import MODELS, resolve_target
from pallasc.specs.spec import Budget, Variant

H200 = Device(0, "NVIDIA H200 141GB HBM3e", 9, 0, 132, 232448)


def _variant(name: str, target: str, **params: int) -> Variant:
    return Variant(
        name=name,
        params=tuple(params.items()),
        target=resolve_target(target),
        entry="kernels:f",
        args=[],
        static={},
        reference=None,
        tolerance=None,
        budget=Budget(),
        files=(),
        location=Location("kernels.yaml", 4, 5),
        base_dir=str(Path("/")),
    )


def _ids(variants: list[Variant]) -> list[str]:
    return [variant.id for variant in variants]


def test_targets_of_the_same_architecture_stay_together() -> None:
    variants = [_variant("f", target, m=1) for target in ("a100-sxm", "h100-sxm", "h200", "b200")]
    assert _ids(fitting(variants, H200, every=False)) == ["f[m=1]@h100-sxm", "f[m=1]@h200"]


def test_each_kernel_has_one_point() -> None:
    variants = [_variant(name, "h200", m=1) for name in ("f", "g")]
    assert fitting(variants, H200, every=False) == variants


def test_several_points_are_refused_unless_all_are_wanted() -> None:
    variants = [_variant("f", target, m=m, n=1) for m in (1, 2) for target in ("h100-sxm", "h200")]
    with pytest.raises(SpecError) as caught:
        fitting(variants, H200, every=False)
    assert str(caught.value) == (
        "kernels.yaml:4:5: 2 variants of f can be launched on GPU 0 (NVIDIA H200 141GB HBM3e, "
        "sm_90):\n  f[m=1,n=1]@h100-sxm\n  f[m=2,n=1]@h100-sxm\n"
        '  Choose one, such as -k "m=1", or run all with --all.'
    )
    assert fitting(variants, H200, every=True) == variants


def test_points_for_other_gpus_do_not_count() -> None:
    variants = [_variant("f", "h200", m=1), _variant("f", "b200", m=2)]
    assert _ids(fitting(variants, H200, every=False)) == ["f[m=1]@h200"]


def test_a_kernel_without_a_fitting_variant_is_refused_with_reasons() -> None:
    variants = [_variant("g", "h200"), _variant("f", "a100-sxm"), _variant("f", "b200")]
    with pytest.raises(SelectionError) as caught:
        fitting(variants, H200, every=True)
    assert str(caught.value) == (
        "kernels.yaml:4:5: no variant of f fits GPU 0 (NVIDIA H200 141GB HBM3e, sm_90):\n"
        "  f@a100-sxm: sm_80 runs on sm_80 and newer ones of its family, and this GPU is sm_90\n"
        "  f@b200: sm_100a runs on exactly sm_100, and this GPU is sm_90\n"
        "  Compile for it: --target h200."
    )
    assert caught.value.exit_code == 4


def test_a_long_list_is_cut() -> None:
    variants = [_variant("f", "h200", m=m) for m in range(25)]
    with pytest.raises(SpecError) as caught:
        fitting(variants, H200, every=False)
    assert caught.value.message.splitlines()[-2:] == ["  f[m=19]@h200", "  … and 5 more"]


@pytest.mark.parametrize(
    ("major", "minor", "hint"),
    [
        (9, 0, "Compile for it: --target sm_90a."),
        (12, 0, "Compile for it: --target sm_120a."),
        (12, 1, "Compile for it: --target sm_121a."),
        (8, 6, "Compile for it: --target sm_86."),
        (8, 9, "Compile for it: --target sm_89."),
        (8, 8, None),
        (7, 5, None),
    ],
)
def test_the_hint_names_an_architecture_for_an_unknown_gpu(
    major: int, minor: int, hint: str | None
) -> None:
    device = Device(0, "Some GPU", major, minor, 100, 100_000)
    other = "b200" if major < 10 else "h200"
    with pytest.raises(SelectionError) as caught:
        fitting([_variant("f", other)], device, every=False)
    assert caught.value.hint == hint


def test_a_gpu_is_known_by_its_name() -> None:
    assert model_of(H200) == MODELS["h200"]
    assert model_of(Device(0, "NVIDIA H200", 9, 0, 132, 232448)) == MODELS["h200"]
    assert model_of(Device(0, "NVIDIA H200 NVL", 9, 0, 132, 232448)) is None
    assert model_of(Device(0, "NVIDIA H200 141GB HBM3e", 10, 0, 132, 232448)) is None


def test_the_limits_of_a_model_follow_from_its_figures() -> None:
    limits = limits_of(MODELS["h100-sxm"])
    assert limits.memory_gb_per_s == pytest.approx(3352.32)
    # 132 multiprocessors, 128 units, 1.98 GHz, two operations.
    assert limits.fp32_tflop_per_s == pytest.approx(66.9, abs=0.05)
    assert limits.l2_bytes == 50 << 20
