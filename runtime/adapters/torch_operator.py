"""Kernels as operators of PyTorch: dispatched on CUDA, with a fake kernel for tracing.

`torch.library.Library` is used rather than `custom_op`, whose dispatch takes four times as long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import find_adapter
from pallasc.runtime.adapters.torch_arrays import TorchAdapter
from pallasc.runtime.front import parameter_names
from pallasc.runtime.signature import Signature, input_names
from pallasc.runtime.trees import flatten, is_flat

if TYPE_CHECKING:
    from pallasc.runtime.kernel import Kernel

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")

# Kernel, library and operator by name. A library is gone with its object, and its operators too.
_registered: dict[str, tuple[Kernel, Any, Any]] = {}


def register(kernel: Kernel, name: str) -> Any:
    """Register a kernel as `namespace::name` and return the operator; once more, return it again.

    Raises:
        ArgumentError: the name is none or has another operator, or an operator cannot have such
            arguments.
    """
    import torch

    if _NAME.fullmatch(name) is None:
        raise ArgumentError(
            f"{name!r} is not the name of an operator.", hint='Write it like "mylib::matmul".'
        )
    known = _registered.get(name)
    if known is not None:
        if known[0] is not kernel:
            raise _taken(name, f"is kernel {known[0].name} already")
        return known[2]
    namespace, _, own = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), own):
        raise _taken(name, "exists already")
    operator = _Operator(kernel, kernel.signature)
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(f"{own}{operator.schema()}")
    except (RuntimeError, ValueError) as error:
        what = str(error).partition("\n")[0].rstrip(".")
        raise _taken(name, f"cannot be defined: {what}") from error
    # Tensors of the host get to the kernel as well, which says where they must lie.
    for backend in ("CUDA", "CPU"):
        library.impl(own, operator.launch, backend)
    torch.library.register_fake(name, operator.pretend, lib=library)
    torch.library.register_vmap(name, operator.refuse_vmap, lib=library)
    made = getattr(getattr(torch.ops, namespace), own)
    _registered[name] = (kernel, library, made)
    return made


def _taken(name: str, what: str) -> ArgumentError:
    return ArgumentError(f"operator {name} {what}.", hint="Choose another name.")


class _Operator:
    """The functions behind one operator."""

    def __init__(self, kernel: Kernel, signature: Signature) -> None:
        self._kernel = kernel
        self._signature = signature
        trees = input_names(signature)
        flat = all(tree is None or type(tree) is int for _, tree in trees)
        if not flat or not is_flat(signature.output_tree):
            raise ArgumentError(
                f"{kernel.name} takes or gives arrays in lists or mappings, which an operator of "
                "torch cannot.",
                hint="Wrap the kernel in an operator of your own, see torch.library.",
            )
        names = parameter_names([name for name, _ in trees])
        self._names = [
            name.lstrip("_")
            for name, (_, tree) in zip(names, trees, strict=True)
            if type(tree) is int
        ]
        self._leaves = [tree for _, tree in trees if type(tree) is int]
        self._updated = set(signature.updated)

    def schema(self) -> str:
        """Return `(Tensor a, Tensor(b!) b) -> Tensor`; what is updated in place is not returned."""
        inputs = ", ".join(
            f"Tensor({chr(97 + leaf)}!) {name}" if leaf in self._updated else f"Tensor {name}"
            for name, leaf in zip(self._names, self._leaves, strict=True)
        )
        count = len(self._signature.results)
        outputs = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"({inputs}) -> {outputs}"

    def launch(self, *tensors: Any) -> Any:
        """Launch the kernel."""
        leaves = sorted(zip(self._leaves, tensors, strict=True))
        named = [tensor for _, tensor in leaves]
        result = self._kernel(*self._in_order(named))
        return self._fresh(result)

    def pretend(self, *tensors: Any) -> Any:
        """Return what a launch would, without data."""
        import torch

        adapter = find_adapter(tensors[0], self._kernel.name)
        if not isinstance(adapter, TorchAdapter):
            raise ArgumentError(f"{self._kernel.name} was given no tensors.")
        types = [
            (adapter.short_dtype(tensor.dtype), tuple(map(int, tensor.shape)))
            for _, tensor in sorted(zip(self._leaves, tensors, strict=True))
        ]
        signature = self._kernel.signature_for(types)
        made = [
            torch.empty(one.shape, dtype=adapter.dtypes[one.dtype], device=tensors[0].device)
            for one in signature.results
        ]
        return _returned(made)

    def refuse_vmap(self, *_: Any) -> Any:
        """Say that there is no batching.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"{self._kernel.name} cannot be used under torch.vmap: its shapes are fixed.",
            hint="Compile a variant for the batched shape, or call the kernel in a loop.",
        )

    def _in_order(self, leaves: Sequence[Any]) -> list[Any]:
        """Return positional arguments of the kernel, None where it takes none."""
        return [None if tree is None else leaves[tree] for _, tree in input_names(self._signature)]

    def _fresh(self, result: Any) -> Any:
        """Return the results that are not inputs."""
        leaves = dict(flatten(self._signature.output_tree, result, "the result"))
        found: dict[int, Any] = {}
        for leaf, (source, number) in enumerate(self._signature.sources):
            if source == "result":
                found.setdefault(number, leaves[leaf])
        made = [found[number] for number in sorted(found)]
        return _returned(made)


def _returned(made: Sequence[Any]) -> Any:
    """Return tensors as the schema says: none as None, one as itself."""
    if not made:
        return None
    return made[0] if len(made) == 1 else tuple(made)
