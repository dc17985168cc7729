"""The figures of variants as columns of tables, and as plots. To add a figure, add a row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pallasc.reports.charts import Measure
from pallasc.reports.content import Entry
from pallasc.reports.words import duration, number, percent, short_time, size

Value = float | int | str | None
MOST_REGISTERS = 255
"""Maximum number of registers of a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of variants.

    Attributes:
        key: its name in filters: `registers>128`.
        label: its heading.
        title: a one-sentence description.
        value: returns the value for a variant; None if unknown.
        written: formats a known value.
        is_number: it is compared as a number.
        bad: returns True if a value should be highlighted.
        whole: the value of a full bar; None for no bar.
        is_plotted: it is plotted over the matrix.
        scale, unit: factor for values in plots, and the unit of the scaled values.
        always: show the column even if no variant has a value.
    """

    key: str
    label: str
    title: str
    value: Callable[[Entry], Value]
    written: Callable[[float], str] = number
    is_number: bool = True
    bad: Callable[[Value], bool] = lambda value: False
    whole: float | None = None
    is_plotted: bool = False
    scale: float = 1.0
    unit: str = ""
    always: bool = False

    def show(self, entry: Entry) -> str:
        """Return the text of a cell."""
        value = self.value(entry)
        if value is None:
            return "?" if entry.status == "compiled" else "–"
        return value if isinstance(value, str) else self.written(value)

    def is_bad(self, entry: Entry) -> bool:
        """Return True if the value of a variant should be highlighted."""
        return self.bad(self.value(entry))

    def part(self, entry: Entry) -> float | None:
        """Return the length of a variant's bar, 0 to 1; None for no bar."""
        value = self.value(entry)
        if self.whole is None or not isinstance(value, int | float):
            return None
        return max(0.0, min(1.0, value / self.whole))

    @property
    def measure(self) -> Measure:
        """The plot of this column."""
        return Measure(self.label, self.unit)


def _is_some(value: Value) -> bool:
    return bool(value)


COLUMNS: Sequence[Column] = (
    Column(
        key="registers",
        label="Registers",
        title="Registers of a thread, 255 at most",
        value=lambda entry: entry.figures.registers,
        bad=lambda value: value == MOST_REGISTERS,
        whole=MOST_REGISTERS,
        is_plotted=True,
        always=True,
    ),
    Column(
        key="spill",
        label="Spills",
        title="Bytes of spill stores and loads of a thread",
        value=lambda entry: entry.figures.spill_bytes,
        bad=_is_some,
        always=True,
    ),
    Column(
        key="occupancy",
        label="Occupancy",
        title="Warps that are resident, of those that a multiprocessor can hold",
        value=lambda entry: entry.figures.occupancy,
        written=percent,
        whole=1.0,
        is_plotted=True,
        scale=100,
        unit="%",
        always=True,
    ),
    Column(
        key="limit",
        label="Limited by",
        title="The resource that limits occupancy",
        value=lambda entry: entry.figures.limited_by or None,
        is_number=False,
    ),
    Column(
        key="smem",
        label="Shared memory",
        title="Static and dynamic shared memory of a block",
        value=lambda entry: entry.figures.smem_bytes,
        written=size,
        always=True,
    ),
    Column(
        key="cubin",
        label="Cubin",
        title="Size of all cubins",
        value=lambda entry: entry.figures.cubin_bytes,
        written=size,
        is_plotted=True,
        scale=1 / 1024,
        unit="KiB",
        always=True,
    ),
    Column(
        key="bound",
        label="Roofline bound",
        title="The least time that its operations and bytes take on the target",
        value=lambda entry: entry.figures.bound_s,
        written=short_time,
        is_plotted=True,
        scale=1e6,
        unit="µs",
    ),
    Column(
        key="seconds",
        label="Compile time",
        title="What compiling it took, as the store remembers",
        value=lambda entry: entry.seconds,
        written=duration,
    ),
    Column(
        key="findings",
        label="Findings",
        title="Findings of stored checks",
        value=lambda entry: len(entry.findings) if entry.levels else None,
        bad=_is_some,
    ),
    Column(
        key="status",
        label="Status",
        title="Whether it was compiled",
        value=lambda entry: entry.status,
        is_number=False,
        bad=lambda value: value != "compiled",
    ),
)


def columns_of(entries: Sequence[Entry]) -> list[Column]:
    """Return the columns that have information on these variants."""
    return [column for column in COLUMNS if column.always or _says_something(column, entries)]


def _says_something(column: Column, entries: Sequence[Entry]) -> bool:
    values = {column.value(entry) for entry in entries}
    return values != {"compiled"} if column.key == "status" else values != {None}
