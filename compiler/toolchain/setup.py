"""Prepare to compile: find the toolchain, make the environment of workers, and identify both.

`JAX_PLATFORMS=cpu` keeps JAX from looking for a GPU. `JAX_SKIP_CUDA_CONSTRAINTS_CHECK` lets the
CUDA plugin register without a driver. `PATH` determines which `ptxas` XLA runs: XLA searches `PATH`
first, then the usual folders, then the wheels.

Workers have a separate environment, which is the same on every machine, except for variables that
reach the compiler or that a spec declares. Every variable belongs to one of these groups:

* **counted**: it reaches the compiler, so that users can set it. Its value is in every key, and so
  are the contents of the files that it names: `XLA_FLAGS` may be the name of a file with flags, and
  flags name libraries, bitcode, and tuning results. Folders and dump targets do not count.
* **fixed**: it has a fixed value that nobody needs to change. The hash seed determines the order of
  sets, over which a kernel may loop while it is traced; the locale and UTF-8 mode determine how
  text files are decoded; the threads of BLAS determine the order of sums in constants; `PATH`
  starts with the assembler's folder.
* **places**: the locations of modules and libraries (`PYTHONPATH` and similar, `LD_LIBRARY_PATH`).
  Worker processes have them, but kernels do not see them (`recorders`). The modules and libraries
  that are loaded from there count by content.
* **declared**: a spec or the project's `pyproject.toml` lists it under `env`. Its value is in the
  request key of the kernels that declare it.
* **withheld**: everything else. Kernels see none of these. If a kernel asks for such a variable and
  it is set, the build warns (`report.hidden_notes`). Some cannot be declared: `CUDA_ROOT` makes JAX
  take the assembler and the device library from another folder, `PYTHONOPTIMIZE` removes asserts,
  `MAKEFLAGS` reaches ptxas.

One more variable counts in every key but reaches no compiler: `PALLASC_CACHE_SALT`, or the
project's `cache-salt`. Changing it invalidates all entries of all stores.

Libraries on `LD_LIBRARY_PATH` count by content if they hide system libraries that a compiler could
load. The rest of the system (the C library, the CPU model, the number of cores, limits, and the
current folder) does not count, so that different machines can share a store.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.identity import (
    TRACED_WITH,
    components,
    identity_files,
    toolchain_identity,
    versions_of,
)
from pallasc.compiler.toolchain.toolchain import (
    Toolchain,
    find_toolchain,
    tool_version,
    toolchain_files,
    without_nvjitlink,
)
from pallasc.errors import ToolError
from pallasc.specs.canonical import digest
from pallasc.specs.settings import (
    DECLARABLE,
    DROPPED,
    DROPPED_PREFIXES,
    EXPECTED,
    EXPECTED_PREFIXES,
    FIXED,
    FORCED,
    PLACES,
    SALT,
    SYSTEM_PATH,
    WHERE_MODULES_LIE,
    cache_salt,
)

if TYPE_CHECKING:
    import tempfile

    from pallasc.specs.loading.lock import Component

_COUNTED_PREFIXES = (
    "XLA_", "JAX_", "MOSAIC_", "LLVM_", "MLIR_", "NVVM_", "NVPTX_", "PTXAS_", "FINALIZER_",
    "TRITON_", "PJRT_", "CUDNN_", "NPY_", "LIBTPU_", "TPU_", "TF_CPP_", "TF_CUDA_", "TF_CUDNN_",
    "TF_DETERMINISTIC_", "TF_ENABLE_", "TF_FORCE_", "TF_FP16_", "TF_GPU_", "TF_USE_", "TF_XLA_",
)  # fmt: skip
"""Prefixes of variables that reach the compiler and count in every key. (Terraform uses `TF_`.)"""

_COUNTED = frozenset(
    {
        "CAN_FINALIZE_DEBUG",  # ptxas
        "DISABLE_LLVM_OPT",  # Triton's code generator inside XLA
        "DISABLE_PTXAS_OPT",
        "ENABLE_MEM_REUSE",
        "GLIBC_TUNABLES",  # selects implementations of exp and similar functions
        "LD_AUDIT",
        "LD_PRELOAD",
    }
)
_LIBRARY = re.compile(
    r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|tinfo|LLVM.*|nvptxcompiler|nvvm|nvrtc.*"
    r"|nvfatbin|cudart)|ld-linux.*)(-[\d.]+)?\.so(\..*)?"
)
"""Names of libraries that a compiler may take from `LD_LIBRARY_PATH`."""


def compiling_environment(base: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Return `settled(base)` with the assembler's folder at the front of `PATH`."""
    return {**settled(base), "PATH": os.pathsep.join([str(tools), SYSTEM_PATH])}


def settled(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a worker is started, made from `base`.

    `HOME` is kept so that Python finds the user's own packages; `recorders` later replaces `HOME`
    and `TMPDIR`.
    """
    kept = {
        name: value
        for name, value in base.items()
        if name in ("HOME", "TMPDIR")
        or _is_counted(name)
        or (name in PLACES and not _is_dropped(name))
    }
    result = {**kept, **FORCED, **FIXED, "PATH": SYSTEM_PATH}
    # A worker does not inherit Python's options. `-s` matters: it changes where modules are found.
    if sys.flags.no_user_site:
        result["PYTHONNOUSERSITE"] = "1"
    if "PYTHONPATH" in result:
        # An empty or relative entry would name different folders in different current folders.
        places = filter(None, result["PYTHONPATH"].split(os.pathsep))
        result["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places))
    return result


def compiler_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reach the compiler and are not set by pallasc itself.

    The result maps names to values, and `<name>: <file>` to the digest of each file that a value
    names.
    """
    variables: dict[str, str] = {}
    for name, value in sorted(counted_values(environment).items()):
        variables[_text(name)] = _text(value)
        variables.update(_named_contents(name, value))
    libraries = list(_libraries(environment.get("LD_LIBRARY_PATH", "")))
    if libraries:
        variables["LD_LIBRARY_PATH: libraries"] = digest("\n".join(libraries).encode())
    return variables


def key_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that count in every key: the compiler's variables and the salt of keys.

    Raises:
        SpecError: the salt is invalid, or the project's `pyproject.toml` has a mistake.
    """
    salt = cache_salt(os.environ)
    return compiler_variables(environment) | ({SALT: salt} if salt else {})


def counted_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that count in every key."""
    return {name: value for name, value in environment.items() if _is_counted(name)}


def reaches_compiler(name: str) -> bool:
    """Return True if a variable may affect the compiler; kernels must not set such a variable."""
    if name in DECLARABLE:
        return False
    is_ours = name in FORCED or name in FIXED or name == "PATH"
    return is_ours or _is_dropped(name) or _is_counted(name)


def declared_values(names: Iterable[str]) -> dict[str, str | None]:
    """Return the current values of variables that a spec declares, None if not set."""
    return {name: os.environ.get(name) for name in names}


def declared_fields(names: Iterable[str]) -> dict[str, str]:
    """Return labeled fields of a key for the values of variables that a spec declares.

    The fields are digests: a value may be a secret, and keys are written to disk.
    """
    return {
        f"env {name}": "unset" if value is None else digest(os.fsencode(value))
        for name, value in declared_values(names).items()
    }


def is_withheld(name: str) -> bool:
    """Return True if a variable is hidden from kernels although the caller may have set it."""
    if name in FORCED or name in FIXED or name in EXPECTED or name in PLACES:
        return False
    return not (_is_counted(name) or name.startswith(EXPECTED_PREFIXES))


def _is_dropped(name: str) -> bool:
    if name in WHERE_MODULES_LIE:
        return bool(sys.flags.ignore_environment)
    return name in DROPPED or name.startswith(DROPPED_PREFIXES)


def _is_counted(name: str) -> bool:
    if name in FORCED or name in FIXED or _is_dropped(name):
        return False
    return name in _COUNTED or name.startswith(_COUNTED_PREFIXES)


def _text(value: str) -> str:
    """Return a value as text; different bytes give different text, even if they are not UTF-8."""
    return os.fsencode(value).decode("latin-1")


def _named_contents(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield the digests of the files that a variable names."""
    for word in value.split():
        if "dump" not in f"{name} {word}".lower():
            for part in filter(os.path.isfile, re.split("[=,:;]", word)):
                yield _text(f"{name}: {part}"), _file_digest(part)


def _file_digest(path: str | Path) -> str:
    try:
        return FileDigests().digest(path)
    except ToolError:
        return "unreadable"


def _libraries(path: str) -> Iterator[str]:
    """Yield name and digest of each library that hides a system library of a compiler."""
    for folder in filter(None, path.split(os.pathsep)):
        for file in sorted(Path(folder).glob("l*")):
            if _LIBRARY.fullmatch(file.name):
                yield f"{file.name} {_file_digest(file)}"


_SPLIT = re.compile(r"[\s,{}\udc80-\udcff]")


def tool_folder(toolchain: Toolchain) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Return a folder that contains `ptxas` and `nvlink` of this toolchain under these names.

    Usually, this is the wheel's own folder. For another assembler, or if Mosaic could not parse the
    path, a temporary folder of links is made; the second result removes it. Mosaic puts the path
    into a line of options for LLVM's passes, which is split at blanks, commas, and braces, and must
    be UTF-8. The parent folder has the layout of a CUDA toolkit, with the device library in
    `nvvm/libdevice`, as XLA's `xla_gpu_cuda_data_dir` and Mosaic's `CUDA_HOME` need it.
    """
    own = toolchain.nvlink.parent if toolchain.nvlink else toolchain.ptxas.parent
    if toolchain.ptxas == own / "ptxas" and not _SPLIT.search(str(own)):
        return own, None
    import tempfile

    place = tempfile.gettempdir()
    folder = tempfile.TemporaryDirectory(
        prefix="pallasc-tools-", dir="/tmp" if _SPLIT.search(place) else place
    )
    links = Path(folder.name, "bin")
    links.mkdir()
    (links.parent / "nvvm").symlink_to(toolchain.libdevice.parents[1])
    (links / "ptxas").symlink_to(toolchain.ptxas)
    if toolchain.nvlink is not None:
        (links / "nvlink").symlink_to(toolchain.nvlink)
    return links, folder


class Context(Struct, frozen=True):
    """Toolchain identity and file digests that all variants of a build share.

    Attributes:
        identity: digests of the toolchain by label.
        variables: the environment variables that count in every key.
        digests: digests of files.
        versions: returns the versions of the toolchain's parts by label; raises a `ToolError` if
            the assembler does not report its version.
        unchecked: None if a compiler is installed. Otherwise, missing packages do not count as
            changed, and their names are collected here.
    """

    identity: Mapping[str, str]
    variables: Mapping[str, str]
    digests: FileDigests
    versions: Callable[[], Mapping[str, str]] = dict
    unchecked: set[str] | None = None

    def for_actions(self) -> dict[str, str]:
        """Return the part of the identity that action keys depend on."""
        return {label: held for label, held in self.identity.items() if label != TRACED_WITH}

    def components(self) -> dict[str, Component]:
        """Return the toolchain as in a lock: digests by label, and versions for people."""
        return components(self.identity, self.versions(), self.variables)

    def notes(self) -> list[str]:
        """Return notes on parts that were not checked because no compiler is installed here."""
        if self.unchecked is None:
            return []
        known = self.versions()
        versions = ", ".join(f"{name} {known[name]}" for name in ("jax", "ptxas") if name in known)
        notes = [
            "the toolchain was not checked, because no compiler is installed here; the store was "
            f"filled with {versions}"
        ]
        if self.unchecked:
            names = ", ".join(sorted(self.unchecked))
            notes.append(
                f"packages that kernels import but are not installed here were not checked: {names}"
            )
        return notes


_ONE_AT_A_TIME = threading.RLock()


class Setup(Struct, frozen=True):
    """A toolchain and the environment in which workers use it.

    `toolkit` is the folder from which XLA takes the assembler and the device library; if it is
    temporary, `temporary` removes it when the setup ends.
    """

    toolchain: Toolchain
    environment: Mapping[str, str]
    toolkit: Path
    temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Setup:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the temporary folder."""
        if self.temporary is not None:
            self.temporary.cleanup()

    @contextmanager
    def in_this_process(self) -> Iterator[None]:
        """Make XLA and Mosaic GPU in this process use the toolchain's assembler.

        Setting `os.environ` also changes `PATH` for C++. XLA and Mosaic choose their assembler once
        per process.
        """
        front = f"{self.toolkit / 'bin'}{os.pathsep}"
        with _ONE_AT_A_TIME, without_nvjitlink():
            os.environ["PATH"] = front + os.environ.get("PATH", "")
            try:
                yield
            finally:
                before, _, after = os.environ.get("PATH", "").partition(front)
                os.environ["PATH"] = before + after

    def context(self, store: Store, variables: Mapping[str, str] | None = None) -> Context:
        """Identify the toolchain; all its files are read unless the store remembers their digests.

        Args:
            store: remembers digests of files.
            variables: the variables that count in every key, by default `key_variables`.
        """
        digests = FileDigests(store.root, trust=store.trust)
        if not digests.remembers(self.toolchain.plugin):
            digests.hash_ahead(identity_files(self.toolchain))
        identity = toolchain_identity(self.toolchain, digests.digest)
        if variables is None:
            variables = key_variables(self.environment)
        return Context(identity, variables, digests, partial(versions_of, self.toolchain))

    def record(self, digests: FileDigests) -> dict[str, object]:
        """Return the toolchain as artifacts record it: versions, and digests of the binaries.

        These files are the same for every Python version, so the record is the same, too.
        """
        return {
            "versions": {package.name: package.version for package in self.toolchain.packages},
            "ptxas": tool_version(self.toolchain.ptxas),
            "digests": {k: digests.digest(path) for k, path in toolchain_files(self.toolchain)},
        }


def prepare(ptxas: Path | None = None, *, base: Mapping[str, str] = os.environ) -> Setup:
    """Find the toolchain and make the environment.

    Args:
        ptxas: an assembler to use instead of the installed one.
        base: the environment to start from.

    Raises:
        ToolError: a part is missing, or its version is not a tested one.
    """
    toolchain = find_toolchain(ptxas)
    folder, temporary = tool_folder(toolchain)
    environment = compiling_environment(base, folder)
    return Setup(toolchain, environment, folder.parent, temporary)
