"""Resolution of target names in specs: GPU architectures and models."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from pallasc.errors import Location, SpecError
from pallasc.specs.gpus import ARCH, DEFAULT_MODELS, MODELS, Target, capability
from pallasc.specs.spelling import one_of, suggestion

_LIKE_ARCH = r"(?:sm|compute)?[-_ ]?(?P<major>\d{1,2})\.?(?P<minor>\d)[a-z]?"
_NONE: Mapping[str, Target] = MappingProxyType({})


def resolve_target(
    name: str, extra: Mapping[str, Target] = _NONE, *, location: Location | None = None
) -> Target:
    """Return the model with this name; an architecture means its default model.

    Args:
        name: a model (`h200`) or an architecture (`sm_90a`).
        extra: models that the user's spec adds.
        location: position of the name, if it is in a spec.

    Raises:
        SpecError: the target is unknown, or the architecture lacks its suffix.
    """
    target = extra.get(name) or MODELS.get(DEFAULT_MODELS.get(name, name))
    if target is not None:
        return target
    raise _unknown_target(name, extra, location)


def check_arch(name: str, *, location: Location | None = None) -> str:
    """Return the name if it is an architecture that Mosaic GPU compiles for.

    Raises:
        SpecError: it is not; the hint has the correct name.
    """
    if name in DEFAULT_MODELS:
        return name
    raise _wrong_suffix(name, location) or SpecError(
        f"unknown architecture {name!r}.",
        location=location,
        hint=target_suggestion(name, DEFAULT_MODELS, otherwise="Architectures"),
    )


def make_model(
    name: str,
    figures: Mapping[str, str | int | float],
    *,
    arch: str | None = None,
    like: str | None = None,
    known: Mapping[str, Target] = _NONE,
) -> Target:
    """Return a user-defined model.

    Args:
        name: its name in specs.
        figures: the fields of `Target` that differ from the base model.
        arch: its architecture; the default is the architecture of `like`.
        like: the base model; the default is the default model of `arch`.
        known: user-defined models that `like` may name.

    Raises:
        SpecError: the name is taken, or neither `arch` nor `like` is given.
    """
    if name in MODELS or name in DEFAULT_MODELS:
        raise SpecError(f"model {name!r} is built in.", hint="Choose another name.")
    base_name = like or arch
    if base_name is None:
        raise SpecError(
            f"model {name!r} has no architecture.",
            hint="Add an architecture, such as arch: sm_90a.",
        )
    base = resolve_target(base_name, known)
    changes = {"description": name, **figures}
    return replace(base, name=name, arch=arch or base.arch, **changes)  # type: ignore[arg-type]


def _unknown_target(name: str, extra: Mapping[str, Target], location: Location | None) -> SpecError:
    wrong = _wrong_suffix(name, location)
    if wrong is not None:
        return wrong
    hint = target_suggestion(name, [*MODELS, *DEFAULT_MODELS, *extra], otherwise="Targets")
    return SpecError(f"unknown target {name!r}.", location=location, hint=hint)


def target_suggestion(name: str, known: Collection[str], *, otherwise: str) -> str | None:
    """Return the hint for an unknown name.

    The first of these that exists is suggested: the architecture in another spelling, the names
    that begin with `name`, the names that `name` begins with, the nearest name.
    """
    text = name.lower()
    like = re.fullmatch(_LIKE_ARCH, text)
    number = f"sm_{like['major']}{like['minor']}" if like else ""
    for candidates in (
        [arch for arch in (f"{number}a", number) if arch in known][:1],
        [word for word in known if text and word.lower().startswith(text)],
        [word for word in known if text.startswith(f"{word.lower()}-")],
    ):
        if candidates:
            return f"Did you mean {one_of(candidates)}?"
    return suggestion(name, known, otherwise=otherwise)


def _wrong_suffix(name: str, location: Location | None) -> SpecError | None:
    match = ARCH.fullmatch(name)
    oldest = min(DEFAULT_MODELS, key=capability)
    if match and capability(name) < capability(oldest):
        message = f"{name}: Mosaic GPU compiles for {oldest} and newer."
        return SpecError(message, location=location, hint="List them with: pallasc targets")
    base = name.rstrip("abcdefghijklmnopqrstuvwxyz") if match else name
    right = next((arch for arch in (f"{base}a", base) if arch in DEFAULT_MODELS), None)
    if match is None or right is None:
        return None
    reason = {
        "": "Mosaic GPU needs the accelerated target.",
        "f": "Mosaic GPU does not compile for family targets, it needs the accelerated target.",
    }
    message = reason.get(match["suffix"], "there is no such architecture.")
    if match["suffix"] and not right.endswith("a"):
        message = "this architecture has no suffix."
    return SpecError(f"{name}: {message}", location=location, hint=f"Write {right}.")
