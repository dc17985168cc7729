"""What the user's code asks without opening anything: what there is, and where links lead."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.inputs.recorders import absolute
from pallasc.compiler.inputs.sources import digest_of
from pallasc.errors import ToolError
from pallasc.specs.entries import shown_name

NOTES = "HERE / 'notes.txt'"
LATER = "HERE / 'later.txt'"

IS_THERE = {
    "exists": f"assert os.path.exists({NOTES})",
    "lexists of text": f"assert os.path.exists(str({NOTES}))",
    "bytes": f"assert os.path.exists(os.fsencode({NOTES}))",
    "isfile": f"assert os.path.isfile({NOTES})",
    "access": f"assert os.access({NOTES}, os.R_OK)",
    "access by name": f"assert os.access(path={NOTES}, mode=os.F_OK)",
    "Path.exists": f"assert ({NOTES}).exists()",
    "Path.is_file": f"assert ({NOTES}).is_file()",
    "imported before": "import asking; assert asking.KNOWN",
    "in a function of Python": "assert __import__('shutil').which('notes.txt', path=HERE) is None",
}
IS_MISSING = {
    "exists": f"assert not os.path.exists({LATER})",
    "isfile": f"assert not os.path.isfile({LATER})",
    "isdir": f"assert not os.path.isdir({LATER})",
    "access": f"assert not os.access({LATER}, os.R_OK)",
    "Path.exists": f"assert not ({LATER}).exists()",
    "Path.is_dir": f"assert not ({LATER}).is_dir()",
    "stat": f"try: os.stat({LATER})\n    except OSError: pass",
}
MEASURED = {
    "stat": f"os.stat({NOTES})",
    "Path.stat": f"({NOTES}).stat().st_size",
    "getsize": f"os.path.getsize({NOTES})",
    "getmtime": f"os.path.getmtime({NOTES})",
    "by a descriptor of the folder": "os.stat('notes.txt', dir_fd=os.open(HERE, os.O_RDONLY))",
    "samefile": f"assert os.path.samefile({NOTES}, {NOTES})",
}
IS_FOLDER = {
    "isdir": "assert os.path.isdir(HERE / 'parts')",
    "Path.is_dir": "assert (HERE / 'parts').is_dir()",
    "stat": "os.stat(HERE / 'parts')",
    "makedirs": "os.makedirs(HERE / 'parts', exist_ok=True)",
}
PARENTS = {name: {"is:.": "folder"} for name in ("by a descriptor of the folder", "makedirs")}
NOBODYS = {
    "inspect": ("import inspect, helper", "inspect.getsource(helper.scale)"),
    "linecache": ("import linecache", "linecache.checkcache()"),
    "tempfile": ("import tempfile", "tempfile.gettempdir()", "tempfile.mkdtemp()"),
    "logging": ("import logging", "logging.getLogger('a').warning('%s', x)"),
    "importlib": ("import importlib", "importlib.invalidate_caches()", "import second"),
    "a path": ("Path(__file__).resolve()", "os.path.realpath(__file__)"),
    "the time": ("import time", "time.time() + time.monotonic()"),
    "chance": ("import random", "random.random() + len(os.urandom(4))"),
    "a package": ("import clocked",),
    "python's sets": ("assert os.stat in os.supports_dir_fd & os.supports_follow_symlinks",
                      "assert os.access in os.supports_effective_ids"),
    "its own file": ("(HERE / 'own').write_text('1')", "assert (HERE / 'own').exists()"),
}  # fmt: skip
ACTS = {
    "a fork": ("os.fork() or os._exit(0)", "started another process"),
    "a name of the network": (
        "__import__('socket').getaddrinfo('127.0.0.1', 80)", "talked to the network"),
}  # fmt: skip
OTHERS = {
    "a link": ("assert (HERE / 'current' / 'one.part').read_text()",),
    "a resolved link": ("assert ((HERE / 'current').resolve() / 'one.part').read_text()",),
    "readlink": ("assert os.readlink(HERE / 'current') == 'parts'",),
    "islink": ("assert (HERE / 'current').is_symlink()", f"assert not ({NOTES}).is_symlink()"),
    "a device": ("assert os.path.exists('/proc/self/status')", "os.path.exists('/dev/none')"),
    "relative": ("os.path.exists('later.txt')",),
    "the current folder": ("os.getcwd()",),
    "up": ("assert (HERE / 'current' / '..' / 'notes.txt').exists()",),
    "a listing by descriptor": ("os.listdir(os.open(HERE / 'parts', os.O_RDONLY))",),
    "all names": ("[name for name in os.environ if name.startswith('CHOICE')]",),
    "bytes": ("os.environb.get(b'CHOICE')",),
    "made after the question": (f"if not ({LATER}1).exists(): ({LATER}1).write_text('')".replace(
        "'later.txt'1", "'later1.txt'"),),
    "opened to be read and written": ("open(HERE / 'notes.txt', 'r+').close()",),
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
    "specs/asking.py": "import os\nKNOWN = os.path.exists(__file__[:-9] + 'notes.txt')\n",
    "site/clocked.py": "import os, random, time\nBEGAN = time.time(), random.random()\n"
    "os.path.exists('odr')\n\n\ndef now():\n    return time.time()\n",
    "specs/gone.txt": "",
    "specs/writing.py": "open(__file__[:-10] + 'made.txt', 'w').write('1')\n",
}

CASES: dict[str, tuple[str, ...]] = {
    **OTHERS,
    **{f"there: {name}": (line,) for name, line in IS_THERE.items()},
    **{f"missing: {name}": tuple(line.split("\n    ")) for name, line in IS_MISSING.items()},
    **{f"measured: {name}": (line,) for name, line in MEASURED.items()},
    **{f"folder: {name}": (line,) for name, line in IS_FOLDER.items()},
    **{f"nobody: {name}": lines for name, lines in NOBODYS.items()},
    **{f"act: {name}": (line,) for name, (line, _) in ACTS.items()},
}


@dataclass(frozen=True)
class Gallery:
    """A world with a kernel for each case, their names, and the manifests of all of them."""

    root: Path
    entries: dict[str, str]
    manifests: dict[str, Any]


@pytest.fixture(scope="module")
def gallery(baseline: Any, trace: Any, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Return all cases, traced in one process."""
    root = tmp_path_factory.mktemp("asks") / "world"
    shutil.copytree(baseline.root, root)
    (root / "specs/current").symlink_to("parts")
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(root, patch)
        for name, text in FILES.items():
            world.add(name, text)
        shutil.rmtree(root / "site/numpy")  # the real one draws
        names = {f"case_{number}": name for number, name in enumerate(CASES)}
        kernels = [world.add_kernel(entry, CASES[name]) for entry, name in names.items()]
        found = trace(world, *kernels, CHOICE="a", TMPDIR=str(root))
    entries = {name: f"_pallasc_spec_{entry}" for entry, name in names.items()}
    return Gallery(root, entries, {names[entry]: manifest for entry, manifest in found.items()})


@pytest.fixture
def place(gallery: Gallery, baseline: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a copy of the gallery that a test may change."""
    shutil.copytree(gallery.root, tmp_path / "copy", symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        world = baseline.world(tmp_path / "copy", patch)
        world.setenv("CHOICE", "a")
        yield world


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", IS_THERE)
def test_that_a_file_is_there_is_recorded(gallery: Gallery, place: Any, name: str) -> None:
    found = gallery.manifests[f"there: {name}"]
    assert found["opened"] == {"is:notes.txt": "file"}
    place.add("specs/notes.txt", "other contents")
    assert place.ask(found).changed == ()
    (place.project / "notes.txt").unlink()
    (said,) = place.ask(found).changed
    assert said == "notes.txt was tested for and has been created, removed or replaced"


@pytest.mark.parametrize("name", IS_MISSING)
@pytest.mark.parametrize("comes", ["file", "folder"])
def test_that_something_is_missing_is_recorded(
    gallery: Gallery, place: Any, name: str, comes: str
) -> None:
    found = gallery.manifests[f"missing: {name}"]
    assert found["opened"] == {"is:later.txt": None}
    assert place.ask(found).changed == ()
    (place.project / "later.txt").touch() if comes == "file" else (
        place.project / "later.txt"
    ).mkdir()
    assert len(place.ask(found).changed) == 1


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_asked_about_a_file_counts_as_its_contents(gallery: Gallery, name: str) -> None:
    opened = gallery.manifests[f"measured: {name}"]["opened"]
    assert opened == {"file:notes.txt": digest("nothing\n"), **PARENTS.get(name, {})}


@pytest.mark.parametrize("name", IS_FOLDER)
def test_that_a_folder_is_there_does_not_depend_on_what_is_in_it(
    gallery: Gallery, place: Any, name: str
) -> None:
    found = gallery.manifests[f"folder: {name}"]
    assert found["opened"] == {"is:parts": "folder", **PARENTS.get(name, {})}
    place.add("specs/parts/two.part")
    assert place.ask(found).changed == ()
    shutil.rmtree(place.project / "parts")
    assert len(place.ask(found).changed) == 1


@pytest.mark.parametrize("name", NOBODYS)
def test_what_no_kernel_asks_is_not_recorded(gallery: Gallery, name: str) -> None:
    found = gallery.manifests[f"nobody: {name}"]
    assert [found[key] for key in ("opened", "unseen", "altered", "missed")] == [{}, [], [], {}]


@pytest.mark.parametrize("name", ACTS)
def test_what_leaves_the_process_is_said(gallery: Gallery, name: str) -> None:
    who = shown_name(gallery.entries[f"act: {name}"])
    assert gallery.manifests[f"act: {name}"]["unseen"] == [f"{who} {ACTS[name][1]}"]


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


def test_a_folder_that_is_listed_by_its_descriptor_is_recorded(
    gallery: Gallery, place: Any
) -> None:
    found = gallery.manifests["a listing by descriptor"]
    assert set(found["opened"]) == {"folder:parts", "is:parts"}
    place.add("specs/parts/two.part")
    assert len(place.ask(found).changed) == 1


def test_a_file_that_was_written_counts_where_somebody_else_reads_it(gallery: Gallery) -> None:
    assert gallery.manifests["written by another"]["opened"] == {"file:made.txt": digest("1")}
    opened = gallery.manifests["opened to be read and written"]["opened"]
    assert opened == {"file:notes.txt": digest("nothing\n")}


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


def test_a_question_that_cannot_be_recorded_is_said_and_does_no_harm(gallery: Gallery) -> None:
    assert gallery.manifests["odd"]["unseen"] == []
    who = shown_name(gallery.entries["fresh odd"])
    assert gallery.manifests["fresh odd"]["unseen"] == [
        f"{who} queried something that cannot be recorded"
    ]


def test_an_unreadable_file_differs_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    found = [
        digest_of("file:folder", tmp_path / "folder", _no_digest),
        digest_of("file:none", tmp_path / "none", _no_digest),
    ]
    assert found == ["folder", None]


def _no_digest(path: Path) -> str:
    raise ToolError(f"{path}: no digest")
