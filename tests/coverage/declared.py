"""The cases of this folder and the variants that their specs declare."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from pallasc.specs.decorator import collect_python
from pallasc.specs.matrix import expand
from pallasc.specs.spec import Variant

FOLDER = Path(__file__).parent


def variants(names: Collection[str] = ()) -> Iterator[Variant]:
    """Import the modules with kernels and yield their variants, of the named cases or of all."""
    for file in sorted(FOLDER.glob("kernels_*.py")):
        for variant in expand(collect_python(file)):
            if not names or variant.name in names:
                yield variant
