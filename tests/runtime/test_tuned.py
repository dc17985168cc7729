"""Tuned kernels: the row of the key, that of its bucket, the default, or a refusal with rows."""

from pathlib import Path
from typing import Any

import made
import pytest
from standin import Device
from tuned_bundles import H100, item, kernel, row

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.native.library import FOLDER
from pallasc.specs.bundle import bundle
from pallasc.specs.bundle.c_export import export_c

ITEMS = (
    item(4, 1, row(4)),
    item(4, 2, is_default=True),
    item(3, 1, row(4)),
    item(3, 2, is_default=True),
    item(9, 1),
    item(9, 2, is_default=True),
)


@pytest.fixture
def tuned(framework: made.Framework, runtime: Any, tmp_path: Path) -> Any:
    runtime.devices(Device("9.0", name=H100))
    return kernel(tmp_path, ITEMS)


def _arrays(framework: made.Framework, m: int, device: int = 0) -> list[made.Tensor]:
    return [framework.tensor(f"f32[{m}, 64]", device=device) for _ in range(2)]


def _launched(runtime: Any, framework: Any, called: Any, m: int, **named: Any) -> int:
    """Return the tile of the variant that a call launches."""
    runtime.clear_log()
    called(*_arrays(framework, m), **named)
    (launch,) = runtime.launches
    return int(launch.grid[0])


@pytest.mark.parametrize(("m", "tile", "how"), [(4, 1, "row"), (3, 1, "bucket"), (9, 2, "default")])
def test_a_call_gets_the_variant_of_its_row_then_of_its_bucket_then_the_default(
    tuned: Any, framework: Any, runtime: Any, m: int, tile: int, how: str
) -> None:
    arrays = _arrays(framework, m)
    choice = tuned.choice(*arrays)
    assert (choice.variant, choice.how) == (f"add[m={m},tile={tile}]@h100-sxm", how)
    assert choice.variant in str(choice)
    for called in (tuned, tuned, tuned, tuned.unchecked):
        assert _launched(runtime, framework, called, m) == tile


def test_parameters_of_the_call_win(tuned: Any, framework: Any, runtime: Any) -> None:
    assert _launched(runtime, framework, tuned, 4, tile=2) == 2
    assert _launched(runtime, framework, tuned, 9, tile=1) == 1
    assert _launched(runtime, framework, tuned.variant(tile=2), 3) == 2
    assert tuned.choice("f32[9, 64]", "f32[9, 64]", tile=1).how == "call"
    assert _launched(runtime, framework, tuned, 4) == 1
    with pytest.raises(ArgumentError, match="no variant with tile=8"):
        tuned(*_arrays(framework, 4), tile=8)


def test_only_chosen_variants_are_preloaded(tuned: Any, runtime: Any) -> None:
    assert tuned.available()
    tuned.preload()
    chosen = sorted(
        (own.params["m"], own.params["tile"]) for own in tuned.selector.fitting(get_device(0))
    )
    assert chosen == [(3, 1), (4, 1), (9, 2)]
    tuned.prepare("f32[4, 64]", "f32[4, 64]")


def test_each_gpu_has_its_own_rows(framework: Any, runtime: Any, tmp_path: Path) -> None:
    runtime.devices(Device("9.0", name=H100), Device("9.0", name="NVIDIA H200"))
    measured = row(4, gpu="h200", device="NVIDIA H200")
    tuned = kernel(tmp_path, [item(4, 1, row(4)), item(4, 2, measured), item(4, 3)])
    tiles = []
    for device in (0, 1, 1, 0):
        runtime.clear_log()
        tuned(*_arrays(framework, 4, device))
        tiles.append(runtime.launches[0].grid[0])
    assert tiles == [1, 2, 2, 1]
    assert "measured for h200" in str(tuned.choice("f32[4, 64]", "f32[4, 64]", device=1))
    types = (("f32", (4, 64)),) * 2
    route = tuned.route(0, types)
    assert [own.params["tile"] for own in route.candidates] == [1, 2]
    assert route.is_only
    assert tuned.route(1, types) is route


def test_a_call_without_a_row_lists_the_rows(framework: Any, runtime: Any, tmp_path: Path) -> None:
    runtime.devices(Device("9.0", name="NVIDIA H200"))
    rows = [item(m, 1, row(m)) for m in range(1, 8)]
    tuned = kernel(tmp_path, [*rows, item(7, 2)])
    with pytest.raises(SelectionError) as caught:
        tuned(*_arrays(framework, 7))
    assert str(caught.value) == (
        "no row of the table of add is for m=7 on GPU 0 (NVIDIA H200, sm_90), and there is no "
        "default. Its rows for h100-sxm:\n"
        "  h100-sxm, m=1: tile=1\n"
        "  h100-sxm, m=2: tile=1\n"
        "  h100-sxm, m=3: tile=1\n"
        "  h100-sxm, m=4: tile=1\n"
        "  h100-sxm, m=5: tile=1\n"
        "  … and 2 more\n"
        "  Say what to use, by name: tile=1. Or tune the kernel on this GPU."
    )
    assert _launched(runtime, framework, tuned, 7, tile=2) == 2
    assert not tuned.available()
    assert "no row of the table" in tuned.available().reason


def test_what_no_array_shows_has_to_be_given(framework: Any, runtime: Any, tmp_path: Path) -> None:
    runtime.devices(Device("9.0", name=H100))
    tuned = kernel(
        tmp_path,
        [
            item(4, 1, row(4), more={"causal": False}),
            item(4, 2, more={"causal": False}),
            item(4, 1, row(4), more={"causal": True}),
        ],
    )
    with pytest.raises(SelectionError, match="2 variants of add fit") as caught:
        tuned(*_arrays(framework, 4))
    assert caught.value.hint == "Say which, by name: causal=False."
    assert _launched(runtime, framework, tuned, 4, causal=False) == 1


def test_programs_of_jax_and_c_have_the_variant_of_each_target_s_rows(tmp_path: Path) -> None:
    theirs = [item(4, 4, row(4, gpu="h200"), target="h200"), item(4, 1, target="h200")]
    tuned = kernel(tmp_path, [*ITEMS, *theirs])
    types = (("f32", (4, 64)),) * 2
    plans = jax_handlers._attributes(tuned, types)["plans"]
    assert [name[3:] for name in plans] == ["add[m=4,tile=1]@h100-sxm", "add[m=4,tile=4]@h200"]
    plans = jax_handlers._attributes(tuned.with_params({"tile": 2}), types)["plans"]
    assert [name[3:] for name in plans] == ["add[m=4,tile=2]@h100-sxm"]
    with bundle.open_bundle(tmp_path / "tuned.pallasc") as opened:
        (exported,) = export_c(
            opened, [*opened.entries()], tmp_path / "c", name="k", native=FOLDER, version="1"
        )
    assert {own.entry.id: own.chosen_by for own in exported.variants} == {
        "add[m=3,tile=1]@h100-sxm": "bucket",
        "add[m=4,tile=1]@h100-sxm": "row",
        "add[m=4,tile=4]@h200": "row",
        "add[m=9,tile=2]@h100-sxm": "default",
    }
    assert exported.left_out == 4
    without = kernel(tmp_path, [item(4, 1, row(3)), item(4, 2)])
    with pytest.raises(SelectionError, match="is for m=4 on target h100-sxm, and there is no"):
        jax_handlers._attributes(without, types)


def test_a_gpu_without_rows_rejects_calls_and_others_do_not(
    framework: Any, runtime: Any, tmp_path: Path
) -> None:
    runtime.devices(Device("9.0", name=H100), Device("9.0", name="NVIDIA H200"))
    tuned = kernel(tmp_path, [item(4, 1, row(4)), item(4, 2)])
    types = (("f32", (4, 64)),) * 2
    assert tuned.route(0, types).is_only
    with pytest.raises(SelectionError, match="no row of the table of add"):
        tuned(*_arrays(framework, 4, 1))
    assert _launched(runtime, framework, tuned, 4) == 1
