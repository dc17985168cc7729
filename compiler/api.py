"""`pallasc.compile`: compile one callable to an artifact."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store, default_root
from pallasc.compiler.lowering.entry import BuiltNode, import_entry, import_function, is_node
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.errors import PallascError, SpecError, ToolError
from pallasc.specs.arrays import ArraySpec, looks_like_array, parse_dtype, resolve_array
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
        function: a function that JAX can trace; with `isolated`, it must not be a closure.
        arrays: the positional arguments: text like `"bf16[1024, 4096]"`, arrays or array-like
            objects, None, or pytrees of these. A `pallasc.Call` is replaced by its result.
        target: a model or an architecture: `"h100-sxm"`, `"sm_90a"`.
        mesh: axes and sizes of the device mesh, `{"x": 4}`; `arrays` are the arrays of one device.
        isolated: compile in a worker process; the function must be importable. Required if JAX has
            already initialized devices in this process, as any computation does. By default, this
            process compiles, and only for one architecture. If JAX has already compiled a Mosaic
            kernel in this process, Mosaic still uses the device library that it found then, for
            example in `/usr/local/cuda`, and the artifact wrongly names the installed wheel's.
        ptxas: an assembler to use instead of the installed wheel's.
        store: with `isolated`, the store to read from and add to, by default the user's. If the
            store has the function with unchanged sources, the function is not traced. Without
            `isolated`, nothing is stored.
        static: further keyword arguments, passed unchanged. With `isolated`, they must be plain
            data, `pallasc.Call`, or `pallasc.Ref`.

    Returns:
        The artifact, with `artifact.plan`, `artifact.cubin()`, `artifact.ptx()`, and
        `artifact.kernels`. `pallasc.emulate` can execute all of its kernels.

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
    assembler = Path(ptxas) if ptxas else None
    if not isolated:
        _setup(assembler)
    convert = notation if isolated else argument
    args = [convert(item, f"array {index}") for index, item in enumerate(arrays)]
    axes = checked_mesh(mesh)
    if isolated:
        spec = spec_of(function, args=args, static=static, target=chosen.name, mesh=dict(axes))
        variant = structs.replace(expand([spec])[0], target=chosen)
        return _compile_isolated(variant, assembler, store or Store())
    if store is not None:
        raise SpecError("store has no effect here.", hint="Pass isolated=True, or leave out store.")
    from pallasc.compiler.lowering.lower import Job

    return _compile_here(Job(function, args, static, chosen, axes), assembler)


@cache
def _setup(ptxas: Path | None) -> Setup:
    """Return the toolchain's setup, which is made once per process."""
    setup = prepare(ptxas)
    if setup.temporary is not None:
        atexit.register(setup.temporary.cleanup)
    return setup


def _compile_here(job: Job, ptxas: Path | None) -> Artifact:
    from pallasc.compiler.lowering.compile import Tools, compile_job, lower_job, xla_ptx

    setup = _setup(ptxas)
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
    """Return this process's file digests, which stay valid while a file's stat is unchanged."""
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


_ARRAY_PROTOCOLS = (
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__dlpack__"),
    "__jax_array__",
)


def argument(item: Any, what: str) -> Any:
    """Return an argument with an `ArraySpec` per array, and a `BuiltNode` per `pallasc.Call`.

    Args:
        item: a pytree.
        what: the argument's name in messages.

    Raises:
        SpecError: a leaf is not an array, or a called function cannot be imported.
    """
    return _mapped(item, what, _leaf)


def _mapped(tree: Any, what: str, convert: Callable[[Any, str], Any]) -> Any:
    import jax

    def converted(path: Any, leaf: Any) -> Any:
        keys = (jax.tree_util.keystr((key,), simple=True) for key in path)
        return convert(leaf, ".".join([what, *keys]))

    def check_keys(node: Any) -> bool:
        """Reject keys that JAX cannot sort; every node of the tree is passed to this function."""
        if type(node) in (dict, defaultdict):
            try:
                sorted(node)
            except TypeError:
                raise SpecError(
                    f"{what} has keys that cannot be sorted: {', '.join(map(show, node))}.",
                    hint="JAX sorts the keys of a dict: use text for all of them.",
                ) from None
        return False

    return jax.tree_util.tree_map_with_path(converted, tree, is_leaf=check_keys)


def _leaf(item: Any, what: str) -> ArraySpec | BuiltNode:
    if not isinstance(item, Call):
        return _array(resolve_array(item) if isinstance(item, str) else item, what)
    function = _found(item.target, import_function, "$call")
    shown = item.target if isinstance(item.target, str) else function.__name__
    return BuiltNode(f"$call {shown!r}", function, _mapped(item.arguments, what, _in_call))


def _in_call(item: Any, what: str) -> Any:
    if isinstance(item, Ref):
        return _found(item.target, import_entry, "$ref")
    return _leaf(item, what) if isinstance(item, Call) or _is_array(item) else item


def _found(target: Any, find: Callable[..., Any], called: str) -> Any:
    return find(target, str(Path.cwd()), called=called) if isinstance(target, str) else target


def _is_array(value: Any) -> bool:
    """Return True for an array, or text such as `f32[8]`, among the arguments of a call."""
    if isinstance(value, str):
        return looks_like_array(value)
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def notation(item: Any, what: str) -> Any:
    """Return an argument in the notation of specs, from which another process can rebuild it.

    Raises:
        SpecError: the argument cannot be written in this notation.
    """
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        item = Call(type(item), **dict(zip(item._fields, item, strict=True)))
    if isinstance(item, Call):
        arguments = {key: notation(own, f"{what}.{key}") for key, own in item.arguments.items()}
        return Call(item.target, **arguments)
    if type(item) is dict:
        return {key: notation(own, f"{what}.{key}") for key, own in item.items()}
    if type(item) in (list, tuple):
        items = [notation(own, f"{what}.{index}") for index, own in enumerate(item)]
        return items if type(item) is list else {"$tuple": items}
    if isinstance(item, str) or item is None:
        return item
    if isinstance(item, dict | tuple) or ("jax" in sys.modules and is_node(item)):
        raise SpecError(
            f"{what} is {an(type(item).__name__)}, which cannot be rebuilt in another process.",
            hint='Pass pallasc.Call("module:function", …) with its arrays, or leave out isolated.',
        )
    return str(_array(item, what)) if _is_array(item) else item


def _array(item: Any, what: str) -> ArraySpec:
    """Return dtype and shape of an array, or of an object such as `jax.ShapeDtypeStruct`.

    Raises:
        SpecError: `item` is not an array.
    """
    if isinstance(item, ArraySpec):
        return item
    kind = type(item)
    if not hasattr(item, "shape") or not hasattr(item, "dtype"):
        raise SpecError(
            f"{what} is {an(kind.__name__)}, which is not an array.",
            hint='Write it like "bf16[1024, 4096]", or pass static arguments by keyword.',
        )
    is_jax = kind.__module__.startswith("jax")  # such as `jax.ShapeDtypeStruct`
    if not (is_jax or any(hasattr(item, name) for name in _ARRAY_PROTOCOLS)):
        raise SpecError(
            f"{what} is {an(kind.__name__)}, which has shape and dtype but is neither an array "
            "nor a pytree node registered with JAX.",
            hint=f"Register {kind.__name__} with jax.tree_util, or pass a jax.ShapeDtypeStruct.",
        )
    # torch writes "torch.float32".
    dtype = parse_dtype(str(item.dtype).rpartition(".")[2])
    return ArraySpec(dtype.name, tuple(int(n) for n in item.shape))
