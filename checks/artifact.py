"""The artifact level: executes the launch plan and the PTX of an artifact.

This also finds errors made by JAX, Mosaic and XLA. If the source is available, results are compared
with the reference. Later schedules run blocks and warps in other orders, start with other memory
contents, and must reproduce the results of the first schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pallasc.checks.arrays import (
    difference,
    expected_results,
    input_arrays,
    is_close,
    name_of_element,
    remarks,
)
from pallasc.checks.execute import (
    POISONS,
    Element,
    Origin,
    Reaching,
    Source,
    find_origin,
    policies,
)
from pallasc.checks.faults import History, fault_finding, race_findings, shown
from pallasc.checks.findings import (
    COMPILED_WRONGLY,
    DEPENDS_ON_ORDER,
    NOT_EXECUTED,
    UNINITIALIZED,
    WRONG_NUMBERS,
    Finding,
    LevelResult,
    Place,
    from_findings,
    not_checked,
)
from pallasc.checks.levels import Options, Subject
from pallasc.compiler.arrays import compare_arrays, settle_tolerance
from pallasc.emulator.machine.block import Observer
from pallasc.emulator.machine.machine import Policy
from pallasc.emulator.machine.memory import EmulationTimeout, Fault
from pallasc.emulator.program import PlanRun
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.errors import CheckError, Location, UnsupportedError
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.spec import Tolerance, Variant

_ROUNDING = (
    "Each order of additions rounds differently, so the last digits may change from run to run."
)


def differences(
    plan: LaunchPlan,
    first: Sequence[Sequence[Any]],
    later: Sequence[Sequence[Any]],
    tolerance: Tolerance | None,
    *,
    agree: bool,
) -> Iterator[tuple[Finding, Element]]:
    """Yield each output's difference between schedules, on the first device with a difference.

    Args:
        plan: the plan that ran.
        first: the results of schedule 1, for each device.
        later: the results of another schedule.
        tolerance: the variant's tolerance.
        agree: True if both results match a reference; a difference is then only a note.
    """
    told: set[int] = set()
    for number, device, one, other in _pairs(first, later):
        output = plan.outputs[number]
        if number in told or one.tobytes() == other.tobytes():
            continue
        allowed = agree or _may_round(output, one, other, tolerance)
        rtol, atol = (0.0, 0.0) if allowed else settle_tolerance(tolerance, output.dtype)
        found = compare_arrays(other, one, rtol=rtol, atol=atol)
        if found.first is None:
            continue
        told.add(number)
        element = Element(device, output, found.first.index)
        message = (
            f"{_name(element)} depends on the order of {_parts(plan)}: it is "
            f"{found.first.wanted} in schedule 1 and {found.first.got} in another; "
            f"{found.mismatches:,} of {found.count:,} elements differ"
        )
        finding = Finding(
            rule=DEPENDS_ON_ORDER.name,
            message=message,
            severity="note" if allowed else "error",
            hint=_ROUNDING if allowed else "",
            subject=output.path,
        )
        yield finding, element


def _pairs(
    first: Sequence[Sequence[Any]], second: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield (output number, device number, one array, other array), device by device."""
    for device, arrays in enumerate(zip(first, second, strict=True)):
        for number, (one, other) in enumerate(zip(*arrays, strict=True)):
            yield number, device, one, other


def _may_round(output: Binding, one: Any, other: Any, tolerance: Tolerance | None) -> bool:
    """Return True if the tolerance, or another order of summation, allows a difference."""
    rtol, atol = settle_tolerance(tolerance, output.dtype)
    if not compare_arrays(other, one, rtol=rtol, atol=atol).mismatches:
        return True
    return tolerance is None and is_close(output.dtype, other, one)


def _parts(plan: LaunchPlan) -> str:
    """Return the name of the units whose order varies between schedules."""
    if any(max(launch.grid) > 1 for launch in plan.launches):
        return "blocks"
    return "warps and asynchronous operations"


NAME = "artifact"
_NO_REFERENCE = "the spec names no reference, so numbers are not compared"
_NO_SOURCE = "there is no source, so numbers are not compared"
_LATE = "The result changes when every asynchronous operation completes at once: a wait is missing."
_EFFECTS = (
    *("st", "red", "atom", "multimem", "cp", "stmatrix", "ld", "ldmatrix"),
    *("wgmma", "mma", "tcgen05"),
)
Results = list[list[Any]]
"""For each device, the array of each output."""


def run(subject: Subject, options: Options) -> LevelResult:
    """Check a variant.

    Raises:
        PallascError: the reference fails, or inputs do not fit.
    """
    if not subject.plan.launches:
        return not_checked(NAME, "it launches no kernel")
    arrays = input_arrays(subject, options)
    check = _Check(subject, options, [list(own.values()) for own in arrays])
    try:
        result = check.run(_expected(subject, arrays))
    except UnsupportedError as error:
        return not_checked(NAME, _why_unsupported(error, subject))
    return replace(result, notes=_notes(subject))


def _why_unsupported(error: UnsupportedError, subject: Subject) -> str:
    message = error.message.strip().rstrip(".")
    if "no PTX" not in message or not subject.why_no_ptx:
        return message
    return f"{message}: {subject.why_no_ptx}"


def _expected(subject: Subject, arrays: Sequence[dict[str, Any]]) -> Results | None:
    variant = subject.variant
    if variant is None or variant.reference is None:
        return None
    return expected_results(variant, subject.plan.outputs, arrays)


def _notes(subject: Subject) -> tuple[str, ...]:
    if subject.variant is None:
        return (_NO_SOURCE,)
    return () if subject.variant.reference else (_NO_REFERENCE,)


class _Schedule(NamedTuple):
    """A finished schedule: policy, initial byte of memory, results, and if races were found."""

    policy: Policy
    poison: int
    results: Results
    has_raced: bool


@dataclass(slots=True)
class _Check:
    subject: Subject
    options: Options
    inputs: Sequence[Sequence[Any]]
    first: Results | None = field(default=None, init=False)
    """The results of the first schedule."""
    notes: dict[str, list[Finding]] = field(default_factory=dict, init=False)
    """Notes by rule, from the first schedule that found any."""
    left: dict[tuple[str, str], dict[int, Instruction]] = field(default_factory=dict, init=False)
    """The instructions that no schedule has executed; see `Reaching`."""

    def run(self, expected: Results | None) -> LevelResult:
        """Run the schedules until one of them finds an error."""
        for number, policy in enumerate(policies(self.options.schedules, self.options.seed)):
            try:
                found = self._schedule(policy, expected, POISONS[number % 2])
            except EmulationTimeout as error:
                raise self._too_slow(number) from error
            schedule = _schedule_text(number, self.options.schedules)
            found = [replace(each, message=f"{each.message}{schedule}") for each in found]
            if _has_error(found):
                return from_findings(NAME, found)
            for rule in dict.fromkeys(each.rule for each in found):
                self.notes.setdefault(rule, [each for each in found if each.rule == rule])
        notes = [each for own in self.notes.values() for each in own]
        return from_findings(NAME, (*notes, *self._not_executed()))

    def _not_executed(self) -> Iterator[Finding]:
        """Yield a note for each kernel with instructions that no schedule has executed.

        The finding's `subject` has the PTX lines; `checks.locate` converts them to source lines.
        Kernels are skipped if their unexecuted instructions, such as retries of waits, access no
        memory.
        """
        for (cubin, name), left in self.left.items():
            parts = [instruction.parts for instruction in left.values()]
            has_effect = any(each[0] in _EFFECTS and "param" not in each for each in parts)
            if has_effect and (cubin, name) in self.subject.ptx:
                lines = sorted(instruction.line for instruction in left.values())
                yield Finding(
                    rule=NOT_EXECUTED.name,
                    message=f"{len(lines)} instructions of {name} were not executed",
                    severity="note",
                    kernel=name,
                    cubin=cubin,
                    subject=" ".join(map(str, lines)),
                )

    def _too_slow(self, number: int) -> CheckError:
        before = {0: "", 1: "; schedule 1 found nothing"}.get(
            number, f"; schedules 1 to {number} found nothing"
        )
        return CheckError(
            f"it took longer than {self.options.timeout_s:g} s (--timeout), in schedule "
            f"{number + 1} of {self.options.schedules}{before}",
            hint="Raise --timeout, list small sizes under check in the spec, or use fewer "
            "--schedules.",
        )

    def _run(self, policy: Policy, poison: int, observer: Observer | None = None) -> PlanRun:
        machine = Reaching(
            policy,
            observer=observer or Observer(),
            deadline=self.options.deadline_s,
            poison=poison,
            left=self.left,
        )
        return PlanRun(self.subject.artifact, machine, self.subject.xla_ptx, poison=poison)

    def _schedule(self, policy: Policy, expected: Results | None, poison: int) -> list[Finding]:
        history = History()
        run = self._run(policy, poison, history)
        try:
            results = run.run(self.inputs)
        except Fault as fault:
            return [*race_findings(history, run), fault_finding(fault, run.machine, history)]
        found = race_findings(history, run)
        done = _Schedule(policy, poison, results, bool(found))
        if expected is not None:
            found += self._wrong(done, expected)
        if self.first is None:
            self.first = results
            if expected is not None:
                place = _definition(self.subject.variant)
                found += remarks(self.subject.plan.outputs, results, expected, place)
            if self.options.schedules > 1 or _has_error(found):
                return found
            others = self._run(policy, POISONS[1]).run(self.inputs)
            done = _Schedule(policy, POISONS[1], others, has_raced=False)
            return [*found, *self._differing(done, agree=False)]
        if _has_error(found):
            return found
        return [*found, *self._differing(done, agree=expected is not None)]

    def _differing(self, done: _Schedule, *, agree: bool) -> list[Finding]:
        """Return the differences between a schedule's results and the first schedule's."""
        variant = self.subject.variant
        found = differences(
            self.subject.plan,
            self.first or [],
            done.results,
            variant.tolerance if variant is not None else None,
            agree=agree,
        )
        kept = [
            (finding, element)
            for finding, element in found
            if finding.severity == "error" or finding.rule not in self.notes
        ]
        unwritten = self._unwritten(done) if kept else {}
        return [
            unwritten.get(element.output.path) or self._with_origin(finding, element, done.policy)
            for finding, element in kept
        ]

    def _unwritten(self, done: _Schedule) -> dict[str, Finding]:
        """Return a finding, by output path, for outputs that change with the initial memory."""
        is_first = done.poison == POISONS[0]
        try:
            others = self._run(done.policy, POISONS[is_first]).run(self.inputs)
        except (Fault, EmulationTimeout):
            return {}
        runs = (done.results, others) if is_first else (others, done.results)
        found: dict[str, Finding] = {}
        for number, device, one, other in _pairs(*runs):
            output = self.subject.plan.outputs[number]
            same = (one == other) | ((one != one) & (other != other))
            if same.all() or output.path in found:
                continue
            at = next(zip(*(~same).nonzero(), strict=True)) if same.ndim else ()
            element = Element(device, output, tuple(map(int, at)))
            message = (
                f"{_name(element)} depends on memory that was never written: it is "
                f"{one[at]} in one run, and {other[at]} in another with other memory contents"
            )
            finding = Finding(rule=UNINITIALIZED.name, message=message, subject=output.path)
            found[output.path] = self._with_origin(finding, element, done.policy)
        return found

    def _wrong(self, done: _Schedule, expected: Results) -> list[Finding]:
        """Return the differences between a schedule's results and the reference's."""
        found = self._differences(done.results, expected)
        unwritten = {}
        if not done.has_raced and any(each.rule == WRONG_NUMBERS.name for each, _ in found):
            unwritten = self._unwritten(done)
        wrong = [each for each in found if each[1].output.path not in unwritten]
        explained = self._explained(wrong, done)
        return explained if len(wrong) == len(found) else [*unwritten.values(), *explained]

    def _explained(
        self, found: Sequence[tuple[Finding, Element]], done: _Schedule
    ) -> list[Finding]:
        """Add rule and origin to findings of wrong numbers."""
        if all(finding.severity == "note" for finding, _ in found):
            place = _definition(self.subject.variant)
            return [replace(finding, location=place) for finding, _ in found]
        rule, hint = self._kind(done)
        located = []
        for finding, element in found:
            if finding.rule == WRONG_NUMBERS.name:
                first = "; it is correct in schedule 1" if rule == DEPENDS_ON_ORDER.name else ""
                finding = replace(finding, rule=rule, message=f"{finding.message}{first}")
            located.append(self._with_origin(replace(finding, hint=hint), element, done.policy))
        return located

    def _differences(self, results: Results, expected: Results) -> list[tuple[Finding, Element]]:
        """Return the mismatches of each output, on the first device that has one."""
        variant = self.subject.variant
        tolerance = variant.tolerance if variant is not None else None
        found: dict[int, tuple[Finding, Element]] = {}
        for number, device, got, right in _pairs(results, expected):
            output = self.subject.plan.outputs[number]
            wrong = None if number in found else difference(output, got, right, tolerance)
            if wrong is not None:
                finding, at = wrong
                where = f" on device {device}" if device else ""
                finding = replace(finding, message=f"{finding.message}{where}")
                found[number] = finding, Element(device, output, at)
        return [found[number] for number in sorted(found)]

    def _kind(self, done: _Schedule) -> tuple[str, str]:
        """Return the rule for wrong numbers, and a hint."""
        if self.first is not None and not done.has_raced:
            return DEPENDS_ON_ORDER.name, ""
        try:
            prompt = self._run(Policy(eagerness=1.0, busy=True), done.poison).run(self.inputs)
            if self._differences(prompt, done.results):
                return WRONG_NUMBERS.name, _LATE
        except (Fault, EmulationTimeout):
            return WRONG_NUMBERS.name, ""
        if not done.has_raced and self._interpreter_agrees():
            return COMPILED_WRONGLY.name, ""
        return WRONG_NUMBERS.name, ""

    def _interpreter_agrees(self) -> bool:
        from pallasc.checks import interpreter

        result = interpreter.run(self.subject, self.options)
        return result.status != "not checked" and not result.fails

    def _with_origin(self, finding: Finding, element: Element, policy: Policy) -> Finding:
        subject = self.subject
        origin = find_origin(
            subject.artifact,
            subject.xla_ptx,
            self.inputs,
            policy,
            element,
            self.options.deadline_s,
        )
        if origin is None:
            return replace(finding, location=_definition(subject.variant))
        writer = origin.writer
        cubin, name = origin.kernel or ("", "")
        of_mosaic = origin.kernel in subject.ptx
        origin_text = "; no kernel wrote it"
        if writer is not None:
            origin_text = f"; {writer.actor} wrote it in {name}"
        early = [each.instruction for each in origin.sources if each.early]
        if early:
            origin_text += f"; {early[0].opcode} was in flight when its result was read"
        return replace(
            finding,
            message=f"{finding.message}{origin_text}",
            instruction=shown(writer.instruction if writer is not None else None),
            kernel=name,
            cubin=cubin,
            ptx_line=writer.instruction.line if writer is not None and of_mosaic else 0,
            location=None if writer is not None and of_mosaic else _definition(subject.variant),
            places=tuple(_places(origin)) if of_mosaic else (),
        )


def _has_error(found: Sequence[Finding]) -> bool:
    return any(each.severity == "error" for each in found)


def _places(origin: Origin) -> Iterator[Place]:
    for each in origin.others:
        yield Place(f"writes other elements: {each.opcode}", ptx_line=each.line)
    for each in origin.unread:
        yield Place(f"writes memory that is never read: {each.opcode}", ptx_line=each.line)
    for source in origin.sources if origin.writer is not None else ():
        yield _fed(source, *origin.elsewhere.get(id(source.instruction), ("", "")))


def _fed(source: Source, cubin: str, kernel: str) -> Place:
    instruction = source.instruction
    early = " (in flight when its result was read)" if source.early else ""
    text = f"the value comes from: {instruction.opcode}{early}{source.accesses}"
    return Place(text, ptx_line=instruction.line, kernel=kernel, cubin=cubin)


def _name(element: Element) -> str:
    where = f" on device {element.device}" if element.device else ""
    return f"{name_of_element(element.output, element.at)}{where}"


def _schedule_text(number: int, count: int) -> str:
    """Return the suffix that names a schedule, "" for the first; users count from 1."""
    return f"; in schedule {number + 1} of {count}" if number else ""


def _definition(variant: Variant | None) -> Location | None:
    if variant is None:
        return None
    from pallasc.compiler.lowering.diagnose import definition
    from pallasc.compiler.lowering.entry import import_function

    return definition(import_function(variant.entry, variant.base_dir)) or variant.location
