"""The identity of the compiler: digests, by label, of everything that determines the output.

Contents count, not version strings: all installed files of jax, jaxlib, and the CUDA plugin; the
assembler, the linker, and the device library; pallasc's own folders that compile (`own_digest`);
and the packages that JAX and pallasc compute with. Packages that only tracing uses have a separate
label, since their effects show in the module. Python counts by its implementation, version, and
ABI, and by the modules that it runs before any program: `sitecustomize` and `usercustomize`.
Nothing is imported.

A lock file and every manifest contain the parts with their versions (`components`), so a single
function (`specs/loading/lock.differences`) names the packages and versions that differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache.format import is_name
from pallasc.cache.stat_digest import file_holding
from pallasc.compiler.toolchain.modules import locate_module
from pallasc.compiler.toolchain.toolchain import (
    Package,
    Toolchain,
    find_package,
    tool_version,
    toolchain_files,
)
from pallasc.errors import ToolError
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.settings import FIXED, FORCED, SYSTEM_PATH

if TYPE_CHECKING:
    from pallasc.specs.loading.lock import Component

Digest = Callable[[Path | str], str]
"""Returns the SHA-256 of a file; raises `ToolError` if the file cannot be read."""

COMPILING = ("compiler/lowering", "compiler/toolchain", "specs")
"""The folders of the code that turns a callable into a checked artifact."""

PROGRAMS = (*COMPILING, "compiler/programs")
"""The folders of the code that compiles whole programs."""

COLLECTING = ("specs", "specs/loading")
"""The folders of the code that turns a Python spec file into specs in the store."""


def own_digest(digest: Digest, folders: Sequence[str] = COMPILING, top: Path | None = None) -> str:
    """Return one digest of the names and contents of pallasc's own folders.

    The fixed environment variables of workers count, too, since a kernel may read them while it is
    traced.

    Args:
        digest: SHA-256 of a file.
        folders: folders of pallasc; inner folders that do not affect a compilation do not count.
        top: the folder that contains them.
    """
    top = top or _top()
    environment = [FORCED, FIXED, SYSTEM_PATH]
    state = hashlib.sha256(canonical_json(environment))
    places = [top / folder for folder in folders]
    state.update(tree_digest(places, digest, without=("bundle", "library", "loading")).encode())
    return state.hexdigest()


def _top() -> Path:
    # Both in an install and in a clone, the folders are siblings.
    return Path(__file__).resolve().parents[2]


COMPUTED_WITH = "computed with"
"""Label of the packages that take part in all of compiling."""

TRACED_WITH = "traced with"
"""Label of the packages that only tracing and lowering use: no action key depends on them."""

_PACKAGES = {
    COMPUTED_WITH: {"cramjam": "cramjam", "google.protobuf": "protobuf", "llvmlite": "llvmlite"},
    TRACED_WITH: {name: name for name in ("ml_dtypes", "numpy", "opt_einsum", "scipy")},
}
"""The modules that the identity counts under these labels, with their distribution names."""

TRACING_PACKAGES = "tracing packages"
_IN_A_LOCK = {COMPUTED_WITH: "packages", TRACED_WITH: TRACING_PACKAGES}
"""Labels in a lock for the labels of `_PACKAGES`."""

TOOL = "tool "
"""The prefix of the identity's labels in the fields of a request key."""

JAX = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin")
"""JAX's packages; the sources of a compilation do not include them."""

_TESTS = ("__pycache__", "tests")
_FIRST_RUN = ("sitecustomize", "usercustomize")
_BYTECODE = (".pyc", ".pyo")
_NO_INPUTS = (*_BYTECODE, ".pyi", ".h", ".a")
"""Suffixes of files that neither JAX nor pallasc reads when it compiles."""


def toolchain_identity(toolchain: Toolchain, digest: Digest) -> dict[str, str]:
    """Return the labeled digests of the toolchain, of Python and of pallasc itself."""
    identity = {"python": _python(digest)}
    for package in toolchain.packages:
        identity[package.name] = tree_digest(
            [_folder(package)], digest, without=("include",), skipped=_NO_INPUTS
        )
    for label, path in toolchain_files(toolchain):
        identity[label] = digest(path)
    identity["pallasc"] = own_digest(digest)
    for label, names in _PACKAGES.items():
        state = hashlib.sha256()
        for name in names:
            contents = package_digest(name, digest, without=_TESTS) or "absent"
            state.update(f"{name} {contents}\n".encode())
        identity[label] = state.hexdigest()
    return identity


def identity_files(toolchain: Toolchain) -> list[str]:
    """Return the files whose digests `toolchain_identity` needs; none of them is read."""
    files: list[str] = []

    def note(path: Path | str) -> str:
        files.append(os.path.abspath(path))
        return ""

    toolchain_identity(toolchain, note)
    return files


def _folder(package: Package) -> Path:
    """Return the folder of a part of JAX: `jax_cuda13_plugin`, `jax_plugins/xla_cuda13`."""
    name = package.name.replace("-", "_")
    if name.endswith("_pjrt"):
        name = f"jax_plugins/xla_{name.split('_')[1]}"
    return package.root / name


def python_name() -> str:
    """Return Python's implementation, version and ABI: `cpython 3.12.1`."""
    version = sys.version.partition(" ")[0]
    return f"{sys.implementation.name} {version}{sys.abiflags}"


def _python(digest: Digest) -> str:
    """Return Python's name, version, and ABI, and the digest of its startup modules."""
    named = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    contents = {name: package_digest(name, digest, named) for name in _FIRST_RUN}
    began = [f"{name} {found}" for name, found in contents.items() if found]
    started = hashlib.sha256("\n".join(began).encode()).hexdigest()
    return f"{python_name()}, starts with {started}" if began else python_name()


def tree_digest(
    folders: Iterable[Path],
    digest: Digest,
    *,
    without: Sequence[str] = (),
    skipped: tuple[str, ...] = _BYTECODE,
) -> str:
    """Return one digest of the names and contents of all files below `folders`.

    Bytecode counts only if its source is missing, since Python then runs it. An unreadable file
    counts by its name.

    Args:
        folders: their names count too, their paths do not.
        digest: SHA-256 of a file.
        without: names of folders whose contents do not count.
        skipped: suffixes of files that do not count.
    """
    state = hashlib.sha256()
    for folder in map(os.path.abspath, folders):
        # Strings, not `Path`: there are hundreds of files, and this runs in every build.
        top = os.path.join(os.path.dirname(folder), "")
        for path in sorted(_files_below(folder, ("__pycache__", *without), skipped)):
            name = path.removeprefix(top)
            state.update(os.fsencode(name) + f"\0{_readable(path, digest)}\n".encode())
    return state.hexdigest()


def _files_below(folder: str, without: Sequence[str], skipped: tuple[str, ...]) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in without]
        for name in names:
            is_sourceless = name.endswith(".pyc") and name[:-1] not in names
            if is_sourceless or not name.endswith(skipped):
                yield f"{place}/{name}"


def package_digest(
    name: str, digest: Digest, folders: Sequence[str] = (), *, without: Sequence[str] = ()
) -> str | None:
    """Return the digest of the installed package or module `name`, None if there is none.

    Args:
        name: dotted if the package is in a namespace that several distributions share.
        digest: SHA-256 of a file.
        folders: searched before the usual places.
        without: names of folders in it whose contents do not count.
    """
    place = locate_module(name, folders)
    return None if place is None else located_digest(place, digest, without=without)


def located_digest(place: Path, digest: Digest, *, without: Sequence[str] = ()) -> str:
    """Return the digest of the package or module with the source file `place`.

    Shared libraries that a wheel installs next to its package are part of it. For a package in an
    archive, such as a zipped egg, the whole archive counts.
    """
    if (archive := file_holding(str(place))) != str(place):
        return _readable(archive, digest)
    if place.name.startswith("__init__."):
        libraries = place.parent.with_name(f"{place.parent.name}.libs")
        return tree_digest([place.parent, libraries], digest, without=without)
    return _readable(place, digest)


def _readable(path: Path | str, digest: Digest) -> str:
    """Return the digest of a file; "unreadable" for dangling links, sockets, and the like."""
    try:
        return digest(path)
    except ToolError:
        return "unreadable"


def versions_text(names: Iterable[str]) -> str:
    """Return packages with their versions; packages that are not installed are omitted."""
    packages = filter(None, map(find_package, names))
    return ", ".join(f"{package.name} {package.version}" for package in packages)


def versions_of(toolchain: Toolchain) -> dict[str, str]:
    """Return the versions of the parts that the labels of the identity name.

    Raises:
        ToolError: the assembler does not print its version.
    """
    from pallasc.version import installed_version

    versions = {package.name: package.version for package in toolchain.packages}
    versions |= {"ptxas": tool_version(toolchain.ptxas), "pallasc": installed_version()}
    for label, names in _PACKAGES.items():
        versions[label] = versions_text(sorted(names.values()))
    return versions


def components(
    identity: Mapping[str, str], versions: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, Component]:
    """Return the parts that keys depend on, by the labels of a lock.

    Every action key depends on all of them except `TRACING_PACKAGES`, which only request keys
    depend on.

    Args:
        identity: digests of the toolchain by label.
        versions: the result of `versions_of`.
        variables: the environment variables that reach the compiler.
    """
    from pallasc.specs.loading.lock import VARIABLE, Component

    parts = {label: (value, versions.get(label, "")) for label, value in identity.items()}
    if "python" in identity:
        python = identity["python"].partition(",")[0].removeprefix("cpython ")
        parts["python"] = (identity["python"], python)
    parts |= {f"{VARIABLE}{name}": (value, "") for name, value in variables.items()}
    return {
        _IN_A_LOCK.get(label, label): Component(
            value if is_name(value) else digest(value.encode()), version
        )
        for label, (value, version) in parts.items()
    }


def components_in(fields: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, Component]:
    """Return the components in the fields of a request key, as a manifest stores them."""
    from pallasc.specs.loading.lock import VARIABLE

    return components(
        {k.removeprefix(TOOL): v for k, v in fields.items() if k.startswith(TOOL)},
        versions,
        {k.removeprefix(VARIABLE): v for k, v in fields.items() if k.startswith(VARIABLE)},
    )
