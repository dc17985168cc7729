"""Importing what specs name, with errors that say where it failed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pallasc.compiler.lowering.entry import (
    import_entry,
    import_function,
    static_arguments,
    static_value,
)
from pallasc.errors import SpecError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with modules, which are forgotten afterwards."""
    (tmp_path / "entry_kernels.py").write_text(
        "import dataclasses\n\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Config:\n    tile: int\n    swizzle: int = 128\n\n"
        "class Space:\n    LIMIT = 7\n\n"
        "def scale(x, by):\n    return x * by\n\n"
        "SIZE = 3\n"
    )
    (tmp_path / "entry_broken.py").write_text("x = 1\nraise ValueError('not today')\n")
    (tmp_path / "entry_needs.py").write_text("import no_such_package_here\n")
    (tmp_path / "entry_exits.py").write_text("import sys\nsys.exit(3)\n")
    before = set(sys.modules)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("entry_"):
            del sys.modules[name]


@pytest.mark.parametrize("entry", ["entry_kernels:scale", "entry_kernels.py:scale"])
def test_functions_are_found_by_module_and_by_file(folder: Path, entry: str) -> None:
    assert import_function(entry, str(folder))(2, by=3) == 6
    assert import_entry(entry.replace("scale", "Space.LIMIT"), str(folder)) == 7


@pytest.mark.parametrize(
    ("entry", "message", "hint", "line"),
    [
        ("entry_kernels:scala", "entry_kernels has no 'scala'", "scale", None),
        ("entry_kernels.py:Space.LIMITS", "Space has no 'LIMITS'", "LIMIT", None),
        ("entry_kernels:SIZE", "is an int and cannot be called", "", None),
        ("entry_nothing:f", "cannot be imported: ModuleNotFoundError", "Install the package", None),
        ("entry_needs:f", "No module named 'no_such_package_here'", "no_such_package_here", 1),
        ("entry_broken:f", "cannot be imported: ValueError: not today", "", 2),
        ("entry_exits:f", "cannot be imported: SystemExit: 3", "", 2),
    ],
)
def test_what_cannot_be_imported_is_a_mistake_of_the_spec(
    folder: Path, entry: str, message: str, hint: str, line: int | None
) -> None:
    with pytest.raises(SpecError) as caught:
        import_function(entry, str(folder))
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    place = caught.value.location  # a build shows the place in the spec if there is none
    assert (place and place.line) == line


def test_static_values_are_built_by_call_and_reference(folder: Path) -> None:
    value = {
        "config": {"$call": "entry_kernels:Config", "tile": {"$ref": "entry_kernels:SIZE"}},
        "plain": [1, {"$ref": "entry_kernels:Space.LIMIT"}],
        "name": "x",
    }
    found = static_value(value, str(folder))
    assert (found["config"].tile, found["config"].swizzle) == (3, 128)
    assert (found["plain"], found["name"]) == ((1, 7), "x")
    builtin = {"a": {"$call": "builtins:dict", "b": 1}}  # without a signature
    assert static_arguments(builtin, str(folder)) == {"a": {"b": 1}}
    with pytest.raises(SpecError, match=r"\$call 'entry_kernels:Config' failed: TypeError"):
        static_value({"$call": "entry_kernels:Config"}, str(folder))


CONFIG = {"$call": "entry_kernels:Config", "tyle": {"$call": "entry_kernels:nothing"}}


@pytest.mark.parametrize(
    ("static", "field"),
    [
        ({"config": CONFIG}, "static.config.tyle"),
        ({"many": [1, {"deep": CONFIG}]}, "static.many.1.deep.tyle"),
        ({"config": {"$call": "entry_kernels:Config", "tile": CONFIG}}, "static.config.tile.tyle"),
        ({"made": {"$call": "entry_kernels:scale", "by": 2}}, "static.made"),
    ],
)
def test_an_error_in_a_static_argument_names_its_field(
    folder: Path, static: dict[str, object], field: str
) -> None:
    with pytest.raises(SpecError) as caught:
        static_arguments(static, str(folder))
    assert caught.value.field == field


def test_an_enumeration_is_called_with_its_value(folder: Path) -> None:
    call = {"$call": "enum:Enum", "value": "Side", "names": "LEFT RIGHT"}
    (folder / "sides.py").write_text("import enum\nSide = enum.IntEnum('Side', 'LEFT RIGHT')\n")
    assert list(static_value(call, str(folder)).__members__) == ["LEFT", "RIGHT"]
    assert static_value({"$call": "sides:Side", "value": 2}, str(folder)).name == "RIGHT"
