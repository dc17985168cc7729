"""Temporaries of XLA's share an allocation; an access past the end of one is out of its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MORE = """

def temporaries(x):
    return jnp.sort(x), jnp.sort(-x), jnp.sort(x * x)


def summed(x, start):
    def body(a, b, c, o, bar, smem):
        first = jax.lax.axis_index("g") + start
        o[...] = a[pl.ds(first, 128)] + b[pl.ds(first, 128)] + c[pl.ds(first, 128)]  # the loads

    return kernel(body)(*temporaries(x))


def within(x):
    return summed(x, 0)


def past_the_end(x):
    return summed(x, 64)


def before_the_start(x):
    return summed(x, -64)


def array_and_part(x):
    def body(a, b, o, bar, smem):
        o[...] = a[pl.ds(128, 128)] + b[pl.ds(0, 128)]

    a = jnp.sort(jnp.concatenate([x, -x]))
    return kernel(body)(a, a[128:]) / 2


def added(x):
    return sum(temporaries(x))


def part(x):
    return jnp.sort(jnp.concatenate([x, -x]))[128:]
"""
REFERENCES = {"within": "added", "past_the_end": "added", "before_the_start": "added"}
REFERENCES |= {"array_and_part": "part"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder: Path = tmp_path_factory.mktemp("bounds")
    (folder / "kernels.py").write_text(checking.KERNELS + MORE)
    kernels = [
        {"name": name, "reference": f"kernels.py:{reference}"}
        for name, reference in REFERENCES.items()
    ]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    words = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    return checking.check(folder, *words).results


@pytest.mark.parametrize("name", ["within", "array_and_part"])
def test_temporaries_and_parts_of_them_are_read_to_their_ends(name: str, results: Any) -> None:
    assert results[name]["status"] == "passed", results[name]


@pytest.mark.parametrize("name", ["past_the_end", "before_the_start"])
def test_a_temporary_is_not_read_where_it_ends_or_before_it(
    name: str, results: Any, checking: Any
) -> None:
    (finding,) = results[name]["findings"]
    assert finding["rule"] == "out-of-bounds"
    lines = (checking.KERNELS + MORE).splitlines()
    (line,) = [n for n, each in enumerate(lines, 1) if each.endswith("# the loads")]
    assert finding["location"]["line"] == line
    print(finding["message"])
