"""The cases of this folder and the variants that their specs declare.

Usage: declared.py. Prints JSON: case -> the architectures it is declared for, as they are declared.
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pallasc.specs.loading.decorator import collect_python
from pallasc.specs.loading.matrix import expand
from pallasc.specs.spec import Variant

FOLDER = Path(__file__).parent


def variants(names: Collection[str] = ()) -> Iterator[Variant]:
    """Import the modules with kernels and yield their variants, of the named cases or of all."""
    for file in sorted(FOLDER.glob("kernels_*.py")):
        for variant in expand(collect_python(file)):
            if not names or variant.name in names:
                yield variant


def architectures(declared: Iterable[Variant]) -> dict[str, list[str]]:
    """Return the architectures of each case, in the order in which they are declared."""
    by_case: dict[str, list[str]] = {}
    for variant in declared:
        held = by_case.setdefault(variant.name, [])
        if variant.target.arch not in held:
            held.append(variant.target.arch)
    return by_case


def sample(by_case: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return one architecture of each case: the first, or for every second one another.

    That is another one from case to case, so every architecture is met by many cases, at an eighth
    of what all would cost.
    """
    chosen = {}
    for number, name in enumerate(sorted(by_case)):
        first, *others = by_case[name]
        other = others[number // 2 % len(others)] if others and number % 2 == 0 else first
        chosen[name] = {other}
    return chosen


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER))
    json.dump(architectures(variants()), sys.stdout)
