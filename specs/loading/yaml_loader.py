"""Load specs from files: YAML here, Python through whoever may execute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

from pallasc.errors import SpecError
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.batches import check_batch_names
from pallasc.specs.loading.declare import SpecFile, check_targets, declare, kernel_place
from pallasc.specs.loading.kernel_fields import FILE, FILE_FIELDS, FileFields
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
        on_skip: called for what looks like a spec in a folder and is not read.

    Raises:
        SpecError: a file is missing or wrong, a folder has no specs, two files declare a
            kernel of the same name for the same architecture, or `vmap` names no kernel.
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
    check_batch_names(specs)
    return with_project(specs)


def load_yaml(file: str | Path) -> list[Spec]:
    """Load the specs of one YAML file.

    Raises:
        SpecError: the file is missing or wrong.
    """
    return _read_file(read_document(str(file)), str(Path(file).resolve().parent))


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
            hint=f"The other is at {other.where('name')}. Two files may declare one kernel "
            "for different architectures.",
        )


def _read_file(document: Document, base_dir: str) -> list[Spec]:
    at = Place(document)
    if isinstance(document.data, dict) and "schema" in document.data:  # before what it changes
        FILE_FIELDS[0].kind.read(document.data["schema"], at.child("schema"))
    fields = cast(FileFields, FILE.read(document.data, at))
    models = _models(fields.get("models", {}), at.child("models"))
    file = _spec_file(fields, at, models, base_dir)
    specs = []
    for index, kernel in enumerate(fields["kernels"]):
        place = at.child("kernels").child(index)
        specs.append(declare(kernel, kernel_place(place, kernel.get("name"), place.label), file))
    return specs


def _spec_file(fields: FileFields, at: Place, models: dict[str, Target], base_dir: str) -> SpecFile:
    defaults = dict(fields.get("defaults", {}))
    places = {name: at.child("defaults").child(name) for name in defaults}
    if "targets" in fields:
        if "targets" in defaults:
            raise places["targets"].error(
                "targets are given at the top of the file as well.", "Give them once.", at_key=True
            )
        defaults["targets"] = fields["targets"]
        places["targets"] = at.child("targets")
        check_targets(fields["targets"], places["targets"], models)
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
