"""From what a caller wrote to arrays in the order of the signature, and parameters by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.signature import Signature, input_names
from pallasc.runtime.matching.trees import flatten
from pallasc.specs.arrays import array_text
from pallasc.specs.spelling import suggestion


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
    """

    def __init__(self, name: str, signature: Signature, params: Iterable[str]) -> None:
        self._name = name
        self._signature = signature
        self._trees = input_names(signature)
        self._params = list(params)

    def takes(self, name: str) -> bool:
        """Tell whether something can be given by this name."""
        return name in self._params or any(name == own for own, _ in self._trees)

    def bind(
        self, positional: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays, and what is left: parameters of the matrix.

        Raises:
            ArgumentError: too many or too few were given, or one of an unknown name.
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
            label = name or f"argument {number}"
            if value is MISSING:
                if tree is not None:
                    raise self._error(f"was not given {label}")
                continue
            leaves.update(flatten(tree, value, f"{self._name}: {label}"))
        return [leaves[number] for number in range(len(leaves))]

    def _error(self, what: str) -> ArgumentError:
        arrays = ", ".join(
            f"{one.path}: {array_text(one.dtype, one.shape, one.layout)}"
            for one in self._signature.inputs
        )
        return ArgumentError(f"{self._name} {what}.", hint=f"It takes {arrays or 'no arrays'}.")

    def _unknown(self, name: str) -> ArgumentError:
        known = [own for own, _ in self._trees if own] + self._params + ["out", "stream"]
        return ArgumentError(
            f"{self._name} has no argument {name!r}.",
            hint=suggestion(name, known, otherwise="Its arguments"),
        )
