"""What the user's code looks at beside modules is recorded for the module that looked."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.inputs.sources import (
    listing_digest,
)

FAILING = "except (ImportError, OSError): pass"

READS = {
    "open": "open(HERE / 'notes.txt')",
    "open by text": "open(str(HERE) + '/notes.txt', 'rb')",
    "os.open": "os.close(os.open(HERE / 'notes.txt', os.O_RDONLY))",
    "below a descriptor": (
        "os.close(os.open('notes.txt', os.O_RDONLY, dir_fd=os.open(HERE, os.O_RDONLY)))"
    ),
    "by an opener": "open('notes.txt', opener=lambda path, flags: "
    "os.open(path, flags, dir_fd=os.open(HERE, os.O_RDONLY)))",
    "read_text": "(HERE / 'notes.txt').read_text()",
    "a module of Python": "__import__('linecache').getlines(str(HERE / 'notes.txt'))",
    "pkgutil": "__import__('pkgutil').get_data('helper', 'notes.txt')",
    "sqlite": "__import__('sqlite3').connect(HERE / 'notes.txt').close()",
    "a copy": "__import__('shutil').copyfile(HERE / 'notes.txt', os.devnull)",
    "in an import": "import reading",
    "in an import before": "import reading",
}
BELOW = ("below a descriptor", "by an opener")
LOOKS = {
    "get": "os.environ.get('CHOICE')",
    "getenv": "os.getenv('CHOICE', '1')",
    "in": "'CHOICE' in os.environ",
    "expandvars": "os.path.expandvars('$CHOICE')",
    "item": "dict(CHOICE=1) if 'CHOICE' not in os.environ else os.environ['CHOICE']",
}
SEEN = ("PATH", "HOME", "LANG", "TZ", "CUDA_HOME", "PYTHONHASHSEED")
MISSING = {
    "import": ("try: import later", FAILING),
    "import_module": ("import importlib", "try: importlib.import_module('later')", FAILING),
    "find_spec": ("import importlib.util", "assert importlib.util.find_spec('later') is None"),
    "a submodule": ("try: import later.inner", FAILING),
}
OTHERS = {
    "nothing": ("import json, logging, email.message, thirdparty, helper",),
    "a missing file": ("try: open(HERE / 'tuned.json')", FAILING),
    "a folder": ("list((HERE / 'parts').iterdir())",),
    "its own file": ("(HERE / 'new').write_text('1')", "(HERE / 'new').read_text()"),
    "outside": ("open(HERE.parent / 'outside.txt')",),
    "relative": ("try: open('tuned.json')", FAILING),
    "a version": ("import importlib.metadata", "importlib.metadata.version('thirdparty')"),
    "data of a package": (
        "import thirdparty", "open(Path(thirdparty.__file__).parent / 'data.txt')"),
    "Python's": (
        "import inspect, json", "inspect.getsource(json)", "open(__file__)",
        "open('/proc/self/status')", "os.listdir('/sys/class')"),
    "declared": ("assert os.environ['TOKEN'] == 'secret value'",),
    "declared and not set": ("assert 'UNSET' not in os.environ",),
    "a file at home": ("try: open(os.path.expanduser('~/tuning/table.json'))", FAILING),
    "kept": ("import keeping", "keeping.table()"),
    "kept and answered again": ("import keeping", "keeping.table()"),
}  # fmt: skip

CASES: dict[str, tuple[str, ...]] = {
    **OTHERS,
    **{f"reads: {name}": (line,) for name, line in READS.items()},
    **{f"looks: {name}": (line,) for name, line in LOOKS.items()},
    **{f"sees: {name}": (f"os.environ.get({name!r})",) for name in SEEN},
    **{f"misses: {name}": lines for name, lines in MISSING.items()},
}
FILES = {
    "outside.txt": "far\n",
    "site/thirdparty/data.txt": "1\n",
    "specs/reading.py": "VALUE = open(__file__[:-10] + 'notes.txt').read()\n",
    "specs/keeping.py": "import functools\n\n\n@functools.cache\ndef table():\n"
    "    return open(__file__[:-10] + 'notes.txt').read()\n",
}


@dataclass(frozen=True)
class Gallery:
    """A world with a kernel for each case, and the manifests of all of them."""

    root: Path
    manifests: dict[str, Any]


@pytest.fixture(scope="module")
def gallery(baseline: Any, trace: Any, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Return all cases, traced in one process."""
    root = tmp_path_factory.mktemp("gallery") / "world"
    shutil.copytree(baseline.root, root)
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(root, patch)
        for name, text in FILES.items():
            world.add(name, text)
        names = {f"case_{number}": name for number, name in enumerate(CASES)}
        kernels = [world.add_kernel(entry, CASES[name]) for entry, name in names.items()]
        kernels[0]["env"] = ["TOKEN", "UNSET"]
        variables = {name: "/some/where" for name in SEEN if name != "PATH"}
        found = trace(world, *kernels, CHOICE="a", TOKEN="secret value", **variables)
    return Gallery(root, {names[entry]: manifest for entry, manifest in found.items()})


@pytest.fixture
def place(gallery: Gallery, baseline: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a copy of the gallery that a test may change, with its variables set."""
    shutil.copytree(gallery.root, tmp_path / "copy")
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(tmp_path / "copy", patch)
        world.setenv("CHOICE", "a")
        yield world


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NOTES = {"file:notes.txt": digest("nothing\n")}


@pytest.mark.parametrize("name", READS)
def test_a_file_that_is_read_is_recorded(gallery: Gallery, name: str) -> None:
    found = gallery.manifests[f"reads: {name}"]
    parents = {"is:.": "folder"} if name in BELOW else {}
    assert found["opened"] == NOTES | parents


def test_what_a_function_keeps_counts_for_all_that_reach_it(gallery: Gallery) -> None:
    assert gallery.manifests["kept"]["opened"] == NOTES
    assert gallery.manifests["kept and answered again"]["opened"] == NOTES


def test_a_file_outside_the_folder_is_recorded_by_its_full_name(gallery: Gallery) -> None:
    outside = gallery.root.resolve() / "outside.txt"
    assert gallery.manifests["outside"]["opened"] == {f"file:{outside}": digest("far\n")}


def test_a_file_that_is_not_there_is_recorded_as_missing(gallery: Gallery) -> None:
    assert gallery.manifests["a missing file"]["opened"] == {"file:tuned.json": None}


def test_names_in_a_folder_are_recorded_where_they_were_asked_for(gallery: Gallery) -> None:
    parts = listing_digest(gallery.root / "specs" / "parts")
    assert gallery.manifests["a folder"]["opened"] == {"folder:parts": parts}


@pytest.mark.parametrize("name", ["its own file", "Python's"])
def test_what_is_no_input_is_not_recorded(gallery: Gallery, name: str) -> None:
    assert gallery.manifests[name]["opened"] == {}


def test_a_relative_name_is_one_in_the_specs_folder(gallery: Gallery, place: Any) -> None:
    found = gallery.manifests["relative"]
    assert found["opened"] == {"file:tuned.json": None}
    place.patch.chdir(place.root)
    assert place.ask(found).changed == ()


def test_the_version_of_an_installed_package_is_an_input(gallery: Gallery, place: Any) -> None:
    found, label = gallery.manifests["a version"], "site:thirdparty-1.0.dist-info/METADATA"
    assert set(found["opened"]) == {label}
    assert place.ask(found).changed == ()
    place.add("site/thirdparty-1.0.dist-info/METADATA", "Name: thirdparty\nVersion: 1.0.1\n")
    assert place.ask(found).changed == (f"{label[5:]} was read and has changed",)


def test_data_of_a_package_counts_with_the_package(gallery: Gallery, place: Any) -> None:
    found = gallery.manifests["data of a package"]
    assert found["opened"] == {}
    place.add("site/thirdparty/data.txt", "2\n")
    assert place.ask(found).changed == ("thirdparty: other content of the same version, 1.0",)


@pytest.mark.parametrize("name", LOOKS)
def test_a_variable_that_is_asked_for_and_not_there_is_recorded_with_the_line(
    gallery: Gallery, place: Any, name: str
) -> None:
    found = gallery.manifests[f"looks: {name}"]
    case = list(CASES).index(f"looks: {name}")
    assert found["missed"] == {"CHOICE": f"case_{case}.py:7"}
    place.setenv("CHOICE", "b")
    assert place.ask(found).changed == ()


@pytest.mark.parametrize("name", SEEN)
def test_what_is_the_same_for_every_kernel_is_nobodys_question(
    gallery: Gallery, place: Any, name: str
) -> None:
    found = gallery.manifests[f"sees: {name}"]
    assert ("CUDA_HOME" in found["missed"]) is (name == "CUDA_HOME")
    place.setenv(name, "/else/where")
    assert place.ask(found).changed == ()


@pytest.mark.parametrize("name", ["declared", "declared and not set"])
def test_what_a_kernel_declares_it_does_not_miss(gallery: Gallery, name: str) -> None:
    assert gallery.manifests[name]["missed"] == {}


def test_a_file_of_the_home_folder_is_missed(gallery: Gallery) -> None:
    found = gallery.manifests["a file at home"]
    case = list(CASES).index("a file at home")
    assert found["opened"] == {}
    assert found["missed"] == {"~/tuning/table.json": f"case_{case}.py:7"}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("where", ["site/later/__init__.py", "specs/later.py"])
def test_a_module_that_was_missing_is_noticed_when_it_comes(
    gallery: Gallery, place: Any, name: str, where: str
) -> None:
    found = gallery.manifests[f"misses: {name}"]
    assert found["absent"] == ["later"]
    assert place.ask(found).changed == ()
    place.add(where)
    assert place.ask(found).changed == ("later was missing and can be imported now",)


def test_a_file_that_already_hides_a_module_of_python_is_no_change(world: Any, trace: Any) -> None:
    world.add("specs/colorsys.py", "ONE = 1\n")
    hiding = world.add_kernel("hiding", ("import colorsys", "assert colorsys.ONE"))
    found = trace(world, hiding)["hiding"]
    assert found["hidden"] == ["colorsys"]
    assert world.ask(found).changed == ()
    (world.project / "colorsys.py").unlink()
    assert len(world.ask(found).changed) == 2


def test_this_process_records_nothing() -> None:
    assert "_Recording" not in type(os.environ).__name__
    assert {type(os.stat), type(time.time)} == {types.BuiltinFunctionType}
    recorders = sys.modules.get("pallasc.compiler.inputs.recorders")
    assert recorders is None or recorders.__dict__["records"] == {}
