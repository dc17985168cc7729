"""Compares two sides, each a set of compiled variants, at a chosen depth.

Machine code is compared in three steps; the first step without a difference gives the verdict:

* `same`: the bytes are equal;
* `renamed`: the normal form is equal: registers, labels or scheduling differ;
* `reordered`: the instructions are the same apart from register names, but their order or the use
  of registers differs.

If all three steps find a difference, the verdict is `changed`.

The normal form leaves out the compiler's free choices. Registers (`R`, `UR`), predicates (`P`,
`UP`), convergence barriers (`B`), scoreboards (`SB`) and labels are numbered in order of first
appearance. Addresses, the control words with their stalls and scoreboards, and the hint `.reuse`
are left out. Opcodes with modifiers, constants, special registers, and the order of instructions
are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice
from typing import Literal, NamedTuple

from pallasc.analysis.lines import code_of, lines_of, read_source_lines
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import CLASSES, Class, Code, Codes, Instruction, mix_of
from pallasc.analysis.sides import Side, Subject
from pallasc.cache.store import Store
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import MORE_IS_BETTER, Artifact, KernelResources, Resources
from pallasc.specs.artifacts.source_lines import SourceLines
from pallasc.specs.canonical import canonical_text

DEPTHS = ("resources", "mix", "sass", "lines", "raw")
"""Depths of a comparison; each includes the ones before it."""

_AT_ONCE = 32
"""Number of pairs disassembled together, to limit the code held in memory."""

_CONTEXT = 3
_NAME = re.compile(r"`\((?P<label>\.L_\w+)\)|(?<![\w.$])(?P<kind>UR|R|UP|P|B|SB)(?P<number>\d+)\b")
_REUSE = re.compile(r"\.reuse\b")
_REGISTER = re.compile(r"(?<![\w.$])(UR|R|UP|P|B|SB)\d+\b")
_LABEL = re.compile(r"`\(\.L_\w+\)|^L\d+: ")
_NOWHERE = "no source line"
_NOT_STORED = "the store has no source lines of {}; pallasc inspect SPECS --lines finds them"
_NOT_BUNDLED = "the bundle has no source lines of {}; pallasc bundle create --lines adds them"


class Change(NamedTuple):
    """A resource whose number differs."""

    field: str
    before: int
    after: int

    @property
    def verdict(self) -> Literal["better", "worse"]:
        """Verdict on the second side by this number alone."""
        return "better" if (self.after > self.before) is (self.field in MORE_IS_BETTER) else "worse"


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The difference between the code of two kernels.

    Attributes:
        verdict: see the module's docstring.
        before, after: the number of instructions on each side.
        removed, added: the number of instructions that only the first or only the second side has,
            ignoring register names.
        mix: classes whose counts differ, with both counts.
    """

    verdict: Literal["renamed", "reordered", "changed"]
    before: int = 0
    after: int = 0
    removed: int = 0
    added: int = 0
    mix: tuple[tuple[Class, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """The difference between a kernel of two variants.

    Attributes:
        first, second: the kernel on each side; None if that side lacks it.
        code: the difference in code; None if only bytes were compared, or if a side lacks the
            kernel.
        hunks: lines of a unified diff: of the normal form at depth `sass`, of the code at `raw`.
        lines: source lines whose instruction counts differ: place, before, after.
        no_lines: why `lines` is missing.
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
class Pair:
    """Two variants to compare; one is None if its side lacks it."""

    first: Subject | None
    second: Subject | None

    @property
    def label(self) -> str:
        """The id that both share, or `one → other`."""
        names: dict[str, str] = {}
        for each in filter(None, (self.first, self.second)):
            names.setdefault(each.identity, each.id)
        return " → ".join(names.values())


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
    add_lines: Callable[[Difference], Difference] | None = None,
) -> Comparison:
    """Compare two sides.

    At depth `resources`, machine code differs if its bytes differ; from `mix` on, only if its
    normal form differs; at `raw`, again if any byte differs.

    Args:
        first: one side.
        second: the other side.
        depth: one of `DEPTHS`.
        by_parameters: True if both are selections from one spec; see `align`.
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
        found = list(_deep(found, level))
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


def align(first: Side, second: Side, *, by_parameters: bool = False) -> list[Pair]:
    """Return the pairs of two sides, in the order of the first side, then of the second.

    Variants with equal ids pair. If each side has only one variant, the two pair regardless of
    their ids. With `by_parameters`, for two selections from one spec, variants pair if kernel,
    target, and parameters are equal, ignoring those that have no common value on the two sides.
    """
    sides = [list(side.variants.values()) for side in (first, second)]
    if len(sides[0]) == len(sides[1]) == 1:
        return [Pair(sides[0][0], sides[1][0])]
    if by_parameters:
        values = [_values(side) for side in sides]
        shared = values[0].keys() & values[1].keys()
        ignored = {name for name in shared if not values[0][name] & values[1][name]}
        before, after = (_keyed(side, ignored) for side in sides)
    else:
        before, after = ({each.identity: each for each in side} for side in sides)
    pairs = [Pair(subject, after.get(key)) for key, subject in before.items()]
    return [*pairs, *(Pair(None, each) for key, each in after.items() if key not in before)]


def _parts(subject: Subject) -> dict[str, str]:
    """Return parameters, target and kernel; `@` stands for the target."""
    return {**subject.params, "@": subject.target, "": subject.name}


def _values(subjects: Iterable[Subject]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for subject in subjects:
        for name, value in _parts(subject).items():
            values.setdefault(name, set()).add(value)
    return values


def _keyed(subjects: Iterable[Subject], ignored: set[str]) -> dict[str, Subject]:
    """Map variants by their parts except ignored ones, or by id if several share these parts."""
    keyed: dict[str, list[Subject]] = {}
    for subject in subjects:
        parts = sorted(part for part in _parts(subject).items() if part[0] not in ignored)
        keyed.setdefault(str(parts), []).append(subject)
    return {
        key if len(same) == 1 else subject.id: subject
        for key, same in keyed.items()
        for subject in same
    }


def _shallow(pairs: Iterable[Pair]) -> Iterator[Difference]:
    """Yield the differences in resources, plans and code bytes."""
    for pair in pairs:
        first, second = pair.first, pair.second
        if first is None or second is None or first.digest == second.digest:
            continue
        try:
            numbers = tuple(changes(first.resources, second.resources))
            if first.artifact is None or second.artifact is None:
                yield Difference(pair, numbers)
                continue
            plan = _plan(first.artifact) != _plan(second.artifact)
            yield Difference(pair, numbers, plan, tuple(_kernels(first.artifact, second.artifact)))
        except PallascError as error:
            error.message = f"{pair.label}: {error.message}"
            raise


def changes(before: Resources, after: Resources) -> Iterator[Change]:
    """Yield the resources that differ, if both sides know them."""
    for field, first, second in zip(Resources._fields, before, after, strict=True):
        if first != second and first is not None and second is not None:
            yield Change(field, first, second)


def _plan(artifact: Artifact) -> str:
    """Return a plan as text in which the positions of kernels replace cubins and kernel names."""
    text = canonical_text(artifact.record["plan"])
    for number, kernel in enumerate(artifact.kernels):
        text = text.replace(kernel.cubin, f"cubin {number}").replace(
            f'"{kernel.name}"', f'"kernel {number}"'
        )
    return text


def _kernels(first: Artifact, second: Artifact) -> Iterator[KernelDifference]:
    for one, other in _paired_kernels(first.kernels, second.kernels):
        if (
            one is None
            or other is None
            or (one.cubin != other.cubin and code_of(first, one) != code_of(second, other))
        ):
            yield KernelDifference(one, other)


def _paired_kernels(
    first: Sequence[KernelResources], second: Sequence[KernelResources]
) -> list[tuple[KernelResources | None, KernelResources | None]]:
    """Pair kernels by name, then the rest by origin and order."""
    pairs: list[tuple[KernelResources | None, KernelResources | None]] = []
    left, rest = list(first), list(second)
    for key in ("name", "origin"):
        for one in list(left):
            own = getattr(one, key)
            other = next((each for each in rest if getattr(each, key) == own), None)
            if other is not None:
                left.remove(one)
                rest.remove(other)
                pairs.append((one, other))
    return [*pairs, *((one, None) for one in left), *((None, other) for other in rest)]


def _deep(found: Iterable[Difference], level: int) -> Iterator[Difference]:
    """Add the differences in code; kernels that are only `renamed` differ only at depth `raw`."""
    remaining = iter(found)
    while batch := list(islice(remaining, _AT_ONCE)):
        cubins = {
            own.cubin: artifact.blob(own.cubin)
            for difference in batch
            for kernel in difference.kernels
            for artifact, own in _both(difference.pair, kernel)
        }
        codes = disassemble_all(cubins) if cubins else {}
        for difference in batch:
            pair = difference.pair
            kernels = [_compared(pair, each, level, codes) for each in difference.kernels]
            if level < DEPTHS.index("raw"):
                kernels = [k for k in kernels if k.code is None or k.code.verdict != "renamed"]
            yield replace(difference, kernels=tuple(kernels))


def _both(pair: Pair, kernel: KernelDifference) -> list[tuple[Artifact, KernelResources]]:
    """Return the kernel of each side with its artifact, or [] if only one side has it."""
    sides = [(pair.first, kernel.first), (pair.second, kernel.second)]
    both = [(each.artifact, own) for each, own in sides if each and each.artifact and own]
    return both if len(both) == len(sides) else []


def _compared(pair: Pair, kernel: KernelDifference, level: int, codes: Codes) -> KernelDifference:
    known = [codes[own.cubin].get(own.name) for _, own in _both(pair, kernel)]
    first, second = known or (None, None)
    if first is None or second is None:
        return kernel
    hunks: list[str] = []
    if level == DEPTHS.index("raw"):
        hunks = raw_hunks(first, second)
    elif level >= DEPTHS.index("sass"):
        hunks = normal_hunks(first, second)
    return replace(kernel, code=compare_code(first, second), hunks=tuple(hunks))


def compare_code(first: Code, second: Code) -> CodeDifference:
    """Compare the code of two kernels whose bytes differ."""
    texts = normalised(first), normalised(second)
    counts = len(first.instructions), len(second.instructions)
    if texts[0] == texts[1]:
        return CodeDifference("renamed", *counts)
    shapes = Counter(map(_shape, texts[0])), Counter(map(_shape, texts[1]))
    removed, added = (shapes[0] - shapes[1]).total(), (shapes[1] - shapes[0]).total()
    before, after = mix_of(first.instructions), mix_of(second.instructions)
    rows = ((name, before.get(name, 0), after.get(name, 0)) for name in CLASSES)
    return CodeDifference(
        "changed" if removed or added else "reordered",
        *counts,
        removed,
        added,
        tuple(row for row in rows if row[1] != row[2]),
    )


def normalised(code: Code) -> tuple[str, ...]:
    """Return the normal form of each instruction, prefixed with `label:` if it has one."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def renamed(kind: str, name: str) -> str:
        if name not in names:
            names[name] = f"{kind}{counts[kind]}"
            counts[kind] += 1
        return names[name]

    def replacement(match: re.Match[str]) -> str:
        if match["label"]:
            return f"`({renamed('L', match['label'])})"
        return renamed(match["kind"], match["kind"] + match["number"])

    lines = []
    for each in code.instructions:
        label = f"{renamed('L', each.label)}: " if each.label else ""
        lines.append(label + _NAME.sub(replacement, _REUSE.sub("", each.text)))
    return tuple(lines)


def _shape(text: str) -> str:
    """Return an instruction without register and label names."""
    return _REGISTER.sub(r"\1", _LABEL.sub("", text))


def normal_hunks(first: Code, second: Code) -> list[str]:
    """Return the normal forms of two kernels as the hunks of a unified diff."""
    return _hunks(normalised(first), normalised(second))


def raw_hunks(first: Code, second: Code) -> list[str]:
    """Return the code of two kernels as the hunks of a unified diff, without addresses."""
    return _hunks(*(list(map(_raw, code.instructions)) for code in (first, second)))


def _raw(instruction: Instruction) -> str:
    """Return an instruction with its label and its control word, the upper 23 significant bits."""
    control = int.from_bytes(instruction.encoding[8:], "little") >> 41
    label = f"{instruction.label}: " if instruction.label else ""
    return f"{control:06x}  {label}{instruction.text}"


def _hunks(first: Sequence[str], second: Sequence[str]) -> list[str]:
    lines = list(unified_diff(first, second, n=_CONTEXT, lineterm=""))
    return lines[2:]  # without file names


def add_lines(difference: Difference, store: Store) -> Difference:
    """Return a difference with the source lines whose instruction counts differ.

    The lines come from the store or from a side's bundle. They match by file name and text, because
    line numbers shift.
    """
    kernels = (_with_lines(difference.pair, kernel, store) for kernel in difference.kernels)
    return replace(difference, kernels=tuple(kernels))


def _with_lines(pair: Pair, kernel: KernelDifference, store: Store) -> KernelDifference:
    if pair.first is None or pair.second is None or kernel.first is None or kernel.second is None:
        return kernel
    counts: list[Counter[str]] = []
    for subject, own in ((pair.first, kernel.first), (pair.second, kernel.second)):
        counted = _counted(subject, own, store)
        if counted is None:
            missing = _NOT_BUNDLED if subject.action_key is None else _NOT_STORED
            return replace(kernel, no_lines=missing.format(subject.id))
        counts.append(counted)
    before, after = counts
    rows = ((key, before[key], after[key]) for key in sorted({*before, *after}))
    return replace(kernel, lines=tuple(row for row in rows if row[1] != row[2]))


def _counted(subject: Subject, kernel: KernelResources, store: Store) -> Counter[str] | None:
    """Count the instructions of a kernel by line; None if its lines are unknown."""
    if subject.artifact is None:
        return None
    if subject.action_key is None:
        lines = subject.artifact.source_lines
    else:
        lines = read_source_lines(store, subject.action_key)
    own = lines and lines_of(subject.artifact, kernel, lines)
    return Counter(_place(lines, number) for number in own.stacks) if lines and own else None


def _place(lines: SourceLines, number: int) -> str:
    """Return `kernels.py: acc = a @ b`, or `kernels.py:12` if the text is not known."""
    stack = lines.stack(number)
    if not stack:
        return _NOWHERE
    text = lines.text(stack[0]).strip()
    return f"{stack[0].file}: {text}" if text else str(stack[0])
