"""Record in compiling processes which module imports which, and find the sources of a compilation.

Every executed `import` is an edge from the importing module to the imported one, even if that was
loaded before, so what an entry reaches does not depend on what the process compiled earlier. The
user's sources are never loaded from bytecode. `recorders` records what else modules read.

The sources are the files of the modules that an entry point reaches. Installed packages count as a
whole. Missing modules count, too: one whose import failed may be installed later, a package without
`__init__.py` may get one, and a new file in the spec's folder may shadow a module of Python or of a
package.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pallasc.compiler.inputs import reads
from pallasc.compiler.inputs.manifest import Sources
from pallasc.compiler.inputs.recorders import record_reads, record_untracked
from pallasc.compiler.toolchain.modules import (
    COVERED,
    hidden,
    is_installed,
    is_located,
    is_pythons,
    is_standard,
    locate_module,
    module_of,
    namespace_of,
)
from pallasc.specs.loading.modules import module_name

_UNRECORDED = (
    "jax.", "jaxlib.", "numpy.", "importlib.", "pallasc.compiler.", "pallasc.specs.loading.modules",
)  # fmt: skip
_LIBRARY = "pallasc.specs.library"

edges: dict[str, set[str]] = {}
failed_imports: dict[str, set[str]] = {}
loaded: dict[str, ModuleType] = {}
"""Modules that were imported or made from a spec; user code may remove them from `sys.modules`."""

after_import: list[Callable[[str], None]] = []
"""Called after each recorded import, with the module that imports."""


def record_imports() -> None:
    """Record imports and reads from now on; called once in a compiling process."""
    plain_import = builtins.__import__
    plain_import_module = importlib.import_module
    plain_find_spec = importlib.util.find_spec
    plain_module_from_spec = importlib.util.module_from_spec

    def recording_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer = module_of(globals if isinstance(globals, dict) else {})
        with _recording_failure(importer):
            result = plain_import(name, globals, locals, fromlist, level)
        try:
            _record_import(importer, _absolute(name, globals, level), list(fromlist or ()))
        except Exception:  # noqa: BLE001 - an object in place of a module may raise anything
            record_untracked(importer, "imported something that cannot be recorded")
        return result

    def recording_import_module(name: str, package: str | None = None) -> Any:
        importer = module_of(sys._getframe(1).f_globals)
        full = importlib.util.resolve_name(name, package) if name.startswith(".") else name
        with _recording_failure(importer):
            result = plain_import_module(name, package)
        _record(importer, [full])
        return result

    def recording_find_spec(name: str, package: str | None = None) -> Any:
        result = plain_find_spec(name, package)
        if result is None:
            full = importlib.util.resolve_name(name, package) if name.startswith(".") else name
            importer = module_of(sys._getframe(1).f_globals)
            failed_imports.setdefault(importer, set()).add(full)
        return result

    def recording_module_from_spec(spec: Any) -> Any:
        result = plain_module_from_spec(spec)
        importer = module_of(sys._getframe(1).f_globals)
        loaded[spec.name] = result
        _record(importer, [spec.name])
        return result

    builtins.__import__ = recording_import
    importlib.import_module = recording_import_module
    importlib.util.module_from_spec = recording_module_from_spec
    importlib.util.find_spec = recording_find_spec
    record_reads()


def _record_import(importer: str, full: str, items: list[str]) -> None:
    if "*" in items:
        items += getattr(sys.modules.get(full), "__all__", ())
    _record(importer, [full, *(f"{full}.{item}" for item in items)])
    _record_missing(importer, [i for i in items if i != "*"], full)


def _record(importer: str, names: list[str]) -> None:
    if is_standard(importer) and not is_standard(names[0]):
        importer = _on_behalf_of()
    if importer and not importer.startswith(_UNRECORDED):
        edges.setdefault(importer, set()).update(names)
        _keep(names)
        for call in after_import:
            call(importer)


def _keep(names: Iterable[str]) -> None:
    """Keep modules with their packages; user code may remove them from `sys.modules`."""
    for name in names:
        while name:
            module = sys.modules.get(name)
            if module is not None:
                loaded[name] = module
            name = name.rpartition(".")[0]


@contextlib.contextmanager
def _recording_failure(importer: str) -> Iterator[None]:
    """Record the missing module if an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name:
            failed_imports.setdefault(importer, set()).add(error.name)
        raise


def _record_missing(importer: str, items: Sequence[str], full: str) -> None:
    """Record the submodules that `from … import …` does not find."""
    module = sys.modules.get(full)
    if items and module is not None and not importer.startswith(_UNRECORDED):
        missing = {f"{full}.{item}" for item in items if not hasattr(module, item)}
        if missing:
            failed_imports.setdefault(importer, set()).update(missing)


def _on_behalf_of() -> str:
    """Return the module for which Python's library imports, as `pkgutil` does."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = module_of(frame.f_globals)
        if name and name != __name__ and not is_standard(name):
            return name
        frame = frame.f_back
    return ""


def read_sources_afresh() -> None:
    """Load no bytecode for files outside the installed packages from now on.

    Python takes bytecode as current if size and modification time in whole seconds match the
    source, so an edit within a second of an import would be missed.
    """
    # `get_code` catches NotImplementedError of `cache_from_source` and compiles the source.
    external: Any = importlib.machinery.SourceFileLoader.get_code.__globals__
    plain = external["cache_from_source"]

    def cache_from_source(path: Any, *arguments: Any, **options: Any) -> Any:
        if not is_installed(str(path)) and not is_pythons(str(path)):
            raise NotImplementedError
        return plain(path, *arguments, **options)

    external["cache_from_source"] = cache_from_source


def _absolute(name: str, globals: Any, level: int) -> str:
    if not level:
        return name
    package = globals.get("__package__") or module_of(globals).rpartition(".")[0]
    try:
        return importlib.util.resolve_name("." * level + name, package)
    except ImportError:
        return name


# ---- the sources of a compilation


def closure(entries: Iterable[str]) -> set[str]:
    """Return the names of the loaded modules that `entries` reach, including themselves."""
    reached: set[str] = set()
    pending = list(entries)
    while pending:
        name = pending.pop()
        module = _module(name)
        if name in reached or module is None:
            continue
        reached.add(name)
        parent = name.rpartition(".")[0]
        # A module may be registered under another name than its own.
        pending += filter(None, (parent, module_of(namespace_of(module))))
        if name.split(".")[0] not in COVERED and not is_standard(name):
            pending += edges.get(name, ())
    return reached


def _module(name: str) -> Any:
    """Return a module, or the object that user code put in its place; None if not loaded."""
    module = sys.modules.get(name)
    return loaded.get(name) if module is None else module


def _file(module: Any) -> str:
    """Return the file that a module was loaded from, "" if it has none or claims another."""
    file, spec = namespace_of(module).get("__file__"), namespace_of(module).get("__spec__")
    origin = spec.origin if is_located(spec) else file
    if not isinstance(file, str) or not isinstance(origin, str) or "\0" in file + origin:
        return ""
    if file == origin or (is_installed(file) and is_installed(origin)):
        return file
    return file if os.path.realpath(file) == os.path.realpath(origin) else ""


def sources(
    names: Iterable[str],
    base_dir: str,
    *,
    folders: Sequence[str] | None = None,
    by_path: Mapping[str, str] | None = None,
) -> Sources:
    """Split a closure into source files and installed packages.

    Args:
        names: names of the modules.
        base_dir: the spec's folder.
        folders: folders searched for modules first; the spec's folder by default.
        by_path: paths, relative to `base_dir`, of the modules that were loaded by path.
    """
    places = tuple(folders or (base_dir,))
    inputs = Sources(folders=places)
    reached = sorted(names)
    for name in reached:
        file = _file(_module(name))
        if is_standard(name) or name.split(".")[0] in COVERED or _is_own(name):
            continue
        if by_path and name in by_path:
            inputs.files[f"file:{by_path[name]}"] = Path(base_dir) / by_path[name]
        elif name.startswith(module_name("")):
            continue  # the entry of another variant
        elif file:
            _add(inputs, name, Path(file), base_dir, places)
        elif owner := _owner(name):
            inputs.packages.add(_package(owner))
        elif not _is_namespace(name):
            inputs.unknown.add(name)
    _add_reads(inputs, reached, base_dir)
    missing = {*_failed_imports(reached), *filter(_is_namespace, reached)}
    inputs.absent = {name for name in missing if locate_module(name, places) is None}
    inputs.hidden = hidden(places)
    return inputs


def _owner(name: str) -> str:
    """Return the installed parent module that created a module without a file, "" if none."""
    while name := name.rpartition(".")[0]:
        file = _file(_module(name))
        if file:
            return name if is_installed(file) else ""
    return ""


def _is_namespace(name: str) -> bool:
    """Tell whether a module is a namespace package, whose folder may get an `__init__.py`."""
    namespace = namespace_of(_module(name))
    return namespace.get("__file__") is None and bool(namespace.get("__path__"))


def _failed_imports(names: Iterable[str]) -> set[str]:
    """Return the modules that the user's own modules failed to import."""
    own = (name for name in names if not is_installed(_file(_module(name))))
    return {missing for name in own for missing in failed_imports.get(name, ())}


def _add_reads(inputs: Sources, names: Iterable[str], base_dir: str) -> None:
    read = reads.reads_of(names)
    inputs.unseen |= read.unseen
    sources = {os.path.realpath(path) for path in inputs.files.values()}
    covered = COVERED | {name.partition(".")[0] for name in inputs.packages}
    for (kind, path), seen in sorted(read.looks.items(), key=lambda item: item[0]):
        # A folder that was opened was walked or passed to fsync, not read.
        label_kind = reads.IS if (kind, seen) == (reads.FILE, "folder") else kind
        label = reads.label_of(label_kind, path, base_dir)
        if reads.package_in(label) in covered or is_pythons(os.path.join(path, "_")):
            continue
        if kind == reads.LINK and reads.contains_inputs(path, base_dir):
            continue  # the spec's folder may be moved
        real = os.path.realpath(path)
        if kind != reads.LINK and real in sources and reads.path_of(label, base_dir) == Path(real):
            continue
        inputs.opened[label] = Path(path)
        if reads.state(kind, path) != seen:
            inputs.altered.add(label)
    inputs.missed = _places(read.missed, base_dir)


def missed_by(entries: Iterable[str], base_dir: str, earlier: Iterable[str]) -> dict[str, str]:
    """Return what a compilation that failed requested and could not see, with places.

    Args:
        entries: the modules that the variant names; they may not be loaded, nor what they import.
        base_dir: the spec's folder.
        earlier: what had been requested before the compilation began.
    """
    names = [*entries]
    own = reads.reads_of({*names, *closure(names)}).missed
    late = {k: place for k, place in reads.missed_so_far().items() if k not in {*earlier}}
    return _places(late | own, base_dir)


def _places(missed: Mapping[str, str], base_dir: str) -> dict[str, str]:
    return {name: _line(place, base_dir) for name, place in missed.items()}


def _line(place: str, base_dir: str) -> str:
    """Return `file:line` with a path that does not reveal where the specs are."""
    file, colon, line = place.rpartition(":")
    return f"{reads.name_of(reads.label_of(reads.FILE, file, base_dir))}{colon}{line}"


def _add(inputs: Sources, name: str, file: Path, base_dir: str, folders: Sequence[str]) -> None:
    if is_installed(str(file)) and not name.startswith(_LIBRARY):
        inputs.packages.add(_package(name))
        return
    located = locate_module(name, folders)
    if located is not None and located.resolve() == file.resolve():
        inputs.files[f"module:{name}"] = file
    else:
        inputs.files[f"file:{os.path.relpath(file.resolve(), base_dir)}"] = file


def _package(name: str) -> str:
    """Return the outermost package of a module that is not a namespace package."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return next(p for p in prefixes if getattr(sys.modules.get(p), "__file__", None) or p == name)


def is_users(name: str) -> bool:
    """Tell whether a loaded module is the user's: not Python's, pallasc's or a package's."""
    installed = is_installed(_file(_module(name)))
    return not (installed or is_standard(name) or name.partition(".")[0] == "pallasc")


def _is_own(name: str) -> bool:
    """Tell whether a module is pallasc's: covered by its identity, or without effect."""
    return name.split(".")[0] == "pallasc" and not name.startswith(_LIBRARY)
