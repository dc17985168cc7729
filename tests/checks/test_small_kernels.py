"""Small kernels at the artifact level, all checked by one run.

* Temporaries of XLA's share an allocation; an access past the end of one is out of its bounds.
* What is found in kernels of one artifact that share a name has the lines of each.
* Memory that nothing has written: who may read it, and results that depend on it.
* A barrier without `orders_tensor_core=True` between accesses to tensor memory is a race.
* Each model has room for as many blocks as it has multiprocessors.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

OLD = metadata.version("jax").startswith("0.10.")
spelled_for_later = pytest.mark.skipif(OLD, reason="the kernels are written for JAX 0.11")

MORE = """

def temporaries(x):
    return jnp.sort(x), jnp.sort(-x), jnp.sort(x * x)


def summed(x, start):
    def body(a, b, c, o, bar, smem):
        first = jax.lax.axis_index("i") + start
        o[...] = a[pl.ds(first, 128)] + b[pl.ds(first, 128)] + c[pl.ds(first, 128)]  # the loads

    return kernel(body)(*temporaries(x))


def within(x):
    return summed(x, 0)


def past_the_end(x):
    return summed(x, 64)


def added(x):
    return sum(temporaries(x))


def too_early(x):
    def first(x):
        def body(x, o, bar, smem):
            smem[...] = jnp.zeros((128,), jnp.float32)
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(x, smem, bar)
            o[...] = smem[...]  # FIRST
            plgpu.barrier_wait(bar)

        return kernel(body)(x)

    def second(x):
        def body(x, o, bar, smem):
            smem[...] = jnp.ones((128,), jnp.float32)
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(x, smem, bar)
            o[...] = smem[...] + smem[...]  # SECOND
            plgpu.barrier_wait(bar)

        return kernel(body)(x)

    return second(first(x))


TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


def through_tiles(fill):
    def body(x, o, tiles):
        value = plgpu.load(x, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.bfloat16)
        fill(tiles, value)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tiles, o)
        plgpu.wait_smem_to_gmem(0)

    memory = [plgpu.SMEM((64, 64), jnp.bfloat16, transforms=TILED)]
    options = {"dtype": jnp.bfloat16, "memory": memory, "compiler_params": LANE}
    return lambda x: run(body, x, shape=(64, 64), **options)


def swapped(x):
    def fill(tiles, value):
        tiles[...] = value  # JAX lowers it to a swap, whose old value nobody uses

    return through_tiles(fill)(x)


def old_is_used(x):
    def fill(tiles, value):
        old = plgpu.load(tiles, layout=plgpu.Layout.WGMMA)
        tiles[...] = value + old * 0  # OLD

    return through_tiles(fill)(x)


def half_of_ones(x):
    def body(x, o):
        o[pl.ds(0, 128)] = jnp.full((128,), -1, jnp.int32)

    return run(body, x, shape=(256,), dtype=jnp.int32)


def meeting(x):
    def body(x, o, fills):
        i = lax.axis_index("i")
        met = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(met, 1)
        pl.semaphore_wait(met, 152, decrement=False)
        o[i] = x[...]

    return run(body, x, shape=(152, 128), memory=[plgpu.SMEM((48 * 1024,), jnp.float32)], grid=152)


def halved(x):
    return x.astype(jnp.bfloat16)


def ones(x):
    return jnp.full((256,), -1, jnp.int32)


def rows(x):
    return jnp.tile(x, (152, 1))


def loaded(a, b, orders):
    def body(a, b, o, a_smem, b_smem, acc, full, done, free):
        @pl.when(jax.lax.axis_index("wg") == 0)
        def _():
            plgpu.copy_gmem_to_smem(a, a_smem, full)
            plgpu.copy_gmem_to_smem(b, b_smem, full)
            plgpu.barrier_wait(full)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)
            plgpu.barrier_wait(free)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)  # the second product

        @pl.when(jax.lax.axis_index("wg") == 1)
        def _():
            plgpu.barrier_wait(done)
            o[pl.ds(0, 128)] = plgpu.async_load_tmem(acc)  # the load
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(free)
            plgpu.barrier_wait(done)
            o[pl.ds(128, 128)] = plgpu.async_load_tmem(acc)

    memory = [
        plgpu.SMEM((128, 64), jnp.float16, transforms=TILED),
        plgpu.SMEM((64, 128), jnp.float16, transforms=TILED),
        plgpu.TMEM((128, 128), jnp.float32),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(orders_tensor_core=True),
        plgpu.Barrier(orders_tensor_core=orders),
    ]
    return run(body, a, b, shape=(256, 128), memory=memory, num_threads=2, thread_name="wg")


def loaded_in_order(a, b):
    return loaded(a, b, True)


def loaded_too_early(a, b):
    return loaded(a, b, False)


def two(a, b):
    return jnp.concatenate([jnp.dot(a, b, preferred_element_type=jnp.float32)] * 2)
"""

HALVED = {"args": ["f32[64, 64]"], "reference": "kernels.py:halved"}
PRODUCT = {
    "args": ["f16[128, 64]", "f16[64, 128]"],
    "reference": "kernels.py:two",
    "tolerance": {"atol": 0.01},
    "targets": ["sm_100a"],
}
KERNELS: list[dict[str, Any]] = [
    {"name": "within", "reference": "kernels.py:added"},
    {"name": "past_the_end", "reference": "kernels.py:added"},
    {"name": "too_early"},
]
LATER: list[dict[str, Any]] = [
    {"name": "swapped", **HALVED},
    {"name": "old_is_used", **HALVED},
    {"name": "half_of_ones", "reference": "kernels.py:ones"},
    {"name": "meeting", "reference": "kernels.py:rows", "targets": ["gb200", "b200"]},
    {"name": "loaded_in_order", **PRODUCT},
    {"name": "loaded_too_early", **PRODUCT},
]
"""Kernels that are spelled for JAX 0.11 and later."""


@pytest.fixture(scope="module")
def source(checking: Any) -> str:
    return str(checking.KERNELS + MORE)


@pytest.fixture(scope="module")
def all_results(
    tmp_path_factory: pytest.TempPathFactory, checking: Any, source: str
) -> dict[tuple[str, str], Any]:
    """Return results by kernel and target."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "kernels.py").write_text(source)
    kernels = KERNELS if OLD else [*KERNELS, *LATER]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    words = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    variants = checking.check(folder, *words).report["variants"]
    return {(each["name"], each["target"]): each["results"][0] for each in variants}


@pytest.fixture(scope="module")
def results(all_results: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Return results by kernel."""
    return {name: result for (name, _), result in all_results.items()}


def line_of(text: str, source: str) -> int:
    """Return the only line with a text."""
    (number,) = [n for n, each in enumerate(source.splitlines(), 1) if text in each]
    return number


def test_a_temporary_is_read_to_its_end_and_not_further(results: Any, source: str) -> None:
    assert results["within"]["status"] == "passed", results["within"]
    (finding,) = results["past_the_end"]["findings"]
    assert finding["rule"] == "out-of-bounds"
    assert finding["location"]["line"] == line_of("# the loads", source)


def test_a_finding_in_each_kernel_of_one_name_has_its_line(results: Any, source: str) -> None:
    told = [each for each in results["too_early"]["findings"] if each["rule"] == "race"]
    assert len({each["kernel"] for each in told}) == 1
    cubins: dict[str, set[int]] = {}
    for each in told:
        places = (each["location"], *(place["location"] for place in each["places"]))
        cubins.setdefault(each["cubin"], set()).update(at["line"] for at in places if at)
    assert len(cubins) == 2
    for text, other in (("FIRST", "SECOND"), ("SECOND", "FIRST")):
        line = line_of(text, source)
        (own,) = [lines for lines in cubins.values() if line in lines]
        assert line_of(other, source) not in own
        at = {each["location"]["line"] for each in told}
        assert at & {line - 1, line}  # the copy, or the access that does not wait for it


def test_a_wrong_number_names_what_the_kernel_before_has_made_of_it(
    results: Any, source: str
) -> None:
    found = results["too_early"]["findings"]
    (finding,) = [each for each in found if each["rule"] == "wrong-numbers"]
    first, second = (line_of(text, source) for text in ("FIRST", "SECOND"))
    assert finding["location"]["line"] == second
    lines: dict[bool, set[int]] = {True: set(), False: set()}
    for place in finding["places"]:
        if place["text"].startswith("the value comes from"):
            assert place["cubin"] != finding["cubin"]
            lines[bool(place["cubin"])].add(place["location"]["line"])
    assert lines[False] <= {second - 3, second - 1, second}
    assert lines[True] <= {first - 3, first - 1, first}
    assert second - 1 in lines[False]
    assert {first - 1, first} <= lines[True]


@spelled_for_later
def test_the_load_of_a_swap_whose_old_value_nobody_uses_is_no_fault(results: Any) -> None:
    result = results["swapped"]
    assert (result["status"], result["findings"]) == ("passed", []), result


@spelled_for_later
def test_an_old_value_that_is_used_is_an_uninitialized_read(results: Any, source: str) -> None:
    findings = results["old_is_used"]["findings"]
    assert {finding["rule"] for finding in findings} == {"uninitialized-read"}
    line = line_of("  # OLD", source)
    assert {f["location"]["line"] for f in findings} & {line - 1, line}


@spelled_for_later
def test_integers_that_nothing_wrote_are_found_even_where_they_would_be_right(
    results: Any,
) -> None:
    """The bytes of memory that nothing wrote are all ones in the first schedule."""
    (finding,) = results["half_of_ones"]["findings"]
    assert finding["rule"] == "uninitialized-read"
    assert "out[128] depends on memory that was never written" in finding["message"]


@spelled_for_later
def test_as_many_blocks_meet_as_the_model_has_multiprocessors(all_results: Any) -> None:
    assert all_results["meeting", "gb200"]["status"] == "passed", all_results["meeting", "gb200"]
    (finding,) = all_results["meeting", "b200"]["findings"]
    assert finding["rule"] == "deadlock"


@spelled_for_later
def test_a_barrier_that_does_not_order_the_tensor_core_is_found(results: Any, source: str) -> None:
    assert results["loaded_in_order"]["status"] == "passed", results["loaded_in_order"]
    (finding,) = results["loaded_too_early"]["findings"]
    assert finding["rule"] == "race"
    assert "the load and the tcgen05.mma that overwrites" in finding["message"]
    assert "orders_tensor_core=True" in finding["message"]
    assert finding["location"]["line"] == line_of("the second product", source)
