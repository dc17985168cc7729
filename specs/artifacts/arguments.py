"""What a call passes, bound to the arrays of a plan: by position, by name, in lists and dicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pallasc.errors import ArgumentError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.plan import Binding, tree_leaves
from pallasc.specs.artifacts.trees import flatten
from pallasc.specs.spelling import suggestion


class Signed(Protocol):
    """What has the signature of a function, such as a launch plan."""

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """The arrays that are passed, in order."""

    @property
    def input_tree(self) -> Any:
        """As in the plan."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """As in the plan."""


class Missing:
    """Stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


class Arguments:
    """The parameters of a kernel.

    Args:
        name: the kernel.
        signature: what it takes.
        params: names of matrix parameters that may be given too.
        others: what else may be given by name, for suggestions.
    """

    def __init__(
        self,
        name: str,
        signature: Signed,
        params: Iterable[str],
        others: Sequence[str] = ("out", "stream"),
    ) -> None:
        self._name = name
        self._others = others
        self._signature = signature
        self._trees = input_names(signature)
        self._params = list(params)

    def takes(self, name: str) -> bool:
        """Tell whether something can be given by this name."""
        return name in self._params or any(name == own for own, _ in self._trees)

    def bind(
        self, positional: Sequence[Any], named: Mapping[str, object]
    ) -> tuple[list[Any], dict[str, object]]:
        """Return the arrays, and what is left: parameters of the matrix.

        Raises:
            ArgumentError: there are too many or too few, or a name is unknown.
        """
        values = list(positional)
        if len(values) > len(self._trees):
            raise self._error(f"was given {len(values)} arguments by position")
        values += [MISSING] * (len(self._trees) - len(values))
        rest = dict(named)
        for number, (name, _) in enumerate(self._trees):
            if name is not None and name in rest:
                if values[number] is not MISSING:
                    raise self._error(f"was given {name} twice")
                values[number] = rest.pop(name)
        for name in rest:
            if name not in self._params:
                raise self._unknown(name)
        return self._flat(values), rest

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        leaves: dict[int, Any] = {}
        for number, ((name, tree), value) in enumerate(zip(self._trees, values, strict=True)):
            if type(tree) is int and value is not MISSING:  # the usual case, without a generator
                leaves[tree] = value
                continue
            label = name or f"argument {number}"
            if value is not MISSING:
                leaves.update(flatten(tree, value, f"{self._name}: {label}"))
            elif tree is not None:
                raise self._error(f"was not given {label}")
        return [leaves[number] for number in range(len(leaves))]

    def _error(self, what: str) -> ArgumentError:
        arrays = ", ".join(
            f"{array.path}: {array_text(array.dtype, array.shape, array.layout)}"
            for array in self._signature.inputs
        )
        return ArgumentError(f"{self._name} {what}.", hint=f"It takes {arrays or 'no arrays'}.")

    def _unknown(self, name: str) -> ArgumentError:
        names = [*(own for own, _ in self._trees if own), *self._params, *self._others]
        return ArgumentError(
            f"{self._name} has no argument {name!r}.",
            hint=suggestion(name, names, otherwise="Its arguments"),
        )


def input_names(signature: Signed) -> list[tuple[str | None, Any]]:
    """Return the parameters of the function: name, and the tree of array numbers below it.

    Names are None where the function takes its arrays by position. JSON keeps no order of names,
    so they are sorted by their arrays, which follow the function; those without any come last,
    where the plan does not say otherwise.
    """
    tree = signature.input_tree
    if not isinstance(tree, Mapping):
        return [(None, item) for item in (tree if isinstance(tree, list) else [tree])]
    if signature.parameters:
        return [(name, tree[name]) for name in signature.parameters]
    return sorted(tree.items(), key=lambda item: min(tree_leaves(item[1]), default=math.inf))
