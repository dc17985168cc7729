"""Every mistake in `wrong/specs.txt` gives exactly the message below it, and what the schema says.

A case is a title, the spec, and the message after `=> `. A spec that begins with an indented line
stands below the kernel of `HEAD`. Of a title's remarks, `loader only` says that the mistake depends
on two places, on the file system or on what is installed, which a JSON schema cannot see, and
`no data` that no YAML parser gets as far as data.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import jsonschema
import pytest
import yaml

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.schema import json_schema
from pallasc.specs.loading.yaml_loader import load_specs

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
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


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
