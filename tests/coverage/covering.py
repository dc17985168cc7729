"""Declarations of coverage cases: the entries that a kernel covers, and the results expected.

A case is a function with two decorators: `@covers(…)` and, below it, `@kernel(…)` for the body of a
kernel, or `@pallasc.kernel(…)` for a function of arrays. A case without `expected` does not compile
for any architecture.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from architectures import EVERYWHERE
from forms import like
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

if TYPE_CHECKING:
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.plan import LaunchPlan

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Found:
    """Result of compiling a case for one architecture; `others` are the results of other cases.

    `printed` is the text that tracing and lowering printed.
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
    """One property to look for in the result.

    Attributes:
        says: its description.
        wrong: returns what is wrong with the result, "" if nothing is.
        jax: the only JAX version that has the property, "" for all.
        beside: the case that the result is compared with.
        fault: what JAX does instead, if the property is known to be absent.
    """

    says: str
    wrong: Callable[[Found], str]
    jax: str = ""
    beside: str = ""
    fault: str = ""


def _holds(says: str, holds: Callable[[Found], object], *, jax: str = "", beside: str = "") -> Look:
    return Look(says, lambda found: "" if holds(found) else f"missing: {says}", jax, beside)


def ptx(pattern: str) -> Look:
    """Look for a regular expression in the PTX."""
    return _holds(f"PTX {pattern}", lambda found: re.search(pattern, found.ptx))


def no_ptx(pattern: str) -> Look:
    """Look that a regular expression is not in the PTX."""
    return _holds(f"PTX without {pattern}", lambda found: not re.search(pattern, found.ptx))


def sass(pattern: str) -> Look:
    """Look for a regular expression in the SASS."""
    return _holds(f"SASS {pattern}", lambda found: re.search(pattern, found.sass))


def printed(text: str) -> Look:
    """Look for a text in the output of tracing and lowering."""
    return _holds(f"printed: {text}", lambda found: text in found.printed)


def fewer(pattern: str, *, than: str) -> Look:
    """Look that the PTX has a regular expression less often than another case's PTX."""

    def holds(own: Found, other: Found) -> bool:
        return len(re.findall(pattern, own.ptx)) < len(re.findall(pattern, other.ptx))

    return compared(f"fewer {pattern} in PTX than", holds, to=than)


def plan(says: str, holds: Callable[[LaunchPlan], object], *, jax: str = "") -> Look:
    """Look that something holds of the launch plan."""
    return _holds(f"plan: {says}", lambda found: holds(found.plan), jax=jax)


def compared(says: str, holds: Callable[[Found, Found], object], *, to: str) -> Look:
    """Look that something holds of this case and another one built for the same architecture."""
    return _holds(f"{says} {to}", lambda found: holds(found, found.others[to]), beside=to)


def same_artifact(as_: str) -> Look:
    """Look that the artifact is the artifact of another case."""
    return compared(
        "the same artifact as",
        lambda found, other: found.artifact.digest == other.artifact.digest,
        to=as_,
    )


def faulty(look: Look, *, does: str) -> Look:
    """Look that something does not hold, because JAX compiles something else."""
    return replace(look, fault=does)


@dataclass(frozen=True)
class Case:
    """The declaration of a case.

    Attributes:
        covers: entries: `plgpu.Barrier`, `plgpu.CompilerParams(approx_math)`.
        looks: the properties to look for.
        gaps: the beginning of JAX's message if it does not compile, by JAX version, by
            architecture, or by both: `"0.10"`, `"sm_80"`, `"0.10 sm_80"`. Both go first, then the
            version. “…” stands for any text.
        emulated: the words with which the emulation of its PTX ends, if it finds something.
        expected: the correct results, of numpy arrays.
        given: functions that change the random arrays, by name.
        zeroed: whether the memory of results begins as zeros.
        undefined: why a result cannot be predicted, by its number.
        fetches: the number of bytes that each block must fetch from global memory by TMA.
    """

    name: str
    covers: tuple[str, ...]
    looks: tuple[Look, ...]
    gaps: Mapping[str, str] = field(default_factory=dict)
    emulated: str | None = None
    expected: Callable[..., Any] | None = None
    given: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    zeroed: bool = False
    undefined: Mapping[int, str] = field(default_factory=dict)
    fetches: int | None = None

    def gap(self, version: str, arch: str) -> str | None:
        """Return the beginning of the message, None where it has to compile."""
        keys = (f"{version} {arch}", version, arch)
        return next((self.gaps[key] for key in keys if key in self.gaps), None)


CASES: dict[str, Case] = {}
"""Every case of the modules that were imported, by name."""


def covers(
    entries: str | Sequence[str], *, looks: Sequence[Look | str] = (), **fields: Any
) -> Callable[[Function], Function]:
    """Declare the entries that the decorated kernel covers, and the fields of `Case`.

    A string in `looks` is a regular expression to look for in the PTX.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        found = tuple(ptx(look) if isinstance(look, str) else look for look in looks)
        covered = (entries,) if isinstance(entries, str) else tuple(entries)
        CASES[name] = Case(name, covered, found, **fields)
        return function

    return register


def table_row(
    namespace: dict[str, Any],
    name: str,
    call: Callable[..., Any],
    *,
    expected: Any,
    **declared: Any,
) -> None:
    """Declare a case of a module's table: a function of one vector, which gets a name there."""
    call.__module__, call.__name__, call.__qualname__ = namespace["__name__"], name, name
    namespace[name] = pallasc.kernel(args={"x": "f32[128]"}, targets=EVERYWHERE)(call)
    covers(declared.pop("entries"), expected=expected, **declared)(call)


def kernel(
    args: Mapping[str, str],
    targets: Sequence[str] = EVERYWHERE,
    *,
    scratch: Any = (),
    tolerance: Mapping[str, float] | None = None,
    mesh: Mapping[str, int] | None = None,
    **keywords: Any,
) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Declare the function that calls `plgpu.kernel` with the decorated body.

    Its result is like the first array, unless `out_type` is given. Axes have the names "i" (grid),
    "c" (cluster), and "wg" (thread), unless others are given.
    """
    for axis, names in (("grid", ("i",)), ("cluster", ("c",))):
        if axis in keywords:
            keywords.setdefault(f"{axis}_names", names)
    if "num_threads" in keywords:
        keywords.setdefault("thread_name", "wg")

    def register(body: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(body)
        def call(*arrays: Any, **named: Any) -> Any:
            given = arrays or [named[name] for name in args]
            out_type = keywords.get("out_type", like(given[0]))
            return plgpu.kernel(body, scratch_types=scratch, **(keywords | {"out_type": out_type}))(
                *given
            )

        parameter = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        call.__signature__ = inspect.Signature([parameter(name) for name in args])
        body.__name__ = "body"  # the name of the compiled kernel, the same for all
        return pallasc.kernel(args=args, targets=targets, tolerance=tolerance, mesh=mesh)(call)

    return register
