"""Build steps that pyproject.toml cannot express: an empty build folder, and the C sources.

If a C compiler is available, this builds the library `libpallasc.so` and the extension `_native`,
with which the runtime launches kernels; the wheel is then for this platform and every Python 3.
Without a compiler, or with PALLASC_NATIVE=0, everything else is installed, and kernels are launched
from Python. The extension uses the stable ABI of Python 3.11, which a free-threaded Python cannot
load. Such a Python has an extension only if it builds pallasc itself; in a wheel that another
Python built, it has none.

An editable install that builds no library removes a library from an earlier install. Builds in the
same folder wait for each other, so environments for several Pythons can be created at the same
time.

CC, CFLAGS and LDFLAGS are honored. `CC="python -m ziglang cc -target x86_64-linux-gnu.2.17"` with
the build option `--plat-name=manylinux_2_17_x86_64` builds a wheel for glibc 2.17 or newer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from sysconfig import get_config_var

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
NATIVE = "pallasc/runtime/native"
LIBRARY = "pallasc.runtime.native.libpallasc"
EXTENSION = "pallasc.runtime.native._native"
OF_PYTHON = {"python.c"}
"""Sources of the extension module; the library is built from all others."""
COMMANDS = (
    *("CC", "CFLAGS", "LDFLAGS"),
    *("CXX", "CPP", "CPPFLAGS", "LDSHARED", "LDCXXSHARED", "AR", "ARFLAGS"),
)
"""Variables parsed as shell words: first those used here, then others that setuptools reads."""


def compiler() -> list[str]:
    """Return the command of the C compiler: CC, else this Python's compiler, else cc or gcc."""
    if chosen := _flags("CC"):
        return chosen
    names = [*shlex.split(get_config_var("CC") or "")[:1], "cc", "gcc"]
    return [next((name for name in names if shutil.which(name)), "cc")]


def why_not() -> str:
    """Return why the library cannot be built here, "" if it can."""
    if os.environ.get("PALLASC_NATIVE") == "0":
        return "PALLASC_NATIVE is 0"
    if sys.platform != "linux":
        return f"it is for Linux, and this is {sys.platform}"
    for variable in COMMANDS:
        try:
            _flags(variable)
        except ValueError as error:
            return f"{variable} is not words of a shell, {error}: {os.environ[variable]}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("#include <pthread.h>\n#include <stdatomic.h>\nint probe;\n")
        command = [*compiler(), "-std=c11", "-O2", "-fPIC", "-shared", source]
        command += ["-o", f"{source}.so"]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return f"{shlex.join(compiler())} does not compile C"
    return ""


def library() -> Extension:
    """Return the setuptools extension that builds the library."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    files = [path.name for path in (HERE / NATIVE).glob("*.[ch]")]
    files += [f"include/{path.name}" for path in (HERE / NATIVE).glob("include/*.h")]
    sources = sorted(name for name in files if name.endswith(".c"))
    return Extension(
        LIBRARY,
        [f"{NATIVE}/{name}" for name in sources if name not in OF_PYTHON],
        depends=sorted(f"{NATIVE}/{name}" for name in files if name.endswith(".h")),
        define_macros=[
            ("PALLASC_LIBRARY_VERSION", f'"{project["version"]}"'),
            ("PALLASC_LIBRARY_SOURCES", f'"{_digest(files)}"'),
        ],
        libraries=["dl"],
        extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden", "-pthread"],
        optional=True,
        # Without -O2, zig compiles its runtime libraries for debugging, which takes a minute.
        extra_link_args=[
            *("-O2", "-Wl,-soname,libpallasc.so", "-Wl,-z,nodelete", "-Wl,-s", "-pthread"),
        ],
    )


def _digest(names: Iterable[str]) -> str:
    """Return the digest of sources, as the loaders of the library and the extension compute it."""
    digest = hashlib.sha256()
    for path in [HERE / NATIVE / name for name in sorted(names)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def extension() -> Extension:
    """Return the setuptools extension for `_native`; it is skipped if Python.h is missing."""
    is_free_threaded = bool(get_config_var("Py_GIL_DISABLED"))
    return Extension(
        EXTENSION,
        sorted(f"{NATIVE}/{name}" for name in OF_PYTHON),
        define_macros=[("PALLASC_EXTENSION_SOURCES", f'"{_digest(OF_PYTHON)}"')],
        extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-O2", "-Wl,-s"],
        optional=True,
        py_limited_api=not is_free_threaded,
    )


def _sentence(reason: str) -> str:
    return (
        f"pallasc: installed without its C library: {reason}. Kernels are launched by Python, at a "
        "higher cost per launch."
    )


def _flags(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def _remove_built() -> None:
    """Remove the library and extensions that an earlier editable install left in the sources."""
    for file in sorted((HERE / NATIVE).glob("*.so")):
        file.unlink()
        print(f"pallasc: removed {NATIVE}/{file.name}, built earlier.", file=sys.stderr)


class BuildAfresh(build_py):
    """Removes `build/lib` first; otherwise, setuptools would ship files that were deleted since."""

    def run(self) -> None:
        """Build into an empty folder; an editable install has no build folder to empty."""
        if MISSING:
            print(_sentence(MISSING), file=sys.stderr)
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        elif MISSING:
            _remove_built()
        super().run()


class BuildLibrary(build_ext):
    """Builds the library under its plain file name, and links nothing to Python.

    The extension uses the Python functions of the process that loads it.
    """

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file name of an extension."""
        if fullname.rpartition(".")[2] == LIBRARY.rpartition(".")[2]:
            return f"{fullname.replace('.', os.sep)}.so"
        return str(super().get_ext_filename(fullname))

    def run(self) -> None:
        """Build, and print a message if the library was not built."""
        if self.inplace:  # files from an earlier install are not a result of this build
            for one in LIBRARIES:
                Path(self.get_ext_fullpath(one.name)).unlink(missing_ok=True)
        super().run()
        if LIBRARIES and not Path(self.get_ext_fullpath(LIBRARY)).is_file():
            print(_sentence("the compiler failed, see its messages above"), file=sys.stderr)
            LIBRARIES.clear()

    def build_extension(self, ext: Extension) -> None:
        """Build with the command of `compiler()`, without the flags of Python's own build."""
        before = self.compiler.compiler_so, self.compiler.linker_so
        self.compiler.compiler_so = [*compiler(), "-fPIC", *_flags("CFLAGS")]
        self.compiler.linker_so = [*compiler(), "-shared", *_flags("LDFLAGS")]
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compiler_so, self.compiler.linker_so = before

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return no names: the sources declare which functions are visible."""
        return []

    def get_libraries(self, ext: Extension) -> list[str]:
        """Return the libraries to link, without Python."""
        return list(ext.libraries)


class Wheel(bdist_wheel):
    """Tags a wheel that contains the library for this platform and every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the Python, ABI and platform tags."""
        python, interface, platform = super().get_tag()
        if MISSING:
            return python, interface, platform
        return "py3", "none", platform if LIBRARIES else "any"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for other builds in this folder, and lock them out: they write the same files."""
    with (HERE / "setup.py").open() as held:
        with contextlib.suppress(ImportError, OSError):  # systems and file systems without locks
            import fcntl

            fcntl.flock(held, fcntl.LOCK_EX)
        yield


MISSING = why_not()
LIBRARIES = [] if MISSING else [library(), extension()]

with alone():
    setup(
        ext_modules=LIBRARIES,
        cmdclass={"build_py": BuildAfresh, "build_ext": BuildLibrary, "bdist_wheel": Wheel},
    )
