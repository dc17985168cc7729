"""A kernel, as calls, forms and adapters know it; `kernel` has the kernel itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from pallasc.runtime.calls.routes import Route
from pallasc.runtime.matching.arrays import Adapter
from pallasc.runtime.matching.candidates import ArrayType, Candidate
from pallasc.runtime.matching.signature import Signature
from pallasc.specs.templates import Scalar


class Launchable(Protocol):
    """Variants that take arguments of one structure, and the routes to launch them through.

    Attributes:
        name: what messages call it.
        variants: to choose from.
        signature: what the first variant takes and gives.
    """

    name: str
    variants: tuple[Candidate, ...]

    @property
    def signature(self) -> Signature:
        """What the first variant takes and gives."""

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays."""

    def route(
        self,
        ordinal: int | None,
        arrays: Sequence[ArrayType],
        addresses: Sequence[int] | None = None,
    ) -> Route:
        """Return the route for arrays of these types on a device."""

    def variant(self, **params: Scalar) -> Self:
        """Return the kernel with these parameters of the matrix fixed."""

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that some variant takes arrays of these types."""

    def signature_for(self, arrays: Sequence[ArrayType]) -> Signature:
        """Return what the variants for arrays of these types take and give."""

    def install(self, adapter: Adapter | None, route: Route) -> None:
        """Let later calls with arrays of this framework go through generated functions."""

    def bind(
        self, arrays: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays of arguments, and the parameters of the matrix among them."""
