"""Which files belong to a kernel: real compilations, looked at through their manifests.

Tests of keys (`tests/keys`) have the usual imports; here are the others.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.toolchain.modules import locate_module
from pallasc.errors import SpecError
from pallasc.specs.user_files import check_entry

HELPER = "def scale(x):\n    return x * {factor}\n"

FILES = {
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
    "star.py": "from pkg4 import *\ndef run(x): return sub4.scale(x)\n",
    "space.py": "import shared_space.part\ndef run(x): return shared_space.part.scale(x)\n",
    "edited.py": "import edited_package.inner\ndef run(x): return edited_package.inner.scale(x)\n",
    "library.py": (
        "from pallasc.specs.library import elementwise\n"
        "def run(x): return elementwise.add(x, x, block_size=1024)\n"
    ),
    "deep/nested.py": "import help_nested\ndef run(x): return help_nested.scale(x)\n",
    "deep/help_nested.py": HELPER.format(factor=19),
    "odd/help-hand.py": HELPER.format(factor=18),
    "pkg4/__init__.py": "__all__ = ['sub4']\n",
    "pkg4/sub4.py": HELPER.format(factor=15),
    "shared_space/part.py": HELPER.format(factor=16),
    "help_pkgutil.py": HELPER.format(factor=5),
}

EXPECTED = {
    "by_pkgutil": {"module:help_pkgutil"},
    "hand": {"file:odd/help-hand.py"},
    "star": {"module:pkg4", "module:pkg4.sub4"},
    "space": {"module:shared_space.part"},
    "edited": {"module:edited_package", "module:edited_package.inner"},
    "library": {"module:pallasc.specs.library", "module:pallasc.specs.library.elementwise"},
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
    project.spec(*kernels.values())
    report = project.build()
    assert [(r.variant.name, str(r.error)) for r in report.failed] == []
    variants = project.variants()
    manifests = project.manifests(variants)
    found = {name: set(manifest.files) for name, manifest in manifests.items()}
    assert found == {
        name.replace("/", "_"): {f"file:{name}.py", *files} for name, files in EXPECTED.items()
    }
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
    check_entry("mapped.inner.kernels:run", str(tmp_path))
    with pytest.raises(SpecError, match="has no 'walk'"):
        check_entry("mapped.inner.kernels:walk", str(tmp_path))
