"""The identity of what compiles: digests of the contents that decide the result, by label.

Content counts, not version strings: every installed file of jax, jaxlib and the CUDA plugin, the
assembler, the linker and the device library, pallasc's own code, and the packages that JAX computes
with. Nothing is imported for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from pallasc.compiler.toolchain import Toolchain, toolchain_files

_COMPUTED_WITH = ("ml_dtypes", "numpy", "opt_einsum", "scipy")
_SKIPPED_SUFFIXES = (".pyc", ".pyi", ".h", ".a")
_OWN = ("compiler", "specs")

Digest = Callable[[Path], str]


def toolchain_identity(toolchain: Toolchain, digest: Digest) -> dict[str, str]:
    """Return the labelled digests of the toolchain, of Python and of pallasc itself.

    Args:
        toolchain: what compiles.
        digest: SHA-256 of a file.
    """
    identity = {"python": "{}.{}.{}".format(*sys.version_info[:3])}
    for package in toolchain.packages:
        identity[package.name] = tree_digest(_folders(package.name, package.root), digest)
    for label, path in toolchain_files(toolchain):
        identity[label] = digest(path)
    identity["pallasc"] = own_digest(digest)
    identity["computed with"] = _recorded(_COMPUTED_WITH)
    return identity


def own_digest(digest: Digest) -> str:
    """Return the digest of the parts of pallasc that decide the result."""
    return tree_digest(_own_folders(), digest)


def tree_digest(folders: Iterable[Path], digest: Digest) -> str:
    """Return one digest over names and contents of all files below `folders`, in order."""
    state = hashlib.sha256()
    for folder in folders:
        for path in sorted(_walk(folder)):
            name = path.relative_to(folder.parent).as_posix()
            state.update(f"{name}\0{digest(path)}\n".encode())
    return state.hexdigest()


def package_digest(top_level: str, digest: Digest) -> str | None:
    """Return the digest of the installed package or module `top_level`, None if there is none."""
    from pallasc.compiler.closure import locate_module

    place = locate_module(top_level, ())
    if place is None:
        return None
    return tree_digest([place.parent], digest) if place.name == "__init__.py" else digest(place)


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


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that matter; pallasc's own library of kernels does not."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if entry.name not in ("__pycache__", "include", "library"):
                yield from _walk(Path(entry.path))
        elif not entry.name.endswith(_SKIPPED_SUFFIXES):
            yield Path(entry.path)


def _recorded(names: Iterable[str]) -> str:
    """Return one digest over the installed file lists of packages, which carry their digests."""
    state = hashlib.sha256()
    for name in names:
        try:
            text = metadata.distribution(name).read_text("RECORD") or ""
        except metadata.PackageNotFoundError:
            text = "absent"
        lines = sorted(line for line in text.splitlines() if "__pycache__" not in line)
        state.update(f"{name}\0".encode() + "\n".join(lines).encode() + b"\0")
    return state.hexdigest()


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the labels whose digests differ between two identities."""
    return sorted(
        label for label in {*first, *second} if first.get(label) != second.get(label)
    )
