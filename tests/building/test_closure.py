"""Which files belong to a kernel: real compilations, looked at through their manifests."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.toolchain.modules import is_standard, locate_module
from pallasc.errors import SpecError
from pallasc.specs.entries import check_entry, parse_entry

HELPER = "def scale(x):\n    return x * {factor}\n"

FILES = {
    "top.py": "import help_top\ndef run(x): return help_top.scale(x)\n",
    "dynamic.py": (
        "import importlib\ndef run(x): return importlib.import_module('help_dynamic').scale(x)\n"
    ),
    "by_pkgutil.py": (
        "import pkgutil\ndef run(x): return pkgutil.resolve_name('help_pkgutil:scale')(x)\n"
    ),
    "hand.py": (
        "import importlib.util, pathlib\n"
        "place = pathlib.Path(__file__).parent / 'odd' / 'help-hand.py'\n"
        "spec = importlib.util.spec_from_file_location('help_hand', place)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "def run(x): return module.scale(x)\n"
    ),
    "package.py": "from pkg.kernels import run\n",
    "star.py": "from pkg4 import *\ndef run(x): return sub4.scale(x)\n",
    "space.py": "import shared_space.part\ndef run(x): return shared_space.part.scale(x)\n",
    "shadow.py": "import colorsys\ndef run(x): return colorsys.scale(x)\n",
    "installed.py": (
        "import yaml, google.protobuf.message\ndef run(x): return x + yaml.safe_load('17')\n"
    ),
    "edited.py": "import edited_package.inner\ndef run(x): return edited_package.inner.scale(x)\n",
    "library.py": (
        "from pallasc.specs.library import elementwise\n"
        "def run(x): return elementwise.add(x, x, block_size=1024)\n"
    ),
    "static.py": "def run(x, *, config): return x * config\n",
    "made.py": "import help_made\ndef make(*, n): return help_made.VALUE * n\n",
    "other_entry.py": "import help_other\ndef run(x): return help_other.scale(x)\n",
    "deep/nested.py": "import help_nested\ndef run(x): return help_nested.scale(x)\n",
    "deep/help_nested.py": HELPER.format(factor=19),
    "help_made.py": "VALUE = 2.0\n",
    "odd/help-hand.py": HELPER.format(factor=18),
    "pkg/__init__.py": "",
    "pkg/kernels.py": (
        "from . import near\nfrom .deep import far\ndef run(x): return near.scale(far.scale(x))\n"
    ),
    "pkg/near.py": HELPER.format(factor=11),
    "pkg/deep/__init__.py": "",
    "pkg/deep/far.py": HELPER.format(factor=12),
    "pkg4/__init__.py": "__all__ = ['sub4']\n",
    "pkg4/sub4.py": HELPER.format(factor=15),
    "shared_space/part.py": HELPER.format(factor=16),
    "colorsys.py": HELPER.format(factor=20),
    **{
        f"help_{name}.py": HELPER.format(factor=factor)
        for factor, name in enumerate(("top", "dynamic", "other", "pkgutil"), start=2)
    },
}

EXPECTED = {
    "top": {"module:help_top"},
    "dynamic": {"module:help_dynamic"},
    "by_pkgutil": {"module:help_pkgutil"},
    "hand": {"file:odd/help-hand.py"},
    "package": {f"module:pkg{m}" for m in ("", ".kernels", ".near", ".deep", ".deep.far")},
    "star": {"module:pkg4", "module:pkg4.sub4"},
    "space": {"module:shared_space.part"},
    "shadow": {"module:colorsys"},
    "installed": set(),
    "edited": {"module:edited_package", "module:edited_package.inner"},
    "library": {"module:pallasc.specs.library", "module:pallasc.specs.library.elementwise"},
    "static": {"file:made.py", "module:help_made"},
    "other_entry": {"module:help_other"},
    "deep/nested": {"module:help_nested"},
}

FINDER = """
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "edited_package":
            place = {place!r}
            return importlib.util.spec_from_file_location(
                name, place + "/__init__.py", submodule_search_locations=[place])
sys.meta_path.append(Finder)
"""


class Editable:
    """Finds packages as the finders of editable installs do."""

    def __init__(self, **places: Path) -> None:
        self.places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        place = self.places.get(name)
        return place and importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package that only a finder on `sys.meta_path` finds, here and in workers."""
    place = tmp_path / "source" / "edited-package"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "inner.py").write_text(HELPER.format(factor=21))
    customised = tmp_path / "customised"
    customised.mkdir()
    (customised / "sitecustomize.py").write_text(FINDER.format(place=str(place)))
    path = os.pathsep.join([str(customised), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(edited_package=place)])
    return place


def test_each_kernel_has_exactly_the_files_that_it_reaches(project: Any, edited: Path) -> None:
    for name, text in FILES.items():
        project.write(name, text)
    kernels: dict[str, dict[str, Any]] = {
        name: {"name": name.replace("/", "_"), "entry": f"{name}.py:run"} for name in EXPECTED
    }
    kernels["static"]["static"] = {"config": {"$call": "made.py:make", "n": 3}}
    project.spec(*kernels.values())
    report = project.build()
    assert [(r.variant.name, str(r.error)) for r in report.failed] == []
    variants = project.variants()
    manifests = project.manifests(variants)
    found = {name: set(manifest.files) for name, manifest in manifests.items()}
    assert found == {
        name.replace("/", "_"): {f"file:{name}.py", *files} for name, files in EXPECTED.items()
    }
    packages = {name: set(m.packages) for name, m in manifests.items() if m.packages}
    assert packages == {"installed": {"yaml", "google.protobuf"}}
    assert len(project.build().hits) == len(EXPECTED)
    (edited / "inner.py").write_text(HELPER.format(factor=22))
    again = project.build()
    assert [r.variant.name for r in again.compiled] == ["edited"]
    assert again.compiled[0].reason.startswith("edited_package.inner")
    assert again.compiled[0].reason.endswith("has changed")


def test_folders_with_files_of_the_same_names_do_not_mix_in_any_order(
    project: Any, results: Any
) -> None:
    for number, folder in enumerate(("one", "two"), start=2):
        project.write(f"{folder}/kernel.py", "import same\ndef run(x): return same.scale(x)\n")
        project.write(f"{folder}/same.py", HELPER.format(factor=number))
        project.spec({"name": folder, "entry": "kernel.py:run"}, name=f"{folder}/spec.yaml")
    digests = []
    for order in (("one", "two"), ("two", "one")):
        project.spec(*({"name": name, "entry": f"{name}/kernel.py:run"} for name in order))
        report = project.build()
        digests.append({n: r.artifact.digest for n, r in results(report).items()})
    assert len(report.hits) == 2
    report = project.build("one/spec.yaml", "two/spec.yaml")
    digests.append({n: r.artifact.digest for n, r in results(report).items()})
    assert digests[0] == digests[1] == digests[2]
    assert digests[0]["one"] != digests[0]["two"]


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that Python looks in."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_module_is_located_without_importing_it(top: Path, tmp_path: Path) -> None:
    (top / "loud").mkdir()
    (top / "loud" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (top / "loud" / "part.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "loud").mkdir()  # a plain folder does not hide it
    assert locate_module("loud.part", (str(tmp_path),)) == top / "loud" / "part.py"
    assert "loud" not in sys.modules
    for name in ("no_such_module", "os.path.deeper", "loud.part.missing"):
        assert locate_module(name, ()) is None


def test_modules_of_python_itself_are_told_apart() -> None:
    names = ("os", "os.path", "__main__", "jax", "pallasc")
    assert [*map(is_standard, names)] == [True, True, True, False, False]


def test_a_submodule_that_only_an_editable_finder_knows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"mapped": tmp_path / "api", "mapped.inner": tmp_path / "elsewhere"}
    for place in places.values():
        place.mkdir()
        (place / "__init__.py").write_text("")
    (tmp_path / "elsewhere" / "kernels.py").write_text("def run(x): return x\n")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(**places)])
    assert locate_module("mapped.inner.kernels", ()) == tmp_path / "elsewhere" / "kernels.py"
    check_entry(parse_entry("mapped.inner.kernels:run"), str(tmp_path))
    with pytest.raises(SpecError, match="has no 'walk'"):
        check_entry(parse_entry("mapped.inner.kernels:walk"), str(tmp_path))
