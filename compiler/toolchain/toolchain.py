"""Find the packages and tools that compile, without importing any of them.

The assembler is the one in NVIDIA's wheel or the one the user names, never one on `PATH`.
Distributions are found by the names of their `.dist-info` folders, which contain name and version
(PEP 376, PEP 427). `importlib.metadata` is imported only for other kinds of installs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pallasc.compiler.toolchain.modules import names_in
from pallasc.errors import ToolError

_SUFFIX = ".dist-info"


class Package(Struct, frozen=True):
    """An installed distribution; `root` is the folder that contains its files."""

    name: str
    version: str
    root: Path


def find_package(name: str) -> Package | None:
    """Return the distribution that Python would find by this name, None if there is none."""
    prefix = re.sub(r"[-_.]+", "_", name).lower() + "-"
    for folder in sys.path:
        names = [name for name in _dist_infos(folder) if name.startswith(prefix)]
        if len(names) == 1:
            version = names[0].removeprefix(prefix).removesuffix(_SUFFIX)
            return Package(name, version, Path(folder))
        if names:
            break  # an update was interrupted: only their contents show which one is installed
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(name, distribution.version, Path(str(distribution.locate_file(""))))


def _dist_infos(folder: str) -> Iterator[str]:
    """Return the names of a folder's `.dist-info` folders in lower case."""
    return (name.lower() for name in names_in(folder) if name.endswith(_SUFFIX))


TESTED_JAX = ("0.10.2", "0.11.2", "0.12.0", "0.12.0.1")
"""JAX versions whose internals were tested; other patch releases of 0.12 are accepted too."""

IN_CURRENT_FOLDER = Path("cuda_sdk_lib")
"""Where XLA and Mosaic GPU look first for tools and libraries (`kDefaultCudaDataDir` in XLA)."""

_TESTED_SERIES = ("0.12",)
LIBDEVICE = Path("nvvm", "libdevice", "libdevice.10.bc")
"""NVIDIA's device library in a CUDA toolkit: mathematical functions as LLVM bitcode."""
INSTALL = 'pip install "pallasc[cuda13]"'


class Toolchain(Struct, frozen=True):
    """The compiler: JAX, its CUDA plugin, the assembler, the device library.

    `cuda` is the major version of CUDA that the plugin and the wheels are for.
    """

    cuda: int
    packages: tuple[Package, ...]
    ptxas: Path
    nvlink: Path | None
    libdevice: Path
    plugin: Path


def find_toolchain(ptxas: Path | None = None) -> Toolchain:
    """Find the installed toolchain.

    Args:
        ptxas: an assembler to use instead of the wheel's.

    Raises:
        ToolError: a package or tool is missing, the versions of JAX and its plugin differ, or the
            version of JAX was not tested.
    """
    cuda = _plugin()
    if cuda is None:
        raise ToolError(
            "No CUDA plugin for JAX is installed, so nothing can be compiled.",
            hint=f"Install it with: {INSTALL}",
        )
    names = ("jax", "jaxlib", f"jax-cuda{cuda}-plugin", f"jax-cuda{cuda}-pjrt")
    packages = tuple(_package(name) for name in names)
    check_versions(packages)
    folder = nvidia_folder(cuda, _package(nvcc_name(cuda)).root)
    plugin = packages[3].root / "jax_plugins" / f"xla_cuda{cuda}" / "xla_cuda_plugin.so"
    nvlink = folder / "bin" / "nvlink"
    return Toolchain(
        cuda=cuda,
        packages=packages,
        ptxas=_executable(ptxas) if ptxas else _existing(folder / "bin" / "ptxas", "ptxas"),
        nvlink=nvlink if nvlink.is_file() else None,
        libdevice=_existing(folder / LIBDEVICE, "libdevice"),
        plugin=_existing(plugin, "the CUDA plugin"),
    )


def is_compiler_installed() -> bool:
    """Return True if a CUDA plugin for JAX is installed; without one, nothing is compiled here."""
    return _plugin() is not None


def _plugin() -> int | None:
    return next((cuda for cuda in (13, 12) if find_package(f"jax-cuda{cuda}-plugin")), None)


def check_folder() -> None:
    """Check that XLA will not find a CUDA toolkit in the current folder.

    Raises:
        ToolError: XLA would find one.
    """
    if IN_CURRENT_FOLDER.exists():
        raise ToolError(
            f"XLA would use the toolkit in {IN_CURRENT_FOLDER.absolute()}, because it is in the "
            "current folder.",
            hint="Start the build in another folder, or rename cuda_sdk_lib.",
        )


def _package(name: str) -> Package:
    package = find_package(name)
    if package is None:
        raise ToolError(f"{name} is not installed.", hint=f"Install it with: {INSTALL}")
    return package


def check_versions(packages: tuple[Package, ...]) -> None:
    """Check that JAX is a tested version and that its parts have matching versions.

    Raises:
        ToolError: the version is not tested, or versions differ; the message names them.
    """
    jax = packages[0].version
    if jax not in TESTED_JAX and ".".join(jax.split(".")[:2]) not in _TESTED_SERIES:
        raise ToolError(
            f"JAX {jax} is not a version that pallasc was tested with: {', '.join(TESTED_JAX)}.",
            hint=f"Install a tested one with: {INSTALL}",
        )
    others = [f"{p.name} {p.version}" for p in packages[1:] if p.version != jax]
    if others:
        raise ToolError(
            f"JAX is {jax}, but {', '.join(others)}: their versions must be equal.",
            hint=f"Reinstall them together: {INSTALL} --upgrade",
        )


def find_disassembler() -> Path | None:
    """Return NVIDIA's disassembler, None if it is not installed. It works without a compiler.

    NVIDIA's only wheel is for CUDA 13, but the disassembler also reads cubins of CUDA 12.
    """
    package = find_package("nvidia-cuda-nvdisasm")
    path = package.root / "nvidia/cu13/bin/nvdisasm" if package else None
    return path if path and path.is_file() else None


def nvcc_name(cuda: int) -> str:
    """Return the name of NVIDIA's wheel that contains the assembler for a CUDA version."""
    return "nvidia-cuda-nvcc" if cuda >= 13 else f"nvidia-cuda-nvcc-cu{cuda}"


def nvidia_folder(cuda: int, root: Path) -> Path:
    """Return the folder that contains `bin` and `nvvm` of NVIDIA's wheels.

    Args:
        cuda: the major version of CUDA.
        root: the folder in which the wheels are installed.
    """
    folders = [root / "nvidia" / name for name in (f"cu{cuda}", "cuda_nvcc")]
    # Other wheels for CUDA 12 install into cu12.
    return next((f for f in folders if (f / "bin" / "ptxas").is_file()), folders[0])


def _existing(path: Path, what: str) -> Path:
    if not path.is_file():
        hint = f"Reinstall it with: {INSTALL} --force-reinstall"
        raise ToolError(f"{what} is missing, although its package is installed: {path}", hint=hint)
    return path


def _executable(path: Path) -> Path:
    resolved = path.resolve()
    if not resolved.is_file():
        raise ToolError(
            f"There is no assembler {path}.", hint="Set PALLASC_PTXAS to the path of a ptxas."
        )
    with resolved.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise ToolError(
                f"{path} is a script, not an assembler: its digest would not identify one.",
                hint="Set PALLASC_PTXAS to the path of the program itself.",
            )
    return resolved


@lru_cache(maxsize=32)
def tool_version(tool: Path) -> str:
    """Return the version that an NVIDIA tool prints, such as "13.5.37".

    Raises:
        ToolError: the tool cannot be run, or prints no version.
    """
    import subprocess

    try:
        answer = subprocess.run(
            [tool, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{tool} cannot be run: {error}") from error
    match = re.search(r"\bV(\d+(?:\.\d+)+)", answer.stdout)
    if match is None:
        raise ToolError(f"{tool} --version does not print a version of NVIDIA's tools.")
    return match.group(1)


def toolchain_files(toolchain: Toolchain) -> Iterator[tuple[str, Path]]:
    """Yield the binaries that affect the output, by label."""
    yield "libdevice", toolchain.libdevice
    if toolchain.nvlink is not None:  # the wheel for CUDA 12 has none
        yield "nvlink", toolchain.nvlink
    yield "plugin", toolchain.plugin
    yield "ptxas", toolchain.ptxas


# ---- libnvJitLink

_RETURN_1 = {
    "x86_64": bytes.fromhex("b801000000c3"),  # mov eax, 1; ret
    "aarch64": bytes.fromhex("20008052c0035fd6"),  # mov w0, #1; ret
}
"""Code of a function that returns 1, an error (nvJitLinkResult)."""
_WRITABLE, _RUNNABLE = 7, 5
"""Protections of a page of code, with and without PROT_WRITE."""


@contextmanager
def without_nvjitlink() -> Iterator[None]:
    """Make XLA and Mosaic GPU start ptxas, even if libnvJitLink is installed.

    Newer versions of XLA assemble with this library if they can load it. XLA has an option against
    this (`compile_lowered`). Mosaic's assembler pass has none: it asks the library for its version,
    and uses it from 12.5 on. So while the context lasts, the library's version function returns an
    error. Its other functions still work, for example for `import torch` in a kernel's module.
    """
    function, code = _version_function(), _RETURN_1.get(os.uname().machine)
    if function is None or code is None:
        yield
        return
    import ctypes

    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    before = ctypes.string_at(address, len(code))
    _write_code(address, code)
    try:
        yield
    finally:
        _write_code(address, before)


def _version_function() -> Any:
    """Return the version function of the libnvJitLink that XLA would load, None without one."""
    import ctypes

    cuda = _plugin()
    package = find_package(f"jax-cuda{cuda}-pjrt")
    if package is None:
        return None
    name, folder = f"libnvJitLink.so.{cuda}", package.root / "nvidia"
    wheels = (folder / f"cu{cuda}" / "lib" / name, folder / "nvjitlink" / "lib" / name)
    # First a library that this process has loaded, then the plugin's RPATH, then the system.
    for place, mode in ((name, os.RTLD_NOLOAD), *((str(path), 0) for path in wheels), (name, 0)):
        with suppress(OSError, AttributeError):  # no such library, or one that is too old for XLA
            return ctypes.CDLL(place, mode).nvJitLinkVersion
    return None


def _write_code(address: int, code: bytes) -> None:
    import ctypes
    import mmap

    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = address + len(code) - start
    if protect(start, size, _WRITABLE) == 0:
        ctypes.memmove(address, code, len(code))
        protect(start, size, _RUNNABLE)


# ---- everything that is installed


class Item(Struct, frozen=True):
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


_SYSTEMS = ("Linux x86_64", "Linux aarch64")
_NEEDED = {
    "jax": "traces kernels",
    "jaxlib": "lowers kernels",
    "jax-cuda{}-plugin": "compiles kernels",
    "jax-cuda{}-pjrt": "compiles kernels",
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
    "obstore": ("only remote stores need it", "remote"),
}
"""Purpose of each package, and the extra of pallasc that installs it; "" for the compiler's
packages."""


def inventory(ptxas: Path | None = None) -> list[Item]:
    """Return everything that compiling and inspecting use, found or not.

    Unlike `find_toolchain`, this does not stop at the first missing part.

    Args:
        ptxas: an assembler to use instead of the wheel's.
    """
    import platform

    cuda = _plugin() or 13
    extra, system = f"cuda{cuda}", f"{platform.system()} {platform.machine()}"
    unknown = "" if system in _SYSTEMS else "NVIDIA's wheels are for Linux on x86_64 or aarch64"
    return [
        Item("python", platform.python_version(), "runs everything", path=sys.executable),
        Item("platform", system, "what the wheels are made for", problem=unknown),
        *(_package_item(name.format(cuda), purpose, extra) for name, purpose in _NEEDED.items()),
        *_tool_items(cuda, ptxas),
        *(
            _package_item(name, purpose, of or extra, needed=False)
            for name, (purpose, of) in _OPTIONAL.items()
        ),
        _driver(),
    ]


def problem_of(items: Sequence[Item]) -> str | None:
    """Return a sentence about the problem that prevents compiling, None if there is none."""
    wrong = [item.name for item in items if item.needed and item.problem]
    return f"nothing can be compiled: see {', '.join(wrong)} in the list." if wrong else None


def only_runs(items: Sequence[Item]) -> bool:
    """Return True if only the runtime is installed, and no part of a compiler.

    JAX's CUDA plugin and CUDA's tools are parts of a compiler. JAX alone is not, since programs
    also use it to run kernels.
    """
    present = {item.name for item in items if item.version or item.path}
    compilers = ("jax-cuda", "ptxas", "nvlink", "libdevice")
    compiles = any(name.startswith(compilers) for name in present)
    wrong = any(item.problem for item in items if item.name == "platform")
    return "cuda-bindings" in present and not (compiles or wrong)


def _install(extra: str) -> str:
    return f'pip install "pallasc[{extra}]"'


def _package_item(name: str, purpose: str, extra: str, *, needed: bool = True) -> Item:
    package, jax = find_package(name), find_package("jax")
    if package is None:
        return Item(name, "", purpose, needed, problem="missing", fix=_install(extra))
    item = Item(name, package.version, purpose, needed)
    try:
        if name.startswith("jax"):
            check_versions((jax or package, package))
    except ToolError as error:
        fix = f"{_install(extra)} --upgrade"
        return replace(item, problem=error.message.rstrip("."), fix=fix)
    return item


def _tool_items(cuda: int, ptxas: Path | None) -> Iterator[Item]:
    nvcc, install = find_package(nvcc_name(cuda)), _install(f"cuda{cuda}")
    folder = nvidia_folder(cuda, nvcc.root) if nvcc else Path()
    own = Item("ptxas", "", "assembles", path=str(ptxas or ""), fix="" if ptxas else install)
    yield _tool(own, ptxas or folder / "bin" / "ptxas")
    linker = Item("nvlink", "", "links", fix=install)
    if cuda < 13:  # kernels are compiled without it
        linker = Item("nvlink", "", "NVIDIA's wheel for CUDA 12 has none", needed=False)
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


def _driver() -> Item:
    """Ask NVIDIA's driver, if there is one, for the newest CUDA version that it supports."""
    import ctypes

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
