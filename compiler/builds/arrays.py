"""Convert the arguments of `pallasc.compile` to trees of `ArraySpec` and to a spec's notation.

Pytrees are flattened as JAX does. If JAX is not loaded, no node types are registered with it, so
only lists, tuples and dicts can occur.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pallasc.compiler.lowering.entry import BuiltNode, Node, import_entry, import_function, is_node
from pallasc.errors import SpecError
from pallasc.specs.arrays import ArraySpec, check_size, looks_like_array, resolve_array
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.loading.decorator import Call, Ref
from pallasc.specs.spelling import an

_ARRAY_MODULES = ("jax", "jaxlib", "numpy", "torch", "cupy", "pallasc")
_ARRAY_PROTOCOLS = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__"),
    "__jax_array__",
)


def array_tree(item: Any, what: str) -> Any:
    """Return an argument as a tree with an `ArraySpec` for each array; a `Call` is kept.

    Args:
        item: the argument.
        what: its name in messages.

    Raises:
        SpecError: something in it is neither an array nor a pytree node.
    """
    if item is None or isinstance(item, ArraySpec):
        return item
    if isinstance(item, str):
        return resolve_array(item)
    if isinstance(item, Call):
        values = item.arguments.items()
        return Call(item.target, **{key: _in_call(v, f"{what}.{key}") for key, v in values})
    if type(item) in (dict, OrderedDict):
        return type(item)((key, array_tree(child, f"{what}.{key}")) for key, child in item.items())
    if type(item) in (list, tuple) or hasattr(item, "_fields"):
        children = [array_tree(child, f"{what}.{index}") for index, child in enumerate(item)]
        return type(item)(*children) if hasattr(item, "_fields") else type(item)(children)
    if "jax" in sys.modules and is_node(item):
        return _node(item, what)
    return _array(item, what)


def _in_call(value: Any, what: str) -> Any:
    """Convert an argument of a `Call`; values without arrays are kept."""
    if isinstance(value, str):
        return resolve_array(value) if looks_like_array(value) else value
    if type(value) in (list, tuple):
        return type(value)(_in_call(child, f"{what}.{n}") for n, child in enumerate(value))
    if type(value) is dict:
        return {key: _in_call(child, f"{what}.{key}") for key, child in value.items()}
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    if isinstance(value, Call) or (is_array and not isinstance(value, type)):
        return array_tree(value, what)
    return value


def _node(item: Any, what: str) -> Node:
    import jax

    entries, structure = jax.tree_util.tree_flatten_with_path(
        item, is_leaf=lambda node: node is not item
    )
    children = [array_tree(child, f"{what}{jax.tree_util.keystr(path)}") for path, child in entries]
    return Node(structure, children, item)


def _array(item: Any, what: str) -> ArraySpec:
    """Return dtype and shape of an array, or of an object such as `jax.ShapeDtypeStruct`.

    Raises:
        SpecError: it is not an array.
    """
    kind = type(item)
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if not hasattr(item, "shape") or not hasattr(item, "dtype"):
        raise SpecError(
            f"{what} is {an(kind.__name__)}, which is not an array.",
            hint='Write it like "bf16[1024, 4096]", or pass static arguments by keyword.',
        )
    if not roots & {*_ARRAY_MODULES} and not any(hasattr(item, name) for name in _ARRAY_PROTOCOLS):
        raise SpecError(
            f"{what} is {an(kind.__name__)}, which has shape and dtype but is neither an array "
            "nor a pytree node registered with JAX.",
            hint=f"Register {kind.__name__} with jax.tree_util, or pass a jax.ShapeDtypeStruct.",
        )
    # torch writes "torch.float32".
    dtype = parse_dtype(str(item.dtype).rpartition(".")[2])
    array = ArraySpec(dtype.name, tuple(int(n) for n in item.shape))
    check_size(array)
    return array


def with_calls_resolved(tree: Any, base_dir: str) -> Any:
    """Return a tree for this process, with the result of each `Call` in its place.

    Raises:
        SpecError: a called function cannot be imported.
    """
    if isinstance(tree, Call):
        target = tree.target
        called = f"$call {target if isinstance(target, str) else target.__name__!r}"
        function = (
            import_function(target, base_dir, called="$call") if isinstance(target, str) else target
        )
        values = {key: with_calls_resolved(item, base_dir) for key, item in tree.arguments.items()}
        return BuiltNode(called, function, values)
    if isinstance(tree, Ref):
        if not isinstance(tree.target, str):
            return tree.target
        return import_entry(tree.target, base_dir, called="$ref")
    if isinstance(tree, Node):
        children = [with_calls_resolved(item, base_dir) for item in tree.children]
        return dataclasses.replace(tree, children=children)
    if isinstance(tree, dict):
        return type(tree)((key, with_calls_resolved(item, base_dir)) for key, item in tree.items())
    if isinstance(tree, list | tuple):
        items = [with_calls_resolved(item, base_dir) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


def to_notation(tree: Any, what: str) -> Any:
    """Return a tree in the notation of specs, for another process.

    Raises:
        SpecError: a node cannot be rebuilt by calling its type with keyword arguments.
    """
    if isinstance(tree, ArraySpec):
        return str(tree)
    if isinstance(tree, Call):
        held = tree.arguments.items()
        return Call(
            tree.target, **{key: to_notation(value, f"{what}.{key}") for key, value in held}
        )
    if hasattr(tree, "_fields"):
        return Call(type(tree), **{k: to_notation(getattr(tree, k), what) for k in tree._fields})
    if isinstance(tree, Node):
        return _call_of(tree, what)
    if type(tree) is tuple:
        return {"$tuple": [to_notation(item, what) for item in tree]}
    if isinstance(tree, list):
        return [to_notation(item, what) for item in tree]
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {key: to_notation(item, f"{what}.{key}") for key, item in tree.items()}
    if isinstance(tree, Mapping):
        raise _cannot_rebuild(what, tree)
    return tree


def _call_of(node: Node, what: str) -> Call:
    """Return the call that rebuilds a dataclass."""
    value = node.value
    if not dataclasses.is_dataclass(value) or not all(f.init for f in dataclasses.fields(value)):
        raise _cannot_rebuild(what, value)
    import jax

    entries, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    by_name = {
        getattr(path[0], "name", None): child
        for (path, _), child in zip(entries, node.children, strict=True)
    }
    fields = [field.name for field in dataclasses.fields(value)]
    if not set(by_name) <= set(fields):
        raise _cannot_rebuild(what, value)
    values = {
        name: to_notation(by_name[name], f"{what}.{name}")
        if name in by_name
        else getattr(value, name)
        for name in fields
    }
    return Call(type(value), **values)


def _cannot_rebuild(what: str, value: object) -> SpecError:
    return SpecError(
        f"{what} is {an(type(value).__name__)}, which cannot be rebuilt in another process.",
        hint='Pass pallasc.Call("module:function", …) with its arrays, or leave out isolated.',
    )
