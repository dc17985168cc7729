"""Compares two sides to a chosen depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pallasc.analysis.compare.alignment import Pair, align
from pallasc.analysis.compare.code import CodeDifference, compare_code, normal_hunks, raw_hunks
from pallasc.analysis.compare.numbers import Change, changes
from pallasc.analysis.compare.sides import Side, Subject
from pallasc.analysis.sass.instructions import Code
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.canonical import canonical_text

DEPTHS = ("resources", "mix", "sass", "lines", "raw")
"""Depths of a comparison; each includes the ones before it."""

_AT_ONCE = 32
"""Number of pairs disassembled together, to limit the code held in memory."""

Disassemble = Callable[[Mapping[str, bytes]], Mapping[str, Mapping[str, Code]]]


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """The difference between a kernel of two variants.

    Attributes:
        first, second: the kernel on each side; None if that side lacks it.
        code: the difference in code; None if only bytes were compared, and differ, or if a side
            lacks the kernel.
        hunks: lines of a unified diff: of the normal form at depth `sass`, of the code at `raw`.
        lines: source lines whose instruction counts differ: place, before, after.
        no_lines: why there are none.
    """

    first: KernelResources | None
    second: KernelResources | None
    code: CodeDifference | None = None
    hunks: tuple[str, ...] = ()
    lines: tuple[tuple[str, int, int], ...] = ()
    no_lines: str = ""

    @property
    def name(self) -> str:
        """Both names, or the name they share."""
        names = (kernel.name for kernel in (self.first, self.second) if kernel is not None)
        return " → ".join(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two variants.

    Attributes:
        pair: the variants.
        numbers: resources that differ.
        plan: True if their launch plans differ, ignoring cubins.
        kernels: kernels whose code differs.
    """

    pair: Pair
    numbers: tuple[Change, ...] = ()
    plan: bool = False
    kernels: tuple[KernelDifference, ...] = ()

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `mixed`, or "" if no number differs."""
        verdicts = {number.verdict for number in self.numbers}
        return "mixed" if len(verdicts) > 1 else next(iter(verdicts), "")

    def __bool__(self) -> bool:
        return bool(self.numbers or self.plan or self.kernels)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        first, second: the sides.
        depth: the depth of the comparison.
        differing: pairs that differ.
        same: the number of pairs that do not differ.
        only_first, only_second: variants that the other side lacks.
    """

    first: Side
    second: Side
    depth: str
    differing: tuple[Difference, ...]
    same: int
    only_first: tuple[Subject, ...]
    only_second: tuple[Subject, ...]

    def __bool__(self) -> bool:
        return bool(self.differing or self.only_first or self.only_second)


def compare(
    first: Side,
    second: Side,
    *,
    depth: str = "resources",
    by_parameters: bool = False,
    disassemble: Disassemble | None = None,
    add_lines: Callable[[Difference], Difference] | None = None,
) -> Comparison:
    """Compare two sides.

    At depth `resources`, machine code differs if its bytes differ; from `mix` on, only if its
    normal form differs; at `raw`, again if any byte differs.

    Args:
        first: one side.
        second: the other side.
        depth: one of `DEPTHS`.
        by_parameters: True if both are selections from one spec, as for `align`.
        disassemble: returns the code of cubins; nvdisasm by default.
        add_lines: adds source lines to a difference, at depth `lines` and beyond.

    Raises:
        ToolError: nvdisasm is needed and not installed.
        CorruptError: an artifact is damaged.
    """
    pairs = align(first, second, by_parameters=by_parameters)
    both = [pair for pair in pairs if pair.first is not None and pair.second is not None]
    found = list(_shallow(both))
    level = DEPTHS.index(depth)
    if level:
        found = list(_deep(found, level, disassemble or _nvdisasm))
        if level < DEPTHS.index("raw"):
            found = [_without_renamed(each) for each in found]
    if add_lines is not None and level >= DEPTHS.index("lines"):
        found = [add_lines(each) for each in found]
    differing = tuple(filter(None, found))
    return Comparison(
        first,
        second,
        depth,
        differing,
        len(both) - len(differing),
        tuple(pair.first for pair in pairs if pair.first is not None and pair.second is None),
        tuple(pair.second for pair in pairs if pair.second is not None and pair.first is None),
    )


def _nvdisasm(cubins: Mapping[str, bytes]) -> Mapping[str, Mapping[str, Code]]:
    from pallasc.analysis.sass.disassembly import disassemble_all

    return disassemble_all(cubins)


def _shallow(pairs: Iterable[Pair]) -> Iterator[Difference]:
    """Yield the differences in resources, plans and code bytes."""
    for pair in pairs:
        first, second = pair.first, pair.second
        if first is None or second is None or first.digest == second.digest:
            continue
        try:
            numbers = changes(first.resources, second.resources)
            if first.artifact is None or second.artifact is None:
                yield Difference(pair, numbers)
                continue
            yield Difference(
                pair,
                numbers,
                _plan(first.artifact) != _plan(second.artifact),
                tuple(_kernels(first.artifact, second.artifact)),
            )
        except PallascError as error:
            error.message = f"{pair.label}: {error.message}"
            raise


def _plan(artifact: Artifact) -> str:
    """Return a plan as text that identifies cubins and kernels by kernel order."""
    text = canonical_text(artifact.record["plan"])
    for number, kernel in enumerate(artifact.kernels):
        text = text.replace(kernel.cubin, f"cubin {number}").replace(
            f'"{kernel.name}"', f'"kernel {number}"'
        )
    return text


def _kernels(first: Artifact, second: Artifact) -> Iterator[KernelDifference]:
    for one, other in pair_kernels(first.kernels, second.kernels):
        if (
            one is None
            or other is None
            or (one.cubin != other.cubin and text_of(first, one) != text_of(second, other))
        ):
            yield KernelDifference(one, other)


def pair_kernels(
    first: Sequence[KernelResources], second: Sequence[KernelResources]
) -> list[tuple[KernelResources | None, KernelResources | None]]:
    """Pair kernels by name, then the rest by origin and order."""
    pairs: list[tuple[KernelResources | None, KernelResources | None]] = []
    rest = list(second)
    left = []
    for one in first:
        same = next((other for other in rest if other.name == one.name), None)
        if same is None:
            left.append(one)
        else:
            rest.remove(same)
            pairs.append((one, same))
    for one in left:
        alike = next((other for other in rest if other.origin == one.origin), None)
        if alike is not None:
            rest.remove(alike)
        pairs.append((one, alike))
    return [*pairs, *((None, other) for other in rest)]


def text_of(artifact: Artifact, kernel: KernelResources) -> bytes:
    """Return the machine code of a kernel, section `.text.NAME` of its cubin; b"" if none."""
    section = parse_elf(artifact.blob(kernel.cubin)).section(f".text.{kernel.name}")
    return section.content if section else b""


def _deep(
    found: Iterable[Difference], level: int, disassemble: Disassemble
) -> Iterator[Difference]:
    remaining = iter(found)
    while batch := list(islice(remaining, _AT_ONCE)):
        codes = disassemble(dict(_cubins(batch)))
        yield from (_compared(difference, level, codes) for difference in batch)


def _cubins(batch: Iterable[Difference]) -> Iterator[tuple[str, bytes]]:
    for difference in batch:
        for kernel in difference.kernels:
            for artifact, own in _both(difference.pair, kernel):
                yield own.cubin, artifact.blob(own.cubin)


def _both(pair: Pair, kernel: KernelDifference) -> list[tuple[Artifact, KernelResources]]:
    """Return the kernel of each side with its artifact, or [] if only one side has it."""
    sides = [(pair.first, kernel.first), (pair.second, kernel.second)]
    both = [(each.artifact, own) for each, own in sides if each and each.artifact and own]
    return both if len(both) == len(sides) else []


def _compared(
    difference: Difference, level: int, codes: Mapping[str, Mapping[str, Code]]
) -> Difference:
    kernels = []
    for kernel in difference.kernels:
        sides = [codes[own.cubin].get(own.name) for _, own in _both(difference.pair, kernel)]
        known = [code for code in sides if code is not None]
        kernels.append(_with_code(kernel, known, level) if len(known) == 2 else kernel)
    return replace(difference, kernels=tuple(kernels))


def _with_code(kernel: KernelDifference, codes: Sequence[Code], level: int) -> KernelDifference:
    hunks: list[str] = []
    if level == DEPTHS.index("raw"):
        hunks = raw_hunks(*codes)
    elif level >= DEPTHS.index("sass"):
        hunks = normal_hunks(*codes)
    return replace(kernel, code=compare_code(*codes), hunks=tuple(hunks))


def _without_renamed(difference: Difference) -> Difference:
    kernels = (k for k in difference.kernels if k.code is None or k.code.verdict != "renamed")
    return replace(difference, kernels=tuple(kernels))
