"""Where no compiler is installed, what the store has is found; what was not checked is said."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import format
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs import manifest
from pallasc.compiler.inputs.manifest import choose_remembered, remember
from pallasc.compiler.toolchain import modules
from pallasc.compiler.toolchain import toolchain as installed
from pallasc.compiler.toolchain.identity import components, own_digest, python_name
from pallasc.errors import NotCachedError, ToolError
from pallasc.specs.loading.lock import Lock

COMPILER = ("jax", "jaxlib", "jax-cuda", "jax_cuda", "nvidia-", "llvmlite", "numpy", "ml_dtypes")


@pytest.fixture(scope="module")
def compiled(make_project: Callable[[], Any]) -> Any:
    """Build a project of two kernels, one of YAML and one of Python."""
    project = make_project()
    project.write("scale.py", "import numpy\n\n\ndef run(x):\n    return x * len(numpy.ones(2))\n")
    project.spec({"name": "scale", "entry": "scale.py:run"})
    project.write(
        "twice.py",
        "import pallasc\n\n\n@pallasc.kernel(args={'x': 'f32[8, 128]'}, targets=['sm_90a'])\n"
        "def twice(x):\n    return x + x\n",
    )
    assert project.build("spec.yaml", "twice.py").exit_code == 0
    return project


@pytest.fixture
def built(compiled: Any, tmp_path: Path) -> Any:
    """Return a copy of that project, whose kernels are in the store."""
    return compiled.copy(tmp_path)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the packages that compile from what looks for them."""
    found, located = installed.find_package, modules.locate_module

    def find_package(name: str) -> Any:
        return None if name.startswith(COMPILER) else found(name)

    def locate_module(name: str, folders: Any) -> Path | None:
        return None if name.partition(".")[0].startswith(COMPILER) else located(name, folders)

    for place in ("toolchain.toolchain", "toolchain.identity"):
        monkeypatch.setattr(f"pallasc.compiler.{place}.find_package", find_package)
    for place in ("toolchain.identity", "toolchain.modules", "inputs.sources"):
        monkeypatch.setattr(f"pallasc.compiler.{place}.locate_module", locate_module)


BOTH = ("spec.yaml", "twice.py")


@pytest.mark.parametrize("options", [{"frozen": True}, {}])
def test_what_the_store_has_is_found_and_what_is_not_checked_is_said(
    built: Any, nothing_installed: None, options: dict[str, bool]
) -> None:
    report = built.build(*BOTH, **options)
    assert [result.status for result in report.results] == ["hit", "hit"]
    toolchain, packages = report.notes
    assert re.match(
        "the toolchain was not checked, because no compiler is installed here; the store was "
        r"filled with jax 0\..*, ptxas 1",
        toolchain,
    )
    assert packages == (
        "packages that kernels import but are not installed here were not checked: numpy"
    )


def test_a_changed_kernel_is_no_hit(built: Any, nothing_installed: None) -> None:
    built.write("scale.py", "def run(x):\n    return x * 5\n")
    (frozen,) = built.build(frozen=True).results
    (missing,) = built.build(compile=False, explain=True).results
    (asked,) = built.build().results
    assert frozen.error.exit_code == 3
    assert (missing.status, missing.explanation) == ("missing", ("scale.py has changed",))
    assert asked.error.exit_code == 4
    assert str(asked.error).endswith(
        "scale@h100-sxm has to be compiled, but no compiler is installed here: "
        "scale.py has changed."
        '\n  Install it with: pip install "pallasc[cuda13]"'
    )


def test_an_empty_store_and_no_compiler_are_an_error(project: Any, nothing_installed: None) -> None:
    project.write("scale.py", "def run(x):\n    return x * 2\n")
    project.spec({"name": "scale", "entry": "scale.py:run"})
    for options in ({"frozen": True}, {"compile": False}):
        with pytest.raises(ToolError, match="the store does not record which one filled it"):
            project.build(**options)
    with pytest.raises(ToolError, match="No CUDA plugin for JAX is installed"):
        project.build()


def identity(name: str) -> dict[str, str]:
    """Return the identity of a toolchain of this Python and this pallasc."""
    own = own_digest(FileDigests().digest)
    return {"python": f"{python_name()}, starts with this", "pallasc": own, "jax": name * 64}


def test_the_toolchain_of_the_lock_or_the_newest_is_taken(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("1", "2", "1", *"345678"):
        remember(store, identity(name), {"jax": f"0.{name}"})
    known = [known.versions["jax"][2:] for known in manifest.remembered_toolchains(store)]
    assert known == list("87654312")  # each once
    assert choose_remembered(store).versions == {"jax": "0.8"}
    locks = [Lock(components(identity(name), {}, {})) for name in ("1", "9")]
    assert choose_remembered(store, locks[0]).versions == {"jax": "0.1"}
    assert choose_remembered(store, locks[1]).versions == {"jax": "0.8"}


def test_another_python_or_another_pallasc_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = {**identity("1"), "python": "cpython 3.2.1", "pallasc": "0" * 64}
    remember(store, other, {"jax": "0.1", "pallasc": "0.0.1"})
    with pytest.raises(NotCachedError, match=r"python: 3\.2\.1 before, 3\.") as caught:
        choose_remembered(store)
    assert "pallasc: 0.0.1 before, " in str(caught.value)


@pytest.mark.parametrize(
    "planted",
    [None, [None], [{}], [{"identity": {}, "versions": {}, "jax": ""}],
     [{"identity": {"python": 1, "pallasc": "a"}, "versions": {}, "jax": ""}],
     [{"identity": [], "versions": {}, "jax": ""}]],
)  # fmt: skip
def test_what_is_planted_in_its_place_is_nothing(tmp_path: Path, planted: Any) -> None:
    store = Store(tmp_path)
    path = store.path("man", manifest._KEY)
    path.parent.mkdir(parents=True)
    body = {"action": "", "toolchains": planted}
    path.write_bytes(format.encode("manifest", manifest._KEY, body)[0])
    assert manifest.remembered_toolchains(store) == []


@pytest.fixture(params=["setuptools", "hatchling"])
def asked(
    built: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[], list[str]]:
    """Return what tells what a backend wants to have installed for a wheel with `built` in it."""
    built.variants("twice.py")  # remembered by the place of the file
    request.getfixturevalue("nothing_installed")
    built.write("mylib/__init__.py", "")
    hook = "[tool.hatch.build.hooks.pallasc]\n" if request.param == "hatchling" else ""
    settings = (
        '[project]\nname = "mylib"\nversion = "1"\n[tool.setuptools]\npackages = ["mylib"]\n'
        f'{hook}[tool.pallasc]\ncompiler = "cuda12"\n'
        '[tool.pallasc.bundles]\n"mylib/k.pallasc" = ["spec.yaml", "twice.py"]\n'
    )
    built.write("pyproject.toml", settings)
    monkeypatch.chdir(built.folder)
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(built.store.root))
    monkeypatch.setattr("sys.argv", ["build"])
    monkeypatch.setattr("pallasc.hooks.bundles.is_compiler_installed", lambda: False)
    module = "setuptools.build_meta" if request.param == "setuptools" else "hatchling.build"
    return importlib.import_module(module).get_requires_for_build_wheel


def test_a_wheel_asks_for_a_compiler_only_where_something_has_to_be_compiled(
    built: Any, asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked() == []
    built.write("scale.py", "def run(x):\n    return x * 5\n")
    assert asked() == ["pallasc[cuda12]"]
    monkeypatch.setenv("PALLASC_FROZEN", "1")
    assert asked() == []
