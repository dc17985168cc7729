"""Instructions of inner scopes, before their operands are parsed."""

from __future__ import annotations

from functools import cached_property

from pallasc.emulator.ptx.operands import Scope
from pallasc.emulator.ptx.syntax import Statement


class Inner(Statement):
    """An instruction of an inner scope, with its registers' names in the kernel.

    Attributes:
        outer: the instruction as written.
        scope: the inner scope.
    """

    def __init__(self, outer: Statement, scope: Scope) -> None:
        guard = None if outer.guard is None else scope.own_name(outer.guard)
        results = tuple(map(scope.own_name, outer.results))
        super().__init__(
            outer.source,
            outer.negated,
            guard,
            outer.opcode,
            outer.operands,
            results,
            outer.is_branch,
        )
        self.outer, self.scope = outer, scope

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in its operands."""
        return tuple(map(self.scope.own_name, self.outer.names))

    @cached_property
    def scalar_names(self) -> tuple[str, ...]:
        """The names in its operands, except those in vectors."""
        return tuple(map(self.scope.own_name, self.outer.scalar_names))

    @cached_property
    def address_names(self) -> tuple[str, ...]:
        """The names in its addresses."""
        return tuple(map(self.scope.own_name, self.outer.address_names))
