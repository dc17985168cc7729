"""What a call of XLA's handlers consists of: its plans in order, and how blobs are found later."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import made
import pytest

import pallasc
from pallasc.errors import SelectionError, ToolError
from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.matching import known
from pallasc.runtime.matching.candidates import Origin
from pallasc.runtime.opening import Kernels

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
    name = both.variants[1].artifact.target["description"]
    backend.default_backend = lambda: "gpu"
    backend.local_devices = lambda: [SimpleNamespace(device_kind=name)]
    assert ids(both) == ["made@h200", "made@h100-pcie"]


def test_variants_that_differ_in_their_parameters_must_be_told_apart() -> None:
    several = kernel(({"tile": 64}, "h100-sxm"), ({"tile": 128}, "h100-sxm"))
    with pytest.raises(SelectionError, match="2 variants of made fit") as caught:
        ids(several)
    assert caught.value.hint == "Say which, by name: tile=64."
    assert ids(several.variant(tile=128)) == ["made[tile=128]@h100-sxm"]


def test_parameters_may_differ_between_architectures() -> None:
    each = kernel(({"tile": 64}, "h100-sxm"), ({"tile": 128}, "b200"))
    assert ids(each) == ["made[tile=128]@b200", "made[tile=64]@h100-sxm"]


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


def test_what_stands_for_a_kernel_by_digest_is_by_digest_too() -> None:
    own, other = kernel(({}, "h100-sxm")), kernel(({}, "h100-sxm"))
    assert own.rules.batched_form_of(own) is None
    own.defvmap()
    assert own.rules.batched_form_of(own.by_digest) is own.by_digest
    own.defvmap(other)
    assert own.rules.batched_form_of(own) is other
    by_digest = own.rules.batched_form_of(own.by_digest)
    assert by_digest.variants == other.variants
    assert by_digest.is_by_digest


def test_declarations_hold_for_what_is_made_of_a_kernel() -> None:
    own = kernel(({"tile": 64}, "h100-sxm"))
    made_before = own.variant(tile=64), own.unchecked, own.by_digest
    own.defvjp(len)
    made_of_it = *made_before, own.variant(tile=64).unchecked, own.by_digest.unchecked
    assert all(other.rules.backward is len for other in made_of_it)
    assert own.by_digest.unchecked.is_by_digest
    assert not own.unchecked.by_digest.checks


def test_blobs_are_found_in_open_kernels_only() -> None:
    artifact = made.add()
    digest = artifact.kernels[0].cubin
    variant = "found_here@h100-sxm"
    opened = Kernels([("found_here", {}, artifact)])
    assert known.find_blob("found_here", variant, digest) == artifact.blob(digest)
    assert known.find_blob("found_here", variant, "0" * 64) is None
    assert known.find_blob("found_here", "found_here@b200", digest) is None
    assert known.find_blob("elsewhere", variant, digest) is None
    single = opened["found_here"]
    del opened
    gc.collect()
    assert known.find_blob("found_here", variant, digest) == artifact.blob(digest)
    del single
    gc.collect()
    assert known.find_blob("found_here", variant, digest) is None


def test_without_the_library_registering_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALLASC_NATIVE", "0")
    monkeypatch.setattr(jax_handlers, "open_library", jax_handlers.open_library.__wrapped__)
    with pytest.raises(ToolError, match="programs of JAX cannot launch kernels by themselves"):
        pallasc.register_jax_handlers()
