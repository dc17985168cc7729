"""Load specs from files and folders: YAML directly, Python through a given collector.

A folder stands for its YAML files, except tables of tuned kernels, and for its Python files that
declare kernels: that call `pallasc.kernel` or `pallasc.declare` outside functions. These are found
by parsing; nothing is executed here. Subfolders are not searched, because `tests/` and environments
are among them; a subfolder with specs is reported as skipped.

In `pyproject.toml`, a project can list environment variables that all of its kernels can see, like
the field `env` of one kernel:

    [tool.pallasc]
    env = ["KERNEL_TILE"]

The project is the nearest folder with a `pyproject.toml`, from the spec's folder upwards.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target, check_arch, make_model, resolve_target
from pallasc.specs.loading.declare import SpecFile, check_targets, declare, kernel_place
from pallasc.specs.loading.schema import FILE, FILE_FIELDS, VARIABLES_KIND
from pallasc.specs.loading.tune_fields import TABLE_SUFFIX
from pallasc.specs.loading.yaml_text import Document, parse_document, read_document
from pallasc.specs.settings import project_table
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import nearest, suggestion
from pallasc.specs.user_files import check_regular

YAML_SUFFIXES = (".yaml", ".yml")
_DECLARING = ("declare", "kernel")
_IS_YAML_SPEC = re.compile(rb"^(kernels|schema)[ \t]*:.*^(kernels|schema)[ \t]*:", re.M | re.S)
_MOST_FOLDERS = 1000
_MOST_BYTES = 8 << 20
_MOST_NAMED = 5
OnSkip = Callable[[str], None]
"""Called with a sentence for each file that looks like a spec but is not read."""

_PROJECT_KEY = "env"

PythonCollector = Callable[[str], list[Spec]]
"""Executes a Python spec file in a separate process and returns its specs."""


def load_specs(
    paths: Iterable[str | Path],
    *,
    collect_python: PythonCollector | None = None,
    on_skip: OnSkip = lambda text: None,
) -> list[Spec]:
    """Load all specs in these files and folders, in the given order.

    Args:
        paths: YAML files, Python spec files, and folders of both (`spec_files`).
        collect_python: executes Python spec files; without it, they are rejected.
        on_skip: called for each file in a folder that looks like a spec but is not read.

    Raises:
        SpecError: a file is missing or malformed, a folder has no specs, two files declare a kernel
            of the same name for the same architecture, or `vmap` names an unknown kernel.
    """
    specs: list[Spec] = []
    owners: dict[str, dict[str | None, Spec]] = {}
    for file in spec_files(paths, on_skip=on_skip):
        loaded = _load(file, collect_python)
        for spec in loaded:
            _check_owner(spec, owners.get(spec.name, {}))
        for spec in loaded:
            owners.setdefault(spec.name, {}).update(dict.fromkeys(_archs(spec), spec))
        specs.extend(loaded)
    _check_batch_names(specs)
    return _with_project(specs)


def load_yaml(file: str | Path) -> list[Spec]:
    """Load the specs of one YAML file.

    Raises:
        SpecError: the file is missing or malformed.
    """
    return _read_file(read_document(str(file)), str(Path(file).resolve().parent))


def parse_yaml(text: str, *, file: str = "<text>", base_dir: str | Path = ".") -> list[Spec]:
    """Load the specs in YAML text.

    Args:
        text: the YAML.
        file: its name for messages.
        base_dir: the folder that its paths are relative to.

    Raises:
        SpecError: the text is malformed.
    """
    return _read_file(parse_document(text, file), str(Path(base_dir).resolve()))


def _load(file: str, collect_python: PythonCollector | None) -> list[Spec]:
    if not file.endswith(".py"):
        return load_yaml(file)
    if collect_python is None:
        raise SpecError(f"{file}: a Python spec file cannot be read here.", hint="Use YAML.")
    return collect_python(file)


def _archs(spec: Spec) -> list[str | None]:
    """Return the architectures that a spec declares; None stands for a spec without targets."""
    return [resolve_target(name, spec.models).arch for name in spec.targets] or [None]


def _check_owner(spec: Spec, owners: dict[str | None, Spec]) -> None:
    """Check that a kernel with this name in another file is for other architectures."""
    own = _archs(spec)
    shared = [arch for arch in own if arch in owners]
    if shared or (owners and (None in own or None in owners)):
        other = owners[shared[0]] if shared else next(iter(owners.values()))
        what = f" for {shared[0]}" if shared and shared[0] else ""
        raise SpecError(
            f"kernel {spec.name!r} is declared in two files{what}.",
            location=spec.where("name"),
            hint=f"The other is at {other.where('name')}. Two files may declare one kernel "
            "for different architectures.",
        )


def _read_file(document: Document, base_dir: str) -> list[Spec]:
    at = Place(document.place, base_dir=base_dir)
    if isinstance(document.data, dict) and "schema" in document.data:  # first: others depend on it
        FILE_FIELDS[0].kind.read(document.data["schema"], at.child("schema"))
    fields: dict[str, Any] = FILE.read(document.data, at)
    models = _models(fields.get("models", {}), at.child("models"))
    file = _spec_file(fields, at, models, base_dir)
    specs = []
    for index, kernel in enumerate(fields["kernels"]):
        place = at.child("kernels").child(index)
        specs.append(declare(kernel, kernel_place(place, kernel.get("name"), place.label), file))
    return specs


def _spec_file(
    fields: Mapping[str, Any], at: Place, models: dict[str, Target], base_dir: str
) -> SpecFile:
    defaults = dict(fields.get("defaults", {}))
    places = {name: at.child("defaults").child(name) for name in defaults}
    if "targets" in fields:
        if "targets" in defaults:
            raise places["targets"].error(
                "targets are given at the top of the file as well.", "Give them once.", at_key=True
            )
        defaults["targets"] = fields["targets"]
        places["targets"] = at.child("targets")
    if isinstance(targets := defaults.get("targets"), tuple):
        check_targets(targets, places["targets"], models)
    return SpecFile(base_dir, defaults, places, models)


def _models(
    declared: Mapping[str, Mapping[str, str | int | float]], at: Place
) -> dict[str, Target]:
    models: dict[str, Target] = {}
    for name, fields in declared.items():
        place = at.child(name)
        figures = {key: value for key, value in fields.items() if key not in ("arch", "like")}
        arch, like = (str(fields[key]) if key in fields else None for key in ("arch", "like"))
        if arch is not None:
            check_arch(arch, location=place.child("arch").location)
        if like is not None:
            resolve_target(like, models, location=place.child("like").location)
        with place.blamed():
            models[name] = make_model(name, figures, arch=arch, like=like, known=models)
    return models


def _check_batch_names(specs: Iterable[Spec]) -> None:
    """Check that `vmap` of each spec names a kernel, the same one in all files.

    Args:
        specs: all specs of a command.

    Raises:
        SpecError: the kernel does not exist, or two files name different ones for one kernel.
    """
    specs = list(specs)
    names = list(dict.fromkeys(spec.name for spec in specs))
    known = set(names)
    declared: dict[str, Spec] = {}
    for spec in specs:
        if spec.vmap is None:
            continue
        if spec.vmap not in known:
            raise SpecError(
                f"{spec.name}.vmap: there is no kernel {spec.vmap!r}.",
                location=spec.where("vmap"),
                hint=suggestion(spec.vmap, names, otherwise="Kernels"),
            )
        other = declared.setdefault(spec.name, spec)
        if other.vmap != spec.vmap:
            raise SpecError(
                f"{spec.name}.vmap: vmap is {spec.vmap!r} here and {other.vmap!r} in another file.",
                location=spec.where("vmap"),
                hint=f"The other is at {other.where('vmap')}. Name the same kernel in both.",
            )


def _with_project(specs: Iterable[Spec]) -> list[Spec]:
    """Add the environment variables that projects declare to their specs.

    Raises:
        SpecError: a project lists something other than names of variables.
    """
    declared: dict[str, tuple[str, ...]] = {}
    result = []
    for spec in specs:
        if spec.base_dir not in declared:
            declared[spec.base_dir] = project_env(spec.base_dir)
        names = declared[spec.base_dir]
        result.append(replace(spec, env=(*spec.env, *names)) if names else spec)
    return result


def project_env(folder: str) -> tuple[str, ...]:
    """Return the environment variables declared by the project around a folder.

    Raises:
        SpecError: the list is malformed.
    """
    project = project_table(folder)
    if project is None or _PROJECT_KEY not in project.values:
        return ()
    return VARIABLES_KIND.read(project.values[_PROJECT_KEY], project.at.child(_PROJECT_KEY))


def spec_files(paths: Iterable[str | Path], *, on_skip: OnSkip = lambda text: None) -> list[str]:
    """Return the spec files in these paths, each once, in the given order.

    Args:
        paths: YAML and Python spec files, and folders.
        on_skip: called for each file in a folder that looks like a spec but is not read.

    Raises:
        SpecError: a path does not exist or is not a spec file, or a folder has none.
    """
    files: dict[Path, str] = {}
    for path in paths:
        for file in _files_of(Path(path), on_skip):
            files.setdefault(file.resolve(), str(file))
    return list(files.values())


def _files_of(path: Path, on_skip: OnSkip) -> list[Path]:
    if path.is_dir():
        return _files_in(path, on_skip)
    if not path.exists():
        raise SpecError(f"{path}: there is no such file.", hint=_missing_hint(path))
    if path.name.endswith(TABLE_SUFFIX):
        raise SpecError(
            f"{path}: this is a table of tuned kernels, not a spec file.",
            hint="Name the specs, which find their tables themselves.",
        )
    if path.suffix not in (*YAML_SUFFIXES, ".py"):
        raise SpecError(f"{path}: not a spec file.", hint="Specs are *.yaml, *.yml or *.py files.")
    check_regular(str(path))
    return [path]


def _missing_hint(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    near = nearest(path.name, (child.name for child in path.parent.iterdir()))
    return f"Did you mean {str(path.parent / near)!r}?" if near else None


def _files_in(folder: Path, on_skip: OnSkip) -> list[Path]:
    files = []
    for child in sorted(folder.iterdir()):
        kind = _python_kind(child) if child.suffix == ".py" else None
        if (child.suffix in YAML_SUFFIXES and not _is_table(child)) or kind == "spec":
            files.append(child)
        elif kind == "unclear":
            on_skip(
                f"{child} is not read: it calls pallasc.kernel or pallasc.declare inside functions "
                "only. Name the file itself if it declares kernels."
            )
    below = list(_folders_with_specs(folder))
    if not files:
        inside = f" {below[0]} has some: name it." if below else ""
        raise SpecError(
            f"{folder}: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this "
            f"folder.{inside}",
            hint="pallasc init writes an example.",
        )
    if below:
        more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
        names = ", ".join(map(str, below[:_MOST_NAMED]))
        on_skip(f"specs in {names}{more} are not read: folders in {folder} are not followed.")
    return files


def _folders_with_specs(folder: Path) -> Iterator[Path]:
    """Yield the subfolders that contain specs, except hidden ones."""
    walk = os.walk(folder)
    for number, (place, folders, names) in enumerate(walk):
        if number >= _MOST_FOLDERS:
            return
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        if number and any(_is_spec(Path(place, name)) for name in names):
            yield Path(place)


def _is_table(file: Path) -> bool:
    return file.name.endswith(TABLE_SUFFIX)


def _is_spec(file: Path) -> bool:
    if file.suffix in YAML_SUFFIXES:
        return not _is_table(file) and _IS_YAML_SPEC.search(_content(file)) is not None
    return file.suffix == ".py" and _python_kind(file) == "spec"


def _python_kind(file: Path) -> Literal["spec", "unclear"] | None:
    """Return "spec" if a Python file declares kernels, "unclear" if it may do so when it runs.

    A file with syntax errors counts as a spec if it mentions pallasc, to report its error.
    """
    content = _content(file)
    if b"pallasc" not in content or not any(name.encode() in content for name in _DECLARING):
        return None
    try:
        tree = ast.parse(content)
        names = set(_declaring_names(tree))
        if any(_is_call_of(names, node) for node in _outside_of_functions(tree)):
            return "spec"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "spec"
    return "unclear" if any(_is_call_of(names, node) for node in ast.walk(tree)) else None


def _content(file: Path) -> bytes:
    """Return a file's bytes; empty if it is not a regular file, is unreadable, or is huge."""
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return b""
        return file.read_bytes()
    except OSError:
        return b""


def _declaring_names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of the declaring functions in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "pallasc":
                    own = alias.asname or "pallasc"
                    yield from (f"{own}.{name}" for name in _DECLARING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pallasc":
            for alias in node.names:
                if alias.name in _DECLARING:
                    yield alias.asname or alias.name
                elif alias.name == "*":
                    yield from _DECLARING


def _is_call_of(names: set[str], node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, including decorators of functions."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = node.decorator_list
    elif isinstance(node, ast.Lambda):
        children = ()
    for child in children:
        yield from _outside_of_functions(child)
