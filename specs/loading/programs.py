"""Programs in specs: their own fields, and the machine files that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pallasc.errors import SpecError
from pallasc.specs.entries import check_data_file
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.schema import PROGRAM
from pallasc.specs.machine import Programs, read_machine

_OWN = ("machines", "donate", "shardings", "explicit")


def divide_program(
    fields: Mapping[str, object], at: Place, base_dir: str, machines: Sequence[str] = ()
) -> tuple[dict[str, object], dict[str, Target], Programs]:
    """Check the fields of a program, and read its machine files.

    Args:
        fields: the fields, as plain data.
        at: the place of the program.
        base_dir: the spec's folder.
        machines: machine files of programs that name none.

    Returns:
        The fields that kernels have, too, where `targets` are the names of the machines; the target
        of each machine; the rest.

    Raises:
        SpecError: a field or a machine file is wrong.
    """
    values: dict[str, Any] = PROGRAM.read(fields, at)
    named = values.get("machines", tuple(machines))
    if not named:
        raise at.error("field 'machines' is missing.", "Add machines: [machine.json]; write the "
                       "file where the GPU is, with pallasc machine.")  # fmt: skip
    place = at.child("machines")
    own = Programs(
        {}, named, values.get("donate", ()), values.get("shardings", {}), values.get("explicit", ())
    )
    models: dict[str, Target] = {}
    for index, file in enumerate(named):
        where = place.child(index) if "machines" in values else at
        with where.blamed():
            machine = read_machine(Path(base_dir, check_data_file(file, base_dir)))
            name = Path(file).stem
            if name in models:
                raise SpecError(f"two machine files are named {name}.", hint="Rename one of them.")
            models[name] = machine.target(name)
            own.machines[name] = machine
    _check_shardings(own, values, at)
    kernel = {key: value for key, value in fields.items() if key not in _OWN}
    return {**kernel, "targets": [*models]}, models, own


def _check_shardings(own: Programs, values: Mapping[str, Any], at: Place) -> None:
    """Check that donations and shardings name arguments, and shardings axes of the mesh."""
    args, mesh = values["args"], values.get("mesh", {})
    names = [*args] if isinstance(args, dict) else [*map(str, range(len(args)))]
    for index, name in enumerate(own.donate):
        if name not in names:
            raise at.child("donate").child(index).error(f"there is no argument {name!r} in args.")
    known = f"Its axes: {', '.join(mesh) or 'none'}."
    for axis in own.explicit:
        if axis not in mesh:
            raise at.child("explicit").error(f"the mesh has no axis {axis!r}.", known)
    for path, dimensions in own.shardings.items():
        place = at.child("shardings").child(path)
        if path.partition(".")[0] not in names:
            raise place.error(f"there is no argument {path.partition('.')[0]!r} in args.")
        for axes in dimensions:
            for axis in (axes,) if isinstance(axes, str) else axes or ():
                if axis not in mesh:
                    raise place.error(f"the mesh has no axis {axis!r}.", known)
