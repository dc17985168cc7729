"""Python spec files."""

import sys
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.decorator import Call, Ref, collect_python, declare
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.user_files import load_module

PYTHON = '''\
"""Kernels."""
from dataclasses import dataclass

from pallasc.specs.loading.decorator import Call, Ref, kernel


@dataclass(frozen=True)
class Config:
    tile: int


def slow(x, *, config, flag): ...


@kernel(
    name="double",
    args={"x": "bfloat16[{m}, 4]", "c": None, "rest": ({"k": "i4[8]"},)},
    static={"config": Call(Config, tile="{m}", pi=Ref("math:pi")), "flag": True},
    matrix={"m": range(16, 64, 16)},
    exclude=[{"m": 32}],
    include=({"m": 128},),
    targets=["sm_90a", "b200"],
    reference=slow,
    tolerance={"rtol": 0.01},
    budget={"registers": 168},
    files=["table.json"],
    vmap="doubles",
)
def fast(x, *, config, flag): ...
'''

YAML = """\
schema: 1
kernels:
  - files: [table.json]
    vmap: doubles
    budget: {registers: 168}
    tolerance: {rtol: 0.01}
    reference: kernels.py:slow
    targets: [sm_90a, b200]
    include: [{m: 128}]
    exclude: [{m: 32}]
    matrix: {m: [16, 32, 48]}
    static:
      flag: true
      config: {$call: "kernels.py:Config", pi: {$ref: "math:pi"}, tile: "{m}"}
    args: {x: "bf16[{m}, 4]", c: null, rest: [{k: "i4[8]"}]}
    entry: kernels.py:fast
    name: double
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "kernels.py").write_text(PYTHON)
    (tmp_path / "kernels.yaml").write_text(YAML)
    (tmp_path / "table.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_and_yaml_give_the_same_variants(folder: Path) -> None:
    python, yaml = expand(collect_python("kernels.py")), expand(load_yaml("kernels.yaml"))
    assert len(python) == 6
    assert [v.request() for v in python] == [v.request() for v in yaml]
    for own, other in zip(python, yaml, strict=True):
        assert (own.id, own.tolerance, own.budget) == (other.id, other.tolerance, other.budget)
        assert (own.reference, own.base_dir) == (other.reference, other.base_dir)
        assert own.vmap == other.vmap == "doubles"
    (spec,) = collect_python("kernels.py")
    assert str(spec.location) == str(spec.where("args", "x")) == "kernels.py:15:2"


def test_an_ordinary_import_declares_and_checks_nothing(folder: Path) -> None:
    wrong = PYTHON.replace("bfloat16", "bf61")
    (folder / "kernels.py").write_text(wrong)
    assert load_module("kernels.py", fresh=True).fast.__name__ == "fast"
    declare(entry="nowhere:f", args={})
    assert repr([Call("a:b", c=1), Ref("a:b")]) == "[Call('a:b', {'c': 1}), Ref(target='a:b')]"


def test_a_change_within_a_second_is_seen(folder: Path) -> None:
    collect_python("kernels.py")
    (folder / "kernels.py").write_text(PYTHON.replace('name="double"', 'name="treble"'))
    assert [spec.name for spec in collect_python("kernels.py")] == ["treble"]
    assert not (folder / "__pycache__").exists()


HEAD = "from pallasc.specs.loading.decorator import Ref, declare, kernel\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            '@kernel(args={"x": "bf61[8]"})\ndef f(x): ...\n',
            "s.py:2:2: f.args.x: unknown dtype 'bf61'.\n  Did you mean 'bf16'?",
        ),
        (
            '@kernel(args={}, static={"d": float})\ndef f(x): ...\n',
            "s.py:2:2: f.static.d: a type object float is not plain data.\n"
            '  Write Call("package.module:function", …) or Ref("package.module:attribute").',
        ),
        (
            'import numpy\n@kernel(args={}, static={"s": numpy.float32(2)})\ndef f(x): ...\n',
            "s.py:3:2: f.static.s: a float32 object is not plain data.\n"
            '  Write an array as text, like "f32[4096]"; convert other values with .tolist().',
        ),
        (
            'import numpy\n@kernel(args={"x": numpy.zeros(8)})\ndef f(x): ...\n',
            "s.py:3:2: f.args.x: a ndarray object is not plain data.\n"
            '  Write an array as text, like "f32[4096]"; convert other values with .tolist().',
        ),
        (
            '@kernel(args={}, matrix={"m": {1, 2}})\ndef f(x): ...\n',
            "s.py:2:2: f.matrix.m: a set object is not plain data.\n"
            '  Write Call("package.module:function", …) or Ref("package.module:attribute").',
        ),
        (
            '@kernel(args={}, targets="sm_90a")\ndef f(x): ...\n',
            "s.py:2:2: f.targets: expected a list of targets, got 'sm_90a'.\n  Write [\"sm_90a\"].",
        ),
        (
            '@kernel(args={}, static={"d": {1: 2}})\ndef f(x): ...\n',
            "s.py:2:2: f.static.d: a key must be text, got 1.",
        ),
        (
            '@kernel(args={}, static={"d": Ref("json:lods")})\ndef f(x): ...\n',
            "s.py:2:2: f.static.d.$ref: 'json' has no 'lods'.\n  Did you mean 'loads'?",
        ),
        (
            "def outer():\n    @kernel(args={})\n    def f(x): ...\nouter()\n",
            "s.py:3:6: a function object outer.<locals>.f has no name that a worker process can "
            "import it by.\n  Define it with def at the top level of a file.",
        ),
        (
            "class C:\n    def m(self, x): ...\nkernel(args={}, reference=C().m)(C)\n",
            "s.py:4:1: C.reference: a method object C.m has no name that a worker process can "
            "import it by.\n  Define it with def at the top level of a file.",
        ),
        (
            "import functools\ndef f(x): ...\n@functools.wraps(f)\ndef g(x): ...\n"
            "kernel(args={}, reference=g)(f)\n",
            "s.py:6:1: f.reference: a function object f has no name that a worker "
            "process can import it by.\n  Define it with def at the top level of a file.",
        ),
        (
            '@kernel(args={}, targets=["sm_90"])\ndef f(x): ...\n',
            "s.py:2:2: unknown target 'sm_90'.\n  Did you mean 'sm_90a'?",
        ),
        ("x = 1\n\ny = 1 / 0\n", "s.py:4: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)\n", "s.py:2: SystemExit: 0"),
        ("def f(:\n", "s.py:2:7: SyntaxError: invalid syntax"),
        (
            "x = 1\n",
            "s.py: no kernel is declared in this file.\n"
            "  Decorate a function with @pallasc.kernel(args=…), or call "
            "pallasc.declare(entry=…, args=…).",
        ),
        (
            'declare(entry="json:loads", argz=[])',
            "s.py:2:1: loads: unknown field 'argz'.\n  Did you mean 'args'?",
        ),
        (
            'declare(entry="kernels.py", args=[])',
            "s.py:2:1: kernels.py.entry: expected an entry point, got 'kernels.py'.\n"
            "  Write package.module:function, or file.py:function.",
        ),
    ],
)
def test_a_mistake_names_file_line_and_column(source: str, text: str, folder: Path) -> None:
    (folder / "s.py").write_text(HEAD + source)
    with pytest.raises(SpecError) as caught:
        collect_python("s.py")
    assert str(caught.value) == text


def test_other_mistakes_have_a_place_too(folder: Path) -> None:
    for call, place in (
        ("@kernel(argz={})\ndef f(x): ...", "2:2"),
        ('declare(entry="json:loads")', "2:1"),
        ('name = "gül"; declare(entry="json:loads", name=name)', "2:15"),
        ("declare(args=[])", "2"),
    ):
        (folder / "s.py").write_text(f"{HEAD}{call}\n")
        with pytest.raises(SpecError, match=rf"^s\.py:{place}: "):
            collect_python("s.py")
    with pytest.raises(SpecError, match=r"nothing\.py: there is no such file"):
        collect_python("nothing.py")


DECLARING = """\
import pallasc
import tables
from kernels import fast

for m in (64, 128):
    pallasc.declare(entry="kernels.py:fast", name=f"double{m}", args={"x": f"f32[{m}]"})
for spec in tables.SPECS:
    pallasc.declare(**spec)
tables.declare_more()
pallasc.kernel(args={"x": "f32[8]"}, targets=["sm_80"])(fast)
"""
TABLES = """\
import pallasc
SPECS = [{"entry": "json:loads", "args": ["f32[8]"], "targets": ["sm_80"]}]
pallasc.declare(entry="json:dumps", args=["f32[8]"], targets=["sm_80"])


def declare_more():
    pallasc.declare(entry="math:floor", args=["f32[8]"], targets=["sm_80"])
"""


def test_functions_of_other_files_are_declared_by_a_call(folder: Path) -> None:
    (folder / "declares.py").write_text(DECLARING)
    (folder / "tables.py").write_text(TABLES)
    try:
        specs = collect_python("declares.py")
    finally:
        for name in ("tables", "kernels"):
            sys.modules.pop(name, None)
    # What another module declares while it is imported is that module's own.
    assert [(spec.name, spec.entry, str(spec.location)) for spec in specs] == [
        ("double64", "kernels.py:fast", "declares.py:6:5"),
        ("double128", "kernels.py:fast", "declares.py:6:5"),
        ("loads", "json:loads", "declares.py:8:5"),
        ("floor", "math:floor", "declares.py:9:1"),
        ("fast", "kernels:fast", "declares.py:10:1"),
    ]


@pytest.mark.parametrize("static", ['"x\\ud800"', '[{"b\\ud800": 1}]', '"{m}\\ud800"'])
def test_half_of_a_character_has_its_place(static: str, folder: Path) -> None:
    call = f'declare(entry="json:loads", args=[], static={{"a": {static}}}, matrix={{"m": [1]}})'
    (folder / "s.py").write_text(HEAD + call)
    with pytest.raises(SpecError) as caught:
        collect_python("s.py")
    text = str(caught.value)
    assert text.startswith("s.py:2:1: loads.static.a")
    assert "contains a lone surrogate, which is only half of a character." in text
