"""Variants that take arguments of one structure: which arrays they take, and their routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from pallasc.errors import ArgumentError
from pallasc.runtime.calls.routes import Route
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import current_device, get_device
from pallasc.runtime.matching.arguments import Arguments
from pallasc.runtime.matching.candidates import ArrayType, Candidate, Signature, array_type
from pallasc.runtime.matching.nearest import no_variant_for, no_variant_with
from pallasc.runtime.matching.selection import may_run, select, several_fit
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.canonical import canonical_json
from pallasc.specs.lazy import cached_property


class Variants:
    """The variants of a kernel.

    Args:
        name: what messages call them.
        candidates: the variants, at least one.
        checks: see `Kernel`.

    Attributes:
        name, checks: as given.
        variants: the candidates.
    """

    def __init__(self, name: str, candidates: Iterable[Candidate], *, checks: bool = True) -> None:
        self.name = name
        self.checks = checks
        self.variants: tuple[Candidate, ...] = tuple(candidates)
        if not self.variants:
            raise ArgumentError(f"kernel {name} has no variants.")
        self._routes: dict[object, Route] = {}
        self._routes_of_types: dict[tuple[int, tuple[ArrayType, ...]], Route] = {}
        self._with_params: dict[object, Self] = {}

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays, as `Kernel` does."""
        raise NotImplementedError

    @cached_property
    def signature(self) -> Signature:
        """What the first variant takes and gives."""
        return self.variants[0].signature

    @cached_property
    def types(self) -> frozenset[tuple[ArrayType, ...]]:
        """The types of arrays that any variant takes."""
        return frozenset(variant.arrays for variant in self.variants)

    @cached_property
    def arguments(self) -> Arguments:
        """What a caller may write: names and trees of arrays, names of parameters."""
        names = dict.fromkeys(name for variant in self.variants for name in variant.params)
        return Arguments(self.name, self.signature, names)

    def bind(
        self, arrays: Sequence[Any], named: Mapping[str, object]
    ) -> tuple[list[Any], dict[str, object]]:
        """Return the arrays of arguments, and the parameters of the matrix among them.

        Raises:
            ArgumentError: their structure is not that of the first variant's arguments.
        """
        return self.arguments.bind(arrays, named)

    def with_params(self, params: Mapping[str, object]) -> Self:
        """Return the variants that have these parameters of the matrix.

        Raises:
            ArgumentError: there are none.
        """
        key = tuple(sorted((name, str(type(value)), value) for name, value in params.items()))
        variants = self._with_params.get(key)
        if variants is None:
            selection = [own for own in self.variants if _has(own.params, params)]
            if not selection:
                raise no_variant_with(self.name, self.variants, params)
            variants = type(self)(self.name, selection, checks=self.checks)
            # Of two threads that come here, both take what the first put there.
            variants = self._with_params.setdefault(key, variants)
        return variants

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that some variant takes arrays of these types; no driver is needed for that.

        Raises:
            ArgumentError: none does.
        """
        if len(self.types) == 1:
            _check_only_types(self.name, self.variants[0].facts.inputs, arrays)
        elif tuple(array_type(*array) for array in arrays) not in self.types:
            raise no_variant_for(self.name, self.variants, arrays)

    def signature_for(self, arrays: Sequence[ArrayType]) -> Signature:
        """Return what the variants for arrays of these types take and give, whatever the GPU.

        Raises:
            ArgumentError: no variant takes such arrays.
            SelectionError: some that do give different results.
        """
        alike = [variant for variant in self.variants if list(variant.arrays) == list(arrays)]
        if not alike:
            raise no_variant_for(self.name, self.variants, arrays)
        kinds = {_kind(variant): variant for variant in alike}
        if len(kinds) > 1:
            raise several_fit(list(kinds.values()))
        return alike[0].signature

    def route(
        self,
        ordinal: int | None,
        arrays: Sequence[ArrayType],
        addresses: Sequence[int] | None = None,
    ) -> Route:
        """Return the route for arrays of these types, and at these addresses, on a device.

        The device is the current one where `ordinal` is None.

        Raises:
            ArgumentError: no variant takes such arrays on any GPU; no driver is needed to say so.
            SelectionError: no variant fits, or several do.
            DeviceError: the driver cannot be used.
        """
        types = tuple(arrays)
        if ordinal is not None and (ordinal, types) in self._routes_of_types:
            return self._routes_of_types[ordinal, types]
        self.check_types(types)
        if len(self.variants) == 1:
            addresses = None  # binding them has the plainer message
        device = get_device(current_device() if ordinal is None else ordinal)
        route = self._route_of(select(self.variants, device, types, addresses=addresses))
        # Kept where types decide alone: elsewhere addresses may choose another route next time.
        if self.is_only_route(route):
            self._routes_of_types[device.ordinal, types] = route
        return route

    def is_only_route(self, route: Route) -> bool:
        """Tell whether no variant outside a route takes arrays of its types on any GPU here.

        Then types decide, and addresses do not matter.
        """
        arrays = route.candidates[0].arrays
        return all(
            variant.arrays != arrays
            or any(variant is own for own in route.candidates)
            or not may_run(variant)
            for variant in self.variants
        )

    def _route_of(self, candidate: Candidate) -> Route:
        """Return a variant's route, which all variants with the same inputs and outputs share."""
        key = _kind(candidate)
        route = self._routes.get(key)
        if route is None:
            with process_state.now.lock:
                # Most variants are told apart without reading their artifacts.
                likely = [other for other in self.variants if other.types == candidate.types]
                alike = [other for other in likely if may_run(other) and _kind(other) == key]
                route = self._routes.setdefault(key, Route(alike))
        return route


def wrong_layout(name: str, binding: Binding | Array, strides: Sequence[int]) -> ArgumentError:
    """Return the error for an array with these strides, whose elements lie in another order."""
    expected = strides_of(binding.shape, binding.layout)
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if binding.layout is None:
        return ArgumentError(
            f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
            hint=f"It has strides {list(strides)}, and {taken} has {list(expected)}: pass a "
            "contiguous copy, or compile a variant for its layout.",
        )
    return ArgumentError(
        f"{name}: {binding.path} has strides {list(strides)}, and the kernel takes {taken} with "
        f"strides {list(expected)}.",
        hint="Pass an array whose elements lie in that order, or compile a variant for this one.",
    )


def _check_only_types(
    name: str, bindings: Sequence[Array | Binding], arrays: Sequence[ArrayType]
) -> None:
    """Check arrays against the only types that there are, for the plainest message.

    Raises:
        ArgumentError: one has another dtype, shape or layout.
    """
    for binding, (dtype, shape, *layout) in zip(bindings, arrays, strict=True):
        taken = array_text(binding.dtype, binding.shape, binding.layout)
        if dtype != binding.dtype:
            raise ArgumentError(
                f"{name}: {binding.path} has dtype {dtype}, and the kernel takes {taken}.",
                hint="Convert the array, or compile a variant for its dtype.",
            )
        if tuple(shape) != tuple(binding.shape):
            raise ArgumentError(
                f"{name}: {binding.path} has shape {list(shape)}, and the kernel takes {taken}.",
                hint="Compile a variant for this shape.",
            )
        own = array_type(binding.dtype, binding.shape, binding.layout)
        if array_type(dtype, shape, *layout) != own:
            raise wrong_layout(name, binding, strides_of(shape, *layout))


def _kind(candidate: Candidate) -> object:
    """Return what variants of one route have in common."""
    signature = candidate.signature
    outputs = tuple((output.dtype, output.shape) for output in signature.outputs)
    trees = canonical_json([signature.input_tree, signature.output_tree])
    return candidate.arrays, outputs, signature.sources, signature.alignments, trees


def _has(own: Mapping[str, object], params: Mapping[str, object]) -> bool:
    return all(
        name in own and (type(own[name]), own[name]) == (type(value), value)
        for name, value in params.items()
    )
