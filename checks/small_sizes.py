"""Notes and errors about the small sizes that a spec names under `check`."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from pallasc.errors import PallascError
from pallasc.specs.canonical import plain

if TYPE_CHECKING:
    from pallasc.checks.candidate import Candidate
    from pallasc.specs.spec import Variant

_HINT = "Change these sizes to some that the kernel and its reference take, or remove them."


def sizes_note(asking: Candidate, small: Candidate) -> tuple[str, ...]:
    """Return the note that names the sizes a result holds for.

    Args:
        asking: the variant that the user asked about.
        small: the variant checked in its place.
    """
    if asking.variant is None or asking.variant.check is None or small.variant is None:
        return ()
    if asking.variant.check.names_args:
        return (f"for {small.id} with {_arrays(small.variant)}",)
    return (f"for {small.id}",) if small.id != asking.id else ()


def with_sizes(error: PallascError, variant: Variant) -> PallascError:
    """Return a copy of an error that names the small sizes and their place in the spec.

    Args:
        error: the error of the variant with small sizes; it is not modified.
        variant: the variant that the user asked about.
    """
    sizes = _named_sizes(variant)
    if not sizes:
        return error
    named = copy(error)
    named.message = f"with {sizes} from check: in {variant.where('check')}: {error.message}"
    named.hint = f"{error.hint}\n  {_HINT}" if error.hint else _HINT
    return named


def _named_sizes(variant: Variant) -> str:
    if variant.check is None:
        return ""
    own = dict(variant.params)
    named = [f"{name}={plain(v)}" for name, v in variant.check.params if own.get(name) != v]
    if variant.check.names_args:
        named.append(_arrays(variant.for_check()))
    return ", ".join(named)


def _arrays(variant: Variant) -> str:
    return ", ".join(f"{path}: {array}" for path, array in variant.arrays())
