"""Load specs from files: YAML here, Python through whoever may execute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.declare import Surroundings, check_target, declare, named
from pallasc.specs.loading.kernel_fields import FILE, FILE_FIELDS
from pallasc.specs.loading.project import with_project
from pallasc.specs.loading.spec_files import OnSkip, spec_files
from pallasc.specs.loading.yaml_text import Document, parse_document, read_document
from pallasc.specs.spec import Spec
from pallasc.specs.targets import check_arch, make_model, resolve_target

PythonCollector = Callable[[str], list[Spec]]
"""Runs a Python spec file, in a process of its own, and returns what it declares."""


def load_specs(
    paths: Iterable[str | Path],
    *,
    collect_python: PythonCollector | None = None,
    on_skip: OnSkip = lambda text: None,
) -> list[Spec]:
    """Load every spec of some files and folders, in the order given.

    Args:
        paths: YAML files, Python spec files, and folders of both (`spec_files`).
        collect_python: what to do with Python spec files; None refuses them.
        on_skip: is told of what looks like a spec in a folder and is not read.

    Raises:
        SpecError: a file is missing or wrong, a folder has no specs, or two files declare a
            kernel of the same name for the same architecture.
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
    return with_project(specs)


def load_yaml(file: str | Path) -> list[Spec]:
    """Load the specs of one YAML file.

    Raises:
        SpecError: the file is missing or wrong.
    """
    return _read_file(read_document(str(file)), _folder(str(file)))


def parse_yaml(text: str, *, file: str = "<text>", base_dir: str | Path = ".") -> list[Spec]:
    """Load the specs of YAML text.

    Args:
        text: the YAML.
        file: what to call it in messages.
        base_dir: the folder that its paths are relative to.

    Raises:
        SpecError: the text is wrong.
    """
    return _read_file(parse_document(text, file), str(Path(base_dir).resolve()))


def _folder(file: str) -> str:
    return str(Path(file).resolve().parent)


def _load(file: str, collect_python: PythonCollector | None) -> list[Spec]:
    if not file.endswith(".py"):
        return load_yaml(file)
    if collect_python is None:
        raise SpecError(f"{file}: a Python spec file cannot be read here.", hint="Use YAML.")
    return collect_python(file)


def _archs(spec: Spec) -> list[str | None]:
    """Return the architectures that a spec declares; None where it leaves its targets open."""
    return [resolve_target(name, spec.models).arch for name in spec.targets] or [None]


def _check_owner(spec: Spec, owners: dict[str | None, Spec]) -> None:
    """Check that a kernel of another file with this name is for other architectures."""
    own = _archs(spec)
    shared = [arch for arch in own if arch in owners]
    if shared or (owners and (None in own or None in owners)):
        other = owners[shared[0]] if shared else next(iter(owners.values()))
        what = f" for {shared[0]}" if shared and shared[0] else ""
        raise SpecError(
            f"kernel {spec.name!r} is declared in two files{what}.",
            location=spec.where("name"),
            hint=f"The other one stands at {other.where('name')}. Two files may declare one kernel "
            "for different architectures.",
        )


def _read_file(document: Document, base_dir: str) -> list[Spec]:
    at = Place(document)
    _check_version(document.data, at)
    content = FILE.read(document.data, at)
    models = _models(content.get("models", {}), at.child("models"))
    around = _surroundings(content, at, models, base_dir)
    return [
        declare(kernel, _kernel_place(kernel, at.child("kernels").child(index)), around)
        for index, kernel in enumerate(content["kernels"])
    ]


def _check_version(data: Any, at: Place) -> None:
    if isinstance(data, dict) and "schema" in data:
        FILE_FIELDS[0].kind.read(data["schema"], at.child("schema"))


def _kernel_place(kernel: dict[str, Any], at: Place) -> Place:
    return named(at, kernel.get("name"), at.label)


def _surroundings(
    content: dict[str, Any], at: Place, models: dict[str, Target], base_dir: str
) -> Surroundings:
    defaults = dict(content.get("defaults", {}))
    places = {name: at.child("defaults").child(name) for name in defaults}
    if "targets" in content:
        if "targets" in defaults:
            raise places["targets"].error(
                "targets stand at the top of the file as well.", "Give them once.", at_key=True
            )
        defaults["targets"] = content["targets"]
        places["targets"] = at.child("targets")
        for index, name in enumerate(content["targets"]):
            check_target(name, places["targets"].child(index), models)
    return Surroundings(base_dir, defaults, places, models)


def _models(given: dict[str, dict[str, Any]], at: Place) -> dict[str, Target]:
    models: dict[str, Target] = {}
    for name, fields in given.items():
        place = at.child(name)
        figures = {key: value for key, value in fields.items() if key not in ("arch", "like")}
        for key in ("arch", "like"):
            if key in fields:
                _check_base(key, fields[key], place.child(key).location, models)
        with place.blamed():
            models[name] = make_model(
                name, figures, arch=fields.get("arch"), like=fields.get("like"), known=models
            )
    return models


def _check_base(key: str, name: str, where: Location, models: dict[str, Target]) -> None:
    if key == "arch":
        check_arch(name, location=where)
    else:
        resolve_target(name, models, location=where)
