"""The identity of what compiles: digests of the contents that decide the result, by label.

Content counts, not version strings: every installed file of jax, jaxlib and the CUDA plugin, the
assembler, the linker and the device library, pallasc's own modules that compile (`own_digest`),
and the packages that JAX and pallasc compute with: those that only tracing uses apart, since what
they do to a module is in the module. Python counts by its implementation, version and ABI, and by
what it runs before any program: `sitecustomize`, `usercustomize`, and the lines of code in `.pth`
files with the modules that they import. Lines of editable installs do not count, which only say
where a package lies (its sources count where it is imported), nor do those of setuptools and
virtualenv, which change how packages are installed. Nothing is imported for it.

A lock file and every manifest hold the parts with their versions (`components`). So a single
function (`specs/lock.differences`) names the package and both versions wherever something was
compiled with another toolchain.
"""

from __future__ import annotations

import hashlib
import os
import re
import site
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.cache.format import is_name
from pallasc.cache.stat_digest import file_holding
from pallasc.compiler.toolchain.modules import locate_module
from pallasc.compiler.toolchain.toolchain import (
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

COMPILING = ("compiler.lowering", "compiler.executable")
"""From a callable to a checked artifact."""

COLLECTING = ("specs.loading.decorator", "specs.wire")
"""From a Python spec to what is remembered of it."""

_IMPORT = re.compile(
    r"^[ \t]*from pallasc\.([\w.]+) import (\([^)]*\)|[^\n]+)|^[ \t]*import pallasc\.([\w.]+)",
    re.MULTILINE,
)
_LEFT_OUT = ("errors", "specs.gpus", "specs.spelling")
"""What errors and hints say decides no artifact, and `specs.gpus` counts by its values; `errors`
lies elsewhere in a clone than in an install."""
_NAME = re.compile(r"(\w+)(?: as \w+)?")


def own_digest(
    digest: Callable[[Path | str], str], parts: Sequence[str] = COMPILING, top: Path | None = None
) -> str:
    """Return one digest over the names and contents of `parts` and of all that they import.

    They are found by their import statements, so no list has to be kept: a module that lowering
    begins to import counts from then on, and a new flag of a command never does. The variables that
    every worker is given count by their values: a kernel may read them while it is traced. So do
    the rows of `specs.gpus`, of which keys hold only the target's.

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


def reached(parts: Iterable[str], top: Path) -> dict[str, str]:
    """Return the files of modules and of all that they import, with the modules' names."""
    waiting = [name for part in parts for name in _modules(part, str(top))]
    files = dict.fromkeys(_LEFT_OUT, "")  # by the modules' names, "" for no file
    names: dict[str, str] = {}

    def file_of(name: str) -> str:
        if name not in files:
            path = os.path.join(top, *name.split(".")) + ".py"
            files[name] = path if os.path.isfile(path) else ""
        return files[name]

    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if path and path not in names:
            names[path] = name
            waiting += _imported(path, file_of)
    if not names:
        raise RuntimeError(f"pallasc's own sources are not in {top}")
    return names


def _top() -> Path:
    # Installed or from the sources: the folders lie side by side.
    return Path(__file__).resolve().parents[2]


def _modules(part: str, top: str) -> list[str]:
    """Return the name of a module, or the names of a package's modules."""
    place = os.path.join(top, *part.split("."))
    if not os.path.isdir(place):
        return [part]
    names = sorted(name for name in os.listdir(place) if name.endswith(".py"))
    return [f"{part}.{name.removesuffix('.py')}" for name in names]


def _imported(path: str, file_of: Callable[[str], str]) -> Iterator[str]:
    """Yield the names that a file imports, also inside functions; some are not modules."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    for package, names, module in _IMPORT.findall(text):
        if module or file_of(package):
            yield module or package
        else:
            yield from (f"{package}.{name}" for name in _NAME.findall(names))


COMPUTED_WITH = "computed with"
"""The label under which the identity counts the packages that take part in all of compiling."""

TRACED_WITH = "traced with"
"""The label for packages that only tracing and lowering use: no action key depends on them."""

_COMPUTED_WITH = ("cramjam", "google.protobuf", "llvmlite")
_TRACED_WITH = ("ml_dtypes", "numpy", "opt_einsum", "scipy")
JAX = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin")
"""Packages that closures leave out."""

_TESTS = ("__pycache__", "tests")
_FIRST_RUN = ("sitecustomize", "usercustomize")
_WITHOUT_EFFECT = re.compile(
    r"import (__editable__\w*|_virtualenv\b|os; var = 'SETUPTOOLS_USE_DISTUTILS')"
)
_IMPORTED = re.compile(r"import\W+(\w+)")
_NOT_INSTALLED_CONTENT = ("/INSTALLER", "/REQUESTED", "/RECORD", "/direct_url.json")
_BYTECODE = (".pyc", ".pyo")
_NO_INPUTS = (*_BYTECODE, ".pyi", ".h", ".a")
"""Ends of the names of files that neither JAX nor pallasc reads when it compiles."""

Digest = Callable[[Path | str], str]


def toolchain_identity(toolchain: Toolchain, digest: Digest) -> dict[str, str]:
    """Return the labelled digests of the toolchain, of Python and of pallasc itself.

    Args:
        toolchain: what compiles.
        digest: SHA-256 of a file.
    """
    identity = {"python": _python(digest)}
    for package in toolchain.packages:
        folders = _folders(package.name, package.root)
        identity[package.name] = tree_digest(
            folders, digest, without=("include",), skipped=_NO_INPUTS
        )
    for label, path in toolchain_files(toolchain):
        identity[label] = digest(path)
    identity["pallasc"] = own_digest(digest)
    identity[COMPUTED_WITH] = _packages_digest(_COMPUTED_WITH, digest)
    identity[TRACED_WITH] = _packages_digest(_TRACED_WITH, digest)
    return identity


def identity_files(toolchain: Toolchain) -> list[str]:
    """Return the files that `toolchain_identity` asks the digests of; none is read for it."""
    files: list[str] = []

    def note(path: Path | str) -> str:
        files.append(os.path.abspath(path))
        return ""

    toolchain_identity(toolchain, note)
    return files


def _python(digest: Digest) -> str:
    """Return Python's name, version and ABI, and the digest of its start-up code."""
    name = python_name()
    lines = _startup_lines()
    modules = [*_FIRST_RUN, *sorted({m for line in lines for m in _IMPORTED.findall(line)})]
    named = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    startup = {
        module: package_digest(module, digest, named)
        for module in modules
        if module not in sys.stdlib_module_names
    }
    began = [*lines, *(f"{module} {held}" for module, held in startup.items() if held)]
    if not began:
        return name
    return f"{name}, starts with {hashlib.sha256(os.fsencode(chr(10).join(began))).hexdigest()}"


def python_name() -> str:
    """Return Python's implementation, version and ABI: `cpython 3.12.1`."""
    version = sys.version.partition(" ")[0]
    return f"{sys.implementation.name} {version}{sys.abiflags}"


def _startup_lines() -> list[str]:
    """Return the lines of code in the `.pth` files of this Python that count, sorted."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    folders = [Path(folder) for folder in (*site.getsitepackages(), *users)]
    places = {place.resolve() for folder in folders for place in folder.glob("*.pth")}
    lines = {line.strip() for place in places for line in _lines(place)}
    code = (line for line in lines if line.startswith(("import ", "import\t")))
    return sorted(line for line in code if not _WITHOUT_EFFECT.match(line))


def _lines(place: Path) -> list[str]:
    try:
        return place.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _packages_digest(names: Iterable[str], digest: Digest) -> str:
    """Return one digest over installed packages, without their tests."""
    state = hashlib.sha256()
    for name in names:
        contents = package_digest(name, digest, without=_TESTS) or "absent"
        state.update(f"{name} {contents}\n".encode())
    return state.hexdigest()


def tree_digest(
    folders: Iterable[Path],
    digest: Digest,
    *,
    without: Sequence[str] = (),
    skipped: tuple[str, ...] = _BYTECODE,
) -> str:
    """Return one digest over names and contents of all files below `folders`.

    Bytecode counts only without a source beside it, since it is run then. An unreadable file
    counts by its name.

    Args:
        folders: whose own names count too, not where they lie.
        digest: SHA-256 of a file.
        without: names of folders whose contents do not count.
        skipped: ends of the names of files that do not count.
    """
    state = hashlib.sha256()
    for folder in folders:
        # Text, not `Path`: there are hundreds of files, and this runs at every build.
        top = os.path.join(os.path.dirname(os.path.abspath(folder)), "")
        for path in sorted(_walk(os.path.abspath(folder), {"__pycache__", *without}, skipped)):
            name = path.removeprefix(top)
            state.update(os.fsencode(name) + f"\0{_readable(path, digest)}\n".encode())
    return state.hexdigest()


def package_digest(
    name: str, digest: Digest, folders: Sequence[str] = (), *, without: Sequence[str] = ()
) -> str | None:
    """Return the digest of the installed package or module `name`, None if there is none.

    Args:
        name: dotted where the package lies in a namespace that several distributions share.
        digest: SHA-256 of a file.
        folders: where it is looked for before the usual places.
        without: names of folders in it whose contents do not count.
    """
    place = locate_module(name, folders)
    return None if place is None else located_digest(place, digest, without=without)


def located_digest(place: Path, digest: Digest, *, without: Sequence[str] = ()) -> str:
    """Return the digest of the package or module whose source lies at `place`.

    The shared libraries that a wheel keeps beside its package belong to it. A package in an
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


def _folders(name: str, root: Path) -> list[Path]:
    tops = {"jax": ["jax"], "jaxlib": ["jaxlib"]}
    if name in tops:
        return [root / top for top in tops[name]]
    cuda = name.split("-")[1]
    folder = f"jax_{cuda}_plugin" if name.endswith("-plugin") else f"jax_plugins/xla_{cuda}"
    return [root / folder]


def _walk(folder: str, without: Collection[str], skipped: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder that count."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    names = {entry.name for entry in entries}
    for entry in entries:
        if _is_folder(entry):
            if entry.name not in without and not (entry.is_symlink() and _leads_up(entry.path)):
                yield from _walk(entry.path, without, skipped)
        elif not entry.name.endswith(skipped) or _is_sourceless(entry.name, names):
            yield entry.path


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder; an unreadable link is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def files_below(folder: str, most: int) -> list[str] | None:
    """Return the files below a folder, None if there are more than `most`."""
    files = list(islice(_walk(folder, {"__pycache__"}, ()), most + 1))
    return files if len(files) <= most else None


def _is_sourceless(name: str, beside: Collection[str]) -> bool:
    """Tell whether a file is bytecode that Python runs, because it has no source beside it."""
    return name.endswith(".pyc") and name[:-1] not in beside


def _leads_up(link: str) -> bool:
    """Tell whether a link leads to a folder above it, and so in a circle."""
    target, parent = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    return os.path.join(parent, "").startswith(os.path.join(target, ""))


def recorded(names: Iterable[str]) -> str:
    """Return one digest over the installed file lists of packages, which carry their digests.

    Without scripts, which name the folder of this Python, and without notes on the installation.
    """
    from importlib import metadata

    state = hashlib.sha256()
    for name in names:
        try:
            distribution = metadata.distribution(name)
            text = distribution.read_text("RECORD") or distribution.version
        except metadata.PackageNotFoundError:
            text = "absent"
        lines = sorted(line for line in text.splitlines() if _is_content(line.partition(",")[0]))
        state.update(f"{name}\0".encode() + "\n".join(lines).encode() + b"\0")
    return state.hexdigest()


def _is_content(name: str) -> bool:
    outside = name.startswith(("..", "/")) or "__pycache__" in name
    return not outside and not name.endswith(_NOT_INSTALLED_CONTENT)


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the labels whose digests differ between two identities."""
    return sorted(label for label in {*first, *second} if first.get(label) != second.get(label))


_PACKAGES = {
    COMPUTED_WITH: ("cramjam", "llvmlite", "protobuf"),
    TRACED_WITH: ("ml_dtypes", "numpy", "opt_einsum", "scipy"),
}
"""The distributions that the identity counts under these labels."""

TRACING_PACKAGES = "tracing packages"
"""The label of the latter in a lock."""

_IN_A_LOCK = {COMPUTED_WITH: "packages", TRACED_WITH: TRACING_PACKAGES}

TOOL = "tool "
"""The prefix of the identity's labels in the fields of a request key."""


def versions_of(toolchain: Toolchain) -> dict[str, str]:
    """Return the versions of the parts that the labels of the identity name.

    Raises:
        ToolError: the assembler cannot be asked for its version.
    """
    from pallasc.version import installed_version

    versions = {package.name: package.version for package in toolchain.packages}
    listed = {label: filter(None, map(find_package, names)) for label, names in _PACKAGES.items()}
    return {
        **versions,
        "ptxas": tool_version(toolchain.ptxas),
        "pallasc": installed_version(),
        **{
            label: ", ".join(f"{package.name} {package.version}" for package in packages)
            for label, packages in listed.items()
        },
    }


def components(
    identity: Mapping[str, str], versions: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, Component]:
    """Return the parts that keys depend on, by the labels of a lock.

    Every action key depends on all of them but `TRACING_PACKAGES`, of which request keys do.

    Args:
        identity: digests of the toolchain by label.
        versions: those of `versions_of`.
        variables: the environment variables that reach the compiler.
    """
    from pallasc.specs.lock import VARIABLE, Component

    named = {label: (value, versions.get(label, "")) for label, value in identity.items()}
    if "python" in identity:
        python = identity["python"].partition(",")[0].removeprefix("cpython ")
        named["python"] = (identity["python"], python)
    named |= {f"{VARIABLE}{name}": (value, "") for name, value in variables.items()}
    return {
        _IN_A_LOCK.get(label, label): Component(
            value if is_name(value) else digest(value.encode()), version
        )
        for label, (value, version) in named.items()
    }


def package_components(held: Mapping[str, str | None], versions: Any) -> dict[str, Component]:
    """Return installed packages, by digests and versions, as components; without those missing."""
    from pallasc.specs.lock import Component

    told = versions if isinstance(versions, Mapping) else {}
    return {
        name: Component(held_digest, str(told.get(name, "")))
        for name, held_digest in held.items()
        if held_digest is not None
    }


def components_in(fields: Mapping[str, str], versions: Any) -> dict[str, Component]:
    """Return the components that the fields of a request key name, as a manifest has them."""
    from pallasc.specs.lock import VARIABLE

    told = versions if isinstance(versions, Mapping) else {}
    return components(
        {k.removeprefix(TOOL): v for k, v in fields.items() if k.startswith(TOOL)},
        {str(label): str(version) for label, version in told.items()},
        {k.removeprefix(VARIABLE): v for k, v in fields.items() if k.startswith(VARIABLE)},
    )
