"""Kernels as PyTorch operators: dispatched on CUDA, with a fake kernel for tracing.

Uses `torch.library.Library` rather than `custom_op`, whose dispatch takes four times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from keyword import kwlist
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.torch_arrays import TorchAdapter
from pallasc.runtime.calls.forms import Forms
from pallasc.runtime.calls.match import RoutedVariants
from pallasc.runtime.calls.native_path import make_operator
from pallasc.runtime.calls.tracing import Function
from pallasc.runtime.matching.arrays import find_adapter
from pallasc.runtime.matching.candidates import ArrayType, array_type
from pallasc.specs.arrays import layout_of
from pallasc.specs.artifacts.signature import children_of, input_names, is_flat

_ARGUMENT = re.compile("[A-Za-z][A-Za-z0-9_]*")
_TAKEN = frozenset({*kwlist, "out", "stream"})
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")

# Variants, library and operator by name. Deleting a library object removes its operators too.
_registered: dict[str, tuple[RoutedVariants, Any, Any]] = {}


def register(kernel: RoutedVariants, forms: Forms[Any] | None, name: str) -> Any:
    """Register a kernel as `namespace::name` and return the operator, or the one registered before.

    Raises:
        ArgumentError: the name is taken or not valid for an operator, or an operator cannot have
            such arguments.
    """
    import torch

    if _NAME.fullmatch(name) is None:
        raise ArgumentError(
            f"{name!r} is not the name of an operator.", hint='Write it like "mylib::matmul".'
        )
    if name in _registered:
        owner, _, operator = _registered[name]
        if owner is not kernel:
            raise _taken(name, f"is kernel {owner.name} already")
        return operator
    namespace, _, own = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), own):
        raise _taken(name, "exists already")
    functions = _Operator(kernel, forms)
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(f"{own}{functions.schema()}")
    except (RuntimeError, ValueError) as error:
        what = str(error).partition("\n")[0].rstrip(".")
        raise _taken(name, f"cannot be defined: {what}") from error
    library.impl(own, functions.launch_on_gpu(), "CUDA")
    # Host tensors are passed to the kernel too, which reports where they must be.
    library.impl(own, functions.launch, "CPU")
    torch.library.register_fake(name, functions.pretend, lib=library)
    torch.library.register_vmap(name, functions.refuse_vmap, lib=library)
    operator = getattr(getattr(torch.ops, namespace), own)
    _registered[name] = (kernel, library, operator)
    return operator


def _taken(name: str, what: str) -> ArgumentError:
    return ArgumentError(f"operator {name} {what}.", hint="Choose another name.")


class _Operator:
    """The functions of one operator; a parameter that is None in some variants is optional."""

    def __init__(self, kernel: Any, forms: Forms[Any] | None) -> None:
        self._kernel = kernel
        order: Sequence[str | None] = [name for name, _ in input_names(kernel.signature)]
        optional: Sequence[str] = ()
        self._forms: Mapping[tuple[bool, ...], _Form] = {(): _Form(kernel)}
        if forms is not None:
            order, optional = forms.parameters() or [], forms.optional()
            self._forms = {given: _Form(form) for given, form in forms.by_given().items()}
        kinds = {form.kind for form in self._forms.values()}
        if not all(form.is_flat for form in self._forms.values()) or not kinds:
            raise ArgumentError(
                f"{kernel.name} takes or gives arrays in lists or mappings, which an operator of "
                "torch cannot.",
                hint="Wrap the kernel in an operator of your own, see torch.library.",
            )
        if len(kinds) > 1:
            raise ArgumentError(
                f"{kernel.name} gives other results, or updates other arrays, with "
                f"{', '.join(optional)} than without.",
                hint="Choose variants first: kernel.variant(…).torch_operator(…).",
            )
        self._names = list(zip(_argument_names(order), _keys(order), strict=True))
        taken = set().union(*(form.places for form in self._forms.values()))
        self._names = [(name, key) for name, key in self._names if key in taken]
        self._optional = list(optional)

    def schema(self) -> str:
        """Return `(Tensor a, Tensor(b!) b) -> Tensor`; inputs updated in place are not returned."""
        form = next(iter(self._forms.values()))
        inputs = []
        for number, (name, key) in enumerate(self._names):
            is_updated = any(key in form.updated for form in self._forms.values())
            kind = f"Tensor({chr(97 + number)}!)" if is_updated else "Tensor"
            # A parameter can be omitted only if no required parameter follows it.
            rest = {later for _, later in self._names[number:]}
            default = "=None" if rest <= set(self._optional) else ""
            inputs.append(f"{kind}{'?' if key in self._optional else ''} {name}{default}")
        count = len(form.signature.results)
        outputs = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"({', '.join(inputs)}) -> {outputs}"

    def launch_on_gpu(self) -> Function:
        """Return the function for tensors on a GPU: a C function if available, else `launch`."""
        import torch

        access = find_adapter(torch.empty(0), self._kernel.name).access(torch.Tensor)
        keys = [key for _, key in self._names]
        front = make_operator(access, len(keys), self.launch)
        if front is None:
            return self.launch
        for form in self._forms.values():
            slots = tuple(form.places.get(key, -1) for key in keys)
            form.kernel.native_paths.serve(front, access, slots)
        return front

    def launch(self, *tensors: Any) -> Any:
        """Launch the form that matches; torch omits trailing arguments that are None."""
        form, given = self._form(tensors)
        return form.fresh(form.kernel.launch(*[given.get(key) for key in form.keys]))

    def pretend(self, *tensors: Any) -> Any:
        """Return empty tensors with the shapes and dtypes that a launch would return."""
        import torch

        form, given = self._form(tensors)
        first = next(tensor for tensor in tensors if tensor is not None)
        adapter = find_adapter(first, self._kernel.name)
        if not isinstance(adapter, TorchAdapter):
            raise ArgumentError(f"{self._kernel.name} was given no tensors.")
        leaves = [given[key] for key in form.in_order]
        types = [_type(adapter, tensor) for tensor in leaves]
        made = [
            torch.empty(result.shape, dtype=adapter.dtypes[result.dtype], device=first.device)
            for result in form.kernel.signature_for(types).results
        ]
        return _returned(made)

    def _form(self, tensors: Sequence[Any]) -> tuple[_Form, dict[Any, Any]]:
        """Return the form that matches the tensors, and the tensors by key.

        Raises:
            ArgumentError: no variant takes exactly these.
        """
        passed = [*tensors, *[None] * (len(self._names) - len(tensors))]
        given = dict(zip((key for _, key in self._names), passed, strict=True))
        form = self._forms.get(tuple(given[name] is not None for name in self._optional))
        if form is None:
            absent = [name for name in self._optional if given[name] is None]
            what = f"without {' and '.join(absent)}" if absent else "with all of its arguments"
            raise ArgumentError(f"{self._kernel.name} has no variant {what}.")
        return form, given

    def refuse_vmap(self, *_: Any) -> Any:
        """Reject batching.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"{self._kernel.name} cannot be used under torch.vmap: its shapes are fixed.",
            hint="Compile a variant for the batched shape, or call the kernel in a loop.",
        )


class _Form:
    """Variants with the same argument structure.

    Attributes:
        kernel: these variants.
        keys: the name, else the number, of each parameter.
        in_order: the keys of the array parameters, in the order of the arrays.
        updated: the keys of the parameters that are updated in place.
        is_flat: each array is a parameter by itself.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.signature = kernel.signature
        trees = input_names(self.signature)
        self.keys = _keys([name for name, _ in trees])
        arrays = [tree for _, tree in trees if tree is not None]
        self.is_flat = is_flat(self.signature.output_tree) and all(
            type(tree) is int for tree in arrays
        )
        self.places = {
            key: tree for key, (_, tree) in zip(self.keys, trees, strict=True) if tree is not None
        }
        self.in_order = (
            sorted(self.places, key=lambda key: self.places[key]) if self.is_flat else []
        )
        self.updated = {self.in_order[n] for n in self.signature.updated} if self.is_flat else set()

    @property
    def kind(self) -> Any:
        """Properties that all forms of an operator must share."""
        updated = tuple(sorted(map(str, self.updated)))
        return len(self.signature.results), updated

    def fresh(self, made: Any) -> Any:
        """Return the results of a call that are not inputs: a tensor, a tuple, or None."""
        places: dict[int, int] = {}
        for leaf, (source, number) in enumerate(self.signature.sources):
            if source == "result":
                places.setdefault(number, leaf)
        tree = self.signature.output_tree
        if places and type(tree) is not int:
            positions = {leaf: position for position, leaf in enumerate(children_of(tree))}
            return _returned([made[positions[leaf]] for _, leaf in sorted(places.items())])
        return made if places else None


def _type(adapter: TorchAdapter, tensor: Any) -> ArrayType:
    shape = tuple(map(int, tensor.shape))
    layout = None if tensor.is_contiguous() else layout_of(shape, tuple(map(int, tensor.stride())))
    return array_type(adapter.short_dtype(tensor.dtype), shape, layout)


def _argument_names(names: Sequence[str | None]) -> list[str]:
    """Return names for the schema: the function's own if torch accepts them."""
    return [
        name if name and _ARGUMENT.fullmatch(name) and name not in _TAKEN else f"array{number}"
        for number, name in enumerate(names)
    ]


def _keys(names: Sequence[str | None]) -> list[Any]:
    """Return names, with numbers for those that are None."""
    return [number if name is None else name for number, name in enumerate(names)]


def _returned(made: Sequence[Any]) -> Any:
    """Return tensors as the schema specifies: None for none, a single one as itself."""
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)
