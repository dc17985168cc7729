"""`pallasc.compile`: one callable, from Python, to an artifact."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store, default_root
from pallasc.compiler.given import array_tree, as_written, with_calls_made
from pallasc.compiler.setup import Setup, prepare
from pallasc.errors import SpecError, ToolError
from pallasc.specs.artifact import Artifact
from pallasc.specs.decorator import spec_of
from pallasc.specs.matrix import expand
from pallasc.specs.meshes import Mesh, checked_mesh
from pallasc.specs.spelling import show
from pallasc.specs.targets import Target, resolve_target


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
    """Compile `function` for a GPU that need not be there.

    Args:
        function: what JAX can trace; closures too, unless `isolated`.
        arrays: the positional arrays: text like `"bf16[1024, 4096]"`, arrays or what stands for
            one, None, or pytrees of these; `pallasc.Call` stands for the node that the call gives.
        target: a model or an architecture: `"h100-sxm"`, `"sm_90a"`.
        mesh: axes and sizes of the devices that run it together, `{"x": 4}`; the arrays are those
            of one device.
        isolated: compile in a worker process; the function must be importable. Otherwise this
            process compiles, and can do so for one architecture only. A process in which JAX has
            looked for devices already, as any computation makes it, must say `isolated=True`.
        ptxas: an assembler to use instead of the installed wheel's.
        store: where to look first and to keep the result. Isolated, that is the user's own by
            default, and a function whose sources are as they were is not even traced. Otherwise it
            is traced and lowered, since it may hold what no source says, and not compiled again.
        static: further keyword arguments, passed as they are. Isolated, they must be plain data,
            `pallasc.Call` or `pallasc.Ref`.

    Returns:
        The artifact; `artifact.plan`, `artifact.cubin()`, `artifact.ptx()`, `artifact.kernels`.

    Raises:
        SpecError: a wrong array or target, arrays that do not fit the function, or a function that
            cannot be called or imported.
        CompileError: it does not compile; or, in this process, a second architecture.
        ToolError: the toolchain is not complete.
    """
    if not callable(function):
        raise SpecError(
            f"{show(function)} is not a function.",
            hint="The function comes first, then its arrays.",
        )
    chosen = resolve_target(target) if isinstance(target, str) else target
    args = [array_tree(item, f"array {index}") for index, item in enumerate(arrays)]
    axes = checked_mesh(mesh)
    assembler = Path(ptxas) if ptxas else None
    if isolated:
        return _compile_isolated(function, args, chosen, static, axes, assembler, store)
    return _compile_here(function, args, chosen, static, axes, _setup(assembler), store)


@cache
def _setup(ptxas: Path | None) -> Setup:
    """Return the setup of this process, which stays in its environment until it ends."""
    setup = prepare(ptxas)
    if setup.kept is not None:
        atexit.register(setup.kept.cleanup)
    return setup


def _compile_here(
    function: Callable[..., Any],
    args: list[Any],
    target: Target,
    static: Mapping[str, Any],
    mesh: Mesh,
    setup: Setup,
    store: Store | None,
) -> Artifact:
    from pallasc.compiler.compile import Job, Tools, compile_job, lower_job

    _adopt(setup.environment)
    digests = _digests(_store_root())
    record = setup.record(digests)
    digests.save()
    job = Job(
        function, [with_calls_made(item, str(Path.cwd())) for item in args], static, target, mesh
    )
    if store is not None:
        from pallasc.compiler.kept import compile_kept

        return compile_kept(job, setup, store, record)
    tools = Tools(record, setup.toolchain.ptxas, {}, {})
    result, blobs = compile_job(job, lower_job(job), tools)
    return Artifact(result, blobs.__getitem__)


@cache
def _digests(store_root: Path | None) -> FileDigests:
    """Return the digests that this process knows; each is looked at again by stat alone."""
    return FileDigests(store_root)


def _store_root() -> Path | None:
    """Return where digests of files are remembered, None where there is no such place."""
    try:
        return default_root()
    except ToolError:
        return None


def _adopt(environment: Mapping[str, str]) -> None:
    """Give this process the environment that compiling needs; what is there already stays.

    `JAX_PLATFORMS` is left alone: the process may have devices of its own.
    """
    name = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    os.environ[name] = environment[name]
    tools = environment["PATH"].partition(os.pathsep)[0]
    path = os.environ.get("PATH", "")
    if path.partition(os.pathsep)[0] != tools:
        os.environ["PATH"] = os.pathsep.join([tools, path])


def _compile_isolated(
    function: Callable[..., Any],
    args: list[Any],
    target: Target,
    static: Mapping[str, Any],
    mesh: Mesh,
    ptxas: Path | None,
    store: Store | None,
) -> Artifact:
    from pallasc.compiler.build import build

    notation = [as_written(item, f"array {index}") for index, item in enumerate(args)]
    spec = spec_of(function, args=notation, static=static, target=target.name, mesh=dict(mesh))
    variant = replace(expand([spec])[0], target=target)
    report = build([variant], store=store or Store(), jobs=1, ptxas=ptxas)
    if report.interrupted:
        raise KeyboardInterrupt
    result = report.results[0]
    if result.error is not None:
        raise result.error
    for one in result.diagnostics:
        warnings.warn(str(one), stacklevel=3)
    if result.artifact is None:
        raise SpecError(f"{variant.name} was not compiled.")
    return result.artifact
