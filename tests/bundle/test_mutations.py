"""Damaged and forged bundles: an error with the name of the file, or what was there; never else."""

import json
import os
import sys
from pathlib import Path

from commands import output_of
from mutations import judge, make_bundle, read_all

from pallasc.specs.bundle.bundle import open_bundle

PROGRAM = Path(__file__).parent / "programs" / "mutations.py"


def test_hundreds_of_mutations_do_no_harm() -> None:
    command = [sys.executable, "-P", str(PROGRAM), "400", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), *sys.path])}
    result = json.loads(output_of(command, env=environment))
    assert result["wrong"] == []
    assert result["mutations"] == 400
    assert 0 < result["peak_bytes"] < 100e6


def test_the_judge_sees_another_content() -> None:
    data = make_bundle()
    with open_bundle(data) as bundle:
        original = read_all(bundle)
    assert judge(data, original) == ""
    original.popitem()
    assert judge(data, original) == "a wrong kernel: it reads as something else"
