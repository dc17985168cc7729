"""Every mistake in `wrong/specs.txt` gives exactly the message below it, and what the schema says.

A case is a title, the spec, and the message after `=> `. A spec that begins with an indented line
stands below the kernel of `HEAD`. Of a title's remarks, `loader only` says that the mistake depends
on two places, on the file system or on what is installed, which a JSON schema cannot see, and
`no data` that no YAML parser gets as far as data.
"""

import re
import runpy
import shutil
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.schema import FILE_FIELDS, KERNEL_FIELDS
from pallasc.specs.loading.yaml_loader import load_specs

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "wrong"
HEAD = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: double
    entry: kernels.py:double
"""


class Case(NamedTuple):
    """A wrong spec."""

    name: str
    remark: str
    text: str
    message: str


def _cases() -> list[Case]:
    parts = re.split(r"^== ", (FOLDER / "specs.txt").read_text("utf-8"), flags=re.MULTILINE)
    cases = []
    for part in parts[1:]:
        title, _, rest = part.partition("\n")
        name, _, remark = title.partition(" ")
        text, _, message = rest.rpartition("=> ")
        cases.append(Case(name, remark, f"{HEAD * text.startswith(' ')}{text}", message))
    return cases


CASES = _cases()
MAKER = runpy.run_path(str(ROOT / "docs" / "spec_schema.py"))
SCHEMA = MAKER["json_schema"]()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path_factory.mktemp("wrong") / "specs"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_spec_gives_its_exact_message(
    case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("spec.yaml").write_text(case.text)
    with pytest.raises(SpecError) as caught:
        expand(load_specs(["spec.yaml"]))
    assert f"{caught.value}\n" == case.message
    assert caught.value.exit_code == 2
    assert case.message.startswith(("spec.yaml:", "tables/rows.yaml:"))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.remark != "(no data)"], ids=lambda case: case.name
)
def test_the_schema_refuses_what_the_loader_refuses(case: Case) -> None:
    errors = [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(case.text))]
    assert bool(errors) is (case.remark != "(loader only)"), errors


def errors(data: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(data)]


def test_the_file_in_docs_is_fresh_and_is_a_schema() -> None:
    assert (ROOT / "docs/spec.schema.json").read_text("utf-8") == MAKER["json_schema_text"]()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_field_is_in_the_schema_with_its_meaning() -> None:
    kernels = SCHEMA["properties"]["kernels"]["items"]["properties"]
    assert list(SCHEMA["properties"]) == [field.name for field in FILE_FIELDS]
    assert list(kernels) == [field.name for field in KERNEL_FIELDS]
    assert all(kernels[field.name]["description"] == field.doc for field in KERNEL_FIELDS)


def test_the_library_is_valid() -> None:
    files = resources.files("pallasc.specs.library").iterdir()
    specs = [file for file in files if ".yaml" in file.name]
    assert specs
    assert [errors(yaml.safe_load(file.read_text("utf-8"))) for file in specs] == [[]] * len(specs)


@pytest.mark.parametrize(
    "kernel",
    [
        {"args": {"x": "{dtype}[{m}, 4 , {m // 2}]", "y": None, "z": [{"k": "i4[]"}, "{w}"]}},
        {"args": ["bfloat16[8]", "float8_e4m3fn[ ]"]},
        {"static": {"a": {"$call": "m:f", "x": [{"$ref": "f.py:A.b"}]}, "b": [1, None, "{m}"]}},
        {"matrix": {"m": [1, "a", None, True, 0.5]}, "exclude": [{"m": 1}]},
        {"matrix": {"t": [{"$name": "small", "m": 1, "l": [1]}, [1, 2], {"$ref": "math:pi"}]}},
        {"matrix": {"$file": "rows.json", "m": [1]}, "include": [{"t": {"m": 1}}]},
        {"matrix": {"$file": {"path": "r.json", "rows": "a.0", "select": {"m": "a.b"}}}},
        {"matrix": {"$file": {"path": "r.json", "select": ["m"], "skip": ["x"]}}},
        {"static": {"a": {"$ref": "m:Enum.{mode}"}, "b": {"$call": "{f}", "x": "{t.m}"}}},
        {"budget": {"registers": "{r}", "spill_bytes": 0}, "tolerance": {"rtol": 0.1}},
        {"budget": {"registers": "+8", "cubin_bytes": "+2.5 %", "occupancy": ">= baseline"}},
        {"check": {"m": 1, "$seed": 7, "$args": {"x": "f32[{m}]"}}},
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(kernel: dict[str, Any]) -> None:
    base = {"name": "k", "entry": "json:loads", "args": {}}
    data = {"schema": 1, "kernels": [{**base, **kernel}]}
    assert errors(data) == []
