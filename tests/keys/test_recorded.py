"""What the user's code reads and asks beside modules is recorded for the module that did it."""

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

from pallasc.compiler.inputs.recorders import absolute
from pallasc.compiler.inputs.sources import digest_of, listing_digest
from pallasc.errors import ToolError
from pallasc.specs.user_files import shown_name

NOTES = "HERE / 'notes.txt'"
LATER = "HERE / 'later.txt'"
FAILING = "except (ImportError, OSError): pass"

READS = {
    "open": f"open({NOTES})",
    "os.open": f"os.close(os.open({NOTES}, os.O_RDONLY))",
    "below a descriptor": (
        "os.close(os.open('notes.txt', os.O_RDONLY, dir_fd=os.open(HERE, os.O_RDONLY)))"
    ),
    "by an opener": "open('notes.txt', opener=lambda path, flags: "
    "os.open(path, flags, dir_fd=os.open(HERE, os.O_RDONLY)))",
    "a module of Python": f"__import__('linecache').getlines(str({NOTES}))",
    "pkgutil": "__import__('pkgutil').get_data('helper', 'notes.txt')",
    "sqlite": f"__import__('sqlite3').connect({NOTES}).close()",
    "a copy": f"__import__('shutil').copyfile({NOTES}, os.devnull)",
    "in an import": "import reading",
    "in an import before": "import reading",
    "in a call of __import__": "__import__('reading')",
    "kept": "import keeping; keeping.table()",
    "kept and answered again": "import keeping; keeping.table()",
    # Questions whose answer may depend on the contents.
    "stat": f"os.stat({NOTES})",
    "getsize": f"os.path.getsize({NOTES})",
    "stat below a descriptor": "os.stat('notes.txt', dir_fd=os.open(HERE, os.O_RDONLY))",
    "samefile": f"assert os.path.samefile({NOTES}, {NOTES})",
    "opened to be read and written": f"open({NOTES}, 'r+').close()",
}
BELOW = ("below a descriptor", "by an opener", "stat below a descriptor")
IS_THERE = {
    "exists": f"assert os.path.exists({NOTES})",
    "bytes": f"assert os.path.exists(os.fsencode({NOTES}))",
    "isfile": f"assert os.path.isfile({NOTES})",
    "access by name": f"assert os.access(path={NOTES}, mode=os.F_OK)",
    "Path.exists": f"assert ({NOTES}).exists()",
    "imported before": "import asking; assert asking.KNOWN",
    "in a function of Python": "assert __import__('shutil').which('notes.txt', path=HERE) is None",
}
IS_MISSING = {
    "exists": (f"assert not os.path.exists({LATER})",),
    "isdir": (f"assert not os.path.isdir({LATER})",),
    "access": (f"assert not os.access({LATER}, os.R_OK)",),
    "stat": (f"try: os.stat({LATER})", FAILING),
}
IS_FOLDER = {
    "isdir": "assert os.path.isdir(HERE / 'parts')",
    "stat": "os.stat(HERE / 'parts')",
    "makedirs": "os.makedirs(HERE / 'parts', exist_ok=True)",
}
LOOKS = {
    "get": "os.environ.get('CHOICE')",
    "getenv": "os.getenv('CHOICE', '1')",
    "in": "'CHOICE' in os.environ",
    "expandvars": "os.path.expandvars('$CHOICE')",
    "item": "dict(CHOICE=1) if 'CHOICE' not in os.environ else os.environ['CHOICE']",
}
SEEN = ("PATH", "HOME", "LANG", "TZ", "CUDA_HOME", "PYTHONHASHSEED")
ABSENT = {
    "import": ("try: import later", FAILING),
    "import_module": ("import importlib", "try: importlib.import_module('later')", FAILING),
    "find_spec": ("import importlib.util", "assert importlib.util.find_spec('later') is None"),
    "a submodule": ("try: import later.inner", FAILING),
}
NOBODYS = {
    "inspect": ("import inspect, helper", "inspect.getsource(helper.scale)"),
    "linecache": ("import linecache", "linecache.checkcache()"),
    "tempfile": ("import tempfile", "tempfile.gettempdir()", "tempfile.mkdtemp()"),
    "logging": ("import logging", "logging.getLogger('a').warning('%s', x)"),
    "importlib": ("import importlib", "importlib.invalidate_caches()", "import second"),
    "a path": ("Path(__file__).resolve()", "os.path.realpath(__file__)"),
    "the time and chance": ("import random, time", "time.time() + random.random()"),
    "a package": ("import clocked",),
    "python's sets": ("assert os.stat in os.supports_dir_fd & os.supports_follow_symlinks",
                      "assert os.access in os.supports_effective_ids"),
    "its own file": ("(HERE / 'own').write_text('1')", "assert (HERE / 'own').exists()",
                     "(HERE / 'own').read_text()"),
}  # fmt: skip
ACTS = {
    "a fork": ("os.fork() or os._exit(0)", "started another process"),
    "a name of the network": (
        "__import__('socket').getaddrinfo('127.0.0.1', 80)", "talked to the network"),
}  # fmt: skip
OTHERS = {
    "nothing": ("import json, logging, email.message, thirdparty, helper",),
    "a missing file": ("try: open(HERE / 'tuned.json')", FAILING),
    "a folder": ("list((HERE / 'parts').iterdir())",),
    "a listing by descriptor": ("os.listdir(os.open(HERE / 'parts', os.O_RDONLY))",),
    "Python's": (
        "import inspect, json", "inspect.getsource(json)", "open(__file__)",
        "open('/proc/self/status')", "os.listdir('/sys/class')"),
    "outside": ("open(HERE.parent / 'outside.txt')",),
    "a version": ("import importlib.metadata", "importlib.metadata.version('thirdparty')"),
    "data of a package": (
        "import thirdparty", "open(Path(thirdparty.__file__).parent / 'data.txt')"),
    "declared": ("assert os.environ['TOKEN'] == 'secret value'",),
    "declared and not set": ("assert 'UNSET' not in os.environ",),
    "a file at home": ("try: open(os.path.expanduser('~/tuning/table.json'))", FAILING),
    "a link": ("assert (HERE / 'current' / 'one.part').read_text()",),
    "a resolved link": ("assert ((HERE / 'current').resolve() / 'one.part').read_text()",),
    "readlink": ("assert os.readlink(HERE / 'current') == 'parts'",),
    "islink": ("assert (HERE / 'current').is_symlink()", f"assert not ({NOTES}).is_symlink()"),
    "relative": ("os.path.exists('later.txt')",),
    "the current folder": ("os.getcwd()",),
    "made after the question": (f"if not ({LATER}1).exists(): ({LATER}1).write_text('')".replace(
        "'later.txt'1", "'later1.txt'"),),
    "written by another": ("import writing", "assert (HERE / 'made.txt').read_text()"),
    "gone after it was read": (
        "(HERE / 'gone.txt').read_text()", "(HERE / 'gone.txt').unlink()"),
    "listed and added to": ("os.listdir(HERE / 'grouped')", "(HERE / 'grouped/n').touch()"),
    "odd": ("class Odd:", "    def __fspath__(self):", "        self.again()", "try: open(Odd())",
            "except AttributeError: pass"),
    "fresh odd": ("class Odd:", "    asked = 0", "    def __fspath__(self):",
                  "        self.asked += 1", "        return '/' if self.asked < 2 else None",
                  "os.path.exists(Odd())"),
}  # fmt: skip
FILES = {
    "outside.txt": "far\n",
    "site/thirdparty/data.txt": "1\n",
    "site/clocked.py": "import os, random, time\nBEGAN = time.time(), random.random()\n"
    "os.path.exists('odr')\n\n\ndef now():\n    return time.time()\n",
    "specs/reading.py": "VALUE = open(__file__[:-10] + 'notes.txt').read()\n",
    "specs/keeping.py": "import functools\n\n\n@functools.cache\ndef table():\n"
    "    return open(__file__[:-10] + 'notes.txt').read()\n",
    "specs/asking.py": "import os\nKNOWN = os.path.exists(__file__[:-9] + 'notes.txt')\n",
    "specs/gone.txt": "",
    "specs/writing.py": "open(__file__[:-10] + 'made.txt', 'w').write('1')\n",
}

CASES: dict[str, tuple[str, ...]] = {
    **OTHERS,
    **{f"reads: {name}": (line,) for name, line in READS.items()},
    **{f"there: {name}": (line,) for name, line in IS_THERE.items()},
    **{f"missing: {name}": lines for name, lines in IS_MISSING.items()},
    **{f"folder: {name}": (line,) for name, line in IS_FOLDER.items()},
    **{f"looks: {name}": (line,) for name, line in LOOKS.items()},
    **{f"sees: {name}": (f"os.environ.get({name!r})",) for name in SEEN},
    **{f"absent: {name}": lines for name, lines in ABSENT.items()},
    **{f"nobody: {name}": lines for name, lines in NOBODYS.items()},
    **{f"act: {name}": (line,) for name, (line, _) in ACTS.items()},
}


@dataclass(frozen=True)
class Gallery:
    """A world with a kernel for each case, their modules, and the manifests of all of them."""

    root: Path
    entries: dict[str, str]
    manifests: dict[str, Any]

    def who(self, name: str) -> str:
        """Return what a case is called in reports."""
        return shown_name(f"_pallasc_spec_{self.entries[name]}")


@pytest.fixture(scope="module")
def gallery(baseline: Any, trace: Any, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Return all cases, traced in one process."""
    root = tmp_path_factory.mktemp("gallery") / "world"
    shutil.copytree(baseline.root, root)
    (root / "specs/current").symlink_to("parts")
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(root, patch)
        for name, text in FILES.items():
            world.add(name, text)
        shutil.rmtree(root / "site/numpy")  # the real one draws
        names = {f"case_{number}": name for number, name in enumerate(CASES)}
        kernels = [world.add_kernel(entry, CASES[name]) for entry, name in names.items()]
        kernels[0]["env"] = ["TOKEN", "UNSET"]
        variables = {name: "/some/where" for name in SEEN if name != "PATH"}
        variables |= {"CHOICE": "a", "TOKEN": "secret value", "TMPDIR": str(root)}
        found = trace(world, *kernels, **variables)
    entries = {name: entry for entry, name in names.items()}
    return Gallery(root, entries, {names[entry]: manifest for entry, manifest in found.items()})


@pytest.fixture
def place(gallery: Gallery, baseline: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a copy of the gallery that a test may change, with its variables set."""
    shutil.copytree(gallery.root, tmp_path / "copy", symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(tmp_path / "copy", patch)
        world.setenv("CHOICE", "a")
        yield world


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- contents


@pytest.mark.parametrize("name", READS)
def test_a_file_that_is_read_or_measured_is_recorded(gallery: Gallery, name: str) -> None:
    parents = {"is:.": "folder"} if name in BELOW else {}
    opened = gallery.manifests[f"reads: {name}"]["opened"]
    assert opened == {"file:notes.txt": digest("nothing\n"), **parents}


def test_other_files_and_folders_are_recorded_by_their_names(gallery: Gallery) -> None:
    parts = listing_digest(gallery.root / "specs" / "parts")
    wanted = {
        "outside": {f"file:{gallery.root.resolve() / 'outside.txt'}": digest("far\n")},
        "a missing file": {"file:tuned.json": None},
        "a folder": {"folder:parts": parts},
        "a listing by descriptor": {"folder:parts": parts, "is:parts": "folder"},
        "written by another": {"file:made.txt": digest("1")},
        "data of a package": {},
        "a file at home": {},
        "Python's": {},
    }
    assert {name: gallery.manifests[name]["opened"] for name in wanted} == wanted


def test_the_version_and_the_data_of_a_package_count(gallery: Gallery, place: Any) -> None:
    version, data = (gallery.manifests[name] for name in ("a version", "data of a package"))
    label = "site:thirdparty-1.0.dist-info/METADATA"
    assert set(version["opened"]) == {label}
    assert place.ask(version).changed == place.ask(data).changed == ()
    place.add("site/thirdparty/data.txt", "2\n")
    assert place.ask(data).changed == ("thirdparty has changed",)
    place.add("site/thirdparty-1.0.dist-info/METADATA", "Name: thirdparty\nVersion: 1.0.1\n")
    assert place.ask(version).changed == (f"{label[5:]} was read and has changed",)
    (place.site / "thirdparty-1.0.dist-info").rename(place.site / "thirdparty-1.0.1.dist-info")
    assert place.ask(data).changed == ("thirdparty has changed",)
    shutil.rmtree(place.site / "thirdparty")
    assert place.ask(data).changed == ("thirdparty is gone",)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("made after the question", "is:later1.txt"),
        ("gone after it was read", "file:gone.txt"),
        ("listed and added to", "folder:grouped"),
    ],
)
def test_what_changes_after_it_was_looked_at_is_named(
    gallery: Gallery, name: str, label: str
) -> None:
    assert gallery.manifests[name]["altered"] == [label]


# ---- questions


@pytest.mark.parametrize("name", IS_THERE)
def test_that_a_file_is_there_is_recorded(gallery: Gallery, place: Any, name: str) -> None:
    found = gallery.manifests[f"there: {name}"]
    assert found["opened"] == {"is:notes.txt": "file"}
    place.add("specs/notes.txt", "other contents")
    assert place.ask(found).changed == ()
    (place.project / "notes.txt").unlink()
    (said,) = place.ask(found).changed
    assert said == "notes.txt is gone"


@pytest.mark.parametrize("name", IS_MISSING)
@pytest.mark.parametrize("come", [Path.touch, Path.mkdir])
def test_that_something_is_missing_is_recorded(
    gallery: Gallery, place: Any, name: str, come: Any
) -> None:
    found = gallery.manifests[f"missing: {name}"]
    assert found["opened"] == {"is:later.txt": None}
    assert place.ask(found).changed == ()
    come(place.project / "later.txt")
    assert len(place.ask(found).changed) == 1


@pytest.mark.parametrize("name", IS_FOLDER)
def test_that_a_folder_is_there_does_not_depend_on_what_is_in_it(
    gallery: Gallery, place: Any, name: str
) -> None:
    found = gallery.manifests[f"folder: {name}"]
    parents = {"is:.": "folder"} if name == "makedirs" else {}
    assert found["opened"] == {"is:parts": "folder", **parents}
    place.add("specs/parts/two.part")
    assert place.ask(found).changed == ()
    shutil.rmtree(place.project / "parts")
    assert len(place.ask(found).changed) == 1


@pytest.mark.parametrize("name", ["a link", "a resolved link", "readlink", "islink"])
def test_a_link_that_leads_elsewhere_is_noticed(gallery: Gallery, place: Any, name: str) -> None:
    found = gallery.manifests[name]
    assert place.ask(found).changed == ()
    (place.project / "elsewhere").mkdir()
    (place.project / "current").unlink()
    (place.project / "current").symlink_to("elsewhere")
    assert len(place.ask(found).changed) == 1


def test_a_path_keeps_its_links_but_those_in_front_of_two_dots(tmp_path: Path) -> None:
    (tmp_path / "far/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/inner")
    top = str(tmp_path.resolve())
    assert absolute(f"{top}/link/a") == f"{top}/link/a"
    assert absolute(f"{top}/link/../a") == f"{top}/far/a"
    assert absolute(f"{top}/link/..") == f"{top}/far"
    assert absolute(f"{top}/..a/./b") == f"{top}/..a/b"
    assert absolute(os.fsencode(top)) == top
    assert absolute("a") == f"{Path.cwd()}/a"
    assert absolute(3) is None


def test_a_relative_question_is_about_the_specs_folder(gallery: Gallery, place: Any) -> None:
    assert gallery.manifests["relative"]["opened"] == {"is:later.txt": None}
    place.patch.chdir(place.root)
    for name in ("relative", "the current folder"):
        assert place.ask(gallery.manifests[name]).changed == ()
    place.add("specs/later.txt")
    assert len(place.ask(gallery.manifests["relative"]).changed) == 1


def test_a_question_that_cannot_be_recorded_is_said_and_does_no_harm(gallery: Gallery) -> None:
    assert gallery.manifests["odd"]["unseen"] == []
    said = f"{gallery.who('fresh odd')} queried something that cannot be recorded"
    assert gallery.manifests["fresh odd"]["unseen"] == [said]


def test_an_unreadable_file_differs_from_a_missing_one(tmp_path: Path) -> None:
    def no_digest(path: Path) -> str:
        raise ToolError(f"{path}: no digest")

    (tmp_path / "folder").mkdir()
    assert digest_of("file:folder", tmp_path / "folder", no_digest) == "folder"
    assert digest_of("file:none", tmp_path / "none", no_digest) is None


# ---- variables, modules, and what is nobody's question


@pytest.mark.parametrize("name", LOOKS)
def test_a_variable_that_is_asked_for_and_not_there_is_recorded_with_the_line(
    gallery: Gallery, place: Any, name: str
) -> None:
    found, entry = gallery.manifests[f"looks: {name}"], gallery.entries[f"looks: {name}"]
    assert found["missed"] == {"CHOICE": f"{entry}.py:7"}
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


def test_what_a_kernel_declares_is_not_missed_and_a_file_at_home_is(gallery: Gallery) -> None:
    for name in ("declared", "declared and not set"):
        assert gallery.manifests[name]["missed"] == {}
    entry = gallery.entries["a file at home"]
    missed = gallery.manifests["a file at home"]["missed"]
    assert missed == {"~/tuning/table.json": f"{entry}.py:7"}


@pytest.mark.parametrize("name", ABSENT)
@pytest.mark.parametrize("where", ["site/later/__init__.py", "specs/later.py"])
def test_a_module_that_was_missing_is_noticed_when_it_comes(
    gallery: Gallery, place: Any, name: str, where: str
) -> None:
    found = gallery.manifests[f"absent: {name}"]
    assert found["absent"] == ["later"]
    assert place.ask(found).changed == ()
    place.add(where)
    assert place.ask(found).changed == ("later was missing and can be imported now",)


@pytest.mark.parametrize("name", NOBODYS)
def test_what_no_kernel_asks_is_not_recorded(gallery: Gallery, name: str) -> None:
    found = gallery.manifests[f"nobody: {name}"]
    assert [found[key] for key in ("opened", "unseen", "altered", "missed")] == [{}, [], [], {}]


@pytest.mark.parametrize("name", ACTS)
def test_what_leaves_the_process_is_said(gallery: Gallery, name: str) -> None:
    said = f"{gallery.who(f'act: {name}')} {ACTS[name][1]}"
    assert gallery.manifests[f"act: {name}"]["unseen"] == [said]


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
