"""The kernel object that users call.

The path of a call, here with torch tensors:

* The first call with given dtypes, shapes, and strides is handled in Python, by `Kernel._start`. It
  binds the arguments to parameters, and the adapter (`adapters/torch_arrays`) reads the tensors.
  `Call.match` (`calls/match`) checks them and finds their route: variants that take these arrays
  and differ only in their target. `launch` (`calls/launch`) takes torch's current stream, chooses
  the variant for the GPU (`matching/selection`), loads it as a flat plan into the C library, and
  allocates the results with torch. The library enqueues the steps of the plan, a kernel with
  `cuLaunchKernelEx` (`native/launch.c`).
* Then `Kernel._install` replaces `Kernel.launch` by a front, a C function (`native/python.c`,
  `front_enter`). It reads the tensors through torch's C interface, finds the route that the first
  call added, and enqueues the same plan; no Python code runs. A front passes calls that it does not
  handle to `_start`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Any

from msgspec import Struct

from pallasc.errors import ArgumentError, DeviceError, SelectionError
from pallasc.runtime.calls.launch import Match, Route, launch, launch_copied, load_program
from pallasc.runtime.calls.match import Call, Forms, Rules, Variants
from pallasc.runtime.calls.native_path import Function, NativePaths, skip_frames, untraced
from pallasc.runtime.device.devices import (
    current_device,
    device_count,
    get_device,
    look_at_device,
    state,
)
from pallasc.runtime.matching.arrays import find_adapter
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type
from pallasc.runtime.matching.padding import Padding
from pallasc.runtime.matching.tuned import Choice, Selector
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts import cached_property
from pallasc.specs.artifacts.signature import MISSING
from pallasc.specs.canonical import Scalar, canonical_json
from pallasc.specs.spelling import an

# ---- availability, and a `device` argument


class Availability(Struct, frozen=True):
    """Result of `kernel.available()`; true if the kernel can run.

    Attributes:
        devices: ordinals of the GPUs that can run at least one variant.
        reason: why no GPU can run it, as text; empty if a GPU can.
    """

    devices: tuple[int, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.devices)

    def __str__(self) -> str:
        return self.reason or f"runs on GPU {', '.join(map(str, self.devices))}"


def availability(selector: Selector, device: Any = None) -> Availability:
    """Return whether a GPU, or any GPU of this machine, can run one of a kernel's variants.

    Raises:
        ArgumentError: `device` is not a GPU.
        CorruptError: an artifact is damaged.
    """
    try:
        count = device_count()
        ordinals = range(count) if device is None else [device_ordinal(device)]
        if device is not None and ordinals[0] not in range(count):
            return Availability((), f"there is no GPU {ordinals[0]}: the driver counts {count}.")
        able, reasons = [], []
        for ordinal in ordinals:
            try:
                selector.fitting(look_at_device(ordinal))
            except SelectionError as error:
                reasons.append(str(error))
            else:
                able.append(ordinal)
    except DeviceError as error:
        return Availability((), str(error))
    return Availability(tuple(able), "" if able else "\n".join(reasons) or "there is no GPU.")


_NAME = re.compile(r"(?:cuda|gpu)(?::(\d{1,9}))?")


def device_ordinal(device: Any) -> int:
    """Return the ordinal of a device given as a number, `"cuda:1"`, or a device object.

    Accepts device objects of torch, cupy, cuda.core and JAX. None means the current device.

    Raises:
        ArgumentError: `device` is anything else.
    """
    if device is None:
        return current_device()
    if isinstance(device, str):
        match = _NAME.fullmatch(device)
        if match is not None:
            return current_device() if match[1] is None else int(match[1])
    elif getattr(device, "type", "cuda") == "cuda" and getattr(device, "platform", "gpu") == "gpu":
        for attribute in ("index", "local_hardware_id", "device_id", "id"):
            value = getattr(device, attribute, None)
            if type(value) is int:
                return value
        if getattr(device, "type", None) == "cuda":
            return current_device()
        with suppress(TypeError):
            if not isinstance(device, bool):
                return index(device)
    raise ArgumentError(
        f"device must be a GPU, not {device!r}.", hint='Pass its number, or text like "cuda:0".'
    )


# ---- kernels


class Kernel(Variants):
    """A kernel: `kernel(a, b)` allocates its results, `kernel.into(a, b, out=c)` does not.

    Pass arrays by position, or by the parameter names of the compiled function. Matrix parameters
    can be passed by name, `kernel(a, b, tile_m=128)`; they are required if shapes and dtypes match
    more than one variant. Calls do not wait for the GPU, except with numpy arrays.

    Args:
        name: the kernel's name.
        candidates: its variants, at least one.
        checks: if True, check dtype, shape, contiguity and device of each array at each launch. If
            False, wrong arrays give wrong results.
        is_by_digest: if True, JAX programs refer to its cubins by digest instead of containing
            them.
        rules: gradients and batched form, shared with the kernel that this kernel is derived from;
            see `defvjp` and `defvmap`.

    Attributes:
        name, checks, is_by_digest, rules: as given.
        variants: the candidates.
        launch: the function behind `kernel(…)`: after a first call, in the C extension if possible.
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
        super().__init__(name, candidates, checks=checks, is_by_digest=is_by_digest, rules=rules)
        self._added: set[tuple[Route, type]] = set()
        self.launch: Function = partial(self._start, MISSING, True)
        skip_frames(_ENTRANCES)

    def __repr__(self) -> str:
        number = len(self.variants)
        return f"<Kernel {self.name} with {number} variant{'s' if number > 1 else ''}>"

    @untraced
    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays of the first array's framework.

        Args:
            arrays: the inputs; an input that the kernel updates in place is itself returned.
            stream: the stream to launch in; None for the framework's current stream.
            named: inputs by name, and matrix parameters.

        Raises:
            ArgumentError: an array or the stream is not valid for the kernel.
            SelectionError: no variant fits the GPU and the arrays, or several variants fit.
            DeviceError: the driver or the GPU is missing or reports an error.
        """
        return self.launch(*arrays, stream=stream, **named)

    @untraced
    def into(self, *arrays: Any, out: Any = MISSING, stream: Any = None, **named: Any) -> Any:
        """Launch with results written into `out`, and return `out`.

        Args:
            arrays: the inputs.
            out: arrays for the results, in the structure that a call returns. For an input that is
                updated in place, pass the same array here. If all results are such inputs, `out`
                can be omitted.
            stream: as for a call.
            named: as for a call.

        Raises:
            ArgumentError, SelectionError, DeviceError: as for a call.
        """
        return self._start(out, False, *arrays, stream=stream, **named)

    @cached_property
    @untraced
    def unchecked(self) -> Kernel:
        """The same kernel without checks at each launch."""
        return self.of(self.variants, checks=False)

    @cached_property
    @untraced
    def by_digest(self) -> Kernel:
        """The same kernel, but JAX programs refer to its cubins by digest and do not contain them.

        To run such a program, open a bundle that contains the cubins first: `pallasc.load`.
        """
        return self.of(self.variants, is_by_digest=True)

    @untraced
    def defvjp(self, backward: Kernel | Callable[[Any, Any], Any]) -> None:
        """Declare the kernel's backward function, for `jax.grad` and other reverse-mode transforms.

        Args:
            backward: a kernel. It takes the inputs, then optionally the results, then the
                cotangents of the results, and returns the gradients of the inputs, in this order.
                Integer arrays have neither cotangents nor gradients. Or a function as for
                `jax.custom_vjp`: `backward((inputs, result), cotangent)` returns a tuple with a
                gradient for each input array, None where there is none.

        Raises:
            ArgumentError: `backward` is not callable.
        """
        if not callable(backward):
            raise ArgumentError(
                f"{self.name}: defvjp takes a kernel or a function, not "
                f"{an(type(backward).__name__)}.",
                hint="Pass a kernel, or a function of residuals and cotangents.",
            )
        self.rules.declare_backward(backward)

    @untraced
    def defvmap(self, batched: Kernel | None = None) -> None:
        """Declare the batched form of the kernel, for `jax.vmap`.

        It takes precedence over the kernel that `vmap` in the spec names.

        Args:
            batched: a kernel whose arrays have an additional leading dimension, the batch, and
                which applies this kernel to each element. If omitted, the kernel's own variants
                that take such arrays.

        Raises:
            ArgumentError: `batched` is not a kernel.
        """
        if batched is not None and not isinstance(batched, Kernel):
            raise ArgumentError(
                f"{self.name}: defvmap takes a kernel, not {an(type(batched).__name__)}.",
                hint="Wrap functions with jax.custom_batching.custom_vmap.",
            )
        self.rules.declare_batched(batched)

    @untraced
    def variant(self, **params: Scalar) -> Kernel:
        """Return the kernel with these matrix parameters fixed.

        Raises:
            ArgumentError: no variant has them.
        """
        return self.with_params(params)

    @untraced
    def preload(self, device: Any = None) -> None:
        """Load all variants that a call could select on a device.

        Otherwise, the first call of a variant loads it, which is not possible during a graph
        capture. Of a tuned kernel, only the variants are loaded that its table selects for the
        device.

        Args:
            device: the GPU: its number, `"cuda:0"`, or a framework's device object; None for the
                current GPU.

        Raises:
            ArgumentError: `device` is not a GPU, or there is no GPU with that number.
            SelectionError: no variant can run on the device.
            DeviceError: a variant cannot be loaded.
        """
        gpu = get_device(device_ordinal(device))
        for candidate in self.selector.fitting(gpu):
            load_program(candidate, gpu)

    @untraced
    def prepare(self, *arrays: Any, device: Any = None, **named: Any) -> None:
        """Load the variant for arrays like these: text such as `"bf16[1024, 4096]"`, or arrays.

        Args:
            arrays: the inputs.
            device: as for `preload`.
            named: as for a call.

        Raises:
            ArgumentError, SelectionError, DeviceError: as for a call.
        """
        kernel, types, _ = self._resolve(arrays, named, device)
        ordinal = device_ordinal(device)
        kernel.route(ordinal, types).program(ordinal)

    @untraced
    def choice(self, *arrays: Any, device: Any = None, **named: Any) -> Choice:
        """Return the variant selected for arrays like these, and why, without loading anything.

        Args:
            arrays: the inputs, as for `prepare`.
            device: as for `preload`.
            named: as for a call.

        Raises:
            ArgumentError, SelectionError, DeviceError: as for a call.
        """
        kernel, types, padding = self._resolve(arrays, named, device)
        gpu = look_at_device(device_ordinal(device))
        chosen = kernel.selector.explain(kernel.selector.select(gpu, types), gpu)
        paths = [array.path for array in kernel.signature.inputs]
        padded = () if padding is None else tuple(paths[number] for number in padding.inputs)
        return chosen._replace(padded=padded)

    @untraced
    def available(self, device: Any = None) -> Availability:
        """Return whether this machine can run the kernel, as an object that is true if it can.

        Works without a driver, a GPU or cuda-bindings, and creates no context. The object's
        `reason` explains why the kernel cannot run; its `devices` are the GPUs that can run it.

        Args:
            device: the GPU, as for `preload`; None for any GPU of this machine.

        Raises:
            ArgumentError: `device` is not a GPU.
            CorruptError: an artifact is damaged.
        """
        return availability(self.selector, device)

    def torch_operator(self, name: str) -> Any:
        """Register the kernel as a PyTorch operator, `"mylib::matmul"`, and return the operator.

        It works under `torch.compile` and in CUDA graphs. It has no gradients; add them with
        `torch.library.register_autograd`.

        Raises:
            ArgumentError: the name is not valid for an operator, or arrays are passed in lists or
                mappings.
        """
        from pallasc.runtime.adapters.torch_arrays import register

        return register(self, self.forms, name)

    # ---- one call

    @cached_property
    def forms(self) -> Forms[Kernel] | None:
        """The argument structures of the variants, None if there is only one."""
        groups = _by_structure(self.variants)
        if len(groups) == 1:
            return None
        return Forms(self.name, [self.of(group) for group in groups], self._types)

    def _types(self, leaves: Sequence[Any]) -> list[ArrayType]:
        return [_type(leaf, f"{self.name}: array {n}") for n, leaf in enumerate(leaves)]

    def _start(
        self, out: Any, allocates: bool, /, *arrays: Any, stream: Any = None, **named: Any
    ) -> Any:
        if "out" in named and not self._takes_out():
            raise ArgumentError(
                f"{self.name}(...) allocates its results and takes no out.",
                hint="To write into your own arrays, call into(…, out=…).",
            )
        if self.forms is not None:
            form = self.forms.choose(arrays, named)
            if allocates:
                return form.launch(*arrays, stream=stream, **named)
            return form.into(*arrays, out=out, stream=stream, **named)
        leaves, kernel = self.bind(arrays, named)
        call = Call(kernel, leaves, out, stream, allocates)
        adapters = call.adapters()
        for adapter in adapters:
            if adapter.takes_calls:
                return adapter.run(call)
        match = call.match(adapters)
        if match.ordinal is None:
            return launch_copied(match)
        results = launch(match, match.ordinal)
        kernel._install(match)
        return results

    def _resolve(
        self, arrays: Sequence[Any], named: Mapping[str, Any], device: Any
    ) -> tuple[Kernel, tuple[ArrayType, ...], Padding | None]:
        """Return a kernel with the variants for a call, the array types they take, and padding."""
        form = self if self.forms is None else self.forms.choose(arrays, named)
        leaves, kernel = form.bind(arrays, named)
        types = tuple(self._types(leaves))
        if kernel.can_pad and types not in kernel.types:
            padding = kernel.padding(device_ordinal(device), types)
            if padding is not None:
                return kernel, padding.types, padding
        kernel.check_types(types)
        return kernel, types, None

    def _takes_out(self) -> bool:
        """Return True if an argument of the compiled function is named out."""
        kernels = self.forms.kernels if self.forms is not None else (self,)
        return any("out" in kernel.arguments.names for kernel in kernels)

    def _install(self, match: Match) -> None:
        """Let later calls like this one go through the C extension, if it is available."""
        if not match.inputs or match.padding is not None:
            return
        first = match.inputs[0]
        added = match.route, type(first.array)
        if added in self._added:
            return
        skip_frames(_ENTRANCES)  # torch may have been imported after the kernel was created
        with state.lock:
            fronts = self.native_paths.add(match.route, first.adapter, type(first.array))
            if fronts is not None:
                self.launch = fronts["call"]
                self.__dict__["into"] = fronts["into"]
            self._added.add(added)

    @cached_property
    def native_paths(self) -> NativePaths:
        """The paths of calls through the C extension."""
        # A kernel that can pad accepts shorter arrays, so shapes must always be compared.
        checks = self.checks or self.can_pad
        slow = {"call": partial(self._start, MISSING, True), "into": partial(Kernel.into, self)}
        return NativePaths(self.variants, checks=checks, slow=slow)


_ENTRANCES: Sequence[Function] = [
    function
    for function in (getattr(own, "func", own) for own in vars(Kernel).values())
    if hasattr(function, "_torchdynamo_disable")
]
"""Public entry points that torch.compile must not trace."""


def _by_structure(variants: Iterable[Candidate]) -> list[list[Candidate]]:
    """Group variants by the structure of their arguments, in order."""
    groups: dict[Any, list[Candidate]] = {}
    for variant in variants:
        paths = tuple(array.path for array in variant.facts.inputs)
        structure = b""
        if any("." in path for path in paths):
            # Paths show neither empty lists, nor None inside lists, nor the types of tree nodes.
            plan = variant.artifact.plan
            structure = canonical_json([plan.input_tree, list(plan.parameters)])
        groups.setdefault((paths, structure), []).append(variant)
    return list(groups.values())


def _type(leaf: Any, what: str) -> ArrayType:
    """Return the type given by text such as `bf16[1024, 4096]`, or the type of an array."""
    if isinstance(leaf, str):
        array = resolve_array(leaf)
        return array_type(array.dtype, array.shape, array.layout)
    view = find_adapter(leaf, what).view(leaf)
    return array_type(view.dtype, view.shape, view.layout)
