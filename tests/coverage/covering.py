"""What a coverage case declares beside its spec: the entries it covers and what is looked for.

A case is a function with two decorators: `@covers(…)` and, below it, `@pallasc.kernel(…)`, which
declares it as any Python spec does. The spec's `reference` is compared with what JAX's interpreter
computes; a case without one has to say why: in the words of the interpreter, which cannot run it,
or in those of the compiler, which takes it for no architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.plan import LaunchPlan

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Found:
    """What a case's compilation for one architecture gave; `others` are those of other cases.

    `printed` is what tracing and lowering printed.
    """

    artifact: Artifact
    printed: str = field(default="", repr=False)
    others: Mapping[str, Found] = field(default_factory=dict, repr=False)

    @property
    def plan(self) -> LaunchPlan:
        """The launch plan."""
        return self.artifact.plan

    @cached_property
    def ptx(self) -> str:
        """The PTX of all Mosaic kernels."""
        kernels = [kernel.name for kernel in self.artifact.kernels if kernel.ptx]
        return "\n".join(self.artifact.ptx(name) for name in kernels)

    @cached_property
    def sass(self) -> str:
        """The disassembly of all kernels."""
        from pallasc.analysis.nvdisasm import sass

        names = dict.fromkeys(kernel.name for kernel in self.artifact.kernels)
        return "\n".join(sass(self.artifact.cubin(name)) for name in names)


@dataclass(frozen=True)
class Look:
    """One thing to look for.

    Attributes:
        says: what it is, for the table.
        wrong: returns what is wrong with what was found, "" if nothing is.
        on: architectures on which it is looked for; all, if empty.
        jax: JAX versions likewise.
        beside: the case that it is compared with, "" where there is none.
        fault: what JAX does instead, where it is known not to do what is looked for.
    """

    says: str
    wrong: Callable[[Found], str]
    on: tuple[str, ...] = ()
    jax: tuple[str, ...] = ()
    beside: str = ""
    fault: str = ""

    def applies(self, arch: str, version: str) -> bool:
        """Return whether it is looked for on this architecture with this JAX version."""
        return (not self.on or arch in self.on) and (not self.jax or version in self.jax)


def ptx(pattern: str, *, says: str = "", on: str = "", jax: str = "") -> Look:
    """Look for a regular expression in the PTX; the table has `says` in its place."""
    return _text("PTX", pattern, lambda found: found.ptx, says, on, jax)


def sass(pattern: str, *, says: str = "", on: str = "", jax: str = "") -> Look:
    """Look for a regular expression in the SASS; the table has `says` in its place."""
    return _text("SASS", pattern, lambda found: found.sass, says, on, jax)


def _text(
    kind: str, pattern: str, read: Callable[[Found], str], says: str, on: str, jax: str
) -> Look:
    def wrong(found: Found) -> str:
        return "" if re.search(pattern, read(found)) else f"the {kind} has no {pattern}"

    shown = says or _plain(pattern)
    return Look(f"{kind} `{shown}`", wrong, tuple(on.split()), tuple(jax.split()))


def no_ptx(pattern: str, *, says: str = "", on: str = "", jax: str = "") -> Look:
    """Look that a regular expression is not in the PTX; the table has `says` in its place."""

    def wrong(found: Found) -> str:
        return f"the PTX has {pattern}" if re.search(pattern, found.ptx) else ""

    shown = says or _plain(pattern)
    return Look(f"PTX without `{shown}`", wrong, tuple(on.split()), tuple(jax.split()))


def printed(text: str, *, on: str = "", jax: str = "") -> Look:
    """Look for a text in what was printed while the kernel was traced and lowered."""

    def wrong(found: Found) -> str:
        return "" if text in found.printed else f"nothing printed says {text}"

    return Look(f"printed: “{text}”", wrong, tuple(on.split()), tuple(jax.split()))


def fewer(pattern: str, *, than: str, on: str = "", jax: str = "") -> Look:
    """Look that the PTX has a regular expression less often than that of another case."""

    def wrong(found: Found) -> str:
        own, second = (len(re.findall(pattern, first.ptx)) for first in (found, found.others[than]))
        return "" if own < second else f"the PTX has {pattern} {own} times, {than} {second} times"

    says = f"fewer `{_plain(pattern)}` in PTX than `{than}`"
    return Look(says, wrong, tuple(on.split()), tuple(jax.split()), beside=than)


def plan(says: str, holds: Callable[[LaunchPlan], object], *, on: str = "", jax: str = "") -> Look:
    """Look that something holds of the launch plan; `says` is written into the table."""

    def wrong(found: Found) -> str:
        return "" if holds(found.plan) else f"it does not hold that {says}: {found.plan.steps}"

    return Look(f"plan: {says}", wrong, tuple(on.split()), tuple(jax.split()))


def compared(
    says: str, holds: Callable[[Found, Found], object], *, to: str, on: str = "", jax: str = ""
) -> Look:
    """Look that something holds of this case beside another one that is built for the same."""

    def wrong(found: Found) -> str:
        return "" if holds(found, found.others[to]) else f"beside {to} it does not hold: {says}"

    return Look(f"{says} `{to}`", wrong, tuple(on.split()), tuple(jax.split()), beside=to)


def same_artifact(as_: str, *, on: str = "", jax: str = "") -> Look:
    """Look that the artifact is that of another case."""

    def holds(found: Found, other: Found) -> bool:
        return found.artifact.digest == other.artifact.digest

    return compared("the same artifact as", holds, to=as_, on=on, jax=jax)


def faulty(look: Look, *, does: str) -> Look:
    """Look that something does not hold, because JAX does something else than it is asked for."""
    return replace(look, fault=does)


def _plain(pattern: str) -> str:
    """Return a regular expression as text for a table."""
    text = re.sub(r"(?<!\\)\.\*\??|\\S[*+]\??", "…", pattern)
    text = re.sub(r"\\([.\[\]()+*])", r"\1", text)
    return text.replace(r"\s+", " ").replace(r"\b", "").replace(r"\d+", "N").replace("|", "/")


@dataclass(frozen=True)
class Case:
    """What is declared of a case; `file` is the module of its kernel.

    Attributes:
        covers: entries, as `plgpu.Barrier`, `plgpu.CompilerParams(approx_math)`.
        looks: what to look for.
        gaps: how JAX's message begins where it does not compile, by JAX version, by architecture,
            or by both: `"0.10"`, `"sm_80"`, `"0.10 sm_80"`. Both go first, then the version. In it
            “…” stands for what differs from run to run.
        uninterpreted: likewise what JAX's interpreter says where it cannot run it, by JAX version;
            under "" what it says in every version.
        emulated: with which words the emulation of its PTX ends, by architecture, JAX version or
            both as in `gaps`, or under "" for all: what it finds, or what it does not know.
        gives: what it gives where the spec's reference cannot say so, with which numbers of the
            interpreter are compared, too.
        given: what is made of random arrays before it gets them, by their names.
        zeroed: whether the memory of results begins as zeros, for what comes out is made of it.
        undefined: why a result cannot be told beforehand, by its number.
        fetches: how many bytes each block is to fetch from global memory by TMA.
        note: a remark for the table.
    """

    name: str
    file: str
    covers: tuple[str, ...]
    looks: tuple[Look, ...]
    gaps: Mapping[str, str]
    uninterpreted: Mapping[str, str]
    emulated: Mapping[str, str] = field(default_factory=dict)
    gives: Callable[..., Any] | None = None
    given: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    zeroed: bool = False
    undefined: Mapping[int, str] = field(default_factory=dict)
    fetches: int | None = None
    note: str = ""

    def gap(self, version: str, arch: str) -> str | None:
        """Return how the message begins, None where it has to compile."""
        keys = (f"{version} {arch}", version, arch)
        return next((self.gaps[key] for key in keys if key in self.gaps), None)

    def unnumbered(self, version: str) -> str | None:
        """Return how the interpreter's message begins, None where it has to run it."""
        return self.uninterpreted.get(version, self.uninterpreted.get(""))

    def ends(self, version: str, arch: str) -> str | None:
        """Return with which words emulation ends, None where its numbers have to agree."""
        keys = (f"{version} {arch}", version, arch, "")
        return next((self.emulated[key] for key in keys if key in self.emulated), None)

    def is_interpreted(self, version: str) -> bool:
        """Return whether there is something to interpret: it compiles for some architecture."""
        return version not in self.gaps


CASES: dict[str, Case] = {}
"""Every case of the modules that were imported, by name."""


def covers(
    *entries: str,
    looks: Sequence[Look] = (),
    gaps: Mapping[str, str] | None = None,
    uninterpreted: Mapping[str, str] | str = "",
    emulated: Mapping[str, str] | str = "",
    gives: Callable[..., Any] | None = None,
    given: Mapping[str, Callable[[Any], Any]] | None = None,
    zeroed: bool = False,
    undefined: Mapping[int, str] | None = None,
    fetches: int | None = None,
    note: str = "",
) -> Callable[[Function], Function]:
    """Declare which entries the decorated kernel covers; the arguments are those of `Case`.

    Words that are `uninterpreted` or `emulated` without a version are those of every version.
    """

    def register(function: Function) -> Function:
        file = function.__code__.co_filename.rpartition("/")[2]
        name = function.__name__
        held = CASES.get(name)
        if held is not None and held.file != file:
            raise ValueError(f"{file} and {held.file} both have a case {name}")
        CASES[name] = Case(
            name,
            file,
            entries,
            tuple(looks),
            gaps or {},
            _words(uninterpreted),
            _words(emulated),
            gives,
            given or {},
            zeroed,
            undefined or {},
            fetches,
            note,
        )
        return function

    return register


def _words(words: Mapping[str, str] | str) -> dict[str, str]:
    """Return words by version, without those that are empty."""
    by_version = {"": words} if isinstance(words, str) else words
    return {version: text for version, text in by_version.items() if text}
