"""The identity of what compiles: digests of the contents that decide the result, by label.

Content counts, not version strings: every installed file of jax, jaxlib and the CUDA plugin, the
assembler, the linker and the device library, pallasc's own code, and the packages that JAX computes
with. Nothing is imported for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from pallasc.compiler.toolchain import Toolchain, toolchain_files
from pallasc.errors import ToolError

_COMPUTED_WITH = ("ml_dtypes", "numpy", "opt_einsum", "scipy")
_OWN = ("compiler", "specs")
_BYTECODE = (".pyc", ".pyo")
_NO_INPUTS = (*_BYTECODE, ".pyi", ".h", ".a")
"""What neither JAX nor pallasc reads when it compiles."""

Digest = Callable[[Path | str], str]


def toolchain_identity(toolchain: Toolchain, digest: Digest) -> dict[str, str]:
    """Return the labelled digests of the toolchain, of Python and of pallasc itself.

    Args:
        toolchain: what compiles.
        digest: SHA-256 of a file.
    """
    identity = {"python": "{}.{}.{}".format(*sys.version_info[:3])}
    for package in toolchain.packages:
        folders = _folders(package.name, package.root)
        identity[package.name] = tree_digest(
            folders, digest, without=("include",), skipped=_NO_INPUTS
        )
    for label, path in toolchain_files(toolchain):
        identity[label] = digest(path)
    identity["pallasc"] = own_digest(digest)
    identity["computed with"] = recorded(_COMPUTED_WITH)
    return identity


def own_digest(digest: Digest) -> str:
    """Return the digest of the parts of pallasc that decide the result.

    Its library of kernels does not: a kernel's closure has the files that it comes from.
    """
    return tree_digest(_own_folders(), digest, without=("library",), skipped=_NO_INPUTS)


def tree_digest(
    folders: Iterable[Path],
    digest: Digest,
    *,
    without: Sequence[str] = (),
    skipped: tuple[str, ...] = _BYTECODE,
) -> str:
    """Return one digest over names and contents of all files below `folders`.

    Bytecode never counts. What cannot be read counts by its name, as unreadable.

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


def package_digest(name: str, digest: Digest) -> str | None:
    """Return the digest of the installed package or module `name`, None if there is none.

    The name is dotted where the package lies in a namespace that several distributions share.
    """
    from pallasc.compiler.closure import locate_module

    place = locate_module(name, ())
    if place is None:
        return None
    if place.name.startswith("__init__."):
        return tree_digest([place.parent], digest)
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


def _own_folders() -> list[Path]:
    here = Path(__file__).resolve().parent
    # Installed or from the sources: the folders lie side by side.
    return [here.parent / name for name in _OWN]


def _walk(folder: str, without: Collection[str], skipped: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder that count."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if entry.name not in without and not (entry.is_symlink() and _leads_up(entry.path)):
                yield from _walk(entry.path, without, skipped)
        elif not entry.name.endswith(skipped):
            yield entry.path


def _leads_up(link: str) -> bool:
    """Tell whether a link leads to a folder above it, and so round in circles."""
    target, parent = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    return os.path.join(parent, "").startswith(os.path.join(target, ""))


def recorded(names: Iterable[str]) -> str:
    """Return one digest over the installed file lists of packages, which carry their digests."""
    state = hashlib.sha256()
    for name in names:
        try:
            found = metadata.distribution(name)
            text = found.read_text("RECORD") or found.version
        except metadata.PackageNotFoundError:
            text = "absent"
        lines = sorted(line for line in text.splitlines() if "__pycache__" not in line)
        state.update(f"{name}\0".encode() + "\n".join(lines).encode() + b"\0")
    return state.hexdigest()


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the labels whose digests differ between two identities."""
    return sorted(label for label in {*first, *second} if first.get(label) != second.get(label))
