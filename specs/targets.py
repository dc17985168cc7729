"""Targets: the architectures that Mosaic GPU compiles for, and the models of GPUs that have them.

Figures of the models are those of OpenXLA's target specs where that folder has the model
(`xla/backends/gpu/target_config/specs`, read in 2026); those of L40S, GH200 and Jetson Thor are
from NVIDIA's data sheets and the table of compute capabilities in the CUDA programming guide.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType

from pallasc.errors import Location, SpecError
from pallasc.specs.spelling import one_of, suggestion

_ARCH = re.compile(r"sm_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[a-z]?)")
_LIKE_ARCH = re.compile(r"(?:sm|compute)?[-_ ]?(?P<major>\d{1,2})\.?(?P<minor>\d)[a-z]?")
_NONE: Mapping[str, Target] = MappingProxyType({})

DEFAULT_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "sm_80": "a100-sxm",
        "sm_86": "a6000",
        "sm_89": "l40s",
        "sm_90a": "h100-sxm",
        "sm_100a": "b200",
        "sm_103a": "b300",
        "sm_110a": "thor",
        "sm_120a": "rtx-pro-6000",
    }
)
"""Every architecture, and the model that its bare name stands for."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model of GPU with the figures that reach the compiler.

    Attributes:
        name: the model, `h100-sxm`.
        arch: the architecture with its suffix, `sm_90a`.
        sm_count: streaming multiprocessors.
        smem_optin_bytes: shared memory one block may ask for.
        smem_per_sm_bytes: shared memory of one multiprocessor.
        threads_per_sm: resident threads of one multiprocessor.
        fpus_per_sm: single-precision units of one multiprocessor.
        memory_bandwidth_bytes_per_s: peak of the device memory.
        l2_bytes: size of the L2 cache.
        clock_ghz: boost clock.
        memory_bytes: size of the device memory.
        description: the device's name as the driver gives it.
    """

    name: str
    arch: str
    sm_count: int
    smem_optin_bytes: int
    smem_per_sm_bytes: int
    threads_per_sm: int
    fpus_per_sm: int
    memory_bandwidth_bytes_per_s: int
    l2_bytes: int
    clock_ghz: float
    memory_bytes: int
    description: str

    @property
    def major(self) -> int:
        """Return the major number of the compute capability, 9 of `sm_90a`."""
        return int(self._parts()["major"])

    @property
    def minor(self) -> int:
        """Return the minor number of the compute capability, 0 of `sm_90a`."""
        return int(self._parts()["minor"])

    @property
    def suffix(self) -> str:
        """Return `a` for an accelerated architecture, else nothing."""
        return self._parts()["suffix"]

    def figures(self) -> dict[str, str | int | float]:
        """Return all that decides the compilation: everything but the model's name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    def _parts(self) -> re.Match[str]:
        match = _ARCH.fullmatch(self.arch)
        if match is None:
            raise SpecError(f"{self.arch!r} is not an architecture.", hint="Write it like sm_90a.")
        return match


_A100 = Target(
    name="a100-sxm",
    arch="sm_80",
    sm_count=108,
    smem_optin_bytes=166912,
    smem_per_sm_bytes=167936,
    threads_per_sm=2048,
    fpus_per_sm=64,
    memory_bandwidth_bytes_per_s=2_039_040_000_000,
    l2_bytes=41943040,
    clock_ghz=1.41,
    memory_bytes=85100068864,
    description="NVIDIA A100-SXM4-80GB",
)
_A6000 = Target(
    name="a6000",
    arch="sm_86",
    sm_count=84,
    smem_optin_bytes=101376,
    smem_per_sm_bytes=102400,
    threads_per_sm=1536,
    fpus_per_sm=128,
    memory_bandwidth_bytes_per_s=768_096_000_000,
    l2_bytes=6291456,
    clock_ghz=1.8,
    memory_bytes=51041271808,
    description="NVIDIA RTX A6000",
)
_H100 = Target(
    name="h100-sxm",
    arch="sm_90a",
    sm_count=132,
    smem_optin_bytes=232448,
    smem_per_sm_bytes=233472,
    threads_per_sm=2048,
    fpus_per_sm=128,
    memory_bandwidth_bytes_per_s=3_352_320_000_000,
    l2_bytes=52428800,
    clock_ghz=1.98,
    memory_bytes=84942979072,
    description="NVIDIA H100 80GB HBM3",
)
_B200 = replace(
    _H100,
    name="b200",
    arch="sm_100a",
    sm_count=148,
    memory_bandwidth_bytes_per_s=7_672_320_000_000,
    l2_bytes=132644864,
    clock_ghz=1.965,
    memory_bytes=191514411008,
    description="NVIDIA B200",
)
_B300 = replace(
    _B200,
    name="b300",
    arch="sm_103a",
    sm_count=158,
    memory_bandwidth_bytes_per_s=7_936_000_000_000,
    l2_bytes=135528448,
    memory_bytes=297021865984,
    description="NVIDIA B300",
)

_BUILT_IN = (
    _A100,
    replace(
        _A100,
        name="a100-pcie",
        memory_bandwidth_bytes_per_s=2_039_000_000_000,
        clock_ghz=1.1105,
        memory_bytes=79050250240,
        description="NVIDIA A100 80GB PCIe",
    ),
    _A6000,
    replace(
        _A6000,
        name="l40s",
        arch="sm_89",
        sm_count=142,
        memory_bandwidth_bytes_per_s=864_000_000_000,
        l2_bytes=100663296,
        clock_ghz=2.52,
        memory_bytes=48_000_000_000,
        description="NVIDIA L40S",
    ),
    _H100,
    replace(
        _H100,
        name="h100-pcie",
        sm_count=114,
        memory_bandwidth_bytes_per_s=2_039_040_000_000,
        clock_ghz=1.755,
        description="NVIDIA H100 PCIe",
    ),
    replace(
        _H100,
        name="h200",
        memory_bandwidth_bytes_per_s=4_800_000_000_000,
        memory_bytes=151397597184,
        description="NVIDIA H200 141GB HBM3e",
    ),
    replace(
        _H100,
        name="gh200",
        memory_bandwidth_bytes_per_s=4_000_000_000_000,
        memory_bytes=96_000_000_000,
        description="NVIDIA GH200 96GB HBM3",
    ),
    _B200,
    replace(
        _B200,
        name="gb200",
        sm_count=152,
        memory_bandwidth_bytes_per_s=7_928_064_000_000,
        l2_bytes=135528448,
        clock_ghz=2.062,
        memory_bytes=197897748480,
        description="NVIDIA GB200",
    ),
    _B300,
    replace(
        _B300,
        name="gb300",
        sm_count=152,
        memory_bandwidth_bytes_per_s=7_928_064_000_000,
        clock_ghz=2.07,
        memory_bytes=297021079552,
        description="NVIDIA GB300",
    ),
    replace(
        _B200,
        name="thor",
        arch="sm_110a",
        sm_count=20,
        threads_per_sm=1536,
        memory_bandwidth_bytes_per_s=273_000_000_000,
        l2_bytes=33554432,
        clock_ghz=1.575,
        memory_bytes=128_000_000_000,
        description="NVIDIA Thor",
    ),
    Target(
        name="rtx-pro-6000",
        arch="sm_120a",
        sm_count=188,
        smem_optin_bytes=101376,
        smem_per_sm_bytes=131072,
        threads_per_sm=1536,
        fpus_per_sm=128,
        memory_bandwidth_bytes_per_s=1_792_000_000_000,
        l2_bytes=134217728,
        clock_ghz=2.6,
        memory_bytes=103079215104,
        description="NVIDIA RTX PRO 6000 Blackwell",
    ),
)

MODELS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _BUILT_IN})
"""Every built-in model by name, older architectures first."""

FIGURES: tuple[str, ...] = tuple(
    field.name for field in fields(Target) if field.name not in ("name", "arch", "description")
)
"""The fields of a target that are numbers; all are positive."""


def resolve_target(
    name: str, extra: Mapping[str, Target] = _NONE, *, location: Location | None = None
) -> Target:
    """Return the model that a name stands for; an architecture stands for its default model.

    Args:
        name: a model (`h200`) or an architecture (`sm_90a`).
        extra: models that the user's spec adds.
        location: where the name stands, if it stands in a spec.

    Raises:
        SpecError: no such target, or an architecture without the suffix that it needs.
    """
    target = extra.get(name) or MODELS.get(DEFAULT_MODELS.get(name, name))
    if target is not None:
        return target
    raise _unknown_target(name, extra, location)


def check_arch(name: str, *, location: Location | None = None) -> str:
    """Return the name when it is an architecture that Mosaic GPU compiles for.

    Raises:
        SpecError: it is not; the hint has the right name.
    """
    if name in DEFAULT_MODELS:
        return name
    raise _wrong_suffix(name, location) or SpecError(
        f"unknown architecture {name!r}.",
        location=location,
        hint=_meant(name, DEFAULT_MODELS, otherwise="Architectures"),
    )


def make_model(
    name: str,
    figures: Mapping[str, str | int | float],
    *,
    arch: str | None = None,
    like: str | None = None,
    known: Mapping[str, Target] = _NONE,
) -> Target:
    """Return a model of the user's own.

    Args:
        name: what it is called in specs.
        figures: the fields of `Target` that differ from the model it is like.
        arch: its architecture; that of `like` when left out.
        like: the model that gives the other figures; the default one of `arch` when left out.
        known: models of the user that `like` may name.

    Raises:
        SpecError: the name is taken, or neither `arch` nor `like` is given.
    """
    if name in MODELS or name in DEFAULT_MODELS:
        raise SpecError(f"model {name!r} is built in.", hint="Choose another name.")
    base_name = like or arch
    if base_name is None:
        raise SpecError(f"model {name!r} has no architecture.", hint="Add arch: sm_90a, say.")
    base = resolve_target(base_name, known)
    changes = {"description": name, **figures}
    return replace(base, name=name, arch=arch or base.arch, **changes)  # type: ignore[arg-type]


def _unknown_target(name: str, extra: Mapping[str, Target], location: Location | None) -> SpecError:
    wrong = _wrong_suffix(name, location)
    if wrong is not None:
        return wrong
    hint = _meant(name, [*MODELS, *DEFAULT_MODELS, *extra], otherwise="Targets")
    return SpecError(f"unknown target {name!r}.", location=location, hint=hint)


def _meant(name: str, known: Collection[str], *, otherwise: str) -> str | None:
    """Return the hint for an unknown name.

    It has the architecture written in another way, else the names that begin with `name`, else
    those that `name` begins with, else the nearest.
    """
    text = name.lower()
    like = _LIKE_ARCH.fullmatch(text)
    number = f"sm_{like['major']}{like['minor']}" if like else ""
    for found in (
        [arch for arch in (f"{number}a", number) if arch in known][:1],
        [word for word in known if text and word.lower().startswith(text)],
        [word for word in known if text.startswith(f"{word.lower()}-")],
    ):
        if found:
            return f"Did you mean {one_of(found)}?"
    return suggestion(name, known, otherwise=otherwise)


def _wrong_suffix(name: str, location: Location | None) -> SpecError | None:
    match = _ARCH.fullmatch(name)
    base = name.rstrip("abcdefghijklmnopqrstuvwxyz") if match else name
    right = next((arch for arch in (f"{base}a", base) if arch in DEFAULT_MODELS), None)
    if match is None or right is None:
        return None
    reason = {
        "": "Mosaic GPU needs the accelerated target.",
        "f": "a family target is not enough; Mosaic GPU needs the accelerated target.",
    }
    message = reason.get(match["suffix"], "there is no such architecture.")
    if match["suffix"] and not right.endswith("a"):
        message = "this architecture has no suffix."
    return SpecError(f"{name}: {message}", location=location, hint=f"Write {right}.")
