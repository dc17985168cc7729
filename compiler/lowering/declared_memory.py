"""Where the arrays and barriers of a kernel's shared memory are declared in the user's source.

The equation that allocates them (`run_scoped`) is often one of JAX's own: `plgpu.kernel` makes it
of `scratch_types`. So the call that makes each declaration, such as `plgpu.SMEM(…)`, is remembered,
and by it the type that the traced kernel has for it. What was declared before, when a module was
imported, has no place here.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from pallasc.compiler.lowering.diagnose import user_stack
from pallasc.compiler.lowering.patches import patched
from pallasc.errors import Location

_DECLARATIONS = ("GPUMemoryRef", "RefUnion", "Barrier", "ClusterBarrier")
_TO_CALLER = 2
"""Frames from a method that replaces another one to what calls it: its own and `patched`'s."""
_uses = itertools.count()
Stack = tuple[Location, ...]


class Declarations:
    """The user's frames that declared memory, the innermost first."""

    def __init__(self) -> None:
        # With the object itself, whose number would else be another one's later.
        self._stacks: dict[int, tuple[object, Stack]] = {}

    def add(self, declared: object, stack: Stack) -> None:
        """Remember where something was declared."""
        self._stacks[id(declared)] = declared, stack

    def stack(self, declared: object) -> Stack:
        """Return where a declaration, or a type made of it, was declared; () if not known."""
        return self._stacks.get(id(declared), (None, ()))[1]


@contextlib.contextmanager
def recorded_declarations() -> Iterator[Declarations]:
    """Record what is declared meanwhile. Functions that JAX has traced before are traced again."""
    from jax._src import config

    core: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    found = Declarations()
    with contextlib.ExitStack() as stack:
        # Part of the key of what was traced. It shortens names of files; this one matches none.
        setting = getattr(config, "hlo_source_file_canonicalization_regex", None)
        if setting is not None:
            stack.enter_context(setting(f"(?!){next(_uses)}"))
        for kind in filter(None, (getattr(core, name, None) for name in _DECLARATIONS)):
            methods = {
                "__init__": _remembering(kind.__init__, found),
                "get_ref_aval": _handing_on(kind.get_ref_aval, found),
            }
            own = {method: each for method, each in methods.items() if method in vars(kind)}
            stack.enter_context(patched(kind, own))
        yield found


def _remembering(init: Callable[..., None], found: Declarations) -> Callable[..., None]:
    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        walked = traceback.walk_stack(sys._getframe(_TO_CALLER))
        found.add(self, user_stack([(f.f_code.co_filename, line, 0) for f, line in walked]))

    return remembered


def _handing_on(get_type: Callable[[Any], Any], found: Declarations) -> Callable[[Any], Any]:
    def handed_on(self: Any) -> Any:
        made = get_type(self)
        # Transforms, as of a swizzle, lie around the type that is allocated.
        found.add(getattr(made, "ref", made), found.stack(self))
        return made

    return handed_on
