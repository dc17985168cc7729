"""An assertion without words is shown with the values that it was about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pallasc.compiler.lowering.diagnose import failed_line


class Tiling:
    """Has what assertions of compilers are about."""

    def __init__(self) -> None:
        self.tiling = (8, 64)

    @property
    def broken(self) -> int:
        """Raise."""
        raise OSError


def _attributes() -> None:
    self, shape = Tiling(), (60, 64)
    assert all(d % t == 0 for d, t in zip(shape, self.tiling, strict=True))


def _nothing_to_say() -> None:
    thing = Tiling()
    assert len([thing, thing.broken.real]) < 0 if thing is None else None


def _no_assertion() -> None:
    size = 3
    raise ValueError(*[size][1:])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            _attributes,
            "assert all(d % t == 0 for d, t in zip(shape, self.tiling, strict=True)), "
            "where shape = (60, 64), self.tiling = (8, 64)",
        ),
        (_nothing_to_say, "assert len([thing, thing.broken.real]) < 0 if thing is None else None"),
        (_no_assertion, "raise ValueError(*[size][1:])"),
    ],
)
def test_a_failed_line_is_shown_with_the_values_of_its_names(
    function: Callable[[], Any], text: str
) -> None:
    with pytest.raises((AssertionError, ValueError)) as caught:
        function()
    assert failed_line(caught.value) == text
    assert failed_line(AssertionError()) == "no message"
