"""What the code of a kernel sees of the environment: the same everywhere, and what it declares."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.lowering.kernel_output import unpack
from pallasc.errors import SpecError

SETTINGS = """
import os

FOUND = {name: value for name, value in os.environ.items() if name.startswith("PROGRESS_")}
"""
CURIOUS = """
import getpass, json, os, pwd, shutil, sys
from pathlib import Path

import settings

HERE = Path(__file__).parent


def seen():
    names = sorted(name for name in os.environ if not name.startswith(("MOSAIC_", "TF_CPP")))
    account = pwd.getpwuid(os.getuid())
    return {
        "names": names,
        "values": {name: os.environ[name] for name in names if name != "HOME"},
        "home": sorted(os.listdir(Path.home())),
        "is home": os.path.expanduser("~") == account.pw_dir == str(Path.home()),
        "user": [getpass.getuser(), account.pw_name, os.getlogin()],
        "arguments": [sys.argv, sys.orig_argv[1:]],
        "folder": os.path.relpath(os.getcwd(), HERE),
        "terminal": [list(shutil.get_terminal_size()), sys.stdin.isatty(), sys.stdout.isatty()],
        "input": sys.stdin.read(),
        "text": open("text.txt").read(),
        "settings": settings.FOUND,
    }


def run(x):
    print(json.dumps(seen()))
    return x * 2
"""
ELSEWHERE = {
    "RUN_ID": "8", "_": "/usr/bin/nice", "PROGRESS_BAR": "1", "HOME": "/home/other", "USER": "me",
    "LOGNAME": "other", "TERM": "xterm", "COLUMNS": "40", "LINES": "9", "LANG": "de_DE.UTF-8",
    "NO_COLOR": "1", "PIP_CONSTRAINT": "/c.txt", "VIRTUAL_ENV": "/v", "TZ": "Pacific/Auckland",
    "PALLASC_FROZEN": "1", "SHLVL": "9", "PWD": "/", "XDG_CACHE_HOME": "/caches",
    "GITHUB_ACTIONS": "true", "https_proxy": "http://proxy:3128", "MAKEFLAGS": "-j",
}  # fmt: skip


def printed(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(unpack(result.printed))
    return found


def test_in_another_environment_nothing_is_missed_and_kernels_see_the_same(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("settings.py", SETTINGS)
    project.write("curious.py", CURIOUS)
    project.write("text.txt", "written\n")
    project.spec({"name": "curious", "entry": "curious.py:run"})
    (first,) = project.build().results
    assert first.status == "compiled", first.error
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["other", "--flag"])
    report = project.build(frozen=True)
    assert [result.status for result in report.results] == ["hit"]
    assert report.notes == ()
    project.store = Store(tmp_path / "another store")
    (second,) = project.build().results
    assert second.status == "compiled", second.error
    assert printed(first) == printed(second)
    assert (first.action_key, first.artifact.digest) == (second.action_key, second.artifact.digest)
    seen = printed(first)
    assert seen["home"] == []
    assert seen["is home"] is True
    assert seen["user"] == ["pallasc"] * 3
    assert seen["arguments"] == [["pallasc.compiler.workers.worker"]] * 2
    assert seen["folder"] == "."
    assert seen["terminal"] == [[80, 24], False, False]
    assert (seen["input"], seen["text"], seen["settings"]) == ("", "written\n", {})
    assert seen["values"]["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert not {"TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"} & {*seen["names"]}


CHOOSING = """
import os

TILE = int(os.environ.get("KERNEL_TILE", "64"))


def run(x):
    return x * TILE
"""


def choosing(project: Any, **more: Any) -> None:
    project.write("choosing.py", CHOOSING)
    project.spec({"name": "choosing", "entry": "choosing.py:run", **more})


def test_a_variable_that_is_not_declared_is_not_seen_and_the_build_says_so_or_fails(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(project)
    monkeypatch.setenv("KERNEL_TILE", "128")
    first, hit = project.build(), project.build()
    pattern = re.compile("ASKS for kernel_tile", re.IGNORECASE)
    (failed,) = project.build(fail_on_warning=[pattern]).results
    monkeypatch.delenv("KERNEL_TILE")
    unset = project.build(fail_on_warning=[pattern])
    assert unset.notes == ()
    for report, status in ((first, "compiled"), (hit, "hit"), (unset, "hit")):
        (result,) = report.results
        assert (result.status, result.action_key) == (status, first.results[0].action_key)
    said = "choosing asks for KERNEL_TILE"
    assert (
        first.notes
        == hit.notes
        == (
            f"{said} (choosing.py:4), which exists here but is not passed on: "
            'to pass it on, write env: ["KERNEL_TILE"] in the spec.',
        )
    )
    assert (failed.status, failed.error.exit_code) == ("failed", 1)
    assert failed.error.message.startswith(
        f"it compiles with a warning: choosing.py:4: pallasc: {said}, "
        "which exists here but is not passed on"
    )
    assert str(failed.error.location) == f"{project.folder}/choosing.py:4"


ASKING = {
    "called": "import os\n\ndef run(x):\n    os.environ['KERNEL_CALLED']\n",
    "imported": "import os\nTILE = os.environ['KERNEL_IMPORTED']\n\nrun = 0\n",
    "importing": "def run(x):\n    import tiles\n",
    "tiles": "import os\nTILE = os.environ['KERNEL_TILES']\n",
}


def test_a_build_names_the_variable_without_which_a_kernel_fails(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in ASKING.items():
        project.write(f"{name}.py", text)
    kernels = [name for name in ASKING if name != "tiles"]
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in kernels))
    variables = ("KERNEL_CALLED", "KERNEL_IMPORTED", "KERNEL_TILES")
    for variable in variables:
        monkeypatch.setenv(variable, "128")
    report = project.build(keep_going=True)
    for result, variable in zip(report.results, variables, strict=True):
        assert variable in result.error.message
    places = ("called.py:4", "imported.py:2", "tiles.py:2")
    notes = [
        f"{kernel} asks for {variable} ({place}), which exists here but is not passed on"
        for kernel, variable, place in zip(kernels, variables, places, strict=True)
    ]
    assert sorted(note.partition(": ")[0] for note in report.notes) == sorted(notes)


def test_kernels_with_other_declarations_do_not_share_a_process(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(project)
    same = {"entry": "choosing.py:run"}
    declaring = {"name": "second", **same, "env": ["KERNEL_TILE"]}
    project.spec({"name": "first", **same}, declaring, {"name": "third", **same})
    monkeypatch.setenv("KERNEL_TILE", "128")
    first, second, third = project.build().results
    assert first.action_key == third.action_key != second.action_key


def test_what_lies_in_the_home_folder_is_not_seen_and_the_build_says_so(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "tuned.py",
        "from pathlib import Path\nTABLE = Path.home() / 'table.json'\n"
        "SIZE = len(TABLE.read_text()) if TABLE.exists() else 1\n"
        "(Path.home() / '.cache').mkdir()\n(Path.home() / '.cache/a').write_text('1')\n"
        "(Path.home() / '.cache/a').read_text()\n\n\ndef run(x):\n    return x * SIZE\n",
    )
    project.spec({"name": "tuned", "entry": "tuned.py:run"})
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    assert project.build().notes == ()
    (home / "table.json").write_text("12345")
    report = project.build()
    assert report.results[0].status == "hit"
    (note,) = report.notes
    assert note.startswith("tuned asks for ~/table.json (tuned.py:3), which exists here but is not")
    assert list((home / ".cache").iterdir()) == []


def test_what_a_project_cannot_declare(project: Any) -> None:
    choosing(project)
    for text, said in {
        'env = ["PATH"]': "PATH has its own value in every compiling process.",
        'env = ["CUDA_HOME"]': "CUDA_HOME never reaches a compiling process",
        'env = "TILE"': "expected a list of environment variables, got 'TILE'.",
        'env = ["a b"]': "expected the name of an environment variable, got 'a b'.",
        "env = [": "not valid TOML",
    }.items():
        file = project.write("pyproject.toml", f"[tool.pallasc]\n{text}\n")
        with pytest.raises(SpecError) as caught:
            project.variants()
        assert said in str(caught.value)
        assert str(caught.value).startswith(str(file))
