"""Entry points, checked without importing, and files that are loaded as modules."""

import sys
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.user_files import (
    check_data_file,
    check_entry,
    load_module,
    module_name,
    parse_entry,
)


@pytest.mark.parametrize("text", ["module", "module:", ":f", "mod ule:f", "a..b:f", "m:a:b", "m:1"])
def test_parse_entry_refuses_other_forms(text: str) -> None:
    with pytest.raises(SpecError, match="is not an entry point"):
        parse_entry(text)


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): ...", "class f: ...", "f: int = 1", "x, (f, *y) = 1, (2,)",
        "import json as f", "import f.g", "if True:\n    def f(): ...",
        "try:\n    import f\nexcept ImportError:\n    f = None", "with open('x') as f: ...",
        "for f in (): ...", "(f := 2)", "from json import *", "def __getattr__(name): ...",
        "globals()['f'] = 1", "def (",
    ],
)  # fmt: skip
def test_check_entry_finds_or_lets_pass(source: str, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(source)
    check_entry("k.py:f", str(tmp_path))


@pytest.mark.parametrize("source", ["", "def g():\n    f = 1", "class A:\n  f = 1"])
def test_check_entry_refuses_names_that_are_not_there(source: str, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(source)
    with pytest.raises(SpecError, match=r"'k\.py' has no 'f'"):
        check_entry("k.py:f", str(tmp_path))


def test_check_entry_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pallasc_probe").mkdir()
    (tmp_path / "pallasc_probe/__init__.py").write_text("raise SystemExit(3)")
    (tmp_path / "pallasc_probe/inner.py").write_text("def f(): ...\nraise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    check_entry("pallasc_probe.inner:f", "/")
    assert "pallasc_probe" not in sys.modules


@pytest.mark.parametrize("inits", [(), ("package", "package/sub")])
def test_check_entry_finds_packages_beside_the_spec(inits: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "package/sub").mkdir(parents=True)
    (tmp_path / "package/sub/kern.py").write_text("from ..const import C\ndef f(): ...")
    for folder in inits:
        (tmp_path / folder / "__init__.py").write_text("")
    check_entry("package.sub.kern:f", str(tmp_path))
    for entry, message, hint in (
        ("package.sub.kern:g", "'package.sub.kern' has no 'g'.", "It has: C, f."),
        ("package.sub.ker:f", "'package.sub' has no submodule 'ker'.", "Did you mean 'kern'?"),
        ("packages:f", "'packages' is neither next to the spec", "Did you mean 'package'?"),
    ):
        with pytest.raises(SpecError) as caught:
            check_entry(entry, str(tmp_path))
        assert message in str(caught.value)
        assert caught.value.hint == hint


def test_only_modules_are_suggested_for_a_module(tmp_path: Path) -> None:
    (tmp_path / "torchxx-b200.json").write_text("{}")
    with pytest.raises(SpecError) as caught:
        check_entry("torchxx_b200:f", str(tmp_path))
    assert caught.value.hint == (
        "Install the package that has it, or name a file: file.py:function."
    )


def test_a_file_beside_the_spec_does_not_hide_a_module_of_python(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def mine(): ...")
    check_entry("json:dumps", str(tmp_path))
    check_entry("json.py:mine", str(tmp_path))


def test_check_data_file_normalises(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("{}")
    assert check_data_file("./table.json", str(tmp_path)) == "table.json"
    with pytest.raises(SpecError, match=r"file 'tabel.json' does not exist") as caught:
        check_data_file("tabel.json", str(tmp_path))
    assert caught.value.hint == "Did you mean 'table.json'?"


def test_modules_and_attributes_of_a_name_are_found(tmp_path: Path) -> None:
    text = "import enum\nclass Mode(enum.Enum):\n    FAST = 1\ndef call(): ...\n"
    (tmp_path / "classes.py").write_text(text)
    own = ("Mode.FAST", "Mode.later", "call.defvjp")
    known = ("json.decoder:JSONDecoder", "math:floor", "os.path:join", "builtins:float")
    for entry in (*known, *(f"classes.py:{name}" for name in own)):
        check_entry(entry, str(tmp_path))


def test_check_entry_reads_a_file_again_that_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("def one(): ...")
    check_entry("kernels.py:one", str(tmp_path))
    file.write_text("def other(): ...")
    check_entry("kernels.py:other", str(tmp_path))
    with pytest.raises(SpecError, match="has no 'one'"):
        check_entry("kernels.py:one", str(tmp_path))


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_is_executed_once_unless_asked(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text("value = object()\n")
    first = load_module(file)
    assert load_module(file) is first
    assert load_module(file, fresh=True) is not first
    assert sys.modules[module_name(file)].__name__ == "_pallasc_spec_once"


def test_a_file_that_raises_leaves_no_module(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nraise ValueError('no')\n")
    with pytest.raises(SpecError) as caught:
        load_module(tmp_path / "bad.py")
    assert str(caught.value) == f"{tmp_path}/bad.py:2: ValueError: no"
    assert "_pallasc_spec_bad" not in sys.modules
