"""Instructions between inner braces, before their operands are read."""

from __future__ import annotations

from functools import cached_property

from pallasc.emulator.ptx.operands import Scope
from pallasc.emulator.ptx.syntax import Statement


class Inner(Statement):
    """An instruction of an inner scope, with the names that its registers have in the kernel.

    Attributes:
        outer: the instruction as it stands there.
        scope: that scope.
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
        """The same without vectors."""
        return tuple(map(self.scope.own_name, self.outer.scalar_names))

    @cached_property
    def address_names(self) -> tuple[str, ...]:
        """Those of its addresses."""
        return tuple(map(self.scope.own_name, self.outer.address_names))
