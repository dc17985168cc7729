"""Kernels of one artifact that share a name: what is found in each has the lines of each."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.checks.findings import Finding, Place
from pallasc.checks.locate import with_lines
from pallasc.compiler.lowering.user_lines import LineTable
from pallasc.errors import Location

MORE = """

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
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> list[Any]:
    """Return the findings in two kernels that share a name."""
    folder = tmp_path_factory.mktemp("one_name")
    (folder / "kernels.py").write_text(checking.KERNELS + MORE)
    (folder / "spec.yaml").write_text(checking.spec_of({"name": "too_early"}))
    arguments = ("spec.yaml", "--json", "--schedules", "1", "--level")
    return checking.check(folder, *arguments, "artifact").results["too_early"]["findings"]


def line_of(text: str, checking: Any) -> int:
    """Return the only line of the kernels with a text."""
    lines = (checking.KERNELS + MORE).splitlines()
    (number,) = [n for n, each in enumerate(lines, 1) if text in each]
    return number


def test_a_finding_in_each_of_them_has_its_line(found: list[Any], checking: Any) -> None:
    told = [each for each in found if each["rule"] == "race"]
    assert len({each["kernel"] for each in told}) == 1
    cubins: dict[str, set[int]] = {}
    for each in told:
        places = (each["location"], *(place["location"] for place in each["places"]))
        cubins.setdefault(each["cubin"], set()).update(at["line"] for at in places if at)
    assert len(cubins) == 2
    for text, other in (("FIRST", "SECOND"), ("SECOND", "FIRST")):
        line = line_of(text, checking)
        (own,) = [lines for lines in cubins.values() if line in lines]
        assert line_of(other, checking) not in own
        at = {each["location"]["line"] for each in told}
        assert at & {line - 1, line}  # the copy, or the access that does not wait for it


def test_a_wrong_number_names_what_the_kernel_before_has_made_of_it(
    found: list[Any], checking: Any
) -> None:
    (finding,) = [each for each in found if each["rule"] == "wrong-numbers"]
    first, second = (line_of(text, checking) for text in ("FIRST", "SECOND"))
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


def test_places_of_other_kernels_have_the_lines_of_those() -> None:
    tables = {
        (cubin, name): LineTable(((Location(f"{cubin}{name}.py", 1),),), (1,))
        for cubin in "ab"
        for name in "kl"
    }
    places = (
        Place("own", ptx_line=1),
        Place("same name", ptx_line=1, kernel="k", cubin="b"),
        Place("same cubin", ptx_line=1, kernel="l"),
        Place("unknown", ptx_line=1, kernel="k", cubin="c"),
    )
    finding = Finding(rule="race", message="", kernel="k", cubin="a", ptx_line=1, places=places)
    located = with_lines(finding, tables)
    files = [at and at.file for at in (located.location, *(p.location for p in located.places))]
    assert files == ["ak.py", "ak.py", "bk.py", "al.py", None]
