"""Detect, and partly undo, what the user's code changes in its process.

The process that imports kernels also computes digests, writes to the store and compiles further
variants. Replaced functions of Python and variables that the compiler reads are restored before
pallasc goes on; a process that was changed in any other way compiles nothing more. The user's
modules are loaded again for each variant, so what one changes in them does not reach the next.
"""

from __future__ import annotations

import builtins
import decimal
import gc
import io
import locale
import logging
import os
import pickle
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ExtensionFileLoader
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from pallasc.compiler.inputs import imports, reads, recorders
from pallasc.compiler.inputs.imports import edges, failed_imports, loaded
from pallasc.compiler.inputs.isolation import enter, expose_variables, restore_path
from pallasc.compiler.toolchain.modules import (
    COVERED,
    is_installed,
    is_pythons,
    is_standard,
    module_of,
    namespace_of,
)
from pallasc.compiler.toolchain.setup import reaches_compiler
from pallasc.errors import SpecError
from pallasc.specs.garbage import collector_past

_OURS = (builtins, io, os, os.path)
"""Modules whose functions pallasc needs to compute digests and write to the store."""


@dataclass(slots=True)
class ProcessSnapshot:
    """What a process was like before it ran any of the user's code.

    Attributes:
        settings: JAX's settings, which affect the result.
        variables: environment variables.
        folder: current folder, which paths in the compiler's flags are relative to.
        functions: namespaces of the modules in `_OURS`.
        recursion: recursion limit.
        tainted: whether something had to be restored.
    """

    settings: dict[str, Any]
    variables: dict[str, str]
    folder: str
    functions: list[dict[str, Any]] = field(repr=False)
    recursion: int
    tainted: bool = False

    @classmethod
    def now(cls) -> ProcessSnapshot:
        """Return the current state of the process."""
        import jax

        return cls(
            settings=dict(jax.config.values),
            variables=dict(os.environ),
            folder=_current_folder(),
            functions=[vars(module).copy() for module in _OURS],
            recursion=sys.getrecursionlimit(),
        )

    def expose_variables(self, variables: Mapping[str, str | None]) -> None:
        """Set the variables that a spec declares."""
        expose_variables(variables)
        self.variables = dict(os.environ)

    @contextmanager
    def working_in(self, folder: str) -> Iterator[None]:
        """Run the user's code in the folder of its spec.

        Raises:
            SpecError: the folder cannot be entered.
        """
        if any(name.endswith("_FLAGS") for name in self.variables):
            read_flags()
        enter(folder)
        entered = _current_folder()
        try:
            yield
        finally:
            self.restore_functions()
            self.tainted = self.tainted or _current_folder() != entered
            with suppress(SpecError):  # the folder was removed
                enter(self.folder)

    def restore_functions(self) -> None:
        """Restore the functions that pallasc needs, and the recursion limit."""
        for module, before in zip(_OURS, self.functions, strict=True):
            namespace = vars(module)
            changed = [name for name, value in before.items() if namespace.get(name) is not value]
            namespace.update((name, before[name]) for name in changed)
            self.tainted = self.tainted or bool(changed)
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
            self.tainted = True

    def is_tainted(self) -> bool:
        """Tell whether the user's code has changed what affects later variants.

        Added settings do not count: importing JAX's test utilities defines flags, as JAX's own
        kernels do.
        """
        import jax

        now = jax.config.values
        same_settings = all(now.get(name) == value for name, value in self.settings.items())
        same_variables = dict(os.environ) == self.variables
        return self.tainted or not (same_settings and same_variables)

    def changed_settings(self) -> dict[str, str]:
        """Return the settings of JAX that the user's code has changed; some act after lowering.

        Added settings are left out: the module's source counts, and a variant's key must not depend
        on what was imported before.
        """
        import jax

        now, before = jax.config.values, self.settings
        return {f"setting {n}": repr(now.get(n)) for n in sorted(before) if now.get(n) != before[n]}

    def restore_variables(self) -> list[str]:
        """Restore the variables that the compiler reads; return the names of changed ones.

        XLA reads them once per process, so a change would affect only some variants, and the key
        has the values that the build was started with.
        """
        before = self.variables
        names = [n for n in {*before, *os.environ} if reaches_compiler(n)]
        changed = sorted(n for n in names if os.environ.get(n) != before.get(n))
        for name in changed:
            if name == "PATH":
                restore_path(before["PATH"])
            elif name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        return changed


def read_flags() -> None:
    """Make XLA parse `XLA_FLAGS` now: it may name a file relative to the current folder."""
    from jaxlib import xla_client

    xla_client.CompileOptions()


def _current_folder() -> str:
    try:
        return os.path.realpath(".")
    except OSError:
        return ""  # the folder was removed


# ---- state that variants share

_LIBRARY = "pallasc.specs.library."
_NAMES, _OBJECT, _CONTAINER = "names", "object", "container"
_CONTAINERS = (dict, list, set)
_NESTED = 3
"""How deep containers in containers are compared."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), *_CONTAINERS)
_BATCH = 64
"""Number of places that one comparison covers; comparing in batches is faster."""
_DIALECTS = "jaxlib.mlir."
"""Modules of which only the namespaces are compared."""
_UNCHANGED = ("pallasc.", _DIALECTS, "google.", "llvmlite.")
"""Modules of pallasc, and of its tools and JAX's, that are not compared; the library is."""
_MOSAIC = "jax.experimental.mosaic."
"""Modules that kernels do not call."""
_WRAPPERS = ("jaxlib", "functools")
"""Modules whose objects are functions that are implemented in C."""
_IMMUTABLE_CLASS = 1 << 8
_ABSENT = object()


class SharedState:
    """The modules that all variants of a process share; the others are loaded again for each.

    Shared are the modules of Python, of JAX, and of the packages that were imported before any of
    the user's code. `reset` compares settings, namespaces, and containers; except in Python's
    library and numpy also attributes of objects and classes; and parts of JAX's public functions.
    JAX fills caches while it compiles, which do not count.

    Not compared: state inside extension modules, and caches that Python cannot look into, such as
    `functools.lru_cache`. Modules of Python and JAX stay imported. `--reproduce` finds the rest.
    """

    def __init__(self) -> None:
        self._packages = frozenset(name.partition(".")[0] for name in sys.modules) | COVERED
        self._modules: dict[str, Any] = {}
        self._count = 0
        self._places: list[tuple[str, str]] = []
        self._live: list[Any] = []
        self._before: list[Any] = []
        self._functions: list[FunctionType] = []
        self._parts: list[Any] = []
        self._seen = {id(sys.modules)}
        self._records: list[dict[str, Any]] = [{} for _ in _records()]
        self._unloaded: set[str] = set()
        self._path = sys.path, [*sys.path]
        with collector_past():
            self._add_modules([*sys.modules])
        self._settings = _settings()
        imports.after_import.append(self._imported)

    # ---- adding shared modules

    def _imported(self, importer: str) -> None:
        """Take in modules that the user's code has just imported, before it can change them."""
        if len(sys.modules) != self._count and not self._is_shared(importer):
            self._add_modules(self._new_modules())

    def _new_modules(self) -> list[str]:
        names = [name for name in sys.modules if name not in self._modules]
        return [name for name in names if self._is_shared(name)]

    def _add_modules(self, names: Iterable[str]) -> None:
        for name in names:
            self._modules[name] = sys.modules[name]
            if name.startswith(_LIBRARY) or not name.startswith(_UNCHANGED):
                self._add_module(name, namespace_of(sys.modules[name]))
            elif name.startswith(_DIALECTS):
                self._add(_NAMES, name, namespace_of(sys.modules[name]))
        for kept, now in zip(self._records, _records(), strict=True):
            kept.update((name, _copied(now[name])) for name in names if name in now)
        self._count = len(sys.modules)

    def _is_shared(self, name: str) -> bool:
        package = name.partition(".")[0]
        if name in self._modules:
            return True
        if package in COVERED:  # unless the user has made up a module of that name
            return namespace_of(sys.modules.get(name)).get("__spec__") is not None
        if not (package in self._packages or is_standard(name)):
            return False
        file = namespace_of(sys.modules.get(name)).get("__file__")
        outside = isinstance(file, str) and not (is_installed(file) or is_pythons(file))
        return package == "pallasc" or not outside

    def _add_module(self, name: str, namespace: Mapping[str, Any]) -> None:
        self._add(_NAMES, name, namespace)
        compares_functions = name.partition(".")[0] == "jax" and not (
            _is_private(name) or name.startswith(_MOSAIC)
        )
        goes_deeper = not (is_standard(name) or name.startswith("numpy"))
        for attribute, value in list(namespace.items()):
            kind = type(value)
            if kind is FunctionType:
                if compares_functions and id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._functions.append(value)
                    self._parts.append(_function_parts(value))
            elif attribute.startswith("__") or isinstance(value, ModuleType):
                continue
            elif kind in _CONTAINERS:
                self._add_container(f"{name}.{attribute}", value, _NESTED)
            elif not goes_deeper:
                continue
            elif isinstance(value, type):
                if value.__module__ == name and not value.__flags__ & _IMMUTABLE_CLASS:
                    self._add(_NAMES, f"{name}.{attribute}", vars(value))
            elif kind.__module__.startswith(_WRAPPERS):
                continue
            elif kind.__dictoffset__ and (has := namespace_of(value)):
                self._add(_OBJECT, f"{name}.{attribute}", has)

    def _add_container(self, place: str, container: Any, depth: int) -> None:
        self._add(_CONTAINER, place, container)
        if depth > 1 and type(container) is not set:
            for item in [*(container.values() if type(container) is dict else container)]:
                if type(item) in _CONTAINERS:
                    self._add_container(place, item, depth - 1)

    def _add(self, kind: str, place: str, live: Any) -> None:
        if id(live) in self._seen:
            return
        if type(live) is not MappingProxyType:  # which exists only while it is looked at
            self._seen.add(id(live))
        self._places.append((kind, place))
        self._live.append(live)
        self._before.append(_copied(live))

    # ---- after a variant

    def reset(self) -> str:
        """Remove the user's modules, and name something else that the last variant has changed.

        Returns:
            "" if nothing has changed; otherwise the process must not compile another variant.
        """
        sys.path, entries = self._path
        sys.path[:] = entries  # to which pallasc itself adds the folders of entries
        changed = self._first_change()
        for name in [n for n in {**loaded, **sys.modules} if not self._is_shared(n)]:
            if name in sys.modules:
                self._unloaded.add(name)
            changed = self._unload(name) or changed
        for kept, now in zip(self._records, _records(), strict=True):
            now.clear()
            now.update((name, _copied(value)) for name, value in kept.items())
        recorders.forget_written()
        self._add_modules(self._new_modules())
        return changed

    def was_unloaded(self, error: BaseException | None) -> bool:
        """Return True if an error came from a module that an earlier variant had loaded."""
        while error is not None:
            trace = error.__traceback__
            while trace is not None:
                if module_of(trace.tb_frame.f_globals) in self._unloaded:
                    return True
                trace = trace.tb_next
            error = error.__cause__
        return False

    def _unload(self, name: str) -> str:
        """Remove a module; return its name if it is an extension module, which stays loaded."""
        module = sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        around = vars(self._modules[parent]) if parent in self._modules else {}
        if module is not None and around.get(child) is module:
            del around[child]
        spec = namespace_of(module).get("__spec__")
        return name if isinstance(getattr(spec, "loader", None), ExtensionFileLoader) else ""

    def _first_change(self) -> str:
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return f"sys.modules[{name!r}]"
        now = _settings()
        for name, value in self._settings.items():
            if now.get(name) != value:
                return name
        if not _are_equal([*map(_function_parts, self._functions)], self._parts):
            return "a function"
        for start in range(0, len(self._places), _BATCH):
            part = slice(start, start + _BATCH)
            if _are_equal(self._live[part], self._before[part]):
                continue
            if change := self._change_among(range(len(self._places))[part]):
                return change
        return ""

    def _change_among(self, numbers: Iterable[int]) -> str:
        for number in numbers:
            live, before = self._live[number], self._before[number]
            if not _are_equal(live, before):
                if change := self._change(*self._places[number], live, before):
                    return change
                self._before[number] = _copied(live)
        return ""

    def _change(self, kind: str, place: str, live: Any, before: Any) -> str:
        """Return the part that has changed, "" if JAX or Python only filled a cache."""
        if isinstance(before, list | set):
            added = [item for item in live if not any(item is each for each in before)]
            kept = [item for item in live if any(item is each for each in before)]
            same = len(kept) == len(before) and (isinstance(before, set) or kept == before)
            is_cache = same and _is_private(place) and not any(map(self._is_users, added))
            return "" if is_cache else place
        for name in {**before, **live}:
            old, new = before.get(name, _ABSENT), live.get(name, _ABSENT)
            if old is not new and not self._is_cache(kind, place, name, old, new):
                return f"{place}.{name}" if isinstance(name, str) else place
        return ""

    def _is_cache(self, kind: str, place: str, name: object, old: Any, new: Any) -> bool:
        """Return True if JAX or Python changes such an entry while they compile."""
        if kind == _CONTAINER and self._is_users(name):
            return True  # its module is gone: no other variant can look it up
        if self._is_users(new):
            return False
        if kind == _CONTAINER and _is_private(place):
            return old is _ABSENT or new is _ABSENT
        if kind == _CONTAINER:
            return old is _ABSENT and not (isinstance(name, str) and isinstance(new, _PLAIN))
        if old is _ABSENT and (kind == _OBJECT or str(name).startswith("__")):
            return True  # as the registry of warnings that were shown
        if old is _ABSENT:
            return isinstance(new, ModuleType) and new.__name__.endswith(f".{name}")
        return (old is None or old is False) and new is not _ABSENT and _is_private(place)

    def _is_users(self, value: Any) -> bool:
        if isinstance(value, tuple):
            return any(map(self._is_users, value))
        value = getattr(value, "func", value) if isinstance(value, partial) else value
        of = value if isinstance(value, type | FunctionType) else type(value)
        owner = of.__module__
        is_loaded = isinstance(owner, str) and (owner in sys.modules or owner in loaded)
        return is_loaded and not self._is_shared(owner)


def _function_parts(function: FunctionType) -> tuple[Any, ...]:
    keywords = function.__kwdefaults__
    return function.__code__, function.__defaults__, keywords and {**keywords}


def _records() -> list[dict[str, Any]]:
    """Return the records of imports and reads, by module."""
    return [edges, failed_imports, loaded, reads.by_module]


def _copied(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    return copy(value) if isinstance(value, (*_CONTAINERS, reads.Reads)) else value


def _are_equal(live: Any, before: Any) -> bool:
    try:
        return bool(live == before)
    except Exception:  # noqa: BLE001 - arrays and objects of the user's compare as they like
        return False


def _is_private(place: str) -> bool:
    """Return True for a private name, and for all names of Python's library."""
    return is_standard(place) or any(part.startswith("_") for part in place.split("."))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _settings() -> dict[str, object]:
    """Return the settings of Python, numpy and JAX that no namespace shows."""
    import numpy as np
    from jax._src import config

    known = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [logger for logger in known if isinstance(logger, logging.Logger)]
    return {
        "warnings": [*warnings.filters],
        "numpy": (np.geterr(), np.geterrcall(), np.get_printoptions()),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),
        "random": random.getstate(),
        # Modules of JAX and Python add names when they are imported.
        **dict(zip(config.trace_context_names(), config.trace_context(), strict=True)),
        **{f"logger {each.name}": (each.level, each.disabled) for each in loggers},
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal": str(decimal.getcontext()),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "traces": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "threads": threading.active_count(),
        "digits": sys.get_int_max_str_digits(),
        "switching": sys.getswitchinterval(),
        "umask": _umask(),
        "arguments": [*sys.argv],
    }
