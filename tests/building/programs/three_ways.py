"""Compile each kernel of a file with `pallasc.compile` and print the artifacts' digests as JSON.

three_ways.py FILE; the file's `CALLS` has function, arrays and static arguments by name.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pallasc


def load(file: str) -> Any:
    """Return the module in a file."""
    spec = importlib.util.spec_from_file_location("three_ways_kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Compile what the file calls for."""
    digests = {}
    for name, (function, arrays, static) in load(sys.argv[1]).CALLS.items():
        digests[name] = pallasc.compile(function, *arrays, **static).digest
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
