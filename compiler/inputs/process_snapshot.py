"""Detect, and partly undo, what the user's code changes in its process.

The process that imports kernels also computes digests, writes to the store and compiles further
variants. Replaced functions of Python and variables that the compiler reads are restored before
pallasc goes on; a process that was changed in any other way compiles nothing more.
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
        finders: finders and hooks of the import system.
        tainted: whether something had to be restored.
    """

    settings: dict[str, Any]
    variables: dict[str, str]
    folder: str
    functions: list[dict[str, Any]] = field(repr=False)
    recursion: int
    finders: list[Any]
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
            finders=[*sys.meta_path, *sys.path_hooks],
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
        return self.tainted or not (same_settings and same_variables) or self._has_users_finders()

    def _has_users_finders(self) -> bool:
        """Tell whether the user's code has added finders to the import system."""
        now: list[Any] = [*sys.meta_path, *sys.path_hooks]
        added = [finder for finder in now if finder not in self.finders]
        makers = [str(getattr(finder, "__module__", "")) for finder in added]
        return any(is_users(maker) for maker in makers)

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
