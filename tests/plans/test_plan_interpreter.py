"""The interpreter of plans does what steps say, and refuses what memory does not have."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Pointer,
    Step,
)

_INTERPRETER = runpy.run_path(str(Path(__file__).parent / "plan_interpreter.py"))
PATTERN: int = _INTERPRETER["PATTERN"]

SIZE = 8
BUFFERS = (
    Buffer("input", SIZE),
    Buffer("output", SIZE),
    Buffer("constant", SIZE, digest="c"),
    Buffer("temporary", SIZE),
)
BLOBS = {"c": bytes(range(8))}
GIVEN = bytes(range(10, 18))
COPY_OUT = Copy(3, 0, 1, 0, SIZE)


def plan(*steps: Step) -> LaunchPlan:
    """Return a plan of one input, one output, a constant and a temporary of 8 bytes each."""
    return LaunchPlan(
        buffers=BUFFERS,
        inputs=(Binding("x", "u8", (SIZE,), 0),),
        outputs=(Binding("", "u8", (SIZE,), 1),),
        steps=steps,
        input_tree=[0],
        output_tree=0,
    )


def add_one(memory: Any, step: Launch) -> None:
    """Write the first parameter's bytes plus one where the second points."""
    source, target = (parameter for parameter in step.parameters if isinstance(parameter, Pointer))
    read = memory.read(source.buffer, source.offset, 4)
    memory.write(target.buffer, target.offset, bytes(byte + 1 for byte in read))


def launch(*parameters: Pointer) -> Launch:
    """Return a launch with these parameters."""
    return Launch("k", "d", (1, 1, 1), None, (32, 1, 1), 0, False, parameters)


def run(*steps: Step) -> bytes:
    """Return the output of a plan with these steps."""
    output: bytes
    (output,) = _INTERPRETER["run_plan"](plan(*steps), [GIVEN], BLOBS, add_one)
    return output


def test_what_nothing_writes_is_a_pattern() -> None:
    assert run() == bytes([PATTERN] * SIZE)
    assert run(COPY_OUT) == bytes([PATTERN] * SIZE)


def test_a_missing_fill_shows() -> None:
    fill = Fill(3, 0, SIZE)
    assert run(fill, COPY_OUT) == bytes(SIZE)
    assert run(COPY_OUT) != run(fill, COPY_OUT)
    assert run(COPY_OUT, fill) != run(fill, COPY_OUT)


def test_a_fill_writes_its_words_into_its_range() -> None:
    assert run(Fill(1, 4, 4, 0x01020304, 4)) == bytes([PATTERN] * 4 + [4, 3, 2, 1])
    assert run(Fill(1, 2, 3, 7, 1)) == bytes([PATTERN, PATTERN, 7, 7, 7, *[PATTERN] * 3])


def test_a_copy_moves_its_bytes() -> None:
    assert run(Copy(2, 1, 1, 5, 3)) == bytes([PATTERN] * 5 + [1, 2, 3])


def test_a_launch_gets_what_its_parameters_say() -> None:
    assert run(launch(Pointer(0, 4), Pointer(1, 0))) == bytes([15, 16, 17, 18] + [PATTERN] * 4)
    assert run(launch(Pointer(2, 0), Pointer(1, 4))) == bytes([PATTERN] * 4 + [1, 2, 3, 4])


@pytest.mark.parametrize("step", [
    Fill(1, 4, 8), Copy(2, 6, 1, 0, 4), Copy(2, 0, 1, 6, 4), Fill(1, -4, 4),
    launch(Pointer(0, 6), Pointer(1, 0)),
])  # fmt: skip
def test_bytes_that_a_buffer_does_not_have_are_refused(step: Step) -> None:
    with pytest.raises(IndexError, match="bytes"):
        run(step)


@pytest.mark.parametrize("buffer", [0, 2])
def test_inputs_and_constants_are_not_written(buffer: int) -> None:
    with pytest.raises(ValueError, match=f"buffer {buffer} is written"):
        run(Fill(buffer, 0, 4))
