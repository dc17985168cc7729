"""`pallasc.compile`: compile one callable to an artifact."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store, default_root
from pallasc.compiler.lowering.entry import BuiltNode, Node, import_entry, import_function, is_node
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import system_library
from pallasc.errors import PallascError, SpecError, ToolError
from pallasc.specs.arrays import ArraySpec, check_size, looks_like_array, parse_dtype, resolve_array
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.gpus import Target, resolve_target
from pallasc.specs.loading.decorator import Call, Ref, spec_of
from pallasc.specs.loading.matrix import expand
from pallasc.specs.spec import Variant, checked_mesh
from pallasc.specs.spelling import an, show

if TYPE_CHECKING:
    from pallasc.compiler.lowering.lower import Job


def compile(
    function: Callable[..., Any],
    *arrays: Any,
    target: str | Target = "sm_90a",
    mesh: Mapping[str, int] | None = None,
    isolated: bool = False,
    ptxas: str | Path | None = None,
    store: Store | None = None,
    **static: Any,
) -> Artifact:
    """Compile `function` for a GPU, which need not be present.

    Args:
        function: a function that JAX can trace; with `isolated`, not a closure.
        arrays: the positional arrays: text like `"bf16[1024, 4096]"`, arrays or array-like objects,
            None, or pytrees of these. A `pallasc.Call` is replaced by its result.
        target: a model or an architecture: `"h100-sxm"`, `"sm_90a"`.
        mesh: axes and sizes of the device mesh, `{"x": 4}`; `arrays` are one device's arrays.
        isolated: compile in a worker process; the function must be importable. Required if JAX has
            already initialized devices in this process, as any computation does. By default, this
            process compiles, for one architecture only.
        ptxas: an assembler to use instead of the installed wheel's.
        store: with `isolated`, the store to read from and add to, by default the user's; a
            function with unchanged sources is not traced. Without `isolated`, nothing is kept.
        static: further keyword arguments, passed unchanged. With `isolated`, they must be plain
            data, `pallasc.Call`, or `pallasc.Ref`.

    Returns:
        The artifact; `artifact.plan`, `artifact.cubin()`, `artifact.ptx()`, `artifact.kernels`.
        `pallasc.emulate` can execute all of its kernels.

    Raises:
        SpecError: an array or the target is invalid, the arrays do not match the function, or the
            function cannot be called or imported.
        CompileError: compilation failed, or this process has compiled for another architecture.
        ToolError: the toolchain is incomplete.
    """
    if not callable(function):
        raise SpecError(
            f"{show(function)} is not a function.",
            hint="The function comes first, then its arrays.",
        )
    chosen = resolve_target(target) if isinstance(target, str) else target
    args = [argument(item, f"array {index}", isolated) for index, item in enumerate(arrays)]
    axes = checked_mesh(mesh)
    assembler = Path(ptxas) if ptxas else None
    if isolated:
        spec = spec_of(function, args=args, static=static, target=chosen.name, mesh=dict(axes))
        variant = structs.replace(expand([spec])[0], target=chosen)
        return _compile_isolated(variant, assembler, store or Store())
    if store is not None:
        raise SpecError("store has no effect here.", hint="Pass isolated=True, or leave out store.")
    from pallasc.compiler.lowering.lower import Job

    return _compile_here(Job(function, args, static, chosen, axes), assembler)


@cache
def _setup(ptxas: Path | None, libdevice: Path | None = None) -> Setup:
    """Return the setup of this process; it is kept until the process ends."""
    setup = prepare(ptxas, libdevice=libdevice)
    if setup.temporary is not None:
        atexit.register(setup.temporary.cleanup)
    return setup


def _compile_here(job: Job, ptxas: Path | None) -> Artifact:
    from pallasc.compiler.lowering.compile import Tools, compile_job, lower_job, xla_ptx

    setup = _setup(ptxas, system_library())
    # `JAX_PLATFORMS` stays unset, since the process may use its own devices.
    name = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    os.environ[name] = setup.environment[name]
    digests = _digests()
    tools = Tools(setup.record(digests), setup.toolchain.ptxas, {}, {}, setup.toolkit)
    digests.save()
    with setup.in_this_process():
        record, blobs = compile_job(job, lower_job(job), tools)
    artifact = Artifact(record, blobs.__getitem__)

    @cache
    def find() -> Mapping[str, str]:
        from pallasc.compiler.workers.pool import without_ptx

        with setup.in_this_process():
            return xla_ptx(job, tools, without_ptx(artifact))

    artifact.find_ptx = find
    return artifact


@cache
def _digests() -> FileDigests:
    """Return this process's cache of file digests, revalidated by stat."""
    try:
        return FileDigests(default_root())
    except ToolError:
        return FileDigests(None)


def _compile_isolated(variant: Variant, ptxas: Path | None, store: Store) -> Artifact:
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.options import Options

    report = build([variant], store=store, options=Options(jobs=1, ptxas=ptxas))
    if report.interrupted:
        raise KeyboardInterrupt
    result = report.results[0]
    if result.error is not None:
        raise result.error
    for diagnostic in result.diagnostics:
        warnings.warn(str(diagnostic), stacklevel=3)
    artifact = result.artifact
    if artifact is None:
        raise SpecError(f"{variant.name} was not compiled.")

    @cache
    def find() -> Mapping[str, str]:
        from pallasc.compiler.workers.pool import find_ptx

        (found,) = find_ptx([(variant, artifact)], _setup(ptxas), store)
        if isinstance(found, PallascError):
            raise found
        return found

    artifact.find_ptx = find
    return artifact


_ARRAY_MODULES = ("jax", "jaxlib", "numpy", "torch", "cupy", "pallasc")
_ARRAY_PROTOCOLS = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__"),
    "__jax_array__",
)


def argument(item: Any, what: str, isolated: bool) -> Any:
    """Return an argument with an `ArraySpec` for each array, and the result of each call.

    Args:
        item: the argument.
        what: its name in messages.
        isolated: return it in the notation of specs instead, for another process.

    Raises:
        SpecError: something in it is neither an array nor a pytree node, a called function cannot
            be imported, or another process cannot rebuild it.
    """
    if item is None:
        return None
    if isinstance(item, Call):
        return _call(item, what, isolated)
    if isinstance(item, str):
        item = resolve_array(item)
    if type(item) in (dict, OrderedDict, list, tuple) or _is_named_tuple(item):
        return _mapped(item, what, argument, isolated)
    if isinstance(item, ArraySpec) or not ("jax" in sys.modules and is_node(item)):
        array = item if isinstance(item, ArraySpec) else _array(item, what)
        return str(array) if isolated else array
    if isolated:
        raise _not_rebuilt(item, what)
    return _node(item, what)


def _not_rebuilt(item: Any, what: str) -> SpecError:
    return SpecError(
        f"{what} is {an(type(item).__name__)}, which cannot be rebuilt in another process.",
        hint='Pass pallasc.Call("module:function", …) with its arrays, or leave out isolated.',
    )


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _mapped(tree: Any, what: str, convert: Callable[[Any, str, bool], Any], isolated: bool) -> Any:
    """Return a dict, list, tuple or named tuple with each child converted."""
    if isinstance(tree, dict):
        if isolated and not (type(tree) is dict and all(isinstance(key, str) for key in tree)):
            raise _not_rebuilt(tree, what)
        items = tree.items()
        return type(tree)((key, convert(item, f"{what}.{key}", isolated)) for key, item in items)
    children = [convert(item, f"{what}.{index}", isolated) for index, item in enumerate(tree)]
    if hasattr(tree, "_fields"):
        if isolated:
            return Call(type(tree), **dict(zip(tree._fields, children, strict=True)))
        return type(tree)(*children)
    return {"$tuple": children} if isolated and type(tree) is tuple else type(tree)(children)


def _call(call: Call, what: str, isolated: bool) -> Call | BuiltNode:
    arguments = {
        key: _in_call(value, f"{what}.{key}", isolated) for key, value in call.arguments.items()
    }
    target = call.target
    if isolated:
        return Call(target, **arguments)
    if not isinstance(target, str):
        return BuiltNode(f"$call {target.__name__!r}", target, arguments)
    function = import_function(target, str(Path.cwd()), called="$call")
    return BuiltNode(f"$call {target!r}", function, arguments)


def _in_call(value: Any, what: str, isolated: bool) -> Any:
    """Convert an argument of a `Call`; values without arrays are kept."""
    if isinstance(value, Ref) and not isolated:
        if not isinstance(value.target, str):
            return value.target
        return import_entry(value.target, str(Path.cwd()), called="$ref")
    if type(value) in (list, tuple, dict, OrderedDict) or _is_named_tuple(value):
        return _mapped(value, what, _in_call, isolated)
    if isinstance(value, str):
        is_array = looks_like_array(value)
    else:
        is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    is_tree = isinstance(value, Call) or (is_array and not isinstance(value, type))
    return argument(value, what, isolated) if is_tree else value


def _node(item: Any, what: str) -> Node:
    import jax

    entries, structure = jax.tree_util.tree_flatten_with_path(
        item, is_leaf=lambda node: node is not item
    )
    children = [
        argument(child, f"{what}{jax.tree_util.keystr(path)}", False) for path, child in entries
    ]
    return Node(structure, children)


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
