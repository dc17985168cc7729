"""What the user's code changes of the process that it runs in, and which part of that is undone.

Kernels are imported into a process that compiles others afterwards, takes digests and writes to the
store. Functions of Python that user code has replaced are put back before pallasc goes on, and
variables that the compiler reads; a process that is not what it was compiles nothing more.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pallasc.compiler.inputs.closure import is_users
from pallasc.compiler.inputs.isolation import enter, expose_variables, restore_path
from pallasc.compiler.toolchain.environment import reaches_compiler
from pallasc.errors import SpecError

_OURS = (builtins, io, os, os.path)
"""Modules whose functions taking digests and writing to the store needs."""


@dataclass(slots=True)
class ProcessState:
    """What a process was like before it ran any of the user's code.

    Attributes:
        settings: JAX's, which change what is compiled.
        variables: the environment.
        folder: the current one, which paths in the compiler's flags are relative to.
        functions: what the modules of Python that pallasc needs most had in them.
        recursion: how deep calls may go.
        finders: what finds modules.
        tainted: whether something was put back.
    """

    settings: dict[str, Any]
    variables: dict[str, str]
    folder: str
    functions: list[dict[str, Any]] = field(repr=False)
    recursion: int
    finders: list[Any]
    tainted: bool = False

    @classmethod
    def now(cls) -> ProcessState:
        """Return what the process is like now."""
        import jax

        return cls(
            settings=dict(jax.config.values),
            variables=dict(os.environ),
            folder=_current_folder(),
            functions=[vars(module).copy() for module in _OURS],
            recursion=sys.getrecursionlimit(),
            finders=[*sys.meta_path, *sys.path_hooks],
        )

    def expose_variables(self, variables: Mapping[str, str | None]) -> None:
        """Give the process the variables that a spec declares."""
        expose_variables(variables)
        self.variables = dict(os.environ)

    @contextmanager
    def working_in(self, folder: str) -> Iterator[None]:
        """Have the user's code work in the folder of its spec.

        Raises:
            SpecError: the folder cannot be entered.
        """
        if any(name.endswith("_FLAGS") for name in self.variables):
            read_flags()
        enter(folder)
        try:
            yield
        finally:
            self.restore_functions()
            self.tainted = self.tainted or _current_folder() != os.path.realpath(folder)
            with suppress(SpecError):  # it was removed meanwhile
                enter(self.folder)

    def restore_functions(self) -> None:
        """Undo what the user's code did to functions that pallasc needs."""
        for module, before in zip(_OURS, self.functions, strict=True):
            has = vars(module)
            changed = [name for name, value in before.items() if has.get(name) is not value]
            has.update((name, before[name]) for name in changed)
            self.tainted = self.tainted or bool(changed)
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
            self.tainted = True

    def is_tainted(self) -> bool:
        """Tell whether the user's code has changed what later variants would be compiled with.

        A setting that a module has only added when it was imported, as JAX's own kernels do through
        its test flags, changes nothing for others.
        """
        import jax

        now = jax.config.values
        kept = all(now.get(name) == value for name, value in self.settings.items())
        same = dict(os.environ) == self.variables
        return self.tainted or not (kept and same) or self._has_finders()

    def _has_finders(self) -> bool:
        """Tell whether modules are found in a way that is neither Python's nor a package's."""
        now: list[Any] = [*sys.meta_path, *sys.path_hooks]
        added = [finder for finder in now if finder not in self.finders]
        makers = [str(getattr(finder, "__module__", "")) for finder in added]
        return any(is_users(maker) for maker in makers)

    def changed_settings(self) -> dict[str, str]:
        """Return what the user's code has changed of JAX's settings; some act after lowering.

        Settings that a module has added count by its source, so that the key of a variant is the
        same whatever was imported before.
        """
        import jax

        now, before = jax.config.values, self.settings
        return {f"setting {n}": repr(now.get(n)) for n in sorted(before) if now.get(n) != before[n]}

    def restore_variables(self) -> list[str]:
        """Undo what the user's code did to variables that the compiler reads; return their names.

        XLA reads them once a process, so they would have an effect on some variants only, and the
        key has the values that the build was started with.
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
    """Have XLA read its flags, which may be the name of a file in the current folder."""
    from jaxlib import xla_client

    xla_client.CompileOptions()


def _current_folder() -> str:
    try:
        return os.path.realpath(".")
    except OSError:
        return ""  # it was removed
