"""Record in compiling processes which module imports which, and which imports fail.

Every executed `import` is an edge from the importing module to the imported one, even if that was
loaded before, so what an entry reaches does not depend on what the process compiled earlier. The
user's sources are never loaded from bytecode.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from pallasc.compiler.inputs.attribution import record_untracked
from pallasc.compiler.inputs.closure import edges, failed_imports, loaded
from pallasc.compiler.inputs.recorders import record_reads
from pallasc.compiler.toolchain.modules import is_installed, is_pythons, is_standard, module_of

_UNRECORDED = (
    "jax.", "jaxlib.", "numpy.", "importlib.", "pallasc.compiler.", "pallasc.specs.loading.modules",
)  # fmt: skip

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
