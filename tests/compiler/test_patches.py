"""Functions of a module, replaced for a while."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.compiler.lowering.jax_versions import patched


def _module() -> Any:
    return SimpleNamespace(name=lambda: "its own", other=lambda: "another")


def test_a_function_is_replaced_until_the_end() -> None:
    module = _module()
    own = module.name
    with patched(module, {"name": lambda: "mine"}):
        assert (module.name(), module.other()) == ("mine", "another")
        with patched(module, {"name": lambda: "inner"}):
            assert module.name() == "inner"
        assert module.name() == "mine"
    assert module.name is own


def test_it_comes_back_after_an_error() -> None:
    module = _module()
    own = module.name
    with pytest.raises(ValueError, match="half-way"), patched(module, {"name": str}):
        raise ValueError("half-way")
    assert module.name is own


def test_a_name_that_is_not_there_changes_nothing() -> None:
    module = _module()
    own = module.name
    with pytest.raises(AttributeError), patched(module, {"name": str, "missing": str}):
        pytest.fail("it was entered")
    assert module.name is own


def test_other_threads_call_the_modules_own() -> None:
    module = _module()
    said: list[str] = []
    with patched(module, {"name": lambda: "mine"}):
        other = threading.Thread(target=lambda: said.append(module.name()))
        other.start()
        other.join()
        assert module.name() == "mine"
    assert said == ["its own"]


def test_one_thread_at_a_time_replaces_anything() -> None:
    module = _module()
    own = module.name
    entered, leave = threading.Event(), threading.Event()
    said: list[str] = []

    def first() -> None:
        with patched(module, {"name": lambda: "first"}):
            entered.set()
            leave.wait(600)
            said.append(module.name())

    def second() -> None:
        with patched(module, {"name": lambda: "second"}):
            said.append(module.name())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(600)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(600)
    assert said == ["first", "second"]
    assert module.name is own
