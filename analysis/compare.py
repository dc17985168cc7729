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

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
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
class Difference:
    """The difference between two variants.

    Attributes:
        first, second: the variants.
        numbers: resources that differ.
        plan: True if their launch plans differ, ignoring cubins.
        kernels: kernels whose code differs; () if a variant is known only from a lock.
    """

    first: Subject
    second: Subject
    numbers: tuple[Change, ...] = ()
    plan: bool = False
    kernels: tuple[KernelDifference, ...] = ()

    @property
    def label(self) -> str:
        """The id that both share, or `one → other`."""
        first, second = self.first, self.second
        return first.id if first.identity == second.identity else f"{first.id} → {second.id}"

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
    pairs, only_first, only_second = align(first, second, by_parameters=by_parameters)
    found = list(filter(None, itertools.starmap(_shallow, pairs)))
    if depth != "resources":
        found = list(filter(None, _deep(found, depth)))
    if add_lines is not None and depth in ("lines", "raw"):
        found = [add_lines(each) for each in found]
    same = len(pairs) - len(found)
    return Comparison(first, second, depth, tuple(found), same, only_first, only_second)


Alignment = tuple[list[tuple[Subject, Subject]], tuple[Subject, ...], tuple[Subject, ...]]
"""Pairs of two sides, variants that only the first side has, variants that only the second has."""


def align(first: Side, second: Side, *, by_parameters: bool = False) -> Alignment:
    """Return the pairs of two sides, in the order of the first side.

    Variants with equal ids pair. If each side has only one variant, the two pair regardless of
    their ids. With `by_parameters`, for two selections from one spec, variants pair if kernel,
    target, and parameters are equal, ignoring those that have no common value on the two sides.
    """
    sides = first.variants, second.variants
    if len(first.variants) == len(second.variants) == 1:
        return [(first.variants[0], second.variants[0])], (), ()
    if by_parameters:
        ignored = _never_equal(*sides)
        before, after = (_keyed(side, ignored) for side in sides)
    else:
        before, after = ({each.identity: each for each in side} for side in sides)
    return (
        [(each, after[key]) for key, each in before.items() if key in after],
        tuple(each for key, each in before.items() if key not in after),
        tuple(each for key, each in after.items() if key not in before),
    )


def _parts(subject: Subject) -> dict[str, str]:
    """Return parameters, target and kernel; `@` stands for the target."""
    return {**subject.params, "@": subject.target, "": subject.name}


def _never_equal(first: Iterable[Subject], second: Iterable[Subject]) -> set[str]:
    """Return the names of parts that both sides have, but with no common value."""
    parts = [{part for each in side for part in _parts(each).items()} for side in (first, second)]
    names = [{name for name, _ in own} for own in parts]
    return (names[0] & names[1]) - {name for name, _ in parts[0] & parts[1]}


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


def _shallow(first: Subject, second: Subject) -> Difference:
    """Return the differences in resources, plans and code bytes."""
    if first.digest == second.digest:
        return Difference(first, second)
    try:
        numbers = tuple(changes(first.resources, second.resources))
        if first.artifact is None or second.artifact is None:
            return Difference(first, second, numbers)
        plan = _plan(first.artifact) != _plan(second.artifact)
        kernels = tuple(_kernels(first.artifact, second.artifact))
        return Difference(first, second, numbers, plan, kernels)
    except PallascError as error:
        error.message = f"{Difference(first, second).label}: {error.message}"
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
        text = text.replace(kernel.cubin, f"cubin {number}")
        text = text.replace(f'"{kernel.name}"', f'"kernel {number}"')
    return text


def _kernels(first: Artifact, second: Artifact) -> Iterator[KernelDifference]:
    for one, other in _paired_kernels(first.kernels, second.kernels):
        if one and other and one.cubin == other.cubin:
            continue
        if one is None or other is None or code_of(first, one) != code_of(second, other):
            yield KernelDifference(one, other)


def _paired_kernels(
    first: Sequence[KernelResources], second: Sequence[KernelResources]
) -> Iterator[tuple[KernelResources | None, KernelResources | None]]:
    """Pair kernels by name, then the rest by origin and order."""
    left, rest = list(first), list(second)
    for key in ("name", "origin"):
        for one in list(left):
            own = getattr(one, key)
            other = next((each for each in rest if getattr(each, key) == own), None)
            if other is not None:
                left.remove(one)
                rest.remove(other)
                yield one, other
    yield from ((one, None) for one in left)
    yield from ((None, other) for other in rest)


def _deep(found: Iterable[Difference], depth: str) -> Iterator[Difference]:
    """Add the differences in code; kernels that are only `renamed` differ only at depth `raw`."""
    remaining = iter(found)
    while batch := list(itertools.islice(remaining, _AT_ONCE)):
        cubins = {
            own.cubin: artifact.blob(own.cubin)
            for difference in batch
            for kernel in difference.kernels
            for _, artifact, own in _both(difference, kernel)
        }
        codes = disassemble_all(cubins)
        for difference in batch:
            kernels = [_compared(kernel, difference, depth, codes) for kernel in difference.kernels]
            if depth != "raw":
                kernels = [k for k in kernels if k.code is None or k.code.verdict != "renamed"]
            yield replace(difference, kernels=tuple(kernels))


def _both(
    difference: Difference, kernel: KernelDifference
) -> list[tuple[Subject, Artifact, KernelResources]]:
    """Return each variant with its artifact and its kernel, or [] if only one has the kernel."""
    sides = (difference.first, kernel.first), (difference.second, kernel.second)
    both = [(each, each.artifact, own) for each, own in sides if each.artifact and own]
    return both if len(both) == len(sides) else []


def _compared(
    kernel: KernelDifference, difference: Difference, depth: str, codes: Codes
) -> KernelDifference:
    known = [codes[own.cubin].get(own.name) for _, _, own in _both(difference, kernel)]
    first, second = known or (None, None)
    if first is None or second is None:
        return kernel
    shown = raw_lines if depth == "raw" else normalised
    hunks = [] if depth == "mix" else hunks_of(shown(first), shown(second))
    return replace(kernel, code=compare_code(first, second), hunks=tuple(hunks))


def compare_code(first: Code, second: Code) -> CodeDifference:
    """Compare the code of two kernels whose bytes differ."""
    texts = normalised(first), normalised(second)
    counts = len(first.instructions), len(second.instructions)
    if texts[0] == texts[1]:
        return CodeDifference("renamed", *counts)
    shapes = Counter(map(_shape, texts[0])), Counter(map(_shape, texts[1]))
    removed, added = (shapes[0] - shapes[1]).total(), (shapes[1] - shapes[0]).total()
    mixes = mix_of(first.instructions), mix_of(second.instructions)
    return CodeDifference(
        "changed" if removed or added else "reordered",
        *counts,
        removed,
        added,
        _differing(CLASSES, *mixes),
    )


def _differing(
    names: Iterable[str], before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[tuple[str, int, int], ...]:
    """Return the names whose counts differ, with both counts."""
    rows = ((name, before.get(name, 0), after.get(name, 0)) for name in names)
    return tuple(row for row in rows if row[1] != row[2])


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


def raw_lines(code: Code) -> tuple[str, ...]:
    """Return each instruction without its address."""
    return tuple(map(_raw, code.instructions))


def _raw(instruction: Instruction) -> str:
    """Return an instruction with its label and its control word, the upper 23 significant bits."""
    control = int.from_bytes(instruction.encoding[8:], "little") >> 41
    label = f"{instruction.label}: " if instruction.label else ""
    return f"{control:06x}  {label}{instruction.text}"


def hunks_of(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return two texts of kernels as the hunks of a unified diff."""
    lines = list(unified_diff(first, second, n=_CONTEXT, lineterm=""))
    return lines[2:]  # without file names


def add_lines(difference: Difference, store: Store) -> Difference:
    """Return a difference with the source lines whose instruction counts differ.

    The lines come from the store or from a side's bundle. They match by file name and text, because
    line numbers shift.
    """
    kernels = (_with_lines(kernel, difference, store) for kernel in difference.kernels)
    return replace(difference, kernels=tuple(kernels))


def _with_lines(kernel: KernelDifference, difference: Difference, store: Store) -> KernelDifference:
    counts = []
    for subject, artifact, own in _both(difference, kernel):
        if subject.action_key is None:
            lines, missing = artifact.source_lines(), _NOT_BUNDLED
        else:
            lines, missing = read_source_lines(store, subject.action_key), _NOT_STORED
        known = None if lines is None else lines_of(artifact, own, lines)
        if lines is None or known is None:
            return replace(kernel, no_lines=missing.format(subject.id))
        counts.append(Counter(_place(lines, number) for number in known.stacks))
    if not counts:
        return kernel
    return replace(kernel, lines=_differing(sorted({*counts[0], *counts[1]}), *counts))


def _place(lines: SourceLines, number: int) -> str:
    """Return `kernels.py: acc = a @ b`, or `kernels.py:12` if the text is not known."""
    stack = lines.stack(number)
    if not stack:
        return _NOWHERE
    text = lines.text(stack[0]).strip()
    return f"{stack[0].file}: {text}" if text else str(stack[0])
