"""Which variants are launched on a GPU: a decision over variants and device."""

from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.cli.launching import fitting, model_of
from pallasc.errors import SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.specs.gpus import MODELS, resolve_target

H200 = Device(0, "NVIDIA H200 141GB HBM3e", 9, 0, 132, 232448)


@pytest.fixture
def made(pretended: Any) -> Any:
    """Return a function that makes a variant for a target."""

    def make(name: str, target: str, **params: int) -> Any:
        return replace(pretended.variant(name, **params), target=resolve_target(target))

    return make


def test_each_kernel_has_one_point_for_all_targets_of_the_architecture(made: Any) -> None:
    def ids(*variants: Any) -> list[str]:
        return [variant.id for variant in fitting([*variants], H200, every=False)]

    targets = ("a100-sxm", "h100-sxm", "h200", "b200")
    of_all = [made("f", target, m=1) for target in targets]
    assert ids(*of_all) == ["f[m=1]@h100-sxm", "f[m=1]@h200"]
    assert ids(made("f", "h200", m=1), made("g", "h200", m=2)) == ["f[m=1]@h200", "g[m=2]@h200"]
    assert ids(made("f", "h200", m=1), made("f", "b200", m=2)) == ["f[m=1]@h200"]


def test_several_points_are_refused_unless_all_are_wanted(made: Any) -> None:
    variants = [made("f", target, m=m, n=1) for m in (1, 2) for target in ("h100-sxm", "h200")]
    with pytest.raises(SpecError) as caught:
        fitting(variants, H200, every=False)
    assert str(caught.value) == (
        "kernels.yaml:4:5: 2 variants of f can be launched on GPU 0 (NVIDIA H200 141GB HBM3e, "
        "sm_90):\n  f[m=1,n=1]\n  f[m=2,n=1]\n"
        '  Choose one, such as -k "m=1", or run all with --all.'
    )
    assert fitting(variants, H200, every=True) == variants
    with pytest.raises(SpecError) as caught:
        fitting([made("f", "h200", m=m) for m in range(25)], H200, every=False)
    assert caught.value.message.splitlines()[-2:] == ["  f[m=19]", "  and 5 more"]


def test_a_kernel_without_a_fitting_variant_is_refused_with_reasons(made: Any) -> None:
    variants = [made("g", "h200"), made("f", "a100-sxm"), made("f", "b200")]
    with pytest.raises(SelectionError) as caught:
        fitting(variants, H200, every=True)
    assert str(caught.value) == (
        "kernels.yaml:4:5: no variant of f fits GPU 0 (NVIDIA H200 141GB HBM3e, sm_90):\n"
        "  f@a100-sxm: sm_80 runs on sm_80 and newer ones of its family, and this GPU is sm_90\n"
        "  f@b200: sm_100a runs on exactly sm_100, and this GPU is sm_90\n"
        "  Compile for this GPU: --target h200."
    )
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("major", "minor", "hint"),
    [
        (9, 0, "Compile for this GPU: --target sm_90a."),
        (12, 1, "Compile for this GPU: --target sm_121a."),
        (8, 6, "Compile for this GPU: --target sm_86."),
        (8, 8, None),
        (7, 5, None),
    ],
)
def test_the_hint_names_an_architecture_for_an_unknown_gpu(
    major: int, minor: int, hint: str | None, made: Any
) -> None:
    device = Device(0, "Some GPU", major, minor, 100, 100_000)
    with pytest.raises(SelectionError) as caught:
        fitting([made("f", "b200" if major < 10 else "h200")], device, every=False)
    assert caught.value.hint == hint


def test_a_gpu_is_known_by_its_name() -> None:
    assert model_of(H200) == MODELS["h200"]
    assert model_of(Device(0, "NVIDIA H200", 9, 0, 132, 232448)) == MODELS["h200"]
    assert model_of(Device(0, "NVIDIA H200 NVL", 9, 0, 132, 232448)) is None
    assert model_of(Device(0, "NVIDIA H200 141GB HBM3e", 10, 0, 132, 232448)) is None
