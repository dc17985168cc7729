"""Limits and headers of the C library: documented; they compile alone."""

import re
import shutil
from pathlib import Path

import c_exports
import pytest

from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.native.library import FOLDER

PAGE = Path(__file__).resolve().parents[3] / "docs" / "native.md"
DEVICES = 64


def _constants(file: str) -> dict[str, int]:
    """Return the limits that a source defines, by name without FLAT_."""
    text = (FOLDER / file).read_text()
    found = re.findall(r"\b(?:FLAT_)?(MOST_\w+)(?: =)? (\d+)u?\b(?! <<)", text)
    return {name: int(number) for name, number in found}


def test_the_page_says_the_limits_of_the_sources() -> None:
    plan = _constants("flat_plan.h")
    fast, xla = _constants("python.c"), _constants("xla.c")
    assert _constants("plan.h")["MOST_DEVICES"] == DEVICES
    assert xla["MOST_PLANS"] == jax_handlers.MOST_PLANS
    text = PAGE.read_text("utf-8")
    for said in (
        f"GPUs 0 to {DEVICES - 1} of a process",
        f"{xla['MOST_PLANS']} plans in one call",
        f"{plan['MOST_ARRAYS']:,} arrays, {plan['MOST_KERNELS']:,} kernels, "
        f"{plan['MOST_BLOBS']:,} cubins and constants, {plan['MOST_PARAMETERS']:,} parameters of "
        f"{plan['MOST_PARAMETER_BYTES']:,} bytes",
        f"GPUs 0 to {fast['MOST_DEVICES'] - 1}, {fast['MOST_ARRAYS'] - 2} arrays",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("compiler", "standard", "header", "more"),
    [
        # In the format no byte may lie between fields: what a compiler adds is not in the grammar.
        ("cc", "c11", "flat_plan.h", ["-x", "c", "-Wpadded"]),
        ("c++", "c++11", "include/pallasc.h", ["-x", "c++"]),
    ],
)
def test_a_header_compiles_alone(
    compiler: str, standard: str, header: str, more: list[str]
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on the PATH")
    flags = [f"-std={standard}", *c_exports.WARNINGS, "-fsyntax-only", *more]
    c_exports.run([compiler, *flags, FOLDER / header])
