"""What registers of a kernel hold, as far as that is known before it runs.

A value is a sum: a constant of each thread of the block, and multiples of *atoms*, which stand for
what is not known: the address of shared memory, a parameter, the index of a block, the number of a
loop's iteration, the result of an instruction. Equal instructions of equal operands are one atom
(value numbering), so two addresses are the same where their sums are.

Results of instructions that are not modelled, such as those of floating-point arithmetic, are atoms
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

Constant = Any
"""An int, or an array with an element for each thread of a block."""

Terms = tuple[tuple[int, int], ...]


class Value(NamedTuple):
    """`constant` plus the sum of factor × atom over `terms`, which are (atom, factor) by atom."""

    terms: Terms
    constant: Constant

    @property
    def is_known(self) -> bool:
        """Whether it holds no atoms."""
        return not self.terms

    @property
    def number(self) -> int | None:
        """The value, if it is the same known number in all threads."""
        if self.terms:
            return None
        if isinstance(self.constant, int):
            return self.constant
        first = int(self.constant[0])
        return first if (self.constant == first).all() else None


_new = tuple.__new__
"""Makes most values: a call of their class takes twice as long."""


def key_of(value: Value) -> Hashable:
    """Return what two values have in common exactly if they are the same."""
    constant = value.constant
    return value.terms, constant if isinstance(constant, int) else constant.tobytes()


def known(number: Constant) -> Value:
    """Return a value without atoms."""
    return _new(Value, ((), number))


class Atoms:
    """Numbers for what is not known, by what it is.

    Attributes:
        descriptions: what each atom is: a tuple whose first element is its kind.
        operands: the operands of an atom that is the result of an instruction.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.descriptions: list[tuple[Any, ...]] = []
        self.operands: list[tuple[Value, ...]] = []

    def atom(self, *description: Hashable, operands: tuple[Value, ...] = ()) -> int:
        """Return the number of an atom."""
        key = (description, tuple(map(key_of, operands)))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.descriptions)
            self.descriptions.append(description)
            self.operands.append(operands)
        return number

    def value(self, *description: Hashable, operands: tuple[Value, ...] = ()) -> Value:
        """Return an atom as a value."""
        return _new(Value, (((self.atom(*description, operands=operands), 1),), 0))

    def kind(self, number: int) -> Any:
        """Return the kind of an atom."""
        return self.descriptions[number][0]


def add(a: Value, b: Value, factor: int = 1) -> Value:
    """Return `a + factor * b`."""
    constant = a.constant + (b.constant if factor == 1 else factor * b.constant)
    if not b.terms:
        return _new(Value, (a.terms, constant))
    if not a.terms and factor == 1:
        return _new(Value, (b.terms, constant))
    sums = dict(a.terms)
    for atom, times in b.terms:
        sums[atom] = sums.get(atom, 0) + factor * times
    return Value(tuple(sorted((atom, n) for atom, n in sums.items() if n)), constant)


def times(a: Value, factor: int) -> Value:
    """Return `factor * a`."""
    if not factor:
        return known(0)
    return Value(tuple((atom, factor * n) for atom, n in a.terms), factor * a.constant)


def unsigned(constant: Constant, bits: int) -> Constant:
    """Return a constant as an unsigned number of a width, arrays of 64 bits as they are."""
    if isinstance(constant, int):
        return constant & ((1 << bits) - 1)
    return constant if bits >= 64 else constant & ((1 << bits) - 1)


def signed(constant: Constant, bits: int) -> Constant:
    """Return a constant as a signed number of a width, arrays of 64 bits as they are."""
    if isinstance(constant, int):
        half = 1 << (bits - 1)
        return (constant + half) % (2 * half) - half
    if bits >= 64:
        return constant
    half = 1 << (bits - 1)
    return ((constant + half) & (2 * half - 1)) - half


def _small(constant: Constant) -> Constant:
    """Return an int so that it fits an element of an array."""
    return signed(constant, 64) if isinstance(constant, int) else constant


def both(function: Callable[[Any, Any], Any], a: Constant, b: Constant) -> Constant:
    """Return a function of two constants."""
    if isinstance(a, int) and isinstance(b, int):
        return int(function(a, b))
    return function(_small(a), _small(b))


def where(condition: Constant, a: Constant, b: Constant) -> Constant:
    """Return `a` where a condition holds, else `b`."""
    if isinstance(condition, int):
        return a if condition else b
    return np.where(condition.astype(bool), _small(a), _small(b))


def as_mask(constant: Constant, threads: int) -> Any:
    """Return a condition as an array of bool over the threads of a block."""
    if isinstance(constant, int):
        return np.full(threads, bool(constant))
    return constant.astype(bool)


def terms_without(terms: Terms, atoms: Iterable[int]) -> Terms:
    """Return the terms of other atoms."""
    left_out = set(atoms)
    return tuple(term for term in terms if term[0] not in left_out)
