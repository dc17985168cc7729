"""What a call of XLA's handlers consists of: its plans in order, and how blobs are found later."""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made
import pytest

import pallasc
from pallasc.errors import CorruptError, SelectionError, ToolError, UnsupportedError
from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.matching.candidates import Origin, find_blob
from pallasc.runtime.opening import Kernels
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

TYPES = [("f32", (4, 64))] * 2


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give a JAX on the CPU, which a test may change."""
    fake = SimpleNamespace(default_backend=lambda: "cpu", local_devices=list)
    monkeypatch.setitem(sys.modules, "jax", fake)
    return fake


def kernel(*variants: tuple[dict[str, Any], str]) -> Any:
    """Return a kernel of variants with these parameters, for these models."""
    return Kernels([("made", params, made.add(target=target)) for params, target in variants])[
        "made"
    ]


def ids(kernel: Any) -> list[str]:
    plans = jax_handlers._attributes(kernel, TYPES)["plans"]
    assert [key[:3] for key in plans] == [f"{number:03}" for number in range(len(plans))]
    return [key[3:] for key in plans]


def test_plans_are_tried_newest_architecture_first() -> None:
    models = ("a100-sxm", "h100-sxm", "b200", "l40s")
    assert ids(kernel(*(({}, model) for model in models))) == [
        "made@b200", "made@h100-sxm", "made@l40s", "made@a100-sxm",
    ]  # fmt: skip


def test_the_model_that_jax_runs_on_goes_first(backend: SimpleNamespace) -> None:
    both = kernel(({}, "h100-pcie"), ({}, "h200"))
    assert ids(both) == ["made@h100-pcie", "made@h200"]
    name = both.variants[1].artifact.target.description
    backend.default_backend = lambda: "gpu"
    backend.local_devices = lambda: [SimpleNamespace(device_kind=name)]
    assert ids(both) == ["made@h200", "made@h100-pcie"]


def test_variants_that_differ_in_their_parameters_must_be_told_apart() -> None:
    several = kernel(({"tile": 64}, "h100-sxm"), ({"tile": 128}, "h100-sxm"))
    with pytest.raises(SelectionError, match="2 variants of made fit") as caught:
        ids(several)
    assert caught.value.hint == "Say which, by name: tile=64."
    assert ids(several.variant(tile=128)) == ["made[tile=128]@h100-sxm"]


def test_a_kernel_by_digest_has_small_plans_and_names_its_bundle_without_a_path() -> None:
    own = kernel(({}, "h100-sxm"))
    own.variants[0].origin = Origin("/somewhere/mylib/kernels.pallasc")
    inside = jax_handlers._attributes(own, TYPES)
    by_digest = jax_handlers._attributes(own.by_digest, TYPES)
    (whole,), (small,) = inside["plans"].values(), by_digest["plans"].values()
    assert (inside["origin"], by_digest["origin"]) == ("", "kernels.pallasc")
    assert len(small) < len(whole) / 2
    assert repr(small) == f"<{len(small)} bytes>"
    own.variants[0].origin = Origin("/somewhere/kernels.pallasc", "mylib 1.0", "mylib")
    assert jax_handlers._attributes(own.by_digest, TYPES)["origin"] == "mylib 1.0"


def test_blobs_are_found_in_open_kernels_only() -> None:
    artifact = made.add()
    digest, variant = artifact.kernels[0].cubin, "found_here@h100-sxm"
    opened = Kernels([("found_here", {}, artifact)])
    assert find_blob("found_here", variant, digest) == artifact.blob(digest)
    for names in (
        ("found_here", variant, "0" * 64),
        ("found_here", "found_here@b200", digest),
        ("elsewhere", variant, digest),
    ):
        assert find_blob(*names) is None
    single = opened["found_here"]
    del opened
    gc.collect()
    assert find_blob("found_here", variant, digest) == artifact.blob(digest)
    del single
    gc.collect()
    assert find_blob("found_here", variant, digest) is None


def test_a_damaged_bundle_is_told_where_no_other_has_the_blob(tmp_path: Path) -> None:
    artifact = made.add()
    digest, names = artifact.kernels[0].cubin, ("damaged_here", "damaged_here@h100-sxm")
    file = tmp_path / "kernels.pallasc"
    file.write_bytes(build_bundle([Item("damaged_here", {}, artifact)], keep_debug=True))
    opened = pallasc.open_bundle(file)
    assert find_blob(*names, digest) == artifact.blob(digest)
    with open_bundle(file) as bundle:
        (entry,) = bundle.entries()
        extents = [bundle.reader.row(n).extent for n in entry.blobs if n is not None]
    data = bytearray(file.read_bytes())
    data[extents[0].at + extents[0].size // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(CorruptError) as caught:
        find_blob(*names, digest)
    assert caught.value.message.startswith(f"{file} is damaged: ")
    passed = ctypes.c_void_p(), ctypes.c_size_t()
    asked = [name.encode() for name in (*names, digest)]
    assert jax_handlers._find(*asked, *map(ctypes.pointer, passed)) == jax_handlers._DAMAGED
    told = ctypes.string_at(passed[0].value or 0, passed[1].value).decode()
    assert told == caught.value.message
    other = Kernels([("damaged_here", {}, artifact)])
    assert find_blob(*names, digest) == artifact.blob(digest)
    del opened, other


def test_more_variants_than_a_call_takes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = kernel(({}, "h100-sxm"), ({}, "b200"))
    monkeypatch.setattr(jax_handlers, "MOST_PLANS", 1)
    with pytest.raises(UnsupportedError, match="made has 2 variants for these arrays, and a call"):
        ids(both)


@pytest.mark.parametrize("function", [pallasc.register_jax_handlers, pallasc.jax_export_checks])
def test_without_the_library_a_program_is_told_what_to_do(
    function: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_NATIVE", "0")
    monkeypatch.setattr(jax_handlers, "open_library", jax_handlers.open_library.__wrapped__)
    with pytest.raises(
        ToolError, match="JAX programs cannot launch kernels: the C library is switched off"
    ) as caught:
        function()
    assert caught.value.hint == "Unset it."
