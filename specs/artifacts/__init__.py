"""The result of a compilation: cubins, launch plans, and the record that names them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:
        """A property whose value is cached on the object; two threads may both compute it.

        In Python 3.11, `functools.cached_property` holds one lock for all instances while it
        computes. A fork while another thread computes would deadlock the child.

        Args:
            func: computes the value from the object.
        """

        def __init__(self, func: Callable[[Any], Any]) -> None:
            self.func = func
            self.__doc__ = func.__doc__

        def __get__(self, instance: object | None, owner: type) -> Any:
            if instance is None:
                return self
            # setdefault: all threads get the first value, even if several computed one.
            return vars(instance).setdefault(self.func.__name__, self.func(instance))
