"""Functions of a module, replaced for a while."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.compiler.lowering.jax_versions import patched


@pytest.fixture
def module() -> Any:
    return SimpleNamespace(name=lambda: "its own", other=lambda: "another")


def test_a_function_is_replaced_in_this_thread_until_the_end(module: Any) -> None:
    own, said = module.name, []
    with patched(module, {"name": lambda: "mine"}):
        assert (module.name(), module.other()) == ("mine", "another")
        other = threading.Thread(target=lambda: said.append(module.name()))
        other.start()
        other.join()
        with patched(module, {"name": lambda: "inner"}):
            assert module.name() == "inner"
        assert module.name() == "mine"
    assert module.name is own
    assert said == ["its own"]


def test_it_comes_back_after_an_error_and_a_missing_name_changes_nothing(module: Any) -> None:
    own = module.name
    with pytest.raises(ValueError, match="half-way"), patched(module, {"name": str}):
        raise ValueError("half-way")
    with pytest.raises(AttributeError), patched(module, {"name": str, "missing": str}):
        pytest.fail("it was entered")
    assert module.name is own


def test_one_thread_at_a_time_replaces_anything(module: Any) -> None:
    entered, leave = threading.Event(), threading.Event()
    said: list[str] = []

    def replace(name: str) -> None:
        with patched(module, {"name": lambda: name}):
            entered.set()
            leave.wait(600)
            said.append(module.name())

    threads = [threading.Thread(target=replace, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    assert entered.wait(600)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(600)
    assert said == ["first", "second"]
    assert module.name() == "its own"
