"""`pallasc diff`: compare the compiled variants of two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.variants import (
    Selectable,
    Target,
    is_key,
    open_store,
    select_views,
    stored,
)
from pallasc.cli.output.text import count, echo, fields, json_text
from pallasc.errors import SpecError
from pallasc.specs.artifacts.artifact import WORDS
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.analysis.compare import (
        Comparison,
        Difference,
        KernelDifference,
    )
    from pallasc.analysis.sides import Side, Subject
    from pallasc.cli.arguments.variants import Work
    from pallasc.compiler.builds.report import Report


_DEPTHS = ("resources", "mix", "sass", "lines", "raw")


@click.command("diff", cls=Command, short_help="Compare the compiled code of variants.")
@click.argument("sides", nargs=-1, required=True, metavar="SIDE...")
@options.option("--base", "REV", "Compare SIDE, a spec, with its version at this git revision.")
@options.option(
    "-k",
    "EXPR",
    "Select variants that match EXPR. Give it twice to compare two selections of one SIDE.",
    parameter="expressions",
    multiple=True,
)
@options.target_option("Model or architecture to use instead of the spec's targets")
@options.choice_option(
    "--depth", _DEPTHS, "Level of detail of the comparison.", default="resources"
)
@options.flag("--exit-code", "Exit with code 1 if anything differs.", parameter="tells")
@options.json_option("the comparison")
@options.quiet_option
@options.selecting
@given.build_options()
def command(
    sides: tuple[str, ...],
    base: str | None,
    expressions: tuple[str, ...],
    depth: str,
    tells: bool,
    as_json: bool,
    work: Work,
) -> int:
    """Compare the compiled variants of two SIDEs, and show which got better or worse.

    A SIDE is a spec or a folder of specs; a spec at a git revision, such as kernels.yaml@main; the
    folder of a store; a bundle; a lock file; or an action key or digest in the store (the first six
    digits are enough). Variants of specs that are not in the store are built first. A git revision
    is built from a temporary copy; the working tree is not changed. With one SIDE and two -k, each
    variant of the first selection is compared with the variant of the second that has the same
    kernel, target, and parameters. A parameter is ignored if no value of it is in both
    selections, such as "block" with -k "block=64" -k "block=128".

    Variants are matched by id; if each side has a single variant, the ids may
    differ. Differences are printed worst first; if there are none, nothing is
    printed. Each depth includes the depths above it:
      resources  registers, spills, stack, shared memory, occupancy, and size;
                 shows if the launch plans or the bytes of the machine code differ
      mix        instructions of kernels by class
      sass       machine code without stalls and addresses, with registers and
                 labels renamed by first use, so that only different or reordered
                 instructions count
      lines      instructions by source line; specs are compiled again to find the
                 lines; a bundle must be made with --lines; for others, first run
                 inspect --lines on the spec
      raw        the unmodified machine code

    Differences do not change the exit code; with --exit-code, they make it 1.

    Examples:
      pallasc diff kernels.yaml@main kernels.yaml
      pallasc diff kernels.yaml --base origin/main
      pallasc diff pallasc.lock kernels.yaml --exit-code
      pallasc diff old.pallasc new.pallasc --depth sass
      pallasc diff kernels.yaml -k "block=64" -k "block=128" --depth mix
      pallasc diff 3fa94c 81d2e0 --depth raw
    """
    from pallasc.analysis.compare import add_lines, compare

    named = _sides(sides, base, expressions)
    with ExitStack() as stack:
        lines = _DEPTHS.index(depth) >= _DEPTHS.index("lines")
        opener = Opener(work, stack, lines)
        (first, code), (second, other_code) = (opener.open(*side) for side in named)
        comparison = compare(
            first,
            second,
            depth=depth,
            by_parameters=len(sides) == 1 and len(expressions) == 2,
            add_lines=lambda difference: add_lines(difference, work.store),
        )
    _print(comparison, as_json=as_json, quiet=work.quiet)
    return code or other_code or int(tells and bool(comparison))


def _sides(
    sides: tuple[str, ...], base: str | None, expressions: tuple[str, ...]
) -> list[tuple[str, str | None]]:
    """Return both sides, each with the expression that selects its variants.

    Raises:
        click.UsageError: the arguments do not name two sides.
    """
    if len(expressions) > 2 or (len(expressions) == 2 and (len(sides) > 1 or base)):
        raise click.UsageError("Two -k compare variants of one SIDE, without --base.")
    one = expressions[0] if expressions else None
    if len(sides) == 1 and base:
        return [(f"{sides[0]}@{base}", one), (sides[0], one)]
    if len(sides) == 1 and len(expressions) == 2:
        return [(sides[0], expressions[0]), (sides[0], expressions[1])]
    if len(sides) == 2 and not base:
        return [(sides[0], one), (sides[1], one)]
    raise click.UsageError(
        "Give two SIDEs, or one SIDE with --base REV, or one SIDE with -k twice."
    )


def _print(comparison: Comparison, *, as_json: bool, quiet: bool) -> None:
    for note in dict.fromkeys((*comparison.first.notes, *comparison.second.notes)):
        echo(f"warning: {note}", err=True)
    if as_json:
        echo(json_text(comparison_json(comparison)))
    else:
        for line in comparison_lines(comparison):
            echo(line)
    if not quiet:
        echo(summary_line(comparison), err=True)


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens the sides of a comparison.

    Attributes:
        work: store and options for building specs; its targets replace the specs' targets, and
            select variants of other sides.
        stack: closes resources of sides, such as the files of a revision.
        lines: find source lines of built variants if the store lacks them.
    """

    work: Work
    stack: ExitStack
    lines: bool = False

    def open(self, text: str, expression: str | None) -> tuple[Side, int]:
        """Return the side that an argument names, and the exit code of its build.

        Raises:
            SpecError: the argument names nothing, or `expression` and the targets select nothing.
            PallascError: reading or building failed.
        """
        from pallasc.analysis import sides

        path, revision = sides.split_revision(text)
        if revision:
            checked = self.stack.enter_context(sides.checked_out(path, revision))
            report = self._build([checked.path], expression)
            notes = sides.taken_from_elsewhere(
                [result.variant for result in report.results], checked
            )
            return _side_of(f"{path}@{revision}", report, notes)
        side = self._compiled(text)
        if side is None:
            return _side_of(text, self._build([path], expression), ())
        return self._selected(side, expression), 0

    def _compiled(self, text: str) -> Side | None:
        """Return an already compiled side, None for specs."""
        from pallasc.analysis import sides
        from pallasc.cache.store import Store
        from pallasc.specs.bundle.format import is_bundle

        path = Path(text)
        if is_bundle(path):
            return sides.bundle_side(path)
        if path.suffix == ".lock" and not path.is_dir():
            from pallasc.specs.loading.lock import read_lock

            lock = read_lock(path)
            if lock is None:
                raise SpecError(f"there is no {path}.")
            return sides.lock_side(lock, text, self.work.store)
        if path.is_dir() and Store(path).folder.is_dir():
            return sides.store_side(open_store(path), text)
        if not is_key(text):
            return None
        found = stored(text, self.work.store)
        if found.variant.name == found.action_key:
            short = structs.replace(found.variant, name=found.variant.name[:12])
            found = structs.replace(found, variant=short)
        return sides.built_side(text, [found])

    def _selected(self, side: Side, expression: str | None) -> Side:
        views = [
            Selectable(
                each.id,
                each.name,
                tuple(each.params.items()),
                Target(each.target, each.artifact.target.arch if each.artifact else ""),
                each,
            )
            for each in side.variants
        ]
        chosen = select_views(views, self._selection(expression), side.name)
        return replace(side, variants=tuple(view.entry for view in chosen))

    def _build(self, paths: Sequence[str], expression: str | None) -> Report:
        from pallasc.compiler.builds.build import build
        from pallasc.specs.spec import Budget

        selection = self._selection(expression)
        work = structs.replace(self.work, specs=tuple(paths), selection=selection)
        with work.progress() as progress:
            selected = work.select(progress).variants
            variants = [structs.replace(variant, budget=Budget()) for variant in selected]
            report = build(variants, store=work.store, options=work.how, on_event=progress)
            if self.lines:
                from pallasc.cli.output.source_text import found_lines

                # The comparison reads the lines from the store, and reports missing ones.
                found_lines(report.results, work.store, work.how, progress.mention)
            return report

    def _selection(self, expression: str | None) -> options.Selection:
        return options.Selection(self.work.selection.targets, expression)


def _side_of(name: str, report: Report, notes: Sequence[str]) -> tuple[Side, int]:
    """Return the side of a build, and the build's exit code."""
    from pallasc.analysis.sides import built_side

    failed = report.failed
    lost = [f"{name}: {len(failed):,} of its variants cannot be built"] if failed else []
    code = report.exit_code if failed or report.interrupted else 0
    return built_side(name, report.results, [*notes, *report.notes, *lost]), code


_VERDICTS = ("worse", "mixed", "better", "")
_WIDEST = max(map(len, WORDS.values()))


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the differences by variant, then the variants that only one side has."""
    for difference in sorted(comparison.differing, key=lambda own: _VERDICTS.index(own.verdict)):
        yield one_line(difference.label)
        yield from (f"  {line}" for line in _lines(difference))
    for side, subjects in _one_sided(comparison):
        yield from (f"only in {one_line(side.name)}: {one_line(each.id)}" for each in subjects)


def _one_sided(comparison: Comparison) -> tuple[tuple[Side, tuple[Subject, ...]], ...]:
    """Return each side with the variants that only it has."""
    return (
        (comparison.first, comparison.only_first),
        (comparison.second, comparison.only_second),
    )


def _lines(difference: Difference) -> Iterator[str]:
    for change in difference.numbers:
        before, after = f"{change.before:,}", f"{change.after:,}"
        yield (
            f"{WORDS[change.field]:<{_WIDEST}} {before:>9} → {after:>9} "
            f"{change.after - change.before:>+9,}  {change.verdict}"
        )
    if difference.plan:
        yield "launch plan differs"
    for kernel in difference.kernels:
        yield from _kernel_lines(kernel)


def _kernel_lines(kernel: KernelDifference) -> Iterator[str]:
    """Yield the lines of a kernel's difference."""
    yield f"{one_line(kernel.name)}: {_code_words(kernel)}"
    if kernel.code is not None and kernel.code.mix:
        rows = (f"{name} {before:,} → {after:,}" for name, before, after in kernel.code.mix)
        yield f"  {', '.join(rows)}"
    if kernel.no_lines:
        yield f"  {kernel.no_lines}"
    for place, before, after in kernel.lines:
        yield f"  {before:>6,} → {after:>6,}  {one_line(place)}"
    yield from (f"  {one_line(line)}" for line in kernel.hunks)


def _code_words(kernel: KernelDifference) -> str:
    """Describe how the code of a kernel differs."""
    if kernel.first is None or kernel.second is None:
        return "new kernel" if kernel.second else "kernel removed"
    code = kernel.code
    if code is None:
        return "different code"
    if code.verdict == "renamed":
        return "only registers, labels or scheduling differ"
    number = (
        count(code.before, "instruction")
        if code.before == code.after
        else f"{code.before:,} → {count(code.after, 'instruction')}"
    )
    if code.verdict == "reordered":
        return f"{number}, in a different order or with different registers"
    return f"{number}; {code.removed:,} removed, {code.added:,} added"


def summary_line(comparison: Comparison) -> str:
    """Return the number of variants by verdict, and of variants that only one side has."""
    verdicts = [difference.verdict for difference in comparison.differing]
    words = {"worse": "worse", "mixed": "better and worse", "better": "better", "": "otherwise"}
    parts = [
        f"{verdicts.count(verdict):,} {text}"
        for verdict, text in words.items()
        if verdict in verdicts
    ]
    verb = "differs" if len(verdicts) == 1 else "differ"
    differing = f"{count(len(verdicts), 'variant')} {verb}: {', '.join(parts)}"
    sentences = [*([differing] if parts else []), f"{count(comparison.same, 'variant')} the same"]
    sentences += [
        f"{len(subjects):,} only in {one_line(side.name)}"
        for side, subjects in _one_sided(comparison)
        if subjects
    ]
    return "; ".join(sentences)


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as plain data."""
    verdicts = [difference.verdict for difference in comparison.differing]
    return {
        **{
            name: {"name": side.name, "variants": len(side.variants), "notes": list(side.notes)}
            for name, side in (("first", comparison.first), ("second", comparison.second))
        },
        "depth": comparison.depth,
        "totals": {
            **{name: verdicts.count(name) for name in ("better", "worse", "mixed")},
            "otherwise": verdicts.count(""),
            "same": comparison.same,
        },
        "only_first": [subject.id for subject in comparison.only_first],
        "only_second": [subject.id for subject in comparison.only_second],
        "variants": [_difference(each) for each in comparison.differing],
    }


def _difference(difference: Difference) -> dict[str, object]:
    def subject(of: Subject) -> dict[str, object]:
        known = fields(of, "id", "action_key", "digest")
        return {**known, "resources": of.resources._asdict()}

    return {
        "first": subject(difference.first),
        "second": subject(difference.second),
        "verdict": difference.verdict or None,
        "resources": {
            each.field: fields(each, "before", "after", "verdict") for each in difference.numbers
        },
        "plan": difference.plan,
        "kernels": [_kernel(kernel) for kernel in difference.kernels],
    }


def _kernel(kernel: KernelDifference) -> dict[str, object]:
    return {
        "first": kernel.first.name if kernel.first else None,
        "second": kernel.second.name if kernel.second else None,
        "code": asdict(kernel.code) if kernel.code else None,
        "lines": [
            dict(zip(("place", "before", "after"), row, strict=True)) for row in kernel.lines
        ],
        "no_lines": kernel.no_lines or None,
        "diff": list(kernel.hunks),
    }
