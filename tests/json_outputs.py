"""Comparison of what `--json` prints with docs/json.yaml, from which docs/json.md is made."""

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
_TYPES = {"object": dict, "list": list, "map": dict}


@functools.cache
def described() -> dict[str, Mapping[str, Any]]:
    """Return the described fields of each output, by command."""
    location = importlib.util.spec_from_file_location("json_page", DOCS / "json_page.py")
    assert location is not None
    assert location.loader is not None
    page = importlib.util.module_from_spec(location)
    location.loader.exec_module(page)
    outputs: dict[str, Mapping[str, Any]] = page.outputs()
    return outputs


def command_of(name: str) -> str:
    """Return the command of a described output, such as "bundle show" of "bundle show NAME"."""
    words = re.match(r"[a-z]+( [a-z]+)?", name)
    assert words is not None
    return words[0]


def check_output(arguments: Sequence[object], output: str) -> str:
    """Check that the JSON of a command line has the described fields; return the output's name."""
    given = " ".join(map(str, arguments)) + " "
    data = {name: value for name, value in json.loads(output).items() if name != "schema"}
    found = {
        name: [*_differences(fields, data)]
        for name, fields in described().items()
        if given.startswith(f"{command_of(name)} ")
    }
    closest = min(found, key=lambda name: len(found[name]))
    assert found[closest] == [], f"pallasc {closest} --json is not as in docs/json.yaml"
    return closest


def _differences(fields: Mapping[str, Any], data: Any, place: str = "") -> Iterator[str]:
    if not isinstance(data, dict):
        yield f"{place} is not an object"
        return
    required = {name for name, field in fields.items() if not field.optional}
    yield from (f"{place}{name} is not described" for name in data.keys() - fields.keys())
    yield from (f"{place}{name} is missing" for name in required - data.keys())
    for name in fields.keys() & data.keys():
        value, kind, own = data[name], fields[name].kind, f"{place}{name}"
        if kind in _TYPES and isinstance(value, _TYPES[kind]):
            objects = [value] if kind == "object" else value if kind == "list" else value.values()
            for each in objects:
                if each is not None:
                    yield from _differences(fields[name].fields, each, f"{own}.")
        elif value is not None and (kind in _TYPES or (not kind and _has_objects(value))):
            yield f"{own} is described as {kind or 'a value without objects'}"


def _has_objects(value: object) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(item, dict) or _has_objects(item) for item in items)
