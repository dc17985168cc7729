"""A kernel as users call it: variants to choose from, routes to launch through."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.availability import Availability, availability
from pallasc.runtime.calls.call import Call
from pallasc.runtime.calls.fast_path import Function
from pallasc.runtime.calls.fast_path_table import FrontTable
from pallasc.runtime.calls.forms import Forms, by_structure
from pallasc.runtime.calls.program import load_program
from pallasc.runtime.calls.routes import Route
from pallasc.runtime.calls.tracing import skip_frames, untraced
from pallasc.runtime.device.devices import current_device, device_ordinal, get_device
from pallasc.runtime.device.driver import open_driver
from pallasc.runtime.matching.arguments import MISSING, Arguments
from pallasc.runtime.matching.arrays import Adapter, find_adapter
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type
from pallasc.runtime.matching.checks import check_types
from pallasc.runtime.matching.nearest import no_variant_for, no_variant_with
from pallasc.runtime.matching.selection import fitting_candidates, may_run, select, several_fit
from pallasc.runtime.matching.signature import Signature
from pallasc.specs.arrays import resolve_array
from pallasc.specs.canonical import canonical_json
from pallasc.specs.lazy import cached_property
from pallasc.specs.templates import Scalar


class Kernel:
    """A kernel: `kernel(a, b)` allocates its results, `kernel.into(a, b, out=c)` does not.

    Arrays go by position or by the names of the compiled function's parameters. A parameter of the
    matrix can be given by name, `kernel(a, b, tile_m=128)`; it has to be where shapes and dtypes
    leave more than one variant. Nothing waits for the GPU, arrays of numpy excepted.

    Args:
        name: what it is called.
        candidates: its variants, at least one.
        checks: check dtype, shape, contiguity and device of each array at each launch. Without,
            only new addresses are checked, and wrong arrays give wrong results.

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
        self._routes: dict[Any, Route] = {}
        self._chosen: dict[Any, Kernel] = {}
        self._lock = threading.Lock()
        self._fronts: FrontTable | None = None
        self._call: Function = partial(self._start, MISSING, True)
        skip_frames(_ENTRANCES)

    def __repr__(self) -> str:
        number = len(self.variants)
        return f"<Kernel {self.name} with {number} variant{'s' if number > 1 else ''}>"

    @untraced
    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays of the framework that the first array belongs to.

        Args:
            arrays: the inputs; an input that the kernel updates in place comes back itself.
            stream: where to launch; the framework's current stream where it is None.
            named: inputs by name, and parameters of the matrix.

        Raises:
            ArgumentError: an array or the stream does not fit.
            SelectionError: no variant fits the GPU and the arrays, or several do.
            DeviceError: the driver or the GPU cannot do it.
        """
        return self._call(*arrays, stream=stream, **named)

    @untraced
    def into(self, *arrays: Any, out: Any = MISSING, stream: Any = None, **named: Any) -> Any:
        """Launch with results written into `out`, and return that.

        Args:
            arrays: the inputs.
            out: arrays for the results, in the structure that a call returns. An output that is an
                input updated in place must be that input; where all are, `out` can be left out.
            stream: as for a call.
            named: as for a call.

        Raises:
            ArgumentError, SelectionError, DeviceError: as a call does.
        """
        return self._start(out, False, *arrays, stream=stream, **named)

    @cached_property
    @untraced
    def unchecked(self) -> Kernel:
        """The same kernel without checks at each launch."""
        return Kernel(self.name, self.variants, checks=False)

    @untraced
    def variant(self, **params: Scalar) -> Kernel:
        """Return the kernel with these parameters of the matrix fixed.

        Raises:
            ArgumentError: no variant has them.
        """
        key = tuple(sorted((name, str(type(value)), value) for name, value in params.items()))
        found = self._chosen.get(key)
        if found is None:
            kept = [one for one in self.variants if _has(one.params, params)]
            if not kept:
                raise no_variant_with(self.name, self.variants, params)
            found = Kernel(self.name, kept, checks=self.checks)
            found = self._chosen.setdefault(key, found)
        return found

    @untraced
    def preload(self, device: Any = None) -> None:
        """Load every variant that can run on a device, so that no call and no capture has to.

        Args:
            device: the GPU: its number, `"cuda:0"`, or a framework's object for it; the current
                one where it is None.

        Raises:
            ArgumentError: it is not a GPU, or there is none of that number.
            SelectionError: none can run there.
            DeviceError: one cannot be loaded.
        """
        chosen = get_device(device_ordinal(device))
        for candidate in fitting_candidates(self.variants, chosen):
            load_program(candidate, chosen)

    @untraced
    def prepare(self, *arrays: Any, device: Any = None, **named: Any) -> None:
        """Load the variant for arrays like these: text like `"bf16[1024, 4096]"`, or arrays.

        Args:
            arrays: the inputs.
            device: as for `preload`.
            named: as for a call.

        Raises:
            ArgumentError, SelectionError, DeviceError: as a call does.
        """
        if self._forms is not None:
            return self._forms.choose(arrays, named).prepare(*arrays, device=device, **named)
        leaves, params = self.bind(arrays, named)
        if params:
            return self.variant(**params).prepare(
                *arrays,
                device=device,
                **{name: value for name, value in named.items() if name not in params},
            )
        types = self._types(leaves)
        self.check_types(types)
        ordinal = device_ordinal(device)
        self.route(ordinal, types).program(ordinal)

    @untraced
    def available(self, device: Any = None) -> Availability:
        """Return whether this machine can run the kernel: an object that is true where it can.

        Neither a driver nor a GPU nor cuda-bindings has to be there, and no context is made. Its
        `reason` says why the kernel cannot run; its `devices` are the GPUs where it can.

        Args:
            device: the GPU, as for `preload`; any of this machine where it is None.

        Raises:
            ArgumentError: it is not a GPU.
            CorruptError: an artifact is damaged.
        """
        return availability(self.variants, device)

    def torch_operator(self, name: str) -> Any:
        """Register the kernel as an operator of PyTorch, `"mylib::matmul"`, and return that.

        It works under `torch.compile` and in CUDA graphs; gradients are left to the caller, see
        `torch.library.register_autograd`.

        Raises:
            ArgumentError: the name is none, or the arrays lie in lists or mappings.
        """
        from pallasc.runtime.adapters.torch_operator import register

        return register(self, self.forms, name)

    @cached_property
    def signature(self) -> Signature:
        """What the first variant takes and gives."""
        return Signature.of(self.variants[0].artifact.plan)

    def route(
        self,
        ordinal: int | None,
        arrays: Sequence[ArrayType],
        addresses: Sequence[int] | None = None,
    ) -> Route:
        """Return the route for arrays of these types, and at these addresses, on a device.

        The device is the current one where `ordinal` is None.

        Raises:
            ArgumentError: no variant takes such arrays, whatever the GPU, and if there is none.
            SelectionError: no variant fits, or several do.
            DeviceError: the driver cannot be used.
        """
        self.check_types(arrays)
        if len(self.variants) == 1:
            addresses = None  # binding them has the plainer message
        device = get_device(current_device() if ordinal is None else ordinal)
        return self._route_of(select(self.variants, device, arrays, addresses=addresses))

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that some variant takes arrays of these types; no driver is needed for that.

        Raises:
            ArgumentError: none does.
        """
        kinds = {one.arrays for one in self.variants}
        if len(kinds) == 1:
            check_types(self.name, self.variants[0].facts.inputs, arrays)
        elif tuple(array_type(*one) for one in arrays) not in kinds:
            raise no_variant_for(self.name, self.variants, arrays)

    def signature_for(self, arrays: Sequence[ArrayType]) -> Signature:
        """Return what the variants for arrays of these types take and give, whatever the GPU.

        Raises:
            ArgumentError: no variant takes such arrays.
            SelectionError: some that do give different results.
        """
        alike = [one for one in self.variants if list(one.arrays) == list(arrays)]
        if not alike:
            raise no_variant_for(self.name, self.variants, arrays)
        kinds = {_kind(one): one for one in alike}
        if len(kinds) > 1:
            raise several_fit(list(kinds.values()))
        return Signature.of(alike[0].artifact.plan)

    def install(self, adapter: Adapter | None, route: Route) -> None:
        """Let later calls with arrays of this framework go through generated functions."""
        if adapter is None or not adapter.has_fast_path:
            return
        dialect = adapter.dialect()
        skip_frames(_ENTRANCES)  # torch may be younger than the kernel
        with self._lock:
            if self._fronts is None:
                self._fronts = FrontTable(
                    self.variants,
                    call=partial(self._take_over, True),
                    into=partial(self._take_over, False),
                    success=open_driver().success,
                    checks=self.checks,
                )
            fronts = self._fronts.add(route, dialect)
            if fronts is not None:
                self._call = fronts.call
                self.__dict__["into"] = fronts.into

    @property
    def launch(self) -> Function:
        """What a call goes through now."""
        return self._call

    @property
    def forms(self) -> Forms[Kernel] | None:
        """The structures that arguments may have, None where there is one only."""
        return self._forms

    def bind(
        self, arrays: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays of arguments, and the parameters of the matrix among them.

        Raises:
            ArgumentError: they have not the structure of those of the first variant.
        """
        return self._arguments.bind(arrays, named)

    # ---- on the way to a route

    @cached_property
    def _forms(self) -> Forms[Kernel] | None:
        groups = by_structure(self.variants)
        if len(groups) == 1:
            return None
        made = [Kernel(self.name, one, checks=self.checks) for one in groups]
        forms = Forms(self.name, made, self._types)
        slow = {"call": partial(self._take_over, True), "into": partial(self._take_over, False)}
        fronts = forms.fronts(slow)
        if fronts:
            self._call = fronts["call"]
            self.__dict__["into"] = fronts["into"]
        return forms

    def _types(self, leaves: Sequence[Any]) -> list[ArrayType]:
        return [_type(leaf, f"{self.name}: array {n}") for n, leaf in enumerate(leaves)]

    @property
    def _all_arguments(self) -> list[Arguments]:
        forms = self._forms.kernels if self._forms is not None else (self,)
        return [one._arguments for one in forms]

    @cached_property
    def _arguments(self) -> Arguments:
        names = dict.fromkeys(name for one in self.variants for name in one.params)
        return Arguments(self.name, self.signature, names)

    def _start(
        self, out: Any, allocates: bool, /, *arrays: Any, stream: Any = None, **named: Any
    ) -> Any:
        if "out" in named and not any(one.takes("out") for one in self._all_arguments):
            raise ArgumentError(
                f"{self.name}(...) allocates its results and takes no out.",
                hint="To write into arrays of yours, call into(…, out=…).",
            )
        if self._forms is not None:
            form = self._forms.choose(arrays, named)
            if allocates:
                return form.launch(*arrays, stream=stream, **named)
            return form.into(*arrays, out=out, stream=stream, **named)
        leaves, params = self.bind(arrays, named)
        kernel = self.variant(**params) if params else self
        return Call(kernel, leaves, out, stream, allocates).run()

    def _take_over(
        self,
        allocates: bool,
        arrays: Sequence[Any],
        more: Sequence[Any],
        out: Any,
        stream: Any,
        named: Mapping[str, Any],
    ) -> Any:
        """Go on where a generated function found something unusual."""
        return self._start(out, allocates, *arrays, *more, stream=stream, **named)

    def _route_of(self, candidate: Candidate) -> Route:
        """Return the route of a variant: with all that take and give the same."""
        key = _kind(candidate)
        found = self._routes.get(key)
        if found is None:
            with self._lock:
                # Most variants are told apart without reading their artifacts.
                likely = [one for one in self.variants if one.types == candidate.types]
                alike = [one for one in likely if may_run(one) and _kind(one) == key]
                found = self._routes.setdefault(key, Route(alike))
        return found


_ENTRANCES: Sequence[Function] = (
    *(
        Kernel.__call__,
        Kernel.into,
        Kernel.variant,
        Kernel.preload,
        Kernel.prepare,
        Kernel.available,
    ),
    vars(Kernel)["unchecked"].func,
)
"""What users call, and torch.compile shall not look into."""


def _kind(candidate: Candidate) -> Any:
    """Return what variants of one route have in common."""
    signature = Signature.of(candidate.artifact.plan)
    outputs = tuple((one.dtype, one.shape) for one in signature.outputs)
    trees = canonical_json([signature.input_tree, signature.output_tree])
    return candidate.arrays, outputs, signature.sources, signature.alignments, trees


def _has(own: Mapping[str, Scalar], params: Mapping[str, Scalar]) -> bool:
    return all(
        name in own and (type(own[name]), own[name]) == (type(value), value)
        for name, value in params.items()
    )


def _type(leaf: Any, what: str) -> ArrayType:
    """Return the type of text like `bf16[1024, 4096]`, or of an array."""
    if isinstance(leaf, str):
        array = resolve_array(leaf)
        return array_type(array.dtype, array.shape, array.layout)
    view = find_adapter(leaf, what).view(leaf)
    return array_type(view.dtype, view.shape, view.layout)
