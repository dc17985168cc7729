"""Small kernels at the artifact level, all checked by one run.

* Temporaries of XLA's share an allocation; an access past the end of one is out of its bounds.
* What is found in kernels of one artifact that share a name has the lines of each.
* Memory that nothing has written: who may read it.
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


def halved(x):
    return x.astype(jnp.bfloat16)

"""

HALVED = {"args": ["f32[64, 64]"], "reference": "kernels.py:halved"}
KERNELS: list[dict[str, Any]] = [
    {"name": "within", "reference": "kernels.py:added"},
    {"name": "past_the_end", "reference": "kernels.py:added"},
    {"name": "too_early"},
]
LATER: list[dict[str, Any]] = [
    {"name": "swapped", **HALVED},
    {"name": "old_is_used", **HALVED},
]
"""Kernels that are spelled for JAX 0.11 and later."""


@pytest.fixture(scope="module")
def source(checking: Any) -> str:
    return str(checking.KERNELS + MORE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any, source: str) -> dict[str, Any]:
    """Return results by kernel."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "kernels.py").write_text(source)
    kernels = KERNELS if OLD else [*KERNELS, *LATER]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    words = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    variants = checking.check(folder, *words).report["variants"]
    return {each["name"]: each["results"][0] for each in variants}


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
