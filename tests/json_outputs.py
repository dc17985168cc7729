"""Comparison of what `--json` prints with docs/json.yaml, from which docs/json.md is made."""

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import jsonschema

DOCS = Path(__file__).resolve().parents[1] / "docs"


@functools.cache
def _page() -> ModuleType:
    """Return docs/json_page.py as a module."""
    location = importlib.util.spec_from_file_location("json_page", DOCS / "json_page.py")
    assert location is not None
    assert location.loader is not None
    page = importlib.util.module_from_spec(location)
    sys.modules[location.name] = page
    location.loader.exec_module(page)
    return page


@functools.cache
def described() -> Mapping[str, Any]:
    """Return a validator of each described output, by command; it allows no further fields."""
    schema = _page().json_schema(strict=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    return {
        name.removeprefix("pallasc "): jsonschema.Draft202012Validator(
            schema | {"$ref": f"#/$defs/{quote(name)}"}
        )
        for name in schema["$defs"]
        if name.startswith("pallasc ")
    }


def command_of(name: str) -> str:
    """Return the command of a described output, such as "list" of "list BUNDLE"."""
    words = re.match(r"[a-z]+( [a-z]+)?", name)
    assert words is not None
    return words[0]


def check_output(arguments: Sequence[object], output: str) -> str:
    """Check that the JSON of a command line is as described; return the output's name."""
    given, data = " ".join(map(str, arguments)) + " ", json.loads(output)
    found = {
        name: [f"{error.json_path}: {error.message}" for error in validator.iter_errors(data)]
        for name, validator in described().items()
        if given.startswith(f"{command_of(name)} ")
    }
    closest = min(found, key=lambda name: len(found[name]))
    assert found[closest] == [], f"pallasc {closest} --json is not as in docs/json.yaml"
    return closest
