"""The devices that run a kernel together: axes with sizes, the last axis fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pallasc.errors import SpecError
from pallasc.specs.spelling import show

MOST_DEVICES = 256
"""Devices of a mesh."""

Mesh = tuple[tuple[str, int], ...]
"""Axes and their sizes; empty for one device."""


def check_devices(sizes: Mapping[str, int]) -> None:
    """Check how many devices a mesh has.

    Raises:
        SpecError: too few for a mesh, or too many.
    """
    devices = math.prod(sizes.values())
    if not 2 <= devices <= MOST_DEVICES:
        raise SpecError(
            f"a mesh of {devices} devices.",
            hint=f"Give it 2 to {MOST_DEVICES}; for one device leave it out.",
        )


def checked_mesh(mesh: Mapping[str, int] | None) -> Mesh:
    """Return the mesh of these axes.

    Raises:
        SpecError: an axis has no name or no size, or the devices are too many.
    """
    if not mesh:
        return ()
    for name, size in mesh.items():
        if type(name) is not str or not name.isidentifier() or type(size) is not int or size < 1:
            raise SpecError(
                f"mesh: axis {show(name)} has size {show(size)}.", hint='Write mesh={"x": 4}.'
            )
    check_devices(mesh)
    return tuple(mesh.items())
