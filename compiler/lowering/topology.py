"""GPUs that are not there: XLA's description of a target, and devices made from it.

The text is a `GpuTargetConfigProto` (`xla/stream_executor/device_description.proto`), laid out as
in `xla/backends/gpu/target_config/specs`. Figures that are the same for every supported model: 1024
threads a block, warps of 32, 48 KiB of shared memory without opt-in, 65,536 registers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pallasc.compiler.lowering.patches import patched
from pallasc.errors import CompileError, ToolError
from pallasc.specs.gpus import Target

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
    """Return a string of the text format, in ASCII: all but letters and the like as octal bytes."""
    data = text.encode("utf-8", "replace")
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data)
    return f'"{"".join(plain)}"'


@cache
def devices_for(target: Target, count: int = 1) -> tuple[Any, ...]:
    """Return JAX devices that stand for GPUs of `target`; nothing can run on them.

    Raises:
        ToolError: JAX does not offer its CUDA plugin in this process.
        CompileError: the device does not report the architecture requested.
    """
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(
            "pallasc", "cuda", target_config=target_config(target), topology=f"1x1x{count}"
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise ToolError(
            f"JAX cannot compile for a GPU in this process: {_first_line(error)}",
            hint="Call pallasc.compile before JAX has looked for devices, or with isolated=True.",
        ) from error
    devices: Any = topology.devices
    if len(devices) != count:
        raise CompileError(f"asked for {count} devices, JAX describes {len(devices)}")
    reported = str(devices[0].compute_capability)
    if reported != f"{target.major}.{target.minor}":
        raise CompileError(f"asked for {target.arch}, the device reports {reported}")
    return tuple(devices)


@contextlib.contextmanager
def devices_present(devices: Sequence[Any]) -> Iterator[None]:
    """Let JAX report these devices as the devices of the machine, as where the kernel runs.

    Kernels ask for their number and their properties while they are traced, and Mosaic asks whether
    one process has them all. A question about another platform is answered by JAX.
    """
    import jax

    answers: dict[str, object] = {
        "default_backend": "gpu",
        "device_count": len(devices),
        "devices": list(devices),
        "local_device_count": len(devices),
        "local_devices": list(devices),
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
