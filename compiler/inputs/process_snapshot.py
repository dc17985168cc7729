"""Detect, and partly undo, changes that user code makes to its process.

The process that imports kernels also computes digests, writes to the store, and compiles more
variants. Before pallasc continues, it restores the functions of Python that it needs, and the
environment variables that the compiler reads. A process in which such a function was replaced, or
other shared state was changed, compiles no other variant. The user's modules are loaded again for
each variant, so changes inside them do not reach the next variant.
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
from functools import partial
from importlib.machinery import ExtensionFileLoader
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from msgspec import Struct

from pallasc.compiler.inputs import recorders
from pallasc.compiler.inputs.recorders import LIBRARY, ModuleRecord, enter, loaded, restore_path
from pallasc.compiler.toolchain import modules
from pallasc.compiler.toolchain.modules import is_installed, is_pythons, is_standard, namespace_of
from pallasc.compiler.toolchain.setup import reaches_compiler
from pallasc.errors import SpecError

_OURS = (builtins, io, os, os.path)
"""Modules whose functions pallasc needs to compute digests and write to the store."""


@contextmanager
def collector_past() -> Iterator[None]:
    """Create objects that the cyclic garbage collector never traverses.

    The collector is disabled in the context; at the end, all existing objects are exempt from it
    forever. The code inside must create no cyclic garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()  # moves all objects to a generation that is never collected
    finally:
        if was_enabled:
            gc.enable()


class ProcessSnapshot:
    """The state of this process before it ran any user code."""

    def __init__(self) -> None:
        self._settings = _jax_settings()
        self._variables = dict(os.environ)
        self._folder = _current_folder()
        self._functions = [vars(module).copy() for module in _OURS]
        self._recursion = sys.getrecursionlimit()
        self._tainted = False  # something had to be restored

    def expose_variables(self, variables: Mapping[str, str | None]) -> None:
        """Set the variables that a spec declares."""
        recorders.expose_variables(variables)
        self._variables = dict(os.environ)

    @contextmanager
    def working_in(self, folder: str) -> Iterator[None]:
        """Run the user's code in the folder of its spec.

        Raises:
            SpecError: the folder cannot be entered.
        """
        read_flags(self._variables)
        enter(folder)
        try:
            yield
        finally:
            self.restore_functions()
            with suppress(SpecError):  # the folder was removed
                enter(self._folder)

    def restore_functions(self) -> None:
        """Restore the functions that pallasc needs, and the recursion limit."""
        for module, before in zip(_OURS, self._functions, strict=True):
            namespace = vars(module)
            changed = [name for name, value in before.items() if namespace.get(name) is not value]
            namespace.update((name, before[name]) for name in changed)
            self._tainted = self._tainted or bool(changed)
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
            self._tainted = True

    def is_tainted(self) -> bool:
        """Return True if user code has changed something that affects later variants."""
        same_variables = dict(os.environ) == self._variables
        return self._tainted or not same_variables or bool(self.changed_settings())

    def changed_settings(self) -> dict[str, str]:
        """Return the JAX settings that user code has changed.

        Action keys contain these settings, because some take effect only after lowering.

        New settings do not count: some of JAX's kernels import test utilities that define flags,
        and a variant's key must not depend on earlier imports.
        """
        now, before = _jax_settings(), self._settings
        changed = [name for name in sorted(before) if now.get(name) != before[name]]
        return {f"setting {name}": repr(now.get(name)) for name in changed}

    def restore_variables(self) -> list[str]:
        """Restore the variables that the compiler reads; return the names of changed ones.

        XLA reads them once per process, so a change would affect only some variants, and the key
        contains the values from the start of the build.
        """
        before = self._variables
        names = [n for n in {*before, *os.environ} if reaches_compiler(n)]
        changed = sorted(n for n in names if os.environ.get(n) != before.get(n))
        recorders.set_variables({name: before.get(name) for name in changed})
        if "PATH" in changed:
            restore_path(before["PATH"])
        return changed


def read_flags(variables: Iterable[str]) -> None:
    """Make XLA parse `XLA_FLAGS` now, if set: it may name a file relative to the current folder."""
    if any(name.endswith("_FLAGS") for name in variables):
        from jaxlib import xla_client

        xla_client.CompileOptions()


def _jax_settings() -> dict[str, Any]:
    import jax

    return dict(jax.config.values)


def _current_folder() -> str:
    try:
        return os.path.realpath(".")
    except OSError:
        return ""  # the folder was removed


# ---- state that variants share

_NAMES, _OBJECT, _CONTAINER, _FUNCTION, _WORDS = "names", "object", "container", "function", "words"
_GROUP = 256
"""Number of objects whose references are compared at once."""
_CONTAINERS = (dict, list, set)
_NESTED = 3
"""Maximum nesting depth of compared containers."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), *_CONTAINERS)
_DIALECTS = "jaxlib.mlir."
"""Modules of which only the namespaces are compared."""
_UNCHANGED = ("pallasc.", _DIALECTS, "google.", "llvmlite.")
"""Modules of pallasc (except its library) and of tools, which are not compared."""
_CALLABLES = (FunctionType, classmethod, staticmethod, property)
_WRAPPERS = ("jaxlib", "functools")
"""Modules whose objects are functions implemented in C."""
_IMMUTABLE_CLASS = 1 << 8
_ABSENT = object()


class _Kept(Struct, gc=False):
    """An object that variants share, and its original state.

    Attributes:
        kind: `_NAMES`: the namespace of a module or class; `_OBJECT`: the attributes of an object;
            `_CONTAINER`; `_FUNCTION`; `_WORDS`: the defaults of a function's keywords.
        place: the object's name, or the name of the container around it.
        live: the object itself.
        before: a copy, made before any user code ran.
    """

    kind: str
    place: str
    live: Any
    before: Any


class _Group:
    """Objects that are compared at once, by their references, which is faster than one by one."""

    def __init__(self, kept: list[_Kept]) -> None:
        self.kept = kept
        self._live = [each.live for each in kept]
        self._dicts = [each for each in self._live if type(each) is dict]
        self.note()

    def note(self) -> None:
        """Note the current references."""
        self._references, self._keys = self._find_references()

    def is_same(self) -> bool:
        """Return True if the references have not changed since `note`."""
        return _is_equal(self._find_references(), (self._references, self._keys))

    def _find_references(self) -> tuple[list[Any], list[Any]]:
        # The collector leaves out the keys of a dict if all of them are text. A new key is the
        # last one of its dict, so comparing the last keys finds it.
        return gc.get_referents(*self._live), [next(reversed(each), None) for each in self._dicts]


class SharedState:
    """The modules that all variants of a process share; others are loaded again for each variant.

    Shared modules are the modules of Python, of JAX, and of packages that were imported before any
    user code. `reset` compares settings, namespaces, containers, and class attributes. Outside
    Python's library and numpy, it also compares the attributes of objects, and parts of public
    functions and methods. Caches that JAX fills while it compiles do not count.

    To compare thousands of objects takes long, so `reset` first compares the references that groups
    of objects hold.

    Not compared: state inside extension modules, and caches that Python cannot inspect, such as
    `functools.lru_cache`. `--reproduce` finds kernels that depend on such state.
    """

    def __init__(self) -> None:
        self._packages = frozenset(name.partition(".")[0] for name in sys.modules) | modules.COVERED
        self._modules: dict[str, Any] = {}
        self._count = 0
        self._new: list[_Kept] = []
        """Objects that are in no group yet."""
        self._groups: list[_Group] = []
        self._seen = {id(sys.modules)}
        self._records: dict[str, ModuleRecord] = {}
        self._loaded: dict[str, ModuleType] = {}
        self._unloaded: set[str] = set()
        self._path = sys.path, [*sys.path]
        with collector_past():
            self._add_modules([*sys.modules])
        self._settings = _settings()
        recorders.after_import.append(self._imported)

    # ---- adding shared modules

    def add_new(self) -> None:
        """Add the shared modules that were imported since the last call."""
        names = [name for name in sys.modules if name not in self._modules]
        self._add_modules([name for name in names if self._is_shared(name)])

    def _imported(self, importer: str) -> None:
        """Add modules that user code has just imported, before it can change them."""
        if len(sys.modules) != self._count and not self._is_shared(importer):
            self.add_new()

    def _add_modules(self, names: Iterable[str]) -> None:
        for name in names:
            self._modules[name] = sys.modules[name]
            # `pallasc` itself sets its names when they are first used.
            if name.startswith(f"{LIBRARY}.") or not f"{name}.".startswith(_UNCHANGED):
                self._add_module(name, namespace_of(sys.modules[name]))
            elif name.startswith(_DIALECTS):
                self._add(_NAMES, name, namespace_of(sys.modules[name]))
            if name in recorders.records:
                self._records[name] = recorders.records[name].copy()
            if name in loaded:
                self._loaded[name] = loaded[name]
        self._count = len(sys.modules)
        new, self._new = self._new, []
        self._groups += [_Group(new[i : i + _GROUP]) for i in range(0, len(new), _GROUP)]

    def _is_shared(self, name: str) -> bool:
        package = name.partition(".")[0]
        if name in self._modules:
            return True
        if package in modules.COVERED:  # but user code may create a module of that name
            return namespace_of(sys.modules.get(name)).get("__spec__") is not None
        if not (package in self._packages or is_standard(name)):
            return False
        file = namespace_of(sys.modules.get(name)).get("__file__")
        outside = isinstance(file, str) and not (is_installed(file) or is_pythons(file))
        return package == "pallasc" or not outside

    def _add_module(self, name: str, namespace: Mapping[str, Any]) -> None:
        self._add(_NAMES, name, namespace)
        is_public = not _is_private(name)
        goes_deeper = not (is_standard(name) or name.startswith("numpy"))
        for attribute, value in list(namespace.items()):
            kind, place = type(value), f"{name}.{attribute}"
            if functions := _functions_in(value):
                if goes_deeper and is_public:
                    self._add_functions(place, functions)
            elif attribute.startswith("__") or isinstance(value, ModuleType):
                continue
            elif kind in _CONTAINERS:
                self._add_container(place, value, _NESTED)
            elif isinstance(value, type):
                if value.__module__ == name and not value.__flags__ & _IMMUTABLE_CLASS:
                    self._add(_NAMES, place, vars(value))
                    for method, held in vars(value).items() if goes_deeper else ():
                        self._add_functions(f"{place}.{method}", _functions_in(held))
            elif not goes_deeper or kind.__module__.startswith(_WRAPPERS):
                continue
            elif kind.__dictoffset__ and (has := namespace_of(value)):
                self._add(_OBJECT, place, has)

    def _add_functions(self, place: str, functions: Iterable[FunctionType]) -> None:
        for function in functions:
            if id(function) not in self._seen:
                self._add(_FUNCTION, place, function)
                if function.__kwdefaults__:
                    self._add(_WORDS, place, function.__kwdefaults__)

    def _add_container(self, place: str, container: Any, depth: int) -> None:
        self._add(_CONTAINER, place, container)
        if depth > 1 and type(container) is not set:
            for item in [*(container.values() if type(container) is dict else container)]:
                if type(item) in _CONTAINERS:
                    self._add_container(place, item, depth - 1)

    def _add(self, kind: str, place: str, live: Any) -> None:
        if type(live) is MappingProxyType:
            (live,) = gc.get_referents(live)  # the namespace of a class
        if id(live) not in self._seen:
            self._seen.add(id(live))
            self._new.append(_Kept(kind, place, live, _copy(live)))

    # ---- after a variant

    def reset(self) -> str:
        """Remove the user's modules, and name any other state that the last variant changed.

        Returns:
            "" if nothing has changed; otherwise the process must not compile another variant.
        """
        sys.path, entries = self._path
        sys.path[:] = entries  # pallasc adds folders of entry points to it
        changed = self._first_change()
        for name in [n for n in {**loaded, **sys.modules} if not self._is_shared(n)]:
            if name in sys.modules:
                self._unloaded.add(name)
            changed = self._unload(name) or changed
        recorders.records.clear()
        recorders.records.update((name, record.copy()) for name, record in self._records.items())
        loaded.clear()
        loaded.update(self._loaded)
        recorders.forget_written()
        self.add_new()
        return changed

    def was_unloaded(self, error: BaseException | None) -> bool:
        """Return True if an error came from a module that an earlier variant had loaded."""
        while error is not None:
            trace = error.__traceback__
            while trace is not None:
                if modules.module_of(trace.tb_frame.f_globals) in self._unloaded:
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
        for group in self._groups:
            if group.is_same():
                continue
            for kept in group.kept:
                if _is_same(kept):
                    continue
                if change := self._change(kept):
                    return change
                kept.before = _copy(kept.live)
            group.note()
        return ""

    def _change(self, kept: _Kept) -> str:
        """Return the part that has changed, "" if JAX or Python only filled a cache."""
        place, live, before = kept.place, kept.live, kept.before
        if kept.kind in (_FUNCTION, _WORDS):
            return place
        if isinstance(before, list | set):
            added = [item for item in live if not any(item is each for each in before)]
            stayed = [item for item in live if any(item is each for each in before)]
            same = len(stayed) == len(before) and (isinstance(before, set) or stayed == before)
            is_cache = same and _is_private(place) and not any(map(self._is_users, added))
            return "" if is_cache else place
        for name in {**before, **live}:
            old, new = before.get(name, _ABSENT), live.get(name, _ABSENT)
            if old is not new and not self._is_cache(kept.kind, place, name, old, new):
                return f"{place}.{name}" if isinstance(name, str) else place
        return ""

    def _is_cache(self, kind: str, place: str, name: object, old: Any, new: Any) -> bool:
        """Return True for a change of an entry that JAX or Python itself makes while compiling."""
        if kind == _CONTAINER and self._is_users(name):
            return True  # the key is from a module that is unloaded, so no later variant has it
        if self._is_users(new):
            return False
        if kind == _CONTAINER and _is_private(place):
            return old is _ABSENT or new is _ABSENT
        if kind == _CONTAINER:
            return old is _ABSENT and not (isinstance(name, str) and isinstance(new, _PLAIN))
        if old is _ABSENT and (kind == _OBJECT or str(name).startswith("__")):
            return True  # such as `__warningregistry__`
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


def _copy(live: Any) -> Any:
    if type(live) is FunctionType:
        return live.__code__, live.__defaults__, live.__kwdefaults__
    return copy(live)


def _functions_in(value: Any) -> list[FunctionType]:
    """Return the functions in a value: itself, or those wrapped by methods and by `jax.jit`."""
    found: list[FunctionType] = []
    while type(value) in _CALLABLES or str(type(value).__module__).startswith(_WRAPPERS):
        if type(value) is FunctionType:
            found.append(value)
        value = value.fget if type(value) is property else getattr(value, "__wrapped__", None)
    return found


def _is_same(kept: _Kept) -> bool:
    now = _copy(kept.live) if kept.kind == _FUNCTION else kept.live
    return _is_equal(now, kept.before)


def _is_equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except Exception:  # noqa: BLE001 - `==` of arrays and users' objects may do anything
        return False


def _is_private(place: str) -> bool:
    """Return True for a private name, and for all names of Python's library."""
    return is_standard(place) or any(part.startswith("_") for part in place.split("."))


def _settings() -> dict[str, object]:
    """Return the settings of Python, numpy, and JAX that are not in any namespace."""
    import numpy as np
    from jax._src import config

    known = [logging.root, *logging.root.manager.loggerDict.values()]
    umask = os.umask(0o077)
    os.umask(umask)
    loggers = [logger for logger in known if isinstance(logger, logging.Logger)]
    return {
        "warnings": [*warnings.filters],
        "numpy": (np.geterr(), np.geterrcall(), np.getbufsize(), np.get_printoptions()),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),
        "random": random.getstate(),
        # Imports add names to this dict; only the earlier names are compared.
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
        "umask": umask,
        "arguments": [*sys.argv],
    }
