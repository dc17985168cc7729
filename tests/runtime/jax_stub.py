"""What JAX itself passes to the driver: its host code and its own runtime, on the stand-in.

A serialised executable holds host code for each Mosaic kernel. Here that code runs with real
addresses, and tensor maps come from `libmosaic_gpu_runtime.so` of the installed JAX plugin, which
finds the stand-in as its driver. Up to JAX 0.11 that library launches as well, so that the stand-in
has the launch; from 0.12 on XLA does, and what the host code asks it for is read here.

Nothing of a launch plan is used, and of the compiler only what reads bytes: container, schema.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig import value_of
from standin import Standin

from pallasc.compiler.lowering.serialized import message_type, parse_executable

_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_MAX_DYNAMIC_SMEM = 8
_DEFAULT_SMEM_BYTES = 48 * 1024


@dataclass(frozen=True)
class Passed:
    """A launch as JAX makes it; `parameters` are the exact bytes of each argument."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    smem_bytes: int
    pdl: bool
    parameters: tuple[bytes, ...]


@dataclass(frozen=True)
class MosaicCall:
    """A custom call: its kernel, and where its operands and then its results lie.

    Attributes:
        proto: the `MosaicGpuKernelProto`.
        slices: allocation and offset of each.
    """

    proto: Any
    slices: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Executable:
    """What an executable says of itself, read straight from its protobuf.

    Attributes:
        calls: its Mosaic calls, in order.
        parameters: allocation of each parameter, by number.
        results: allocation of each result.
    """

    calls: tuple[MosaicCall, ...]
    parameters: Mapping[int, int]
    results: tuple[int, ...]

    @classmethod
    def read(cls, data: bytes) -> Executable | None:
        """Read a serialised executable; None where it has steps that are no Mosaic calls."""
        proto = parse_executable(data)
        if any(thunk.custom_call_thunk.target_name != "mosaic_gpu_v2" for thunk in proto.thunks):
            return None
        found = proto.buffer_allocations.values
        entries = sorted(
            proto.output_info_map, key=lambda output: tuple(output.shape_index.indexes)
        )
        leaves = [entry for entry in entries if entry.shape_index.indexes or len(entries) == 1]
        return cls(
            tuple(_call(thunk) for thunk in proto.thunks),
            {a.parameter_number: a.index for a in found if a.is_entry_computation_parameter},
            tuple(array.output_info.allocation_index for array in leaves),
        )


def _call(thunk: Any) -> MosaicCall:
    body = thunk.custom_call_thunk
    proto = message_type("MosaicGpuKernelProto").FromString(body.execution_state.state)
    slices = [array.shaped_slice.slice for array in (*body.operands, *body.results)]
    return MosaicCall(proto, tuple((s.buffer_allocation_index, s.offset) for s in slices))


def runtime_library() -> Path | None:
    """Return JAX's own runtime for Mosaic kernels, None where there is none."""
    for plugin in _PLUGINS:
        found = importlib.util.find_spec(plugin)
        for folder in found.submodule_search_locations or [] if found else []:
            library = Path(folder) / "libmosaic_gpu_runtime.so"
            if library.exists():
                return library
    return None


def launch(call: MosaicCall, buffers: Sequence[int], standin: Standin) -> Passed:
    """Run the host code of a call for buffers at these addresses; return what it passes."""
    with _primary_context():
        if call.proto.version >= 4:
            return _ask_for_spec(call.proto, buffers)
        return _launch_on_standin(call.proto, buffers, standin)


@contextmanager
def _primary_context() -> Iterator[None]:
    """Make the primary context current, as XLA does; JAX's library aborts where there is none."""
    from cuda.bindings import driver

    value_of((*driver.cuCtxPushCurrent(value_of(driver.cuDevicePrimaryCtxRetain(0))), None))
    yield
    value_of(driver.cuCtxPopCurrent())


# ---- JAX 0.12: the host code describes the launch


def _ask_for_spec(proto: Any, buffers: Sequence[int]) -> Passed:
    seen: list[Passed] = []

    def build(_spec: int, *rest: Any) -> None:
        shape, (smem, pdl, count, arguments, sizes) = rest[:9], rest[9:]
        pointers = list((ctypes.c_void_p * count).from_address(arguments))
        by_value = list((ctypes.c_int32 * count).from_address(sizes))
        # Size 0 stands for an address on the device, which is what the kernel gets.
        data = [ctypes.string_at(p, n or 8) for p, n in zip(pointers, by_value, strict=True)]
        cluster = shape[3:6] if any(shape[3:6]) else None
        seen.append(
            Passed(proto.kernel_name, shape[:3], shape[6:], cluster, smem, bool(pdl), tuple(data))
        )

    signature = [ctypes.c_void_p, *[ctypes.c_uint32] * 12, ctypes.c_void_p, ctypes.c_void_p]
    recorder = ctypes.CFUNCTYPE(None, *signature)(build)
    address = ctypes.cast(recorder, ctypes.c_void_p).value
    with _host_code(proto.object_file, {"mosaic_gpu_build_kernel_spec": address}) as function:
        spec = ctypes.create_string_buffer(4096)
        function(proto.host_func_name)(ctypes.addressof(spec), _addressed(buffers))
    (passed,) = seen
    return passed


# ---- before: JAX's library launches


def _launch_on_standin(proto: Any, buffers: Sequence[int], standin: Standin) -> Passed:
    before = len(standin.launches)
    with _host_code(proto.object_file, {}) as function:
        kernel = _initialised(proto, function) if proto.version == 1 else _loaded(proto)
        function(proto.host_func_name)(kernel, 0, _addressed(buffers))
    (made,) = standin.launches[before:]
    return Passed(
        made.kernel, made.grid, made.block, made.cluster, made.smem_bytes, made.pdl,
        made.parameters,
    )  # fmt: skip


def _initialised(proto: Any, function: Callable[[str], Any]) -> int:
    """Let JAX's library load the cubin inside the host code; return the kernel's handle."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    function(proto.init_func_name)(ctypes.addressof(module), ctypes.addressof(kernel))
    assert kernel.value, "the init function gives no kernel"
    return kernel.value


def _loaded(proto: Any) -> int:
    """Load the cubin as XLA does; return the kernel's handle."""
    from cuda.bindings import driver

    module = value_of(driver.cuModuleLoadData(proto.gpu_binary))
    function = value_of(driver.cuModuleGetFunction(module, proto.kernel_name.encode()))
    if proto.smem_bytes > _DEFAULT_SMEM_BYTES:
        attribute = driver.CUfunction_attribute(_MAX_DYNAMIC_SMEM)
        (code,) = driver.cuFuncSetAttribute(function, attribute, proto.smem_bytes)
        assert int(code) == 0
    return int(function)


# ---- running host code


def _addressed(buffers: Sequence[int]) -> int:
    """Return the address of the list of buffers; two null pointers lie behind them."""
    listed = (ctypes.c_void_p * (len(buffers) + 2))(*buffers, None, None)
    _kept.append(listed)
    return ctypes.addressof(listed)


_kept: list[Any] = []


@contextmanager
def _host_code(
    object_file: bytes, symbols: Mapping[str, int | None]
) -> Iterator[Callable[[str], Any]]:
    """Load host code and give a way to its functions; what is not named is JAX's library's."""
    import llvmlite.binding as llvm

    library = ctypes.CDLL(str(runtime_library()))
    for name in (
        *("mosaic_gpu_init_tma_desc", "mosaic_gpu_init_tma_im2col_desc", "mosaic_gpu_module_load"),
        *("mosaic_gpu_get_function", "mosaic_gpu_launch_kernel"),
    ):
        if hasattr(library, name):
            llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    for name, address in symbols.items():
        llvm.add_symbol(name, address)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
    engine.finalize_object()

    def function(name: str) -> Any:
        address = engine.get_function_address(name)
        assert address, f"the host code does not define {name}"
        return lambda *given: ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(given))(address)(
            *given
        )

    yield function
    _kept.clear()
