"""Kernels from bundles: read when they are needed, chosen from the manifest, launched."""

import gc
import os
from pathlib import Path
from typing import Any

import made
import pytest
from bundle_files import write_bundle

import pallasc
from pallasc.errors import ArgumentError, CorruptError, SpecError
from pallasc.runtime.device.devices import active, get_device
from pallasc.runtime.matching.candidates import Origin
from pallasc.runtime.opening import BundleFile, Bundles, Kernels
from pallasc.specs.bundle.signature import Policy


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "kernels.pallasc", columns=(64, 128))


def test_a_bundle_is_opened_and_launched(bundle: Path, framework: made.Framework) -> None:
    with pallasc.open_bundle(bundle) as kernels:
        assert list(kernels) == ["add"]
        assert len(kernels) == 1
        assert "add" in kernels
        assert "sub" not in kernels
        assert 3 not in kernels
        a, b = (framework.tensor("f32[4, 128]") for _ in range(2))
        out = kernels["add"](a, b)
        assert (out.dtype, out.shape) == ("f32", (4, 128))
        kernels.preload(0)


def test_names_and_variants_say_where_they_come_from(bundle: Path) -> None:
    kernels = pallasc.open_bundle(str(bundle))
    assert repr(kernels) == f"<Kernels add from {bundle}>"
    assert kernels.origins == (Origin(str(bundle)),)
    (first,) = [own for own in kernels["add"].variants if own.id == "add[n=64]@b200"]
    assert repr(first) == f"<Variant add[n=64]@b200 (sm_100a) from {bundle}>"
    assert first.origin == Origin(str(bundle))
    assert repr(Kernels()) == "<Kernels none>"
    assert repr(made.kernel(made.add()).variants[0]) == "<Variant made@h100-sxm (sm_90a)>"


def test_an_unknown_kernel_is_refused_with_the_nearest(bundle: Path) -> None:
    kernels = pallasc.open_bundle(bundle)
    for name in ("add\0h100-sxm", ""):
        with pytest.raises(ArgumentError, match="there is no kernel"):
            kernels[name]
    assert kernels.get("ad") is None
    with pytest.raises(ArgumentError) as caught:
        kernels["ad"]
    assert caught.value.message == f"there is no kernel 'ad' in {bundle}."
    assert caught.value.hint == "Did you mean 'add'?"


def _add(kernels: Kernels, framework: made.Framework, device: int) -> None:
    a, b = (framework.tensor("f32[4, 64]", device=device) for _ in range(2))
    with active(get_device(device)):
        kernels["add"](a, b)


def test_each_gpu_reads_its_own_variant_only(
    tmp_path: Path, framework: made.Framework, runtime: Any
) -> None:
    runtime.devices("9.0", "8.0")
    path = write_bundle(tmp_path / "k.pallasc", "h100-sxm", "a100-sxm", "b200")
    variants = (kernels := pallasc.open_bundle(path))["add"].variants
    assert {own.arrays for own in variants} == {(("f32", (4, 64)), ("f32", (4, 64)))}
    assert not any("artifact" in vars(own) for own in variants)
    for device in (0, 1, 0, 1, 1, 0):
        _add(kernels, framework, device)
    assert [launch.device for launch in runtime.launches] == [0, 1, 0, 1, 1, 0]
    read = {own.target for own in variants if "artifact" in vars(own)}
    assert read == {"h100-sxm", "a100-sxm"}


def test_a_file_cut_off_while_open_is_an_error(bundle: Path, framework: made.Framework) -> None:
    kernels = pallasc.open_bundle(bundle)
    assert kernels["add"].variants
    os.truncate(bundle, 200)
    with pytest.raises(CorruptError, match=r"kernels\.pallasc is damaged: it was cut off"):
        kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_replaced_while_open_is_read(
    bundle: Path, framework: made.Framework, change: str
) -> None:
    kernels = pallasc.open_bundle(bundle)
    if change == "removed":
        bundle.unlink()
    else:
        write_bundle(bundle, "b200", name="other")
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


def test_after_close_only_what_is_loaded_runs(bundle: Path, framework: made.Framework) -> None:
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    with pallasc.open_bundle(bundle) as kernels:
        kernels["add"].into(a, b, out=out)
    kernels.close()
    other = framework.tensor("f32[4, 64]")
    assert kernels["add"].into(a, b, out=other) is other
    with pytest.raises(SpecError, match=r"kernels\.pallasc is closed"):
        kernels["add"].prepare("f32[4, 128]", "f32[4, 128]")


def test_many_opens_leave_no_descriptor(bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pallasc"
    broken.write_bytes(bundle.read_bytes()[:-1])
    gc.collect()  # what earlier tests left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert len(pallasc.open_bundle(bundle)["add"].variants) == 8
        with pytest.raises(CorruptError):
            pallasc.open_bundle(broken)
        found = [BundleFile(Origin(str(path)), path) for path in (bundle, broken)]
        with pytest.raises(CorruptError):
            Bundles(found, Policy())
    gc.collect()  # a kernel that was asked for refers to itself
    assert len(os.listdir("/proc/self/fd")) == before
