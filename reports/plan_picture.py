"""A launch plan as a picture: a lane for each buffer, a row for each step that touches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pallasc.reports.words import by
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.plan import (
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Peers,
    Pointer,
    Step,
)

LANE = 22
ROW = 30
MOST_STEPS = 200
"""Maximum number of steps drawn; a plan may have thousands, from loops with a known trip count."""
MOST_LANES = 60
"""Maximum number of buffers drawn."""


class Lane(NamedTuple):
    """A buffer: its number, how it is used, and its position in the picture."""

    number: int
    role: str
    size: int
    arrays: tuple[str, ...]
    x: int
    first: int
    last: int


class Row(NamedTuple):
    """A step: its kind, the buffers that it touches, and its position in the picture.

    `touches` are lane positions; `reads` are those that are only read, as far as the plan shows.
    """

    number: int
    kind: str
    title: str
    detail: str
    touches: tuple[int, ...]
    reads: tuple[int, ...]
    y: int


class PlanPicture(NamedTuple):
    """All lanes and rows, and the numbers of steps and buffers omitted for lack of space."""

    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    hidden_steps: int
    hidden_buffers: int

    @property
    def width(self) -> int:
        """Width of the lanes in pixels."""
        return LANE * max(1, len(self.lanes))

    @property
    def height(self) -> int:
        """Height of the rows in pixels."""
        return ROW * max(1, len(self.rows))


def draw_plan(plan: LaunchPlan) -> PlanPicture:
    """Return the picture of a plan; lanes in the order of inputs, temporaries, outputs."""
    shown = plan.steps[:MOST_STEPS]
    order = _order(plan)
    position = {number: at for at, number in enumerate(order[:MOST_LANES])}
    rows = tuple(_row(number, step, position, plan) for number, step in enumerate(shown))
    lanes = tuple(
        _lane(number, at, plan, [row.number for row in rows if at in row.touches])
        for number, at in position.items()
    )
    return PlanPicture(lanes, rows, len(plan.steps) - len(shown), len(order) - len(position))


def _order(plan: LaunchPlan) -> list[int]:
    ranks = {"input": 0, "constant": 1, "temporary": 2, "output": 3}
    numbers = range(len(plan.buffers))
    return sorted(numbers, key=lambda number: (ranks[plan.buffers[number].role], number))


def _lane(number: int, at: int, plan: LaunchPlan, used: list[int]) -> Lane:
    buffer: Buffer = plan.buffers[number]
    arrays = tuple(
        f"{binding.path}: {array_text(binding.dtype, binding.shape, binding.layout)}".lstrip(": ")
        for binding in (*plan.inputs, *plan.outputs)
        if binding.buffer == number
    )
    first, last = (min(used), max(used)) if used else (0, -1)
    return Lane(
        number, buffer.role, buffer.size, arrays, at * LANE + LANE // 2, first * ROW, last * ROW
    )


def _row(number: int, step: Step, position: dict[int, int], plan: LaunchPlan) -> Row:
    touched, read = list(dict.fromkeys(_touched(step))), set(_read(step, plan))
    at = {buffer: position[buffer] for buffer in touched if buffer in position}
    return Row(
        number,
        step.origin if isinstance(step, Launch) else type(step).__name__.lower(),
        _title(step),
        _detail(step),
        tuple(sorted(at.values())),
        tuple(sorted(at[buffer] for buffer in at if buffer in read)),
        number * ROW + ROW // 2,
    )


def _touched(step: Step) -> Iterator[int]:
    """Yield the buffers that a step reads or writes."""
    if isinstance(step, Fill):
        yield step.buffer
    elif isinstance(step, Copy):
        yield from (step.source, step.target)
    else:
        for parameter in step.parameters:
            if isinstance(parameter, Pointer):
                yield parameter.buffer
            elif isinstance(parameter, Bytes):
                yield from (each.buffer for _, each in parameter.tensor_maps)
            elif isinstance(parameter, Peers) and step.peer_table is not None:
                yield from (buffer for buffer, _ in step.peer_table.arrays)


def _read(step: Step, plan: LaunchPlan) -> Iterator[int]:
    """Yield the buffers that a step is known to only read: sources of copies, constants, inputs.

    A plan does not show how a kernel uses an address, but inputs that are not outputs never change.
    """
    if isinstance(step, Copy):
        yield step.source
    elif isinstance(step, Launch):
        written = {binding.buffer for binding in plan.outputs}
        for buffer in _touched(step):
            role = plan.buffers[buffer].role
            if role == "constant" or (role == "input" and buffer not in written):
                yield buffer


def _title(step: Step) -> str:
    if isinstance(step, Fill):
        return f"fill {step.size:,} bytes with {step.value:#x}"
    if isinstance(step, Copy):
        return f"copy {step.size:,} bytes"
    return step.kernel


def _detail(step: Step) -> str:
    if not isinstance(step, Launch):
        return ""
    dims = [f"grid {by(step.grid)}", f"block {by(step.block)}"]
    if step.cluster is not None:
        dims.append(f"cluster {by(step.cluster)}")
    dims.append(f"{step.dynamic_smem_bytes:,} bytes of shared memory")
    return ", ".join([*dims, "pdl"] if step.pdl else dims)
