"""Attributes that are computed on first access and cached.

In Python 3.11, `functools.cached_property` holds one lock for all instances while it computes. A
fork while another thread computes would deadlock the child.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):
    """A property whose value is cached on the object; two threads may both compute it.

    Args:
        func: computes the value from the object.
    """

    def __init__(self, func: Callable[[Any], _Value]) -> None:
        self.func = func
        self.__doc__ = func.__doc__
        self._name = func.__name__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[_Value] | _Value:
        if instance is None:
            return self
        # setdefault: all threads get the first value, even if several computed one.
        value: _Value = vars(instance).setdefault(self._name, self.func(instance))
        return value
