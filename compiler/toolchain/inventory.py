"""The installed compilers and tools, found without importing any of them.

Unlike `toolchain`, which stops at the first missing part, this module lists everything.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import (
    IN_CURRENT_FOLDER,
    LIBDEVICE,
    Package,
    check_versions,
    find_disassembler,
    find_package,
    nvcc_name,
    nvidia_folder,
    tool_version,
)
from pallasc.compiler.toolchain.toolkit import find_nvjitlink
from pallasc.errors import ToolError

_OLDEST_PYTHON = (3, 11)
_MACHINES = ("x86_64", "aarch64")
_LIBRARIES = {
    "llvmlite": "runs the host code of kernels to read their launch plans",
    "protobuf": "reads XLA's executables",
    "cramjam": "decompresses XLA's executables",
}
_OPTIONAL = {
    "absl-py": ("only some of JAX's own kernels import it", ""),
    "cuda-bindings": ("only launching needs it", ""),
    "cryptography": ("only signatures need it", "sign"),
    "distributed": ("only --executor needs it", "dask"),
    "Jinja2": ("only report needs it", "report"),
    "pygal": ("only report needs it", "report"),
}
"""Purpose of each package, and the extra of pallasc that installs it; "" for the compiler's
packages."""


@dataclass(frozen=True, slots=True)
class Item:
    """A package, a tool, or a part of the machine.

    Attributes:
        name: its name.
        version: its version, "" if it is missing or has none.
        purpose: its purpose.
        needed: whether compiling needs it.
        path: its path, "" for packages and if it is missing.
        problem: the problem with it, "" if there is none.
        fix: the command that repairs it, "" if there is none.
    """

    name: str
    version: str
    purpose: str
    needed: bool = True
    path: str = ""
    problem: str = ""
    fix: str = ""


def inventory(ptxas: Path | None = None) -> list[Item]:
    """Return everything that compiling and inspecting use, found or not.

    Args:
        ptxas: an assembler to use instead of the wheel's.
    """
    cuda = next((cuda for cuda in (13, 12) if find_package(f"jax-cuda{cuda}-plugin")), 13)
    compiler = f"cuda{cuda}"
    return [
        _python(),
        _platform(),
        *_jax_items(cuda),
        *_tools(cuda, ptxas),
        *_other_assemblers(cuda),
        *(_library(name, purpose, compiler) for name, purpose in _LIBRARIES.items()),
        *(
            _library(name, purpose, extra or compiler, needed=False)
            for name, (purpose, extra) in _OPTIONAL.items()
        ),
        _driver(),
    ]


def problem_of(items: Sequence[Item]) -> str | None:
    """Return a sentence about the problem that prevents compiling, None if there is none."""
    wrong = [item.name for item in items if item.needed and item.problem]
    if not wrong:
        return None
    return f"nothing can be compiled: see {', '.join(wrong)} in the list."


def only_runs(items: Sequence[Item]) -> bool:
    """Return True if only the runtime is installed, and no part of a compiler.

    JAX alone is not a compiler, since it also runs kernels; its CUDA plugin and CUDA's tools are.
    """
    present = {item.name for item in items if item.version or item.path}
    compilers = ("jax-cuda", "ptxas", "nvlink", "libdevice")
    compiles = any(name.startswith(compilers) for name in present)
    wrong = any(item.problem for item in items if item.name in ("python", "platform"))
    return "cuda-bindings" in present and not (compiles or wrong)


def _install(extra: str) -> str:
    return f'pip install "pallasc[{extra}]"'


def _version(name: str) -> str:
    package = find_package(name)
    return package.version if package else ""


def _python() -> Item:
    problem = "older than 3.11" if sys.version_info[:2] < _OLDEST_PYTHON else ""
    version, path = platform.python_version(), sys.executable
    return Item("python", version, "runs everything", path=path, problem=problem)


def _platform() -> Item:
    name = f"{platform.system()} {platform.machine()}"
    supported = platform.system() == "Linux" and platform.machine() in _MACHINES
    problem = "" if supported else "NVIDIA's wheels are for Linux on x86_64 or aarch64"
    return Item("platform", name, "what the wheels are made for", problem=problem)


def _jax_items(cuda: int) -> Iterator[Item]:
    purposes = {
        "jax": "traces kernels",
        "jaxlib": "lowers kernels",
        f"jax-cuda{cuda}-plugin": "compiles kernels",
        f"jax-cuda{cuda}-pjrt": "compiles kernels",
    }
    versions = {name: _version(name) for name in purposes}
    for name, purpose in purposes.items():
        problem, fix = jax_problem(name, versions), ""
        if problem:
            fix = _install(f"cuda{cuda}") + (" --upgrade" if versions[name] else "")
        yield Item(name, versions[name], purpose, problem=problem, fix=fix)


def jax_problem(name: str, versions: dict[str, str]) -> str:
    """Return the problem of JAX or one of its parts: missing, untested, mismatched; "" for none."""
    if not versions[name]:
        return "missing"
    jax = versions["jax"]
    if name == "jax":
        try:
            check_versions((Package(name, jax, Path()),))
        except ToolError as error:
            return error.message
    return f"JAX is {jax}: their versions must be equal" if jax not in ("", versions[name]) else ""


def _library(name: str, purpose: str, extra: str, *, needed: bool = True) -> Item:
    item = Item(name, _version(name), purpose, needed)
    return item if item.version else replace(item, problem="missing", fix=_install(extra))


def _tools(cuda: int, ptxas: Path | None) -> Iterator[Item]:
    nvcc, install = find_package(nvcc_name(cuda)), _install(f"cuda{cuda}")
    folder = nvidia_folder(cuda, nvcc.root) if nvcc else Path()
    assembler = Item("ptxas", "", "assembles", fix=install)
    if ptxas:
        assembler = replace(assembler, path=str(ptxas), fix="")
    yield _tool(assembler, ptxas or folder / "bin" / "ptxas")
    linker = Item("nvlink", "", "links", fix=install)
    if cuda < 13:  # kernels are compiled without it
        without = "NVIDIA's wheel for CUDA 12 has none"
        linker = replace(linker, purpose=without, needed=False, fix="")
    yield _tool(linker, folder / "bin" / "nvlink")
    library = Item("libdevice", "", "mathematical functions", fix=install)
    yield _tool(library, folder / LIBDEVICE, runs=False)
    purpose = "only inspect, diff and report need it"
    yield _tool(Item("nvdisasm", "", purpose, needed=False, fix=install), find_disassembler())


def _tool(missing: Item, path: Path | None, *, runs: bool = True) -> Item:
    """Return a tool with its path and version, or `missing` if the file does not exist."""
    if path is None or not path.is_file():
        return replace(missing, problem="missing")
    found = replace(missing, path=str(path), fix="")
    try:
        return replace(found, version=tool_version(path)) if runs else found
    except ToolError as error:
        return replace(found, problem=error.message)


def _other_assemblers(cuda: int) -> Iterator[Item]:
    """Yield other assemblers that XLA would use instead of ptxas."""
    plugin = find_package(f"jax-cuda{cuda}-pjrt")
    library = find_nvjitlink(cuda, plugin.root) if plugin else None
    if library is not None:
        yield Item(
            "libnvJitLink",
            _version("nvidia-nvjitlink" if cuda >= 13 else f"nvidia-nvjitlink-cu{cuda}"),
            "kernels are assembled by ptxas all the same",
            needed=False,
            path=str(library),
            problem="passed over",
        )
    if IN_CURRENT_FOLDER.exists():
        yield Item(
            "cuda_sdk_lib",
            "",
            "nothing is meant to be here",
            path=str(IN_CURRENT_FOLDER.absolute()),
            problem="XLA would assemble with it: rename it, or work in another folder",
        )


def _driver() -> Item:
    """Ask NVIDIA's driver, if there is one, for the newest CUDA version that it supports."""
    item = Item("driver", "", "compiling needs no GPU, launching does", needed=False)
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return replace(item, problem="none")
    if status:
        return replace(item, problem=f"answers error {status}")
    # 13020 is CUDA 13.2.
    return replace(item, version=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}")
