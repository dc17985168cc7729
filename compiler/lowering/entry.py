"""Import a variant's function, make its arguments, and number their arrays for a launch plan.

Importing runs the user's code, so only compiling processes may do it. Arguments are JAX's pytrees
with `ArraySpec` and `BuiltNode` as leaves. `abstract` replaces these leaves by objects that JAX can
trace, and `bind` turns JAX's pytrees into a launch plan's trees (`runtime/matching/arguments` has
the grammar).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallasc.errors import SpecError, summary_of
from pallasc.specs.arrays import DTYPES, ArraySpec, parse_dtype, settled_layout
from pallasc.specs.artifacts.plan import Binding, tree_leaves
from pallasc.specs.artifacts.signature import static_text
from pallasc.specs.spec import Args
from pallasc.specs.spelling import an, suggestion
from pallasc.specs.user_files import load_module, parse_entry


def import_entry(entry: str, base_dir: str, *, called: str = "entry") -> Any:
    """Return the object that `package.module:name` or `file.py:name` names.

    Args:
        entry: the entry point.
        base_dir: the spec's folder, from which modules can be imported too.
        called: its name in the spec: "entry", "$ref", or "$call".

    Raises:
        SpecError: the module cannot be imported, or has no such name.
    """
    parts = parse_entry(entry)
    if parts.is_file:
        module: Any = load_module(Path(base_dir) / parts.source)
    else:
        module = _import_module(parts.source, base_dir, f"{called} {entry!r}")
    return _attribute(module, parts.attribute, f"{called} {entry!r}")


def _import_module(name: str, base_dir: str, shown: str) -> Any:
    if base_dir not in sys.path:
        sys.path.insert(0, base_dir)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        from pallasc.compiler.lowering.diagnose import frames, user_place

        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        install = f"Install the package that contains {missing}, or correct the entry."
        raise SpecError(
            f"{shown} cannot be imported: {summary_of(error)}",
            location=user_place(frames(error)),
            hint=install if missing else None,
        ) from error


def _attribute(module: Any, dotted: str, shown: str) -> Any:
    value = module
    for name in dotted.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            public = [name for name in dir(value) if not name.startswith("_")]
            raise SpecError(
                f"{shown}: {getattr(value, '__name__', value)!s} has no {name!r}.",
                hint=suggestion(name, public),
            ) from error
    return value


def import_function(entry: str, base_dir: str, *, called: str = "entry") -> Callable[..., Any]:
    """Return the function that `entry` names.

    Raises:
        SpecError: the function cannot be imported, or is not callable.
    """
    value = import_entry(entry, base_dir, called=called)
    if not callable(value):
        raise SpecError(f"{called} {entry!r} is {an(type(value).__name__)} and cannot be called.")
    function: Callable[..., Any] = value
    return function


def static_arguments(static: Mapping[str, object], base_dir: str) -> dict[str, Any]:
    """Return the static arguments of a kernel.

    Raises:
        SpecError: see `static_value`; the error names the field.
    """
    with _inside("static"):
        return _static_values(static, base_dir)


def _static_values(values: Mapping[str, object], base_dir: str) -> dict[str, Any]:
    made = {}
    for key, item in values.items():
        with _inside(key):
            made[key] = static_value(item, base_dir)
    return made


@contextmanager
def _inside(key: str | int) -> Iterator[None]:
    """Prepend a key to the field that an error names."""
    try:
        yield
    except SpecError as error:
        error.field = f"{key}.{error.field}" if error.field else str(key)
        raise


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; a function without one accepts any arguments."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.signature(lambda *_, **__: None)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if a function has this parameter, or accepts any keywords."""
    parameters = signature_of(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def static_value(value: Any, base_dir: str) -> Any:
    """Return a static argument with its `$call` and `$ref` nodes resolved.

    Lists become tuples: static arguments of functions that JAX compiles must be hashable.

    Raises:
        SpecError: the object that a node names cannot be imported, or the call fails.
    """
    if isinstance(value, list):
        numbered = {str(index): item for index, item in enumerate(value)}
        return tuple(_static_values(numbered, base_dir).values())
    if not isinstance(value, Mapping):
        return value
    if "$ref" in value:
        return import_entry(value["$ref"], base_dir, called="$ref")
    arguments = _static_values({k: v for k, v in value.items() if k != "$call"}, base_dir)
    if "$call" not in value:
        return arguments
    function = import_function(value["$call"], base_dir, called="$call")
    try:
        return function(**arguments)
    except Exception as error:
        raise SpecError(f"$call {value['$call']!r} failed: {summary_of(error)}") from error


def array_arguments(args: Args, base_dir: str) -> Any:
    """Return the arrays of a variant with the functions of their `$call` nodes imported.

    Raises:
        SpecError: a function cannot be imported.
    """
    items = enumerate(args) if isinstance(args, list) else args.items()
    made: dict[str | int, Any] = {}
    for key, item in items:
        with _inside("args"), _inside(key):
            made[key] = _array_argument(item, base_dir)
    return [*made.values()] if isinstance(args, list) else made


def _array_argument(tree: Any, base_dir: str, *, in_call: bool = False) -> Any:
    if isinstance(tree, Mapping) and "$tuple" in tree:
        return tuple(_array_argument(tree["$tuple"], base_dir, in_call=in_call))
    if in_call and not any(True for _ in leaves(tree)):
        return static_value(tree, base_dir)
    if isinstance(tree, list):
        return [_array_argument(item, base_dir, in_call=in_call) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    items = {key: item for key, item in tree.items() if key != "$call"}
    in_call = in_call or "$call" in tree
    made = {key: _array_argument(item, base_dir, in_call=in_call) for key, item in items.items()}
    if "$call" not in tree:
        return made
    function = import_function(tree["$call"], base_dir, called="$call")
    return BuiltNode(f"$call {tree['$call']!r}", function, made)


@dataclass(frozen=True, slots=True)
class BuiltNode:
    """A pytree node that a call (`$call` in a spec) returns.

    Attributes:
        called: the function's name in the spec.
        function: the function to call.
        arguments: its keyword arguments: arrays, static data, or containers of both.
    """

    called: str
    function: Callable[..., Any]
    arguments: dict[str, object]


def leaves(tree: Any) -> Iterator[ArraySpec]:
    """Yield the arrays of an argument tree, in JAX's order."""
    import jax

    for leaf in jax.tree_util.tree_leaves(tree):
        if isinstance(leaf, ArraySpec):
            yield leaf
        elif isinstance(leaf, BuiltNode):
            yield from leaves(leaf.arguments)


def abstract(tree: Any, sharding: Any) -> Any:
    """Return the tree with a `ShapeDtypeStruct` for each array, and with the results of its calls.

    Raises:
        SpecError: this JAX does not have a dtype, or a node cannot be built.
    """
    return _made(tree, lambda array: _struct(array, sharding), lambda node: _built(node, sharding))


def _made(tree: Any, array: Callable[[ArraySpec], Any], built: Callable[[BuiltNode], Any]) -> Any:
    """Return a tree with its arrays and built nodes replaced."""
    import jax

    def made(leaf: Any) -> Any:
        if isinstance(leaf, ArraySpec):
            return array(leaf)
        return built(leaf) if isinstance(leaf, BuiltNode) else leaf

    return jax.tree_util.tree_map(made, tree)


def _struct(array: ArraySpec, sharding: Any) -> Any:
    import jax
    import jax.numpy as jnp

    jax_name = DTYPES[array.dtype].jax_name
    dtype = getattr(jnp, jax_name, None)
    if dtype is None:
        raise SpecError(f"this JAX version has no dtype {array.dtype} (jax.numpy.{jax_name}).")
    return _laid_out(jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding), array.layout)


def _laid_out(struct: Any, layout: tuple[int, ...] | None) -> Any:
    """Return the struct of an array whose dimensions have this order in memory."""
    if layout is None or struct.sharding is None:
        return struct
    import jax
    from jax.experimental.layout import Format, Layout

    order = Format(Layout(tuple(reversed(layout))), struct.sharding)
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=order)


def _built(node: BuiltNode, sharding: Any) -> Any:
    """Return the shapes of a call's result.

    JAX traces the called function, so it may inspect its arrays and compute with them.
    """
    import jax

    arrays = list(leaves(node))
    layouts: list[tuple[int, ...] | None] = []

    def make(*traced: Any) -> Any:
        made = _call(node, iter(traced))
        given = {id(each): array.layout for each, array in zip(traced, arrays, strict=True)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(made):
            layouts.append(given.get(id(leaf)))
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                where = jax.tree_util.keystr(path)
                raise SpecError(
                    f"{node.called} returns a {type(made).__name__} whose {where or 'value'} is "
                    f"{leaf!r}, which is neither an array nor a pytree node."
                )
        return made

    made = jax.eval_shape(make, *(_struct(array, None) for array in arrays))
    in_order = iter(layouts)
    return jax.tree_util.tree_map(
        lambda leaf: _laid_out(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), next(in_order)
        ),
        made,
    )


def _call(node: BuiltNode, arrays: Iterator[Any]) -> Any:
    """Call a node's function, filling its arguments from the iterator `arrays`."""
    made = _made(node.arguments, lambda _: next(arrays), lambda inner: _call(inner, arrays))
    try:
        return node.function(**made)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{node.called} failed: {summary_of(error)}") from error


def is_node(value: Any) -> bool:
    """Return True if JAX flattens a value; this includes None."""
    import jax

    return not jax.tree_util.all_leaves([value])


def bind(tree: Any, path: str, bindings: list[Binding], *, is_input: bool = False) -> Any:
    """Number the leaves of a JAX pytree in JAX's order; return it with numbers as leaves.

    Args:
        tree: arrays, or their shapes, in containers and nodes.
        path: the tree's name, with which the names of its arrays begin: `x.weight` in `x`.
        bindings: receives a `Binding` for each array, with the leaf's number as `buffer`.
        is_input: name the children of a node by the keys of its type instead of by number, and
            include the static data of nodes and the layouts of arrays.
    """
    if tree is None:
        return None
    if not is_node(tree):
        layout = _layout(tree) if is_input else None
        dtype = parse_dtype(str(tree.dtype)).name
        bindings.append(Binding(path, dtype, tuple(tree.shape), len(bindings), layout))
        return len(bindings) - 1

    def bound(key: Any, item: Any) -> Any:
        return bind(item, f"{path}.{key}", bindings, is_input=is_input)

    if isinstance(tree, dict):
        # JAX sorts the keys of every dictionary except an `OrderedDict`.
        keys = list(tree) if isinstance(tree, OrderedDict) else sorted(tree)
        return {"dict": {str(key): bound(key, tree[key]) for key in keys}}
    if isinstance(tree, list):
        return [bound(i, item) for i, item in enumerate(tree)]
    if hasattr(tree, "_fields"):
        items = {key: bound(key, getattr(tree, key)) for key in tree._fields}
        order = {} if arrays_tell_order(items) else {"order": list(items)}
        return {"namedtuple": type(tree).__name__, "fields": items, **order}
    if isinstance(tree, tuple):
        return {"tuple": [bound(i, item) for i, item in enumerate(tree)]}
    return _bind_node(tree, bound, is_input)


def _layout(struct: Any) -> tuple[int, ...] | None:
    order = getattr(getattr(struct, "format", None), "layout", None)
    major_to_minor = getattr(order, "major_to_minor", None)
    if major_to_minor is None:
        return None
    return settled_layout(tuple(reversed(major_to_minor)), struct.shape)


def arrays_tell_order(trees: Mapping[str, object]) -> bool:
    """Return True if all trees with arrays come before all trees without arrays."""
    holds = [any(True for _ in tree_leaves(tree)) for tree in trees.values()]
    return holds == sorted(holds, reverse=True)


def _bind_node(tree: Any, bound: Callable[[Any, Any], Any], is_input: bool) -> Any:
    """Flatten a node, whose type is registered with JAX, by one level."""
    import jax

    name = type(tree).__name__
    structure: Any
    entries, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    if not is_input:
        children = [bound(index, child) for index, (_, child) in enumerate(entries)]
        return {"node": name, "children": children}
    keys = [jax.tree_util.keystr(path, simple=True) for path, _ in entries]
    made = {
        "node": name,
        "children": [bound(key, child) for key, (_, child) in zip(keys, entries, strict=True)],
        "keys": keys,
    }
    data = structure.node_data()[1]
    if data is None or (isinstance(data, tuple | list | dict) and not data):
        return made
    try:
        return {**made, "static": static_text(data)}
    except SpecError as error:
        raise SpecError(f"the pytree node {name} has {error.message}", hint=error.hint) from error
