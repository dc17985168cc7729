"""Match a call: bind its arguments, inspect and check its arrays, and select a variant.

Variants of a kernel may differ in the structure of an argument: an array or None, lists of
different lengths, or mappings with different keys. Variants with the same structure are one form,
which acts as a kernel. Structures are distinguished by the paths of their arrays, which are in a
bundle's manifest. If arrays are in lists, mappings, or other tree nodes, launch plans are read,
too: paths show neither empty lists nor the types of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.calls.launch import Match, Route
from pallasc.runtime.device.devices import current_device, get_device, state
from pallasc.runtime.matching.arrays import Adapter, ArrayView, Passed, check_copied, find_adapter
from pallasc.runtime.matching.candidates import (
    ArrayType,
    Candidate,
    array_type,
    by_arrays,
    has_params,
    note_provider,
)
from pallasc.runtime.matching.padding import Padding, Prepared, smallest
from pallasc.runtime.matching.selection import (
    arch_refusal,
    cut,
    may_run,
    no_variant_for,
    no_variant_with,
    not_contiguous,
    place_text,
    read_only,
    several_fit,
    wrong_array,
    wrong_layout,
)
from pallasc.runtime.matching.tuned import Selector
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts import cached_property
from pallasc.specs.artifacts.plan import Binding, LaunchPlan, tree_leaves
from pallasc.specs.artifacts.signature import MISSING, Arguments, flatten, input_names

# ---- the variants of a kernel


class Rules:
    """Rules that a program declared for a kernel, for JAX transformations.

    Args:
        find: returns the kernel with a name, among the kernels opened together with this kernel.

    Attributes:
        find: as given.
        backward: a kernel or a function that returns gradients, None if there is none.
        batched: the kernel that handles a batch, None to use this kernel's own variants.
        is_batched: True if `declare_batched` was called.
        version: incremented by each declaration.
    """

    def __init__(self, find: Callable[[str], Any] = lambda _: None) -> None:
        self.find = find
        self.backward: Any = None
        self.batched: Any = None
        self.is_batched = False
        self.version = 0

    def declare_batched(self, batched: Variants | None) -> None:
        """Declare the kernel that handles a batch; None to use this kernel's own variants."""
        self.batched, self.is_batched = batched, True
        self.version += 1

    def declare_backward(self, backward: Any) -> None:
        """Declare the kernel or function that returns gradients."""
        self.backward = backward
        self.version += 1


class Variants:
    """The variants of a kernel, with a route for each set of array types.

    A route has the variants that take these arrays and differ only in their target.

    Args:
        name: the kernel's name in messages.
        candidates: the variants, at least one.
        checks, is_by_digest: see `Kernel`.
        rules: declared rules, shared with kernels derived from this one.

    Attributes:
        name, checks, is_by_digest, rules: as given.
        variants: the candidates.
    """

    def __init__(
        self,
        name: str,
        candidates: Iterable[Candidate],
        *,
        checks: bool = True,
        is_by_digest: bool = False,
        rules: Rules | None = None,
    ) -> None:
        self.name = name
        self.checks = checks
        self.is_by_digest = is_by_digest
        self.rules = rules or Rules()
        self.variants: tuple[Candidate, ...] = tuple(candidates)
        if not self.variants:
            raise ArgumentError(f"kernel {name} has no variants.")
        self._with_params: dict[object, Self] = {}
        self._paddings: dict[tuple[int, tuple[ArrayType, ...]], Padding | None] = {}
        self._routes: dict[object, Route] = {}
        self._routes_of_types: dict[tuple[int, tuple[ArrayType, ...]], Route] = {}
        self._prepared: dict[tuple[Route, tuple[ArrayType, ...]], Prepared] = {}
        note_provider(self)

    @cached_property
    def signature(self) -> LaunchPlan:
        """The signature of the first variant."""
        return self.variants[0].signature

    @cached_property
    def types(self) -> Mapping[tuple[ArrayType, ...], Sequence[Candidate]]:
        """The array types that any variant takes, and the variants that take them."""
        return by_arrays(self.variants)

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments that a caller may pass: names and trees of arrays, names of parameters."""
        names = dict.fromkeys(name for variant in self.variants for name in variant.params)
        return Arguments(self.name, self.signature, names)

    @cached_property
    def selector(self) -> Selector:
        """The selector of these variants."""
        return Selector(self.variants)

    def with_params(self, params: Mapping[str, object]) -> Self:
        """Return the variants that have these matrix parameters.

        Raises:
            ArgumentError: no variant has them.
        """
        key = tuple(sorted((name, str(type(value)), value) for name, value in params.items()))
        variants = self._with_params.get(key)
        if variants is None:
            selection = [own for own in self.variants if has_params(own, params)]
            if not selection:
                raise no_variant_with(self.name, self.variants, params)
            variants = self.of(selection, given=params)
            # If two threads get here, both use the object that the first one stored.
            variants = self._with_params.setdefault(key, variants)
        return variants

    def bind(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Self]:
        """Return the inputs of a call, and the variants with its matrix parameters.

        Raises:
            ArgumentError: the arguments do not match the parameters, or no variant matches.
        """
        leaves, params = self.arguments.bind(arrays, named)
        return leaves, self.with_params(params) if params else self

    def of(
        self,
        candidates: Iterable[Candidate],
        *,
        given: Mapping[str, object] | None = None,
        **changes: bool,
    ) -> Self:
        """Return a kernel like this one with some of the variants, or with other options.

        Args:
            candidates: the variants.
            given: parameters that the caller chose.
            changes: options that differ.
        """
        options = {"checks": self.checks, "is_by_digest": self.is_by_digest, **changes}
        made = type(self)(self.name, candidates, rules=self.rules, **options)
        vars(made)["selector"] = self.selector.among(made.variants, given)
        return made

    def padding(self, ordinal: int | None, types: tuple[ArrayType, ...]) -> Padding | None:
        """Return how to pad arrays that no variant takes, None if they cannot be padded.

        Args:
            ordinal: the GPU; None for the current one.
            types: the arrays.

        Raises:
            DeviceError: the driver cannot be used.
        """
        if not self.can_pad or types in self.types or smallest(self.variants, types) is None:
            return None
        device = get_device(current_device() if ordinal is None else ordinal)
        if (device.ordinal, types) not in self._paddings:
            able = (
                own
                for own in self.variants
                if arch_refusal(own.arch, device.major, device.minor) is None
            )
            self._paddings[device.ordinal, types] = smallest(able, types)
        return self._paddings[device.ordinal, types]

    @cached_property
    def can_pad(self) -> bool:
        """True if some arrays may be shorter than the variants' arrays."""
        return any(own.tuning is not None and own.tuning.pad for own in self.variants)

    def variants_of(self, kernel: str) -> tuple[Candidate, ...]:
        """Return the variants, an empty tuple if the kernel has another name."""
        return self.variants if kernel == self.name else ()

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that a variant takes arrays of these types; this needs no driver.

        Raises:
            ArgumentError: no variant does.
        """
        if tuple(array_type(*array) for array in arrays) not in self.types:
            if len(self.types) == 1 and not self.can_pad:
                raise wrong_array(self.name, self.variants[0].facts.inputs, arrays)
            error = no_variant_for(self.name, self.variants, arrays)
            if self.can_pad and smallest(self.variants, tuple(arrays)) is not None:
                error.hint = (
                    "JAX arrays and arguments of torch operators are not padded automatically: pad "
                    f"them in your program. {error.hint or ''}".rstrip()
                )
            raise error

    def signature_for(self, arrays: Sequence[ArrayType]) -> LaunchPlan:
        """Return the signature of the variants for arrays of these types, for any GPU.

        Raises:
            ArgumentError: no variant takes such arrays.
            SelectionError: variants take such arrays, but have different results.
        """
        self.check_types(arrays)
        alike = self.types[tuple(arrays)]
        kinds = {variant.kind: variant for variant in alike}
        if len(kinds) > 1:
            raise several_fit(list(kinds.values()))
        return alike[0].signature

    # ---- routes

    def route(self, ordinal: int | None, arrays: Sequence[ArrayType]) -> Route:
        """Return the route for arrays of these types on a device.

        If `ordinal` is None, the current device is used.

        Raises:
            ArgumentError: no variant takes such arrays on any GPU; this check needs no driver.
            SelectionError: no variant fits the device, or several variants fit.
            DeviceError: the driver cannot be used.
        """
        types = tuple(arrays)
        if ordinal is not None and (ordinal, types) in self._routes_of_types:
            return self._routes_of_types[ordinal, types]
        self.check_types(types)
        device = get_device(current_device() if ordinal is None else ordinal)
        route = self._route_of(self.selector.select(device, types))
        self._routes_of_types[device.ordinal, types] = route
        return route

    def _route_of(self, candidate: Candidate) -> Route:
        """Return a variant's route, shared by all variants with the same inputs and outputs."""
        route = self._routes.get(candidate.kind)
        if route is None:
            with state.lock:
                alike, is_only = self._alike(candidate)
                made = Route(alike, is_only=is_only, selector=self.selector.among(alike))
                route = self._routes.setdefault(candidate.kind, made)
        return route

    def _alike(self, candidate: Candidate) -> tuple[list[Candidate], bool]:
        """Return the variants of a route, and `Route.is_only`."""
        # Skip variants that no local GPU uses, so that their artifacts are not read.
        taken = self.selector.taken_here(candidate)
        # `types` first: most variants already differ there, and `kind` reads the artifact.
        alike = [
            own for own in taken if own.types == candidate.types and own.kind == candidate.kind
        ]
        return alike, len(alike) == len(taken)

    def prepared(self, route: Route, types: tuple[ArrayType, ...], padding: Padding) -> Prepared:
        """Return the padding of launches on a route for arrays of these types.

        Raises:
            ArgumentError: an array that is updated in place would have to be padded.
        """
        key = route, types
        if key not in self._prepared:
            self._prepared[key] = Prepared(self.name, route.signature, padding)
        return self._prepared[key]


# ---- one call


# Not frozen, because creating a frozen object takes three times as long.
class Call(Struct):
    """A call as the caller wrote it.

    Attributes:
        variants: the kernel's variants.
        arrays: the inputs, in order.
        out: arrays for the results, or MISSING.
        stream: the stream as given.
        allocates: True to allocate the results, and to ignore `out`.
    """

    variants: Variants
    arrays: Sequence[Any]
    out: Any
    stream: Any
    allocates: bool

    def adapters(self) -> list[Adapter]:
        """Return the adapter of each input.

        Raises:
            ArgumentError: an input is not an array.
        """
        name, inputs = self.variants.name, self.variants.signature.inputs
        return [
            find_adapter(array, name, binding.path)
            for array, binding in zip(self.arrays, inputs, strict=True)
        ]

    def match(self, adapters: Sequence[Adapter]) -> Match:
        """Inspect all arrays, and select the variants that take them.

        Args:
            adapters: the adapter of each input.

        Raises:
            ArgumentError, SelectionError, DeviceError: as for a call of the kernel.
        """
        name, signature = self.variants.name, self.variants.signature
        inputs = [
            self._pass(array, adapter, binding.path)
            for array, adapter, binding in zip(self.arrays, adapters, signature.inputs, strict=True)
        ]
        ordinal = self._device(inputs)
        if ordinal is None:
            check_copied(name, signature.inputs, inputs)
        types = tuple(self._types(inputs))
        padding = self.variants.padding(ordinal, types)
        route = self.variants.route(ordinal, types if padding is None else padding.types)
        _check_inputs(name, route.signature, inputs)
        prepared = None if padding is None else self.variants.prepared(route, types, padding)
        taken = route.signature if prepared is None else prepared.signature
        results = None if self.allocates else self._results(taken, ordinal)
        out = MISSING if self.allocates else self.out
        return Match(route, inputs, results, ordinal, out, self.stream, prepared)

    def _pass(self, array: Any, adapter: Adapter, path: str) -> Passed:
        view = adapter.view_in_order if self.stream is None else adapter.view
        try:
            return Passed(array, adapter, view(array))
        except ArgumentError as error:
            what = f"{self.variants.name}: {path}"
            raise ArgumentError(f"{what}: {error.message}", hint=error.hint) from error

    def _device(self, inputs: Sequence[Passed]) -> int | None:
        """Return the GPU of the inputs, or else of `out`; None if they are on the host."""
        signature, name = self.variants.signature, self.variants.name
        if inputs:
            return _common_device(name, signature, inputs)
        if self.allocates or self.out is MISSING:
            return current_device()
        leaves = flatten(signature.output_tree, self.out, f"{name}: out")
        views = [
            self._pass(array, find_adapter(array, name, "out"), "out").view for _, array in leaves
        ]
        return views[0].device if views else current_device()

    def _types(self, inputs: Sequence[Passed]) -> list[ArrayType]:
        """Return the types of the inputs.

        Raises:
            ArgumentError: all variants take the same layout, but an array has a different one.
        """
        self._check_layouts(inputs)
        views = [array.view for array in inputs]
        return [
            (view.dtype, view.shape)
            if view.strides is None
            else array_type(view.dtype, view.shape, view.layout)
            for view in views
        ]

    def _check_layouts(self, inputs: Sequence[Passed]) -> None:
        """If all variants take the same arrays, check strides, which array types do not contain.

        Raises:
            ArgumentError: an array's strides do not match the kernel's strides.
        """
        if len(self.variants.types) > 1:
            return
        for binding, array in zip(self.variants.signature.inputs, inputs, strict=True):
            view = array.view
            same = (view.dtype, view.shape) == (binding.dtype, binding.shape)
            if same and binding.layout is not None and view.layout != binding.layout:
                strides = view.strides or strides_of(view.shape)
                raise wrong_layout(self.variants.name, binding, strides)

    def _results(self, signature: LaunchPlan, ordinal: int | None) -> list[Passed]:
        """Check `out` and return its arrays, one for each result."""
        name = self.variants.name
        if self.out is MISSING:
            if signature.results:
                texts = [
                    f"{result.path}: {array_text(result.dtype, result.shape)}"
                    for result in signature.results
                ]
                raise ArgumentError(
                    f"{name}.into needs the argument out.",
                    hint=f"Pass {', '.join(texts)}, or call {name}(...) itself.",
                )
            return []
        leaves = dict(flatten(signature.output_tree, self.out, f"{name}: out"))
        results: dict[int, Passed] = {}
        for leaf, (source, number) in enumerate(signature.sources):
            array, binding = leaves[leaf], signature.outputs[leaf]
            if source == "input":
                if array is not self.arrays[number] and array is not None:
                    raise ArgumentError(
                        f"{name}: {binding.path} is {signature.inputs[number].path}, updated in "
                        "place; out must contain that array.",
                    )
                continue
            passed = self._pass(array, find_adapter(array, name, binding.path), binding.path)
            _check_result(name, binding, passed.view, ordinal)
            if results.setdefault(number, passed).array is not array:
                first = signature.results[number].path
                raise ArgumentError(
                    f"{name}: {binding.path} and {first} are one result; out must have the same "
                    "array for both.",
                )
        return [results[number] for number in sorted(results)]


def _common_device(name: str, signature: LaunchPlan, inputs: Sequence[Passed]) -> int | None:
    """Return the GPU that all inputs are on, None if all are on the host.

    Raises:
        ArgumentError: the inputs are on different devices.
    """
    if len({array.view.device for array in inputs}) == 1:
        return inputs[0].view.device
    devices: dict[int | None, str] = {}
    for binding, array in zip(signature.inputs, inputs, strict=True):
        devices.setdefault(array.view.device, binding.path)
    (place, first), (other, second) = list(devices.items())[:2]
    where, elsewhere = place_text(place), place_text(other)
    raise ArgumentError(
        f"{name}: {first} is on {where}, but {second} is on {elsewhere}.", hint="Move one of them."
    )


def _check_inputs(name: str, signature: LaunchPlan, inputs: Sequence[Passed]) -> None:
    """Check that inputs have no gaps, and are writable if the kernel updates them.

    Raises:
        ArgumentError: an array has gaps, or is read-only.
    """
    for number, (binding, array) in enumerate(zip(signature.inputs, inputs, strict=True)):
        view = array.view
        if not view.is_contiguous and (view.layout is None or view.layout != binding.layout):
            raise not_contiguous(name, binding)
        if number in signature.updated and not view.is_writable:
            raise read_only(name, binding)


def _check_result(name: str, binding: Binding, view: ArrayView, ordinal: int | None) -> None:
    """Check an array that a result is written into.

    Raises:
        ArgumentError: the array does not fit the result.
    """
    if (view.dtype, view.shape) != (binding.dtype, binding.shape):
        raise ArgumentError(
            f"{name}: {binding.path} is {array_text(view.dtype, view.shape)}, but the kernel "
            f"writes {array_text(binding.dtype, binding.shape)}."
        )
    if view.device != ordinal:
        raise ArgumentError(
            f"{name}: {binding.path} is on {place_text(view.device)}, but the inputs are on "
            f"{place_text(ordinal)}.",
            hint="Allocate it on the device of the inputs.",
        )
    if not view.is_contiguous:
        raise not_contiguous(name, binding)
    if not view.is_writable:
        raise read_only(name, binding)


# ---- forms: variants grouped by argument structure

K = TypeVar("K", bound=Variants)
"""The class of a kernel."""


class _Fitting(Struct, Generic[K], frozen=True):
    """A form that matches the arguments, its variants with the given parameters, and the arrays."""

    form: K
    chosen: K
    leaves: Sequence[Any]


Types = Callable[[Sequence[Any]], list[ArrayType]]
"""A function that returns the dtype and shape of each array."""


class Forms(Generic[K]):
    """The forms of one kernel.

    Args:
        name: the kernel.
        kernels: a kernel for each form, two or more.
        types: see `Types`; called only if several forms match the structure of a call.

    Attributes:
        kernels: as given.
        parameters: the names of all parameters in order; empty if some have no names.
        optional: the parameters that have arrays in some forms but not in others.
        by_given: for each set of optional parameters that a call may give, the only form that has
            arrays for exactly these. A set has no entry if several forms do, or if the form's
            signature lacks a parameter.
    """

    def __init__(self, name: str, kernels: Sequence[K], types: Types) -> None:
        self._name = name
        self.kernels = tuple(kernels)
        self._types = types
        self.parameters = _parameters(kernels)
        with_arrays = [set(_names_with_arrays(kernel)) for kernel in kernels]
        self.optional = [
            name
            for name in self.parameters
            if 0 < sum(name in own for own in with_arrays) < len(with_arrays)
        ]
        by_set: dict[tuple[bool, ...], list[K]] = {}
        for form, own in zip(kernels, with_arrays, strict=True):
            by_set.setdefault(tuple(name in own for name in self.optional), []).append(form)
        self.by_given = {
            given: forms[0]
            for given, forms in by_set.items()
            if len(forms) == 1
            and {n for n, _ in input_names(forms[0].signature)} == set(self.parameters)
        }

    def choose(self, arrays: Sequence[Any], named: Mapping[str, object]) -> K:
        """Return the kernel whose signature matches the arguments.

        Raises:
            ArgumentError: no form matches.
            SelectionError: several forms match, and take arrays of these types.
        """
        given = self._given(arrays, named)
        if given in self.by_given:
            return self.by_given[given]
        reasons: list[tuple[K, PallascError]] = []
        fitting: list[_Fitting[K]] = []
        for form in self.kernels:
            try:
                leaves, chosen = form.bind(arrays, named)
                fitting.append(_Fitting(form, chosen, leaves))
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
        """Return which optional parameters are given, None if the arguments do not fit."""
        if len(arrays) > len(self.parameters):
            return None
        values = dict(zip(self.parameters, arrays, strict=False))
        if not values.keys().isdisjoint(named) or not named.keys() <= set(self.parameters):
            return None
        values |= named
        return tuple(values.get(name) is not None for name in self.optional)

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
        lines = cut([f"{_example(kernel)}: {error.message}" for kernel, error in reasons])
        listed = "".join(f"\n  {line}" for line in lines)
        return ArgumentError(f"no variant of {self._name} takes these arguments:{listed}")


def _parameters(kernels: Sequence[Variants]) -> list[str]:
    orders, others = [], []
    for kernel in kernels:
        names = [name for name, _ in input_names(kernel.signature)]
        if None in names:
            return []
        others += list(map(str, names))
        # Without a parameter list, the order of parameters without arrays is unknown.
        is_known = bool(kernel.signature.parameters)
        orders.append(list(map(str, names)) if is_known else _names_with_arrays(kernel))
    in_order = (name for order in sorted(orders, key=len, reverse=True) for name in order)
    return list(dict.fromkeys((*in_order, *others)))


def _names_with_arrays(kernel: Variants) -> list[str]:
    trees = input_names(kernel.signature)
    return [str(name) for name, tree in trees if any(True for _ in tree_leaves(tree))]


def _example(kernel: Variants) -> str:
    first = kernel.variants[0].id
    others = len(kernel.variants) - 1
    return f"{first} and {others} more" if others else first
