"""Bundles exported as C, built, and loaded for one test each."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bundle_files
import made

from pallasc.runtime.native.library import FOLDER
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.c_export import export_c
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

WARNINGS = ("-Wall", "-Wextra", "-Werror")


def small_bundle(path: Path) -> Path:
    """Write a bundle: `add` in two sizes for three models, and `spread`, which has a temporary."""
    items = [
        Item("add", {"n": n}, bundle_files.add_artifact(target, n))
        for target in ("h100-sxm", "h200", "b200")
        for n in (64, 128)
    ]
    spread = made.artifact(made.launch("three", 0, 3, 2), temporaries=[1000])
    path.write_bytes(build_bundle([*items, Item("spread", {}, spread)], level=3))
    return path


def export(folder: Path) -> Path:
    """Return a folder with an export of the small bundle."""
    bundle, made = small_bundle(folder / "made.pallasc"), folder / "kernels"
    with open_bundle(bundle) as opened:
        entries = [*opened.entries()]
        export_c(opened, entries, made, name="kernels", native=FOLDER, version="1")
    return made


def build_with_cc(folder: Path, build: Path) -> Path:
    """Return the shared library, built of the sources that CMakeLists.txt lists."""
    listed = (folder / "CMakeLists.txt").read_text()
    sources = re.findall(r"^    (\S+\.c)$", listed, re.MULTILINE)
    build.mkdir()
    library = build / "libkernels.so"
    includes = [f"-I{folder / name}" for name in (".", "include", "pallasc/include")]
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DPALLASC_API="]
    run(
        [
            *(shutil.which("cc") or "gcc", *WARNINGS, *flags, *includes),
            *(folder / source for source in sources),
            *("-o", library, "-Wl,-z,nodelete,-z,defs", "-pthread", "-ldl"),
        ]
    )
    return library


def run(command: Sequence[str | Path]) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


class Tensor(ctypes.Structure):
    """`pallasc_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_size_t),
    )


def tensor(
    address: int, shape: Sequence[int], *, dtype: str = "f32", strides: Sequence[int] | None = None
) -> Tensor:
    """Return an array as the functions take it."""
    rank = len(shape)
    sizes = (ctypes.c_int64 * rank)(*shape)
    steps = None if strides is None else (ctypes.c_int64 * rank)(*strides)
    return Tensor(address, dtype.encode(), sizes, steps, rank)


class Export:
    """An exported library with a state of its own: each test loads a copy."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.functions: Any = ctypes.CDLL(str(shutil.copy(library, folder / "own.so")))
        self.functions.kernels_last_error.restype = ctypes.c_char_p

    @property
    def error(self) -> str:
        """What failed last."""
        return str(self.functions.kernels_last_error().decode())

    def prepare(self, kernel: str, *arrays: Tensor, device: int = 0) -> tuple[int, int]:
        """Return the status, and the bytes of workspace."""
        size = ctypes.c_size_t(7)
        passed = (Tensor * len(arrays))(*arrays)
        function = getattr(self.functions, f"kernels_{kernel}_prepare")
        return function(device, passed, len(arrays), ctypes.byref(size)), size.value

    def launch(
        self, kernel: str, *arrays: Tensor, device: int = 0, workspace: tuple[int, int] = (0, 0)
    ) -> int:
        """Return the status of a launch; a workspace has an address and a size."""
        passed = (Tensor * len(arrays))(*arrays)
        given = ctypes.c_void_p(workspace[0]), ctypes.c_size_t(workspace[1])
        function = getattr(self.functions, f"kernels_{kernel}")
        return int(function(device, passed, len(arrays), *given, None))
