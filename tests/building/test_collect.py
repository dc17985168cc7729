"""Python spec files: executed in a worker, remembered, their mistakes shown at their place."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds import collect as collecting
from pallasc.compiler.builds.collect import SpecReader
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.spec import spec_to_json

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from fakes import BEGUN, PATIENCE_S, pass_time

SPEC = """
import os
import json
import pallasc
import helper

with open(os.environ["TEST_COUNT"], "a") as file:
    file.write("x")


@pallasc.kernel(args={"x": "f32[8, {n}]"}, matrix={"n": helper.SIZES}, targets=["sm_90a"],
               env=["TEST_COUNT"])
def scale(x):
    return x * 2
"""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return what counts how often the spec file was executed."""
    count = tmp_path / "count"
    count.write_text("")
    monkeypatch.setenv("TEST_COUNT", str(count))
    return lambda: len(count.read_text())


def test_an_unchanged_file_is_executed_once(
    project: Any, counted: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.write("spec.py", SPEC)
    helper = project.write("helper.py", "SIZES = [128]\n")
    first = SpecReader(store=project.store).specs([str(path)])
    again = SpecReader(store=project.store).specs([str(path)])
    assert counted() == 1
    assert [spec_to_json(s) for s in first] == [spec_to_json(s) for s in again]
    assert again[0].matrix == {"n": (128,)}
    assert again[0].location.file == str(path)

    helper.write_text("SIZES = [128, 256]\n")
    changed = SpecReader(store=project.store).specs([str(path)])
    assert counted() == 2
    assert changed[0].matrix == {"n": (128, 256)}

    path.write_text("# A comment.\n" + SPEC)
    assert SpecReader(store=project.store).specs([str(path)])[0].location.line == 12
    assert counted() == 3

    monkeypatch.chdir(project.folder)  # errors show the path as it was given
    assert SpecReader(store=project.store).specs(["spec.py"])[0].location.file == "spec.py"
    assert counted() == 4
    monkeypatch.setattr(collecting, "versions_text", lambda names: "another")
    SpecReader(store=project.store).specs([str(path)])
    assert counted() == 5


MISTAKES = {
    "raises": ("import pallasc\n\nraise KeyError('lost')\n", "{path}:3: KeyError: 'lost'"),
    "wrong": (
        "import pallasc\n@pallasc.kernel(args=['f33[8]'], targets=['sm_90a'])\ndef k(x): pass\n",
        "{path}:2:2: k.args[0]: unknown dtype 'f33'.\n  Did you mean 'f32'?",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_raised_at_its_place_also_where_deaths_are_told(
    project: Any, name: str
) -> None:
    text, message = MISTAKES[name]
    path = project.write("spec.py", text)
    told: list[SpecError] = []
    with pytest.raises(SpecError) as caught:
        SpecReader(store=project.store, broken=told.append).specs([str(path)])
    assert str(caught.value) == message.format(path=path)
    assert (caught.value.exit_code, told) == (2, [])


KERNEL = "import pallasc\n@pallasc.kernel(args=['f32[8]'], targets=['sm_90a'])\ndef k(x): pass\n"
DEADLY = {
    "loops": (
        f"import time\nprint('before', flush=True)\nwhile True: {BEGUN}; time.sleep(.01)\n",
        "the process that executes this file took longer than 300 s (--timeout) and was stopped",
        "before",
    ),
    "segfaults": (
        "import ctypes\nprint('\\x1b[31mlast words\\x1b[0m', flush=True)\nctypes.string_at(0)\n",
        "the process that executes this file was killed by SIGSEGV",
        "last words",
    ),
}


@pytest.mark.parametrize("name", DEADLY)
def test_a_file_whose_process_dies_is_told_and_the_others_go_on(
    project: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time(monkeypatch, lambda worker: (project.folder / "deadly.py.begun").exists())
    text, message, output = DEADLY[name]
    path = project.write("deadly.py", text)
    project.write("kernels.py", "def run(x): return x\n")
    yaml = project.spec({"name": "healthy", "entry": "kernels.py:run"})
    python = project.write("fine.py", KERNEL)
    told: list[SpecError] = []
    if name == "loops":  # then the good file is remembered, and no process executes it
        SpecReader(store=project.store).specs([str(python)])
    reader = SpecReader(store=project.store, timeout_s=PATIENCE_S, broken=told.append)
    specs = reader.specs([str(path), str(yaml), str(python)])
    assert [spec.name for spec in specs] == ["healthy", "k"]
    (error,) = told
    assert error.message.splitlines()[:3] == [message, "  output:", f"    {output}"]
    assert (error.location.file, error.location.line, error.exit_code) == (str(path), 3, 2)
    if name == "loops":
        with pytest.raises(SpecError, match="took longer than 300 s") as caught:
            SpecReader(store=project.store, timeout_s=PATIENCE_S).specs([str(path)])
        assert caught.value.hint == "If it needs more time, raise --timeout."


def test_a_frozen_store_executes_nothing(project: Any, counted: Callable[[], int]) -> None:
    path = project.write("spec.py", SPEC)
    helper = project.write("helper.py", "SIZES = [128]\n")
    told: list[SpecError] = []
    with pytest.raises(NotCachedError) as caught:
        SpecReader(store=project.store, frozen=True, broken=told.append).specs([str(path)])
    assert (caught.value.exit_code, counted(), told) == (3, 0, [])
    assert str(caught.value) == (
        f"{path}: the specs of this file are not in the store: it has not been read with "
        "this store.\n"
        "  With --frozen, the file is not executed. Build without --frozen, or restore the store."
    )
    SpecReader(store=project.store).specs([str(path)])
    held = SpecReader(store=project.store, frozen=True).specs([str(path)])
    assert ([spec.name for spec in held], counted()) == (["scale"], 1)
    helper.write_text("SIZES = [256]\n")
    with pytest.raises(
        NotCachedError, match=r"not in the store: helper \(helper\.py\) has changed\."
    ):
        SpecReader(store=project.store, frozen=True).specs([str(path)])
    assert counted() == 1


def test_what_is_said_while_a_file_is_read_is_told_each_time_and_not_printed(
    project: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    path = project.write("spec.py", f"import warnings\nimport pallasc\n{SAYING}")
    wanted = [
        f"while {path} was read: spec.py:3: UserWarning: no table for sm_90a",
        f"while {path} was read: stderr: from descriptor 2",
        f"while {path} was read: stdout: 3 tables",
        f"while {path} was read: stdout: from descriptor 1",
    ]
    for frozen in (False, True):  # executed, and then remembered
        told: list[str] = []
        store = Store(project.store.root, warn=told.append)
        SpecReader(store=store, frozen=frozen).specs([str(path)])
        assert sorted(told) == sorted(store.warnings) == wanted
    path.write_text("print('size', 4)\n1 / 0\n")
    told = []
    with pytest.raises(SpecError, match="ZeroDivisionError"):
        SpecReader(store=Store(project.store.root, warn=told.append)).specs([str(path)])
    assert told == [f"while {path} was read: stdout: size 4"]
    assert capfd.readouterr() == ("", "")


SAYING = """\
warnings.warn("no table for sm_90a")
__import__("os").write(2, b"from descriptor 2\\n")
print(3, "tables")
__import__("os").write(1, b"from descriptor 1\\n")


@pallasc.kernel(args={"x": "f32[8, 128]"}, targets=["sm_90a"])
def scale(x):
    return x * 2
"""


TABLE_SPEC = """
import pallasc


@pallasc.kernel(
    args={"x": "f32[{tiles.rows}, {n}]"},
    static={"mode": pallasc.Ref("json:{mode}"), "tiles": "{tiles}"},
    matrix={
        "$file": {"path": "tuned/rows.json", "rows": "used", "select": ["n"]},
        "tiles": [{"$name": "small", "rows": 8}],
        "mode": ("dumps", "loads"),
    },
    targets=["sm_90a"],
)
def scale(x, *, mode, tiles):
    return x * 2
"""


def test_a_table_of_a_python_spec_is_read_again_when_it_changes(project: Any) -> None:
    path = project.write("spec.py", TABLE_SPEC)
    (path.parent / "tuned").mkdir()
    table = project.write("tuned/rows.json", '{"used": [{"n": 128}], "unused": [{"n": 1}]}')

    def ids() -> list[str]:
        specs = SpecReader(store=project.store).specs([str(path)])
        return [variant.id for variant in expand(specs) if dict(variant.params)["mode"] == "dumps"]

    assert ids() == ["scale[n=128,tiles=small,mode=dumps]@h100-sxm"]
    table.write_text('{"used": [{"n": 256}]}')
    assert ids() == ["scale[n=256,tiles=small,mode=dumps]@h100-sxm"]
    table.write_text("[")
    with pytest.raises(SpecError, match=r"rows\.json:1:\d: not JSON"):
        ids()
