"""The driver that a cubin needs: of its toolkit, or of its architecture where that is newer."""

from __future__ import annotations

import pytest

from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import minimum_driver


@pytest.mark.parametrize(
    ("toolkit", "sm", "cuda", "linux"),
    [
        ("12.9", 80, "12.0", "525.60.13"),
        ("12.9", 100, "12.8", "570.26"),
        ("12.9", 103, "12.9", "575.51.03"),
        ("13.0", 80, "13.0", "580.65.06"),
        ("13.5", 110, "13.0", "580.65.06"),
    ],
)
def test_minimum_driver(toolkit: str, sm: int, cuda: str, linux: str) -> None:
    assert minimum_driver(toolkit=toolkit, sm=sm) == {"cuda": cuda, "linux": linux}


@pytest.mark.parametrize("toolkit", ["11.8", "14.0", ""])
def test_a_toolkit_that_was_not_tested_is_refused(toolkit: str) -> None:
    with pytest.raises(CompileError, match=f"CUDA toolkit {toolkit or 'unknown'}; tested are 12"):
        minimum_driver(toolkit=toolkit, sm=90)
