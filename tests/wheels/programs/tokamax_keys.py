"""Compare what specs pass to Tokamax's ops with what the example says that they pass.

Usage: tokamax_keys.py LIST, in the folder of the example. LIST is a file with what `pallasc list
--json` prints. Standard output gets a JSON object: how many variants have the same key both ways,
and the ids of all others.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))

from tokamax_prebuilt.calls import OWN, call_key
from tokamax_prebuilt.imported import _IMPORTED, _array


def attribute(text: str) -> Any:
    """Return what an entry point names."""
    module, _, name = text.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def evaluate(value: Any, *, has_arrays: bool) -> Any:
    """Return a value of a spec; text is an array under `args`, and text under `static`."""
    own = functools.partial(evaluate, has_arrays=has_arrays)
    if isinstance(value, str):
        return _array(value) if has_arrays else value
    if isinstance(value, list):
        return tuple(map(own, value))
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return attribute(value["$ref"])
    if "$tuple" in value:
        return own(value["$tuple"])
    function = attribute(value["$call"])
    return function(**{key: own(item) for key, item in value.items() if key != "$call"})


def is_same(variant: dict[str, Any]) -> bool:
    """Tell whether a variant's spec and the example make the same call."""
    imported = _IMPORTED[variant["name"]]
    static = evaluate({"$call": "builtins:dict", **variant["static"]}, has_arrays=False)
    args = evaluate({"$call": "builtins:dict", **variant["args"]}, has_arrays=True)
    op = static.pop("self")
    assert type(op) is type(OWN[imported.op])
    own = {key: value for key, value in variant["params"].items() if key != "config"}
    passed = [op.bind(**args, **static), OWN[imported.op].bind(**imported.passed(own))]
    first, second = (call_key(imported.op, each.arguments) for each in passed)
    return first == second


def main(listed: Path) -> None:
    variants = json.loads(listed.read_text())["variants"]
    other = [variant["id"] for variant in variants if not is_same(variant)]
    print(json.dumps({"same": len(variants) - len(other), "other": other}))


main(Path(sys.argv[1]))
