"""The forms of a kernel: its variants, grouped by argument structure.

An argument may be an array in one variant and None in another, or lists of different lengths, or
mappings with different keys. Variants with the same structure are one form, which is a kernel in
itself. Structures are distinguished by the paths of their arrays, which a bundle's manifest has.
Only if arrays are in lists, mappings or nodes are the launch plans read as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.matching.candidates import ArrayType
from pallasc.runtime.matching.selection import may_run, several_fit
from pallasc.runtime.matching.variants import Variants
from pallasc.specs.artifacts.plan import tree_leaves
from pallasc.specs.artifacts.signature import input_names

K = TypeVar("K", bound=Variants)
"""The class of a kernel."""

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Fitting(Generic[K]):
    """A form that matches the arguments, its variants with the given parameters, and the arrays."""

    form: K
    chosen: K
    leaves: Sequence[Any]


Types = Callable[[Sequence[Any]], list[ArrayType]]
"""Return the dtype and shape of each of these arrays."""


class Forms(Generic[K]):
    """The forms of one kernel.

    Args:
        name: the kernel.
        kernels: a kernel for each form, two or more.
        types: see `Types`; called only if several forms match the structure of a call.

    Attributes:
        kernels: as given.
    """

    def __init__(self, name: str, kernels: Sequence[K], types: Types) -> None:
        self._name = name
        self.kernels = tuple(kernels)
        self._types = types
        self._names, self._optional = self.parameters() or [], self.optional()
        self._by_given = self.by_given()

    def choose(self, arrays: Sequence[Any], named: Mapping[str, object]) -> K:
        """Return the kernel whose signature matches the arguments.

        Raises:
            ArgumentError: no form matches.
            SelectionError: several forms match, and take arrays of these types.
        """
        given = self._given(arrays, named)
        if given in self._by_given:
            return self._by_given[given]
        reasons: list[tuple[K, PallascError]] = []
        fitting: list[_Fitting[K]] = []
        for form in self.kernels:
            try:
                leaves, params = form.arguments.bind(arrays, named)
                fitting.append(_Fitting(form, form.with_params(params) if params else form, leaves))
            except ArgumentError as error:
                reasons.append((form, error))
        if len(fitting) > 1:
            fitting = self._of_types(fitting, reasons)
        if len(fitting) > 1:
            with suppress(DeviceError):
                fitting = [match for match in fitting if any(map(may_run, match.chosen.variants))]
        if not fitting:
            raise self._none_fits(reasons)
        if len(fitting) > 1:
            raise several_fit([match.chosen.variants[0] for match in fitting])
        return fitting[0].form

    def _given(self, arrays: Sequence[Any], named: Mapping[str, object]) -> tuple[bool, ...] | None:
        """Return which optional parameters are given, None if there are other arguments, too."""
        if len(arrays) > len(self._names):
            return None
        values = dict(zip(self._names, arrays, strict=False))
        if not values.keys().isdisjoint(named) or not named.keys() <= set(self._names):
            return None
        values |= named
        return tuple(values.get(name) is not None for name in self._optional)

    def _of_types(
        self, fitting: Sequence[_Fitting[K]], reasons: list[tuple[K, PallascError]]
    ) -> list[_Fitting[K]]:
        """Return the matches that take arrays of the given dtypes and shapes."""
        matches = []
        for match in fitting:
            try:
                match.chosen.signature_for(self._types(match.leaves))
                matches.append(match)
            except PallascError as error:
                reasons.append((match.form, error))
        return matches

    def _none_fits(self, reasons: Sequence[tuple[K, PallascError]]) -> ArgumentError:
        messages = {error.message for _, error in reasons}
        if len(messages) == 1:
            hints = {error.hint for _, error in reasons}
            return ArgumentError(messages.pop(), hint=hints.pop() if len(hints) == 1 else None)
        lines = [f"\n  {_example(kernel)}: {error.message}" for kernel, error in reasons]
        more = len(lines) - _MOST_SHOWN
        rest = f"\n  … and {more} more" if more > 0 else ""
        return ArgumentError(
            f"no variant of {self._name} takes these arguments:{''.join(lines[:_MOST_SHOWN])}{rest}"
        )

    # ---- parameters

    def parameters(self) -> list[str] | None:
        """Return the names of all parameters in order, None if some have no names."""
        orders = []
        for kernel in self.kernels:
            trees = input_names(kernel.signature)
            if any(name is None for name, _ in trees):
                return None
            orders.append(_order(kernel))
        names: list[str] = []
        for order in sorted(orders, key=len, reverse=True):
            names += [name for name in order if name not in names]
        others = (str(name) for kernel in self.kernels for name, _ in input_names(kernel.signature))
        return list(dict.fromkeys((*names, *others)))

    def optional(self) -> list[str]:
        """Return the parameters that have arrays in some forms but not in others."""
        with_arrays = [self._with_arrays(kernel) for kernel in self.kernels]
        return [
            name
            for name in self.parameters() or []
            if 0 < sum(name in own for own in with_arrays) < len(with_arrays)
        ]

    def by_given(self) -> dict[tuple[bool, ...], K]:
        """Return the form for each set of optional parameters given, if there is exactly one.

        Only forms that know all parameters count.
        """
        names, optional = set(self.parameters() or []), self.optional()
        by_set: dict[tuple[bool, ...], list[K]] = {}
        for form in self.kernels:
            own = self._with_arrays(form)
            by_set.setdefault(tuple(name in own for name in optional), []).append(form)
        return {
            given: forms[0]
            for given, forms in by_set.items()
            if len(forms) == 1 and {n for n, _ in input_names(forms[0].signature)} == names
        }

    def _with_arrays(self, kernel: K) -> set[str]:
        trees = input_names(kernel.signature)
        return {str(name) for name, tree in trees if any(True for _ in tree_leaves(tree))}


def _order(kernel: Variants) -> list[str]:
    """Return the parameters whose order is known; it often is not for those without arrays."""
    trees = input_names(kernel.signature)
    if kernel.signature.parameters:
        return [str(name) for name, _ in trees]
    return [str(name) for name, tree in trees if any(True for _ in tree_leaves(tree))]


def _example(kernel: Variants) -> str:
    first = kernel.variants[0].id
    others = len(kernel.variants) - 1
    return f"{first} and {others} more" if others else first
