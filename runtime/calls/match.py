"""From a call to what is launched: its arrays looked at and checked, its variant chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.calls.launch import Match, Route
from pallasc.runtime.calls.padding import Prepared
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import current_device, get_device, is_driver_open
from pallasc.runtime.matching import known, mismatches
from pallasc.runtime.matching.arrays import Adapter, ArrayView, Passed, check_copied, find_adapter
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type, has_params
from pallasc.runtime.matching.padded import Padding, smallest
from pallasc.runtime.matching.selection import arch_refusal, may_run, select, several_fit
from pallasc.runtime.matching.tuned import Selector
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.arguments import MISSING, Arguments
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.artifacts.trees import flatten
from pallasc.specs.canonical import canonical_json
from pallasc.specs.lazy import cached_property

if TYPE_CHECKING:
    from pallasc.runtime.calls.native_path import NativePaths


class Rules:
    """What a program has declared of a kernel, for transformations of JAX.

    Args:
        find: returns the kernel with a name that was opened together with this one.

    Attributes:
        backward: a kernel or a function that gives gradients, None where there is none.
        version: grows with each declaration.
    """

    def __init__(self, find: Callable[[str], Variants | None] = lambda _: None) -> None:
        self._find = find
        self.backward: Any = None
        self.version = 0
        self._batched: Variants | None = None
        self._is_batched = False

    def declare_batched(self, batched: Variants | None) -> None:
        """Declare which kernel does the same to a batch; the kernel's own variants where None."""
        self._batched, self._is_batched = batched, True
        self.version += 1

    def declare_backward(self, backward: Any) -> None:
        """Declare what gives gradients."""
        self.backward = backward
        self.version += 1

    def batched_form_of(self, kernel: Variants) -> Variants | None:
        """Return what does the same as a kernel with these rules to a batch, None where nothing.

        What the program declared goes before what the specs of its variants did.

        Raises:
            ArgumentError: the specs name different kernels, or one that was not opened with it.
        """
        if self._is_batched:
            return kernel if self._batched is None else self._batched.like(kernel)
        names = sorted({own.vmap for own in kernel.variants if own.vmap is not None})
        if len(names) > 1:
            raise ArgumentError(
                f"variants of {kernel.name} name several kernels for jax.vmap: {', '.join(names)}.",
                hint="Declare one of them with defvmap.",
            )
        if not names or names[0] == kernel.name:
            return kernel if names else None
        batched = self._find(names[0])
        if batched is None:
            raise ArgumentError(
                f"{kernel.name} cannot be used under jax.vmap: its spec names the kernel "
                f"{names[0]} for that, which was not opened with it.",
                hint=f"Put {names[0]} into the bundle, or declare a kernel with defvmap.",
            )
        return batched.like(kernel)


class Variants:
    """The variants of a kernel.

    Args:
        name: what messages call them.
        candidates: the variants, at least one.
        checks, is_by_digest: see `Kernel`.
        rules: what was declared of them, shared by all kernels that are made of one.

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
        self._routes: dict[object, Route] = {}
        self._routes_of_types: dict[tuple[int, tuple[ArrayType, ...]], Route] = {}
        self._with_params: dict[object, Self] = {}
        self._paddings: dict[tuple[int, tuple[ArrayType, ...]], Padding | None] = {}
        self._prepared: dict[tuple[Route, tuple[ArrayType, ...]], Prepared] = {}
        known.note(self)

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays, as `Kernel` does."""
        raise NotImplementedError

    @property
    def launch(self) -> Callable[..., Any]:
        """What a call goes through now."""
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

    @cached_property
    def selector(self) -> Selector:
        """What chooses among the variants."""
        return Selector(self.variants)

    @cached_property
    def is_tuned(self) -> bool:
        """Whether a table may choose among the variants of the whole kernel."""
        return any(own.tuning is not None for own in self.variants)

    @cached_property
    def native_paths(self) -> NativePaths:
        """What calls go through where the extension of C is there."""
        from pallasc.runtime.calls.native_path import NativePaths

        return NativePaths(self.variants, checks=self.checks or self.can_pad)

    def with_params(self, params: Mapping[str, object]) -> Self:
        """Return the variants that have these parameters of the matrix.

        Raises:
            ArgumentError: there are none.
        """
        key = tuple(sorted((name, str(type(value)), value) for name, value in params.items()))
        variants = self._with_params.get(key)
        if variants is None:
            selection = [own for own in self.variants if has_params(own, params)]
            if not selection:
                raise mismatches.no_variant_with(self.name, self.variants, params)
            variants = self.of(selection, given=params)
            # Of two threads that come here, both take what the first put there.
            variants = self._with_params.setdefault(key, variants)
        return variants

    def of(
        self,
        candidates: Iterable[Candidate],
        *,
        given: Mapping[str, object] | None = None,
        **changes: bool,
    ) -> Self:
        """Return a kernel of some of the variants, or with other options, and else like this.

        Args:
            candidates: the variants.
            given: parameters that the caller chose.
            changes: options that differ.
        """
        options = {"checks": self.checks, "is_by_digest": self.is_by_digest, **changes}
        made = type(self)(self.name, candidates, rules=self.rules, **options)
        vars(made)["selector"] = self.selector.among(made.variants, given)
        vars(made)["is_tuned"] = self.is_tuned
        return made

    def like(self, other: Variants) -> Variants:
        """Return these variants as they go with a call of another kernel.

        They are by digest where the other's are. Of those for the same arrays and target, the ones
        with the parameters of the matrix that all of the other's have are taken, where there are
        such: who chose a parameter for the call cannot choose it for what stands for the call.
        """
        first, *rest = other.variants
        shared = [
            {name: value}
            for name, value in first.params.items()
            if all(has_params(own, {name: value}) for own in rest)
        ]
        groups: dict[object, list[Candidate]] = {}
        for own in self.variants:
            groups.setdefault((own.arrays, own.target), []).append(own)
        taken = {id(own) for group in groups.values() for own in _narrowed(group, shared)}
        is_by_digest = self.is_by_digest or other.is_by_digest
        if len(taken) == len(self.variants) and is_by_digest == self.is_by_digest:
            return self
        variants = [own for own in self.variants if id(own) in taken]
        given = {
            name: value
            for name, value in other.selector.given.items()
            if all(has_params(own, {name: value}) for own in variants)
        }
        return self.of(variants, given=given, is_by_digest=is_by_digest)

    def padding(self, ordinal: int | None, types: tuple[ArrayType, ...]) -> Padding | None:
        """Return how arrays that no variant takes are padded for one, None where they are not.

        Args:
            ordinal: the GPU; the current one where it is None.
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
        """Whether some arrays may be shorter than those of the variants."""
        return any(own.tuning is not None and own.tuning.pad for own in self.variants)

    def prepared(self, route: Route, types: tuple[ArrayType, ...], padding: Padding) -> Prepared:
        """Return how launches on a route are padded for arrays of these types.

        Raises:
            ArgumentError: an array that is updated in place would have to be padded.
        """
        key = route, types
        if key not in self._prepared:
            self._prepared[key] = Prepared(self.name, route.signature, padding)
        return self._prepared[key]

    def variants_of(self, kernel: str) -> tuple[Candidate, ...]:
        """Return the variants, none where the kernel has another name."""
        return self.variants if kernel == self.name else ()

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that some variant takes arrays of these types; no driver is needed for that.

        Raises:
            ArgumentError: none does.
        """
        if tuple(array_type(*array) for array in arrays) not in self.types:
            if len(self.types) == 1 and not self.can_pad:
                raise mismatches.wrong_array(self.name, self.variants[0].facts.inputs, arrays)
            raise self._no_variant_for(arrays)

    def _no_variant_for(self, arrays: Sequence[ArrayType]) -> ArgumentError:
        """Return the error for arrays that no variant takes, and that are not padded here."""
        error = mismatches.no_variant_for(self.name, self.variants, arrays)
        if self.can_pad and smallest(self.variants, tuple(arrays)) is not None:
            error.hint = (
                "Arrays of JAX, and those of an operator of torch, are not padded: pad them where "
                f"the program is written. {error.hint or ''}".rstrip()
            )
        return error

    def signature_for(self, arrays: Sequence[ArrayType]) -> Signature:
        """Return what the variants for arrays of these types take and give, whatever the GPU.

        Raises:
            ArgumentError: no variant takes such arrays.
            SelectionError: some that do give different results.
        """
        alike = [variant for variant in self.variants if list(variant.arrays) == list(arrays)]
        if not alike:
            raise self._no_variant_for(arrays)
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
        if self.is_tuned:
            candidate = self.selector.select(device, types, addresses)
        else:
            candidate = select(self.variants, device, types, addresses=addresses)
        route = self._route_of(candidate)
        route.choose(candidate, device)
        # Kept where types decide alone: elsewhere addresses may choose another route next time.
        if route.is_only:
            self._routes_of_types[device.ordinal, types] = route
        return route

    def _route_of(self, candidate: Candidate) -> Route:
        """Return a variant's route, which all variants with the same inputs and outputs share."""
        key = _kind(candidate)
        route = self._routes.get(key)
        if route is None:
            with process_state.now.lock:
                alike, is_only = self._alike(candidate, key)
                selector = self.selector.among(alike) if self.is_tuned else None
                made = Route(alike, is_only=is_only, selector=selector)
                route = self._routes.setdefault(key, made)
        return route

    def _alike(self, candidate: Candidate, kind: object) -> tuple[list[Candidate], bool]:
        """Return the variants of a route, and whether no others take its arrays on GPUs here."""
        # What a table never takes here is left out, so that its artifacts are not read.
        taken = self.selector.taken_here(candidate, candidate.arrays) if self.is_tuned else None
        if taken is not None:
            alike = [own for own in taken if own is candidate or _kind(own) == kind]
            return alike, len(alike) == len(taken)
        able = [other for other in self.variants if other is candidate or may_run(other)]
        # Most variants are told apart without reading their artifacts.
        likely = [other for other in able if other.types == candidate.types]
        alike = [other for other in likely if _kind(other) == kind]
        rivals = [other for other in able if other.arrays == candidate.arrays]
        return alike, all(other in alike for other in rivals)


def _narrowed(
    candidates: Sequence[Candidate], wishes: Iterable[Mapping[str, object]]
) -> Sequence[Candidate]:
    """Return those with all parameters that some of them have."""
    for params in wishes:
        candidates = [own for own in candidates if has_params(own, params)] or candidates
    return candidates


def _kind(candidate: Candidate) -> object:
    """Return what variants of one route have in common."""
    signature = candidate.signature
    outputs = tuple((output.dtype, output.shape) for output in signature.outputs)
    trees = canonical_json([signature.input_tree, signature.output_tree])
    return candidate.arrays, outputs, signature.sources, signature.alignments, trees


# Not frozen: making a frozen object takes three times as long, at each slow call.
@dataclass(slots=True)
class Call:
    """What a caller asks for.

    Attributes:
        variants: what is called.
        arrays: the inputs, in order.
        out: arrays for the results, or MISSING.
        stream: as it was given.
        allocates: the results are to be allocated, and `out` does not count.
    """

    variants: Variants
    arrays: Sequence[Any]
    out: Any
    stream: Any
    allocates: bool

    def adapters(self) -> list[Adapter]:
        """Return the adapter of each input.

        Raises:
            ArgumentError: something is not an array.
        """
        name, inputs = self.variants.name, self.variants.signature.inputs
        return [
            find_adapter(array, name, binding.path)
            for array, binding in zip(self.arrays, inputs, strict=True)
        ]

    def match(self, adapters: Sequence[Adapter]) -> Match:
        """Look at all arrays, and choose the variants that take them.

        Args:
            adapters: that of each input.

        Raises:
            ArgumentError, SelectionError, DeviceError: as a call of the kernel does.
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
        if padding is not None:
            route = self.variants.route(ordinal, padding.types)
        elif ordinal is None:
            if not is_driver_open():
                self._check_without_driver(inputs, types)
            route = self.variants.route(None, types)  # copies lie where they may
        else:
            route = self.variants.route(ordinal, types, [array.view.pointer for array in inputs])
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
        """Return the GPU of the inputs, or else of `out`; None where they are on the host."""
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
            ArgumentError: there is one order of elements only, and an array has another.
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
        """Check strides where all variants take the same arrays: views still tell them.

        Raises:
            ArgumentError: an array has other strides than the kernel takes.
        """
        if len(self.variants.types) > 1:
            return
        for binding, array in zip(self.variants.signature.inputs, inputs, strict=True):
            view = array.view
            same = (view.dtype, view.shape) == (binding.dtype, binding.shape)
            if same and binding.layout is not None and view.layout != binding.layout:
                strides = view.strides or strides_of(view.shape)
                raise mismatches.wrong_layout(self.variants.name, binding, strides)

    def _check_without_driver(self, inputs: Sequence[Passed], types: Sequence[ArrayType]) -> None:
        """Check all that can be without a driver: wrong arrays are reported before its absence.

        Raises:
            ArgumentError: an array does not fit.
        """
        self.variants.check_types(types)
        try:
            signature = self.variants.signature_for(types)
        except SelectionError:  # what it gives depends on the GPU
            return
        _check_inputs(self.variants.name, signature, inputs)
        if not self.allocates:
            self._results(signature, None)

    def _results(self, signature: Signature, ordinal: int | None) -> list[Passed]:
        """Check `out` and return its arrays, one for each result."""
        name = self.variants.name
        if self.out is MISSING:
            if signature.results:
                texts = [
                    f"{result.path}: {array_text(result.dtype, result.shape)}"
                    for result in signature.results
                ]
                raise ArgumentError(
                    f"{name}.into was not given out.",
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
                        "place; out must have that array there.",
                    )
                continue
            passed = self._pass(array, find_adapter(array, name, binding.path), binding.path)
            _check_result(name, binding, passed.view, ordinal)
            if results.setdefault(number, passed).array is not array:
                first = signature.results[number].path
                raise ArgumentError(
                    f"{name}: {binding.path} is the same array as {first}; out must have one array "
                    "in both places.",
                )
        return [results[number] for number in sorted(results)]


def _common_device(name: str, signature: Signature, inputs: Sequence[Passed]) -> int | None:
    """Return the GPU that all inputs lie on, None where all are on the host.

    Raises:
        ArgumentError: they lie in different places.
    """
    if len({array.view.device for array in inputs}) == 1:
        return inputs[0].view.device
    devices: dict[int | None, str] = {}
    for binding, array in zip(signature.inputs, inputs, strict=True):
        devices.setdefault(array.view.device, binding.path)
    (place, first), (other, second) = list(devices.items())[:2]
    where, elsewhere = mismatches.place(place), mismatches.place(other)
    raise ArgumentError(
        f"{name}: {first} is on {where}, but {second} is on {elsewhere}.", hint="Move one of them."
    )


def _check_inputs(name: str, signature: Signature, inputs: Sequence[Passed]) -> None:
    """Check that inputs have no gaps, and may be written where the kernel updates them.

    Raises:
        ArgumentError: an array has gaps, or is read-only.
    """
    for number, (binding, array) in enumerate(zip(signature.inputs, inputs, strict=True)):
        view = array.view
        if not view.is_contiguous and (view.layout is None or view.layout != binding.layout):
            raise mismatches.not_contiguous(name, binding)
        if number in signature.updated and not view.is_writable:
            raise mismatches.read_only(name, binding)


def _check_result(name: str, binding: Binding, view: ArrayView, ordinal: int | None) -> None:
    """Check an array that results are written into.

    Raises:
        ArgumentError: it does not fit.
    """
    if (view.dtype, view.shape) != (binding.dtype, binding.shape):
        raise ArgumentError(
            f"{name}: {binding.path} is {array_text(view.dtype, view.shape)}, and the kernel "
            f"writes {array_text(binding.dtype, binding.shape)}."
        )
    if view.device != ordinal:
        raise ArgumentError(
            f"{name}: {binding.path} is on {mismatches.place(view.device)}, but the inputs are on "
            f"{mismatches.place(ordinal)}.",
            hint="Allocate it where they are.",
        )
    if not view.is_contiguous:
        raise mismatches.not_contiguous(name, binding)
    if not view.is_writable:
        raise mismatches.read_only(name, binding)
