"""The compilers and tools that are installed here, found without importing any of them.

Unlike `toolchain`, which stops at the first missing part, this lists everything.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import (
    IN_CURRENT_FOLDER,
    Package,
    check_versions,
    find_package,
    tool_version,
)
from pallasc.compiler.toolchain.toolkit import find_nvjitlink
from pallasc.errors import ToolError

_OLDEST_PYTHON = (3, 11)
_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class Item:
    """A package, a tool or a part of the machine.

    Attributes:
        name: its name.
        version: its version, "" if it is missing or has none.
        path: where it lies, "" for packages and if it is missing.
        purpose: what it is for.
        needed: whether compiling needs it.
        problem: what is wrong with it, "" if nothing is.
        fix: the command that repairs it, "" if there is none.
    """

    name: str
    version: str
    purpose: str
    needed: bool = True
    path: str = ""
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class _Tool:
    """A file of a wheel: its label, the end of its path, its purpose, whether it can be run."""

    name: str
    ending: str
    purpose: str
    needed: bool = True
    runs: bool = True


_LIBRARIES = (
    ("llvmlite", "runs the host code of kernels to read their launch plans", True),
    ("protobuf", "reads XLA's executables", True),
    ("cramjam", "decompresses XLA's executables", True),
    ("absl-py", "only some of JAX's own kernels import it", False),
    ("cuda-bindings", "only launching needs it", False),
)
_TOOLS = (
    _Tool("ptxas", "bin/ptxas", "assembles"),
    _Tool("nvlink", "bin/nvlink", "links"),
    _Tool("libdevice", "libdevice/libdevice.10.bc", "mathematical functions", runs=False),
    _Tool("nvdisasm", "bin/nvdisasm", "only inspect, diff and report need it", needed=False),
)


_NO_LINKER = _Tool("nvlink", "bin/nvlink", "NVIDIA's wheel for CUDA 12 has none", needed=False)
"""With CUDA 12, kernels are compiled without it."""


def inventory(ptxas: Path | None = None) -> list[Item]:
    """Return everything that compiling and inspecting use, found or not.

    Args:
        ptxas: an assembler to use instead of the wheel's.
    """
    cuda = _cuda_major()
    return [
        _python(),
        _platform(),
        *_jax_items(cuda),
        *(_tool_item(tool, cuda, ptxas if tool.name == "ptxas" else None) for tool in _tools(cuda)),
        *_other_assemblers(cuda),
        *(_library(*library, fix=_install(cuda)) for library in _LIBRARIES),
        _library(
            "cryptography", "only signatures need it", False, fix='pip install "pallasc[sign]"'
        ),
        _library(
            "distributed", "only --executor needs it", False, fix='pip install "pallasc[dask]"'
        ),
        *(
            _library(name, "only report needs it", False, fix='pip install "pallasc[report]"')
            for name in ("Jinja2", "pygal")
        ),
        _driver(),
    ]


def problem_of(items: Sequence[Item]) -> str | None:
    """Return a sentence on what prevents compiling, None if nothing does."""
    wrong = [item.name for item in items if item.needed and item.problem]
    if not wrong:
        return None
    return f"nothing can be compiled: see {', '.join(wrong)} in the list."


def only_runs(items: Sequence[Item]) -> bool:
    """Tell whether kernels are only run here: the runtime is installed, and no part of a compiler.

    JAX alone, which runs kernels too, is not a compiler: its CUDA plugin and CUDA's tools are.
    """
    present = {item.name: bool(item.version or item.path) for item in items}
    plugin = any(present[name] for name in present if name.startswith("jax-cuda"))
    tools = any(present.get(tool.name, False) for tool in _TOOLS if tool.needed)
    wrong = any(item.problem for item in items if item.name in ("python", "platform"))
    return present.get("cuda-bindings", False) and not (plugin or tools or wrong)


def _tools(cuda: int) -> list[_Tool]:
    return [_NO_LINKER if tool.name == "nvlink" and cuda < 13 else tool for tool in _TOOLS]


def _cuda_major() -> int:
    """Return the CUDA version that the installed plugin is for; 13 if there is none."""
    return next((cuda for cuda in (13, 12) if _version(f"jax-cuda{cuda}-plugin")), 13)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _install(cuda: int) -> str:
    return f'pip install "pallasc[cuda{cuda}]"'


def _python() -> Item:
    problem = "older than 3.11" if sys.version_info[:2] < _OLDEST_PYTHON else ""
    version, path = platform.python_version(), sys.executable
    return Item("python", version, "runs everything", path=path, problem=problem)


def _platform() -> Item:
    name = f"{platform.system()} {platform.machine()}"
    supported = platform.system() == "Linux" and platform.machine() in _MACHINES
    problem = "" if supported else "NVIDIA's wheels are for Linux on x86_64 or aarch64"
    return Item("platform", name, "what the wheels are made for", problem=problem)


def _jax_items(cuda: int) -> list[Item]:
    names = {
        "jax": "traces kernels",
        "jaxlib": "lowers kernels",
        f"jax-cuda{cuda}-plugin": "compiles kernels",
        f"jax-cuda{cuda}-pjrt": "compiles kernels",
    }
    versions = {name: _version(name) for name in names}
    return [_jax_item(name, purpose, versions, cuda) for name, purpose in names.items()]


def _jax_item(name: str, purpose: str, versions: dict[str, str], cuda: int) -> Item:
    problem = jax_problem(name, versions)
    fix = f"{_install(cuda)} --upgrade" if problem and versions[name] else _install(cuda)
    return Item(name, versions[name], purpose, problem=problem, fix=fix if problem else "")


def jax_problem(name: str, versions: dict[str, str]) -> str:
    """Return what is wrong with JAX, or with a part of it: missing, untested, another version."""
    if not versions[name]:
        return "missing"
    jax = versions["jax"]
    if name == "jax":
        try:
            check_versions((Package(name, jax, Path()),))
        except ToolError as error:
            return error.message
    return f"JAX is {jax}: their versions must be equal" if jax not in ("", versions[name]) else ""


def _library(name: str, purpose: str, needed: bool, *, fix: str) -> Item:
    version = _version(name)
    item = Item(name, version, purpose, needed)
    return item if version else replace(item, problem="missing", fix=fix)


def _tool_item(tool: _Tool, cuda: int, chosen: Path | None) -> Item:
    path = chosen or _find(tool, cuda)
    item = Item(tool.name, "", tool.purpose, tool.needed, path=str(path or ""))
    if path is None or not path.is_file():
        fix = "" if chosen or tool is _NO_LINKER else _install(cuda)
        return replace(item, problem="missing", fix=fix)
    try:
        return replace(item, version=tool_version(path)) if tool.runs else item
    except ToolError as error:
        return replace(item, problem=error.message)


def _other_assemblers(cuda: int) -> Iterator[Item]:
    """Yield what XLA would assemble with instead of ptxas, if anything."""
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


def _find(tool: _Tool, cuda: int) -> Path | None:
    """Return a tool's file in NVIDIA's wheels."""
    suffix = "" if cuda >= 13 else f"-cu{cuda}"
    for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-nvdisasm"):
        for distribution in dict.fromkeys((f"{name}{suffix}", name)):
            for file in _files(distribution):
                if file.as_posix().endswith(f"/{tool.ending}"):
                    return Path(str(file.locate()))
    return None


def _files(distribution: str) -> list[metadata.PackagePath]:
    try:
        return metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []


def _driver() -> Item:
    """Ask NVIDIA's driver, if there is one, for the newest CUDA that it runs."""
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
