"""Functions of other modules, replaced for a while and for this thread alone.

JAX has no switch for some of what compiling ahead of time needs. One thread at a time may replace
functions; the others, which may compute with JAX meanwhile, still call the original ones.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def patched(module: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions of a module by name while the context lasts.

    Raises:
        AttributeError: the module has no function of a name.
    """
    with _ONE_AT_A_TIME:
        before = {name: getattr(module, name) for name in functions}
        for name, function in functions.items():
            setattr(module, name, _here(function, before[name]))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(module, name, function)


def _here(function: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.get_ident()

    @functools.wraps(elsewhere)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = function if threading.get_ident() == thread else elsewhere
        return chosen(*args, **kwargs)

    return call
