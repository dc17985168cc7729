"""The identity of the compiler: digests of the contents that decide the result, by label.

Content counts, not version strings: every installed file of jax, jaxlib and the CUDA plugin, the
assembler, the linker and the device library, pallasc's own modules that compile (`own_digest`),
and the packages that JAX and pallasc compute with. Packages that only tracing uses have a separate
label, since a module shows their effects. Python counts by its implementation, version and ABI, and
by the code that it runs before any program: `sitecustomize`, `usercustomize`, and the lines of code
in `.pth` files with the modules that they import. Lines of editable installs do not count, which
only name a package's folder (its sources count if it is imported), and neither do the lines of
setuptools and virtualenv, which change how packages are installed. Nothing is imported.

A lock file and every manifest contain the parts with their versions (`components`), so a single
function (`specs/lock.differences`) names the packages and versions that differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
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
from pallasc.specs import variables
from pallasc.specs.canonical import canonical_json, digest

if TYPE_CHECKING:
    from pallasc.specs.lock import Component

Digest = Callable[[Path | str], str]
"""Returns the SHA-256 of a file; raises `ToolError` if the file cannot be read."""

COMPILING = ("compiler.lowering", "compiler.executable")
"""From a callable to a checked artifact."""

COLLECTING = ("specs.loading.decorator", "specs.wire")
"""From a Python spec to its specs in the store."""

_IMPORT = re.compile(
    r"\n[ \t]*from pallasc\.([\w.]+) import (\([^)]*\)|[^\n]+)|\n[ \t]*import pallasc\.([\w.]+)"
)
"""A newline in front is found several times faster than the start of a line."""
_NAME = re.compile(r"(\w+)(?: as \w+)?")
_LEFT_OUT = ("errors", "specs.gpus", "specs.spelling")
"""Texts of errors and hints decide no artifact, and `specs.gpus` counts by its values; `errors` is
in different places in a clone and in an install."""


def own_digest(digest: Digest, parts: Sequence[str] = COMPILING, top: Path | None = None) -> str:
    """Return one digest over the names and contents of `parts` and of all that they import.

    They are found by their import statements, so there is no list to maintain: a module that
    lowering begins to import counts from then on, and a new flag of a command never does. The
    variables that every worker gets count by their values: a kernel may read them while it is
    traced. So do the rows of `specs.gpus`, of which keys contain only the target's.

    Args:
        digest: SHA-256 of a file.
        parts: packages and modules of pallasc, without `pallasc.` in front.
        top: the folder that contains them.
    """
    environment = [variables.FORCED, variables.FIXED, variables.SYSTEM_PATH]
    state = hashlib.sha256(canonical_json(environment))
    for path, name in sorted(reached(parts, top or _top()).items()):
        state.update(f"{name}\0{digest(path)}\n".encode())
    return state.hexdigest()


def _top() -> Path:
    # Installed or from the sources: the folders are next to each other.
    return Path(__file__).resolve().parents[2]


def reached(parts: Iterable[str], top: Path) -> dict[str, str]:
    """Return the files of modules and of all that they import, with the modules' names."""

    @cache
    def file_of(name: str) -> str:
        path = os.path.join(top, *name.split(".")) + ".py"
        return path if name not in _LEFT_OUT and os.path.isfile(path) else ""

    waiting: list[str] = []
    for part in parts:
        files = Path(top, *part.split(".")).glob("*.py")
        waiting += [f"{part}.{file.stem}" for file in files] or [part]
    names: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if not path or path in names:
            continue
        names[path] = name
        # Also the imports inside functions; some of the names are not modules.
        text = Path(path).read_text(encoding="utf-8")
        for package, items, module in _IMPORT.findall(f"\n{text}"):
            if module or file_of(package):
                waiting.append(module or package)
            else:
                waiting += [f"{package}.{item}" for item in _NAME.findall(items)]
    if not names:
        raise RuntimeError(f"pallasc's own sources are not in {top}")
    return names


COMPUTED_WITH = "computed with"
"""The label under which the identity counts the packages that take part in all of compiling."""

TRACED_WITH = "traced with"
"""The label for packages that only tracing and lowering use: no action key depends on them."""

_PACKAGES = {
    COMPUTED_WITH: {"cramjam": "cramjam", "google.protobuf": "protobuf", "llvmlite": "llvmlite"},
    TRACED_WITH: {name: name for name in ("ml_dtypes", "numpy", "opt_einsum", "scipy")},
}
"""The modules that the identity counts under these labels, with the names of the distributions."""

TRACING_PACKAGES = "tracing packages"
_IN_A_LOCK = {COMPUTED_WITH: "packages", TRACED_WITH: TRACING_PACKAGES}
"""Their labels in a lock."""

TOOL = "tool "
"""The prefix of the identity's labels in the fields of a request key."""

JAX = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin")
"""Packages that closures leave out."""

_TESTS = ("__pycache__", "tests")
_FIRST_RUN = ("sitecustomize", "usercustomize")
_WITHOUT_EFFECT = re.compile(
    r"import (__editable__\w*|_virtualenv\b|os; var = 'SETUPTOOLS_USE_DISTUTILS')"
)
_IMPORTED = re.compile(r"import\W+(\w+)")
_NOT_CONTENT = re.compile(
    r"\.\.|/|[^,]*(__pycache__|/(INSTALLER|REQUESTED|RECORD|direct_url\.json)(,|$))"
)
"""Lines of a RECORD that do not count: scripts, which name the folder of this Python, bytecode, and
notes on the installation."""
_BYTECODE = (".pyc", ".pyo")
_NO_INPUTS = (*_BYTECODE, ".pyi", ".h", ".a")
"""Ends of the names of files that neither JAX nor pallasc reads when it compiles."""


def toolchain_identity(toolchain: Toolchain, digest: Digest) -> dict[str, str]:
    """Return the labelled digests of the toolchain, of Python and of pallasc itself."""
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
    """Return the files that `toolchain_identity` needs the digests of; none is read for it."""
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
    """Return Python's name, version and ABI, and the digest of its start-up code."""
    began = _startup_lines()
    imported = {module for line in began for module in _IMPORTED.findall(line)}
    named = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    for module in (*_FIRST_RUN, *sorted(imported - sys.stdlib_module_names)):
        if contents := package_digest(module, digest, named):
            began.append(f"{module} {contents}")
    if not began:
        return python_name()
    started = hashlib.sha256(os.fsencode("\n".join(began))).hexdigest()
    return f"{python_name()}, starts with {started}"


def _startup_lines() -> list[str]:
    """Return the lines of code in the `.pth` files of this Python that count, sorted."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    lines: set[str] = set()
    for folder in (*site.getsitepackages(), *users):
        for file in Path(folder).glob("*.pth"):
            with contextlib.suppress(OSError):
                text = file.read_text(encoding="utf-8", errors="replace")
                lines.update(map(str.strip, text.splitlines()))
    code = (line for line in lines if line.startswith(("import ", "import\t")))
    return sorted(line for line in code if not _WITHOUT_EFFECT.match(line))


def tree_digest(
    folders: Iterable[Path],
    digest: Digest,
    *,
    without: Sequence[str] = (),
    skipped: tuple[str, ...] = _BYTECODE,
) -> str:
    """Return one digest over names and contents of all files below `folders`.

    Bytecode counts only without its source, since Python runs it then. An unreadable file counts by
    its name.

    Args:
        folders: their own names count too, their paths do not.
        digest: SHA-256 of a file.
        without: names of folders whose contents do not count.
        skipped: ends of the names of files that do not count.
    """
    state = hashlib.sha256()
    for folder in map(os.path.abspath, folders):
        # Text, not `Path`: there are hundreds of files, and this runs at every build.
        top = os.path.join(os.path.dirname(folder), "")
        for path in sorted(_files_below(folder, ("__pycache__", *without), skipped)):
            name = path.removeprefix(top)
            state.update(os.fsencode(name) + f"\0{_readable(path, digest)}\n".encode())
    return state.hexdigest()


def _files_below(folder: str, without: Sequence[str], skipped: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder that count."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [f for f in folders if f not in without and not _leads_up(f"{place}/{f}")]
        for name in names:
            is_sourceless = name.endswith(".pyc") and name[:-1] not in names
            if is_sourceless or not name.endswith(skipped):
                yield f"{place}/{name}"


def _leads_up(folder: str) -> bool:
    """Return True for a link to a folder above it, which would be followed in a circle."""
    if not os.path.islink(folder):
        return False
    target, parent = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.join(parent, "").startswith(os.path.join(target, ""))


def has_more_files(folder: str, most: int) -> bool:
    """Return True if a folder has more than `most` files below it."""
    return next(islice(_files_below(folder, ("__pycache__",), ()), most, None), None) is not None


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

    The shared libraries that a wheel installs next to its package belong to it. A package in an
    archive, such as a zipped egg, counts with the whole archive.
    """
    if (archive := file_holding(str(place))) != str(place):
        return _readable(archive, digest)
    if place.name.startswith("__init__."):
        libraries = place.parent.with_name(f"{place.parent.name}.libs")
        return tree_digest([place.parent, libraries], digest, without=without)
    return _readable(place, digest)


def _readable(path: Path | str, digest: Digest) -> str:
    """Return the digest of a file; "unreadable" for a dangling link, a socket and the like."""
    try:
        return digest(path)
    except ToolError:
        return "unreadable"


def recorded(names: Iterable[str]) -> str:
    """Return one digest over the installed file lists of packages, which contain file digests."""
    from importlib import metadata

    state = hashlib.sha256()
    for name in names:
        try:
            distribution = metadata.distribution(name)
            text = distribution.read_text("RECORD") or distribution.version
        except metadata.PackageNotFoundError:
            text = "absent"
        lines = sorted(line for line in text.splitlines() if not _NOT_CONTENT.match(line))
        state.update(f"{name}\0".encode() + "\n".join(lines).encode() + b"\0")
    return state.hexdigest()


def versions_of(toolchain: Toolchain) -> dict[str, str]:
    """Return the versions of the parts that the labels of the identity name.

    Raises:
        ToolError: the assembler does not print its version.
    """
    from pallasc.version import installed_version

    versions = {package.name: package.version for package in toolchain.packages}
    versions |= {"ptxas": tool_version(toolchain.ptxas), "pallasc": installed_version()}
    for label, names in _PACKAGES.items():
        packages = filter(None, map(find_package, sorted(names.values())))
        versions[label] = ", ".join(f"{package.name} {package.version}" for package in packages)
    return versions


def components(
    identity: Mapping[str, str], versions: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, Component]:
    """Return the parts that keys depend on, by the labels of a lock.

    Every action key depends on all of them but `TRACING_PACKAGES`, of which request keys do.

    Args:
        identity: digests of the toolchain by label.
        versions: the result of `versions_of`.
        variables: the environment variables that reach the compiler.
    """
    from pallasc.specs.lock import VARIABLE, Component

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


def package_components(
    contents: Mapping[str, str | None], versions: Mapping[str, str]
) -> dict[str, Component]:
    """Return installed packages, by digests and versions, as components; without those missing."""
    from pallasc.specs.lock import Component

    return {
        name: Component(value, versions.get(name, ""))
        for name, value in contents.items()
        if value is not None
    }


def components_in(fields: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, Component]:
    """Return the components that the fields of a request key name, as a manifest has them."""
    from pallasc.specs.lock import VARIABLE

    return components(
        {k.removeprefix(TOOL): v for k, v in fields.items() if k.startswith(TOOL)},
        versions,
        {k.removeprefix(VARIABLE): v for k, v in fields.items() if k.startswith(VARIABLE)},
    )
