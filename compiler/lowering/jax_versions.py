"""JAX internals: version differences, temporary replacements, and uses without a public interface.

JAX has no switch for some things that ahead-of-time compilation needs, so functions are replaced
temporarily (`patched`). Only one thread at a time may do this; other threads still call the
original functions.

Devices for absent GPUs are made from a `GpuTargetConfigProto`
(`xla/stream_executor/device_description.proto`), with the fields used in
`xla/backends/gpu/target_config/specs`. Values that are the same for every supported model: 1024
threads per block, warps of 32 threads, 48 KiB of shared memory without opt-in, 65,536 registers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pallasc.errors import Location, ToolError
from pallasc.specs.gpus import Target
from pallasc.specs.spec import Mesh

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def patched(module: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions of a module by name while the context lasts.

    Raises:
        AttributeError: the module lacks one of the functions.
    """
    with _ONE_AT_A_TIME:
        before = {name: getattr(module, name) for name in functions}
        for name, function in functions.items():
            setattr(module, name, _here(function, before[name]))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(module, name, function)


def _here(function: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.get_ident()

    @functools.wraps(elsewhere)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = function if threading.get_ident() == thread else elsewhere
        return chosen(*args, **kwargs)

    return call


@contextlib.contextmanager
def variable_of_cpp(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for C++ only; Python's `os.environ` does not change."""
    os.putenv(name, value)
    try:
        yield
    finally:
        if (before := os.environ.get(name)) is None:
            os.unsetenv(name)
        else:
            os.putenv(name, before)


_MOST_FRAMES = 10
_MOST_COLUMNS = 1 << 16
_uses = itertools.count(1)
_STACKS = "stacks"
_NUMBER = re.compile(rf'"{_STACKS}":(\d+)')
_TO_TRANSPOSE = 3
"""Number of frames from the replaced `user_context` to the function that transposes."""
_WITH_RULES = ("custom_lin", "custom_transpose_call", "linear_call")
"""Equations whose transposition calls user code."""
_ATTRIBUTE = "mosaic_gpu.dump_basename"


@contextlib.contextmanager
def source_locations(*, enabled: bool) -> Iterator[None]:
    """Lower with or without source locations while the context lasts.

    With locations, the kernel's hash and the cubin change with the checkout's folder and with every
    line above the kernel. `jax_traceback_in_locations_limit=0` is enough for XLA's module, and for
    Mosaic's up to JAX 0.10. From 0.11 on, Mosaic always asks for the user's innermost frame
    (`jax/_src/pallas/mosaic_gpu/lowering.py`), so that function is replaced and returns no frame.
    """
    from jax._src import config, source_info_util

    hidden = {} if enabled else {"user_frame": lambda _: None}
    with (
        config.traceback_in_locations_limit(_MOST_FRAMES if enabled else 0),
        # Otherwise JAX reads file names, and fails at one that is not UTF-8.
        config.include_full_tracebacks_in_locations(enabled),
        patched(source_info_util, hidden),
    ):
        yield


@contextlib.contextmanager
def lines_of_rules() -> Iterator[None]:
    """Let operations that a user's backward rule traces keep the rule's lines, in this context.

    While JAX transposes an equation, every operation that it traces gets the stack of that equation
    (`jax/_src/interpreters/ad.py`), which is right for JAX's own operations. If the equation calls
    a user's rule, that stack is left out, so that each operation keeps its own.
    """
    from jax._src import source_info_util

    info: Any = source_info_util
    plain = info.user_context

    @contextlib.contextmanager
    def without_stack(name_stack: Any) -> Iterator[None]:
        held = info._source_info_context
        before = held.context
        held.context = info.SourceInfo(None, name_stack)
        try:
            yield
        finally:
            held.context = before

    def user_context(traceback: Any, *, name_stack: Any = None) -> Any:
        if _calls_rule(sys._getframe(1)):
            return without_stack(name_stack)
        return plain(traceback, name_stack=name_stack)

    with patched(info, {"user_context": user_context}):
        yield


def _calls_rule(frame: Any) -> bool:
    """Return True if a caller of `frame` transposes an equation with a user's rule."""
    for _ in range(_TO_TRANSPOSE):
        frame = frame.f_back
        if frame is None:
            return False
        if frame.f_code.co_name.startswith("backward_pass"):
            primitive = getattr(frame.f_locals.get("eqn"), "primitive", None)
            return getattr(primitive, "name", "") in _WITH_RULES
    return False


@contextlib.contextmanager
def numbered_stacks(number: Callable[[list[Location], int], int]) -> Iterator[None]:
    """Write the number of a Python stack as the line of each source location, in this context.

    Mosaic passes a single frame to LLVM (`mosaic-gpu-resolve-trivial-locations`), and JAX leaves
    out the frames of kernels that ship with JAX. Each use of this context has a different column,
    since XLA does not compile a kernel again that equals an earlier one of this process.

    Args:
        number: returns the number of a stack, 0 for none. The first argument is the stack of an
            equation, starting where the surrounding function was traced. The second is the number
            of the equation that calls this surrounding function, 0 for none.
    """
    from jax._src import config, source_info_util
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    use = next(_uses) % _MOST_COLUMNS
    info: Any = source_info_util
    located: Any = mlir.source_info_to_location

    core: Any = importlib.import_module("jax.experimental.mosaic.gpu.core")
    lower: Any = core._lower_as_gpu_kernel
    call = [0]  # the number of XLA's equation that is being lowered, which may call a kernel

    def numbered(traceback: Any, outer: int) -> Any:
        if traceback is None:
            return None
        frames = list(map(info.raw_frame_to_frame, *traceback.raw_frames()))
        # Python counts columns from 0.
        stack = [Location(f.file_name, f.start_line, f.start_column + 1) for f in frames]
        return info.Frame(_STACKS, "", number(stack, outer), use, 0, 0)

    def location(context: Any, *arguments: Any) -> Any:
        is_kernel = not isinstance(context, mlir.ModuleContext)
        outer = _current_number(ir) or (call[0] if is_kernel else 0)

        def frame_of(traceback: Any) -> Any:
            frame = numbered(traceback, outer)
            if not is_kernel and frame is not None:
                call[0] = frame.start_line or call[0]
            return frame

        with (
            config.include_full_tracebacks_in_locations(False),
            patched(info, {"user_frame": frame_of}),
        ):
            return located(context, *arguments)

    def lowered(*arguments: Any, base_loc: Any = None, **options: Any) -> Any:
        # Code that belongs to no equation, such as barrier initialization, gets the location of the
        # kernel's call.
        with base_loc or ir.Location.unknown():
            return lower(*arguments, base_loc=base_loc, **options)

    with (
        patched(core, {"_lower_as_gpu_kernel": lowered}),
        patched(info, {"user_frame": lambda traceback: numbered(traceback, call[0])}),
        patched(mlir, {"source_info_to_location": location}),
    ):
        yield


def _current_number(ir: Any) -> int:
    """Return the number in the location of the equation that is being lowered, 0 for none."""
    try:
        place = _NUMBER.search(str(ir.Location.current))
    except ValueError:  # there is none
        return 0
    return int(place[1]) if place else 0


def jax_mesh(mesh: Mesh, devices: Sequence[Any], explicit: Sequence[str] = ()) -> Any:
    """Return a JAX mesh of these devices, in the order of their numbers."""
    import jax
    import numpy as np

    names = tuple(name for name, _ in mesh)
    shape = tuple(size for _, size in mesh)
    kinds = jax.sharding.AxisType
    types = tuple(kinds.Explicit if name in explicit else kinds.Auto for name in names)
    return jax.sharding.Mesh(np.array(devices).reshape(shape), names, axis_types=types)


def on_one_device(
    function: Callable[..., Any], mesh: Any, *, split: bool = False
) -> Callable[..., Any]:
    """Return `function` as each device of a mesh runs it, on its own arrays.

    The function can use the names of the mesh's axes, and the executable is for one device.

    Args:
        function: the function that each device runs.
        mesh: JAX's mesh.
        split: whether arrays are given for all devices together and split along their first
            dimension; otherwise each device gets whole arrays.
    """
    import jax

    own = jax.sharding.PartitionSpec(*([mesh.axis_names] if split else []))
    mapped: Callable[..., Any] = jax.shard_map(
        function, mesh=mesh, in_specs=own, out_specs=own, check_vma=False
    )
    return mapped


def inferred_architecture() -> tuple[int, int]:
    """Return the compute capability that Mosaic lowers for."""
    from jax.experimental.mosaic.gpu import core, utils

    # `_infer_arch` moved from `core` to `utils` between JAX 0.10 and 0.12.
    module: Any = utils if hasattr(utils, "_infer_arch") else core
    major, minor = module._infer_arch()
    return major, minor


def adapted(target: Target) -> contextlib.AbstractContextManager[None]:
    """Return a context in which an older JAX's Mosaic lowers as later versions do."""
    import jax

    series = jax.__version_info__[:2]
    if series == (0, 10) and "clusters" not in target.features:
        return _as_before_hopper()
    return _same_dump_names() if series == (0, 11) else contextlib.nullcontext()


@contextlib.contextmanager
def _as_before_hopper() -> Iterator[None]:
    """Replace two operations that do not exist before Hopper, in Mosaic of JAX 0.10.

    This version elects one thread of a block with `elect.sync`, and fences barrier initialization
    for clusters in every kernel. Neither exists before sm_90, and LLVM aborts the process. Later
    versions compare the thread's index instead, and fence only in kernels with clusters.
    """
    from jax._src.lib.mlir.dialects import arith, nvvm
    from jax.experimental.mosaic import gpu
    from jax.experimental.mosaic.gpu import utils

    subset = utils.ThreadSubset
    group_threads = {subset.WARP: 32, subset.WARPGROUP: 128}

    def first_thread(scope: Any = subset.BLOCK) -> Any:
        index = utils.thread_idx()
        if scope in group_threads:
            index = arith.remui(index, utils.c(group_threads[scope], index.type))
        zero = utils.c(0, index.type)
        return arith.cmpi(arith.CmpIPredicate.eq, index, zero)

    predicate = {"single_thread_predicate": first_thread}
    without_fence = {"fence_mbarrier_init": lambda *_, **__: None}
    with patched(gpu, predicate), patched(utils, predicate), patched(nvvm, without_fence):
        yield


def _same_dump_names() -> contextlib.AbstractContextManager[None]:
    """Give every module the same name for its dumps, in Mosaic of JAX 0.11.

    This version numbers the kernels of a process and puts the number into each module, in the name
    of its dump files (`get_or_set_dump_options`). The kernel's hash, and so the action key, would
    then depend on earlier compilations. JAX 0.12 leaves the name out of the hash.
    """
    from jax.experimental.mosaic.gpu import core
    from jaxlib.mlir import ir

    dialect: Any = vars(core)["dialect"]
    options_of = dialect.get_or_set_dump_options

    def dump_options(module: Any) -> Any:
        attributes = module.operation.attributes
        if _ATTRIBUTE not in attributes:
            with module.context:
                attributes[_ATTRIBUTE] = ir.StringAttr.get("kernel")
        return options_of(module)

    return patched(dialect, {"get_or_set_dump_options": dump_options})


_TEMPLATE = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {smem_per_sm_bytes}
  threads_per_core_limit: {threads_per_sm}
  core_count: {sm_count}
  fpus_per_core: {fpus_per_sm}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {memory_bandwidth_bytes_per_s}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  shared_memory_per_block_optin: {smem_optin_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor}{extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: {description}
"""

_PLATFORMS = {"gpu", "cuda"}


def target_config(target: Target) -> str:
    """Return the text proto that describes `target` to XLA."""
    figures = {key: value for key, value in target.figures().items() if key != "arch"}
    return _TEMPLATE.format(
        **{**figures, "description": _quoted(target.description)},
        major=target.major,
        minor=target.minor,
        extension=" feature_extension: ACCELERATED_FEATURES" if target.suffix == "a" else "",
    )


def _quoted(text: str) -> str:
    """Quote a string for the text format, in ASCII; bytes that are not printable become octal."""
    data = text.encode("utf-8", "replace")
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data)
    return f'"{"".join(plain)}"'


@cache
def devices_for(target: Target, count: int = 1) -> tuple[Any, ...]:
    """Return JAX devices that represent GPUs of `target`; nothing can run on them.

    Raises:
        ToolError: JAX does not offer its CUDA plugin in this process.
    """
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(
            "pallasc", "cuda", target_config=target_config(target), topology=f"1x1x{count}"
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        summary = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ToolError(
            f"JAX cannot compile for a GPU in this process: {summary}",
            hint="Call pallasc.compile before JAX has looked for devices, or with isolated=True.",
        ) from error
    devices: Any = topology.devices
    return tuple(devices)


@contextlib.contextmanager
def devices_present(devices: Sequence[Any]) -> Iterator[None]:
    """Make JAX report these devices as the machine's devices, as on a machine that runs the kernel.

    While kernels are traced, they ask for the number and properties of devices, and Mosaic asks
    whether one process has them all. JAX itself answers questions about other platforms.
    """
    import jax

    count, own = len(devices), list(devices)
    answers: dict[str, object] = {
        "default_backend": "gpu",
        "device_count": count,
        "devices": own,
        "local_device_count": count,
        "local_devices": own,
    }
    asked = {name: _answering(answer, getattr(jax, name)) for name, answer in answers.items()}
    with patched(jax, asked):
        yield


def _answering(answer: object, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        platforms = {value for value in (*args, *kwargs.values()) if isinstance(value, str)}
        if platforms <= _PLATFORMS:
            return list(answer) if isinstance(answer, list) else answer
        return otherwise(*args, **kwargs)

    return ask
