"""Functions of other modules, replaced for a while and in this thread alone.

JAX has no switch for some of what compiling ahead of time needs. One thread at a time replaces
anything; for the others, who may compute with JAX meanwhile, all stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def replaced(module: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Put these functions in the place of a module's own, by name.

    Raises:
        AttributeError: the module has none of such a name.
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
