"""Imports go in one direction; importing pallasc has no effects and loads few modules."""

import ast
import functools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import output_of

from pallasc.runtime.matching.arrays import MODULES

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    *("pallasc", "specs", "cache", "compiler", "analysis", "emulator", "checks", "reports"),
    *("runtime", "tuning", "cli", "hooks"),
)

# For each part: the packages that it may import besides the standard library.
MAY_IMPORT_FROM_OUTSIDE = {
    "errors": set(),
    "version": set(),
    "pallasc": set(),
    "specs": {"msgspec", "yaml"},
    "bundle": {"cryptography", "msgspec", "zstandard"},
    "library": {"jax", "jaxlib", "numpy"},
    "cache": {"google", "msgspec", "obstore"},
    "compiler": {
        *("absl", "cramjam", "dask", "distributed", "google", "jax", "jaxlib", "llvmlite"),
        *("ml_dtypes", "msgspec", "numpy"),
    },
    "analysis": {"numpy"},
    "emulator": {"ml_dtypes", "msgspec", "numpy"},
    "checks": {"jax", "ml_dtypes", "msgspec", "numpy"},
    "reports": {"jinja2", "markupsafe"},
    "tuning": {"msgspec"},
    "runtime": {"cuda", "msgspec"},
    "adapters": {*MODULES, "ml_dtypes", "msgspec"},
    "cli": {"click", "msgspec", "rich"},
    "hooks": {"hatchling", "setuptools"},
}


# Subfolders with their own rules.
_SUBFOLDERS = {
    "pallasc.specs.bundle": "bundle",
    "pallasc.specs.library": "library",
    "pallasc.runtime.adapters": "adapters",
}

# Modules of pallasc itself that are not public names.
_INNER = tuple(f"pallasc.{name}" for name in ("errors", "version", *PARTS[1:]))

# Packages that the command line must never load into its own process.
HEAVY = {"jax", "jaxlib", "numpy", "llvmlite", "google", "cuda", "torch", "cupy", "distributed"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, dotted, and its line."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package, with all its imports."""

    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def part(self) -> str:
        """The folder whose rules apply; `errors`, `version` and some subfolders have their own."""
        if self.name in ("pallasc.errors", "pallasc.version"):
            return self.name.removeprefix("pallasc.")
        for prefix, part in _SUBFOLDERS.items():
            if f"{self.name}.".startswith(f"{prefix}."):
                return part
        return self.path.relative_to(ROOT).parts[0]


def _names_of(node: ast.AST, package: str) -> list[str]:
    """Return the dotted names that a node imports, an empty list if it imports nothing."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*package.split(".")[: 1 - node.level or None], *filter(None, [base])])
        return [f"{base}.{alias.name}" for alias in node.names]
    match node:
        case ast.Call(
            func=ast.Name("__import__" | "import_module")
            | ast.Attribute(ast.Name("importlib"), "import_module"),
            args=arguments,
        ):
            constants = [one.value for one in arguments if isinstance(one, ast.Constant)]
            return [value for value in constants if isinstance(value, str)]
    return []


def _imports(tree: ast.AST, package: str) -> tuple[Import, ...]:
    """Return every import of a file, including imports in functions and for type checkers."""
    return tuple(
        Import(name, getattr(node, "lineno", 0))
        for node in ast.walk(tree)
        for name in _names_of(node, package)
    )


def _module_of(path: Path) -> Module:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    dotted = parts if parts[0] == "pallasc" else ["pallasc", *parts]
    is_package = dotted[-1] == "__init__"
    name = ".".join(dotted[:-1] if is_package else dotted)
    package = name if is_package else ".".join(dotted[:-1])
    return Module(name, path, _imports(ast.parse(path.read_text()), package))


@functools.cache
def _modules() -> tuple[Module, ...]:
    return tuple(_module_of(path) for part in PARTS for path in sorted((ROOT / part).rglob("*.py")))


def _violations(module: Module) -> list[str]:
    """Return a line for each import that the rules of the module's part forbid."""
    wrong, outside = [], sys.stdlib_module_names | MAY_IMPORT_FROM_OUTSIDE[module.part]
    for imported in module.imports:
        top = imported.name.split(".")[0]
        # Only users and the library import public names; ARCHITECTURE.md has the other rules.
        is_inner = imported.name.startswith(_INNER) or module.part in ("pallasc", "library")
        if not (is_inner if top == "pallasc" else top in outside):
            where = f"{module.path.relative_to(ROOT)}:{imported.line}"
            wrong.append(f"{where}: {module.part} may not import {imported.name}")
    return wrong


@pytest.mark.parametrize("part", [*PARTS, "errors", "version", *_SUBFOLDERS.values()])
def test_each_part_imports_only_what_its_folder_may(part: str) -> None:
    wrong = [line for module in _modules() if module.part == part for line in _violations(module)]
    assert wrong == []


def _arrows() -> dict[str, set[str]]:
    """Return for each module of pallasc the modules of pallasc that it imports; no packages."""
    names = {module.name for module in _modules() if module.path.name != "__init__.py"}
    return {
        module.name: {
            found
            for imported in module.imports
            for found in (imported.name, imported.name.rpartition(".")[0])
            if found in names
        }
        for module in _modules()
        if module.name in names
    }


def _circles(arrows: dict[str, set[str]]) -> list[str]:
    """Return the modules that are left after repeatedly removing modules that import no others."""
    left = {name: targets - {name} for name, targets in arrows.items()}
    while done := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in done}
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert _circles(_arrows()) == []
    assert _circles({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == ["a", "b"]


def test_no_folders_import_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for name, targets in _arrows().items():
        room = rooms.setdefault(name.rpartition(".")[0], set())
        room |= {target.rpartition(".")[0] for target in targets}
    rooms.pop("pallasc")  # public names, and the errors that all others raise
    assert _circles(rooms) == []


def _table() -> dict[str, set[str]]:
    """Return for each folder in ARCHITECTURE.md's table the folders that it may import."""
    direct: dict[str, set[str]] = {}
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if line.startswith("| `"):
            first, _, last = line.strip("| ").split(" | ")
            row = [folder.rstrip("/") for folder in re.findall(r"`([a-z/]+)/`", first)]
            named = {name for name in re.findall(r"`([a-z/]+)`", last) if name != "errors"}
            for number, folder in enumerate(row):
                direct[folder] = {*named, *row[:number]}
    assert {name for names in direct.values() for name in names} <= direct.keys()
    return {folder: _reached(folder, direct) for folder in direct}


def _reached(folder: str, direct: dict[str, set[str]]) -> set[str]:
    return {folder}.union(*(_reached(name, direct) for name in direct[folder]))


def test_the_table_of_architecture_is_what_folders_import() -> None:
    table, wrong = _table(), []
    folders = {module.name: str(module.path.parent.relative_to(ROOT)) for module in _modules()}
    assert set(folders.values()) == table.keys()
    for module in _modules():
        names = [imported.name for imported in module.imports if module.part != "pallasc"]
        for name in (*names, *(name.rpartition(".")[0] for name in names)):
            target = folders.get(name)
            if target not in {None, "pallasc", *table[folders[module.name]]}:
                wrong.append(f"{module.path.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_no_folder_is_too_full_to_be_looked_through() -> None:
    folders = [module.path.parent for module in _modules() if module.path.name != "__init__.py"]
    assert {str(f): folders.count(f) for f in folders if folders.count(f) > 25} == {}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from pallasc import compile", "cache may not import pallasc.compile"),
        ("from .. import compile", "cache may not import pallasc.compile"),
        ("def late():\n    import jax.numpy", "cache may not import jax.numpy"),
        ("import_module('click')", "cache may not import click"),
        ("import pallasc", "cache may not import pallasc"),
        ("if TYPE_CHECKING:\n    import cuda", "cache may not import cuda"),
    ],
)
def test_a_forbidden_import_is_found(source: str, complaint: str) -> None:
    imports = _imports(ast.parse(source), "pallasc.cache")
    (line,) = _violations(Module("pallasc.cache.x", ROOT / "cache" / "x.py", imports))
    assert line.endswith(complaint)


def _run(code: str) -> list[Any]:
    """Run code in a fresh interpreter and return the JSON list that it prints last."""
    said = output_of([sys.executable, "-P", "-B", "-W", "error", "-c", code])
    loaded: list[Any] = json.loads(said.splitlines()[-1])
    return loaded


# An import must not write files, start processes, or change the environment.
_WATCH = """
import sys, json, os
from importlib import import_module
seen = []
EVENTS = {"os.mkdir", "os.remove", "os.rename", "os.putenv", "os.unsetenv", "os.chdir",
          "os.system", "os.posix_spawn", "os.fork", "os.exec", "subprocess.Popen",
          "socket.connect", "sqlite3.connect", "signal.pthread_kill"}
def watch(event, arguments):
    if event in EVENTS or (event == "open" and set(str(arguments[1] or "r")) & set("wax+")):
        seen.append(f"{event} {arguments[0]!r}")
sys.addaudithook(watch)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """Effects of importing modules in a new interpreter, and the modules that were loaded."""

    done: list[str]
    modules: set[str]

    @property
    def packages(self) -> set[str]:
        """The top-level modules."""
        return {name.partition(".")[0] for name in self.modules}


@functools.cache
def _import(*modules: str) -> Imported:
    done, loaded = _run(
        f"{_WATCH}before = set(sys.modules)\n"
        f"for name in {modules!r}: import_module(name)\n"
        "print(json.dumps([seen, sorted(set(sys.modules) - before)]))"
    )
    return Imported(done, set(loaded))


def _outside(loaded: set[str]) -> set[str]:
    """Return the modules that belong neither to the standard library nor to pallasc."""
    ours = {name for name in loaded if name == "pallasc" or name.startswith("__")}
    return loaded - sys.stdlib_module_names - ours


def _named(part: str) -> list[str]:
    return [
        module.name
        for module in _modules()
        if module.part == part and not module.name.endswith("__main__")
    ]


def _import_part(part: str) -> Imported:
    return _import(*_named(part), *(_compiler_modules_of_the_command_line() * (part == "cli")))


def test_import_pallasc_loads_nothing_but_itself_and_the_standard_library() -> None:
    found = _import_part("pallasc")
    assert _outside(found.packages) == set()
    assert "sqlite3" not in found.modules
    assert [name for name in found.modules if name.startswith("pallasc.")] == []


def _compiler_modules_of_the_command_line() -> list[str]:
    """Return the modules of compiler/ that any function of cli/ imports."""
    known = {module.name for module in _modules() if module.part == "compiler"}
    names = {
        imported.name
        for module in _modules()
        if module.part == "cli"
        for imported in module.imports
    }
    return sorted(known & (names | {name.rpartition(".")[0] for name in names}))


# msgspec imports typing_extensions where it is installed.
_MSGSPEC = {"msgspec", "typing_extensions"}


@pytest.mark.parametrize(
    ("part", "packages"), [("errors", set()), ("specs", _MSGSPEC), ("runtime", _MSGSPEC)]
)
def test_a_part_loads_little_from_outside(part: str, packages: set[str]) -> None:
    assert _outside(_import_part(part).packages) <= packages


# The only modules of pallasc that each hook may import.
_BACKENDS = {
    "hatchling": "pallasc.hooks.hatchling_hook",
    "setuptools": "pallasc.hooks.setuptools_hook",
}


def test_a_build_backend_is_imported_by_its_own_hook_alone() -> None:
    found = {
        (imported.name.split(".")[0], module.name)
        for module in _modules()
        for imported in module.imports
    }
    assert {pair for pair in found if pair[0] in _BACKENDS} == set(_BACKENDS.items())


def test_hooks_load_nothing_from_outside_but_their_backend() -> None:
    names = [name for name in _named("hooks") if name not in _BACKENDS.values()]
    assert _outside(_import(*names).packages) <= _MSGSPEC


def test_cache_loads_no_part_but_specs_and_errors_and_no_jax_or_click_of_its_own() -> None:
    found = _import_part("cache")
    assert _outside(found.packages) <= _MSGSPEC
    ours = {name for name in found.modules if name.startswith("pallasc.")}
    assert {name.split(".")[1] for name in ours} <= {"cache", "specs", "errors"}


def test_the_command_line_process_loads_no_jax() -> None:
    assert _import_part("cli").packages & HEAVY == set()


@pytest.mark.parametrize("part", ["errors", "pallasc", "specs", "cache", "runtime", "cli", "hooks"])
def test_importing_a_part_does_nothing(part: str) -> None:
    assert _import_part(part).done == []


def test_the_watch_sees_what_an_import_could_do(tmp_path: Path) -> None:
    seen = _run(f"{_WATCH}\nos.mkdir({str(tmp_path / 'made')!r})\nprint(json.dumps(seen))")
    assert seen == [f"os.mkdir {str(tmp_path / 'made')!r}"]


def test_every_public_name_is_found_and_an_unknown_one_is_refused_with_the_nearest() -> None:
    missing, other, untold, message = _run(
        "import json, pallasc\n"
        "missing = [n for n in pallasc.__all__ if not hasattr(pallasc, n)]\n"
        "other = sorted({*dir(pallasc)} ^ {*pallasc.__all__})\n"
        "untold = sorted({*pallasc._MODULE_OF} - {*pallasc.__all__})\n"
        "try:\n"
        "    pallasc.kernl\n"
        "except AttributeError as error:\n"
        "    print(json.dumps([missing, other, untold, str(error)]))"
    )
    assert (missing, other, untold) == ([], [], [])
    assert "module 'pallasc' has no attribute 'kernl'" in message
