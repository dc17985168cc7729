"""What a spec file may be, and how much it may hold: refused before the work is done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs, parse_yaml
from pallasc.specs.loading.yaml_text import MOST_BYTES, MOST_VALUES, parse_document, read_document
from pallasc.specs.spelling import nearest

HEAD = 'schema: 1\ntargets: [sm_90a]\nkernels:\n  - name: k\n    entry: "json:loads"\n'


@pytest.mark.parametrize("suffix", [".yaml", ".py"])
def test_a_pipe_or_a_socket_is_refused_and_not_waited_for(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipe = f"pipe{suffix}"
    os.mkfifo(pipe)
    with pytest.raises(SpecError) as caught:
        load_specs([pipe])
    assert str(caught.value) == f"{pipe}: this is a pipe, a socket, or a device, not a file."
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.yaml")
        with pytest.raises(SpecError, match=r"(socket|pipe)\.yaml: this is a pipe, a socket"):
            load_specs(["."])


def test_no_more_is_read_than_a_file_may_have(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(SpecError) as caught:
        read_document(str(file))
    assert str(caught.value) == f"{file}: the file is larger than {MOST_BYTES} bytes."


@pytest.mark.parametrize(
    ("text", "message", "most"),
    [
        # PyYAML 6.0.4 stops before our bound.
        ("[" * 4_000_000, "lists and mappings are nested too deeply|not YAML", 110),
        ("{a: " * 2_000_000, "lists and mappings are nested too deeply", 310),
        ("? " * 4_000_000, "a key must be text", 10),
        ("[" + "a," * 4_000_000, "more than 100000 values", 2 * MOST_VALUES + 10),
        ("\r%TAG !a! x" * 700_000, "tags are not allowed", 0),
    ],
    ids=["lists", "mappings", "keys", "wide", "directives"],
)
def test_reading_stops_where_a_bound_is_reached(
    text: str, message: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, events = yaml.parse, []
    monkeypatch.setattr(
        yaml, "parse", lambda *text, **how: (events.append(e) or e for e in parse(*text, **how))
    )
    with pytest.raises(SpecError, match=message):
        parse_document(text, "t.yaml")
    assert len(events) <= most


@pytest.mark.parametrize(
    "number",
    ["9" * 101, "0x" + "f" * 100, "1" * 2_000_000 + ".5"],
)
def test_a_number_has_at_most_a_hundred_characters(number: str) -> None:
    with pytest.raises(SpecError, match="this number is too long"):
        parse_document(f"a: {number}", "t")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('args: {x: "f32[' + "1," * 400_000 + '1]"}', r"an array has at most 1000 characters"),
        ('args: {}\n    static: {s: "' + "{{" * 400_000 + '"}', r"at most 10000 characters"),
        (
            'args: {}\n    static: {s: "' + "{a}" * 2000 + '"}\n    matrix: {a: [abcdefgh]}',
            r"gives more than 10000 characters",
        ),
        ('args: {}\n    static: {s: "{' + "a+" * 1000 + 'a}"}', r"is not an expression"),
        ("args: {}\n    " + "x" * 1000 + ": 1", r"unknown field 'x{76}…'"),
    ],
    ids=["array", "braces", "filled", "expression", "key"],
)
def test_long_text_is_refused_with_a_short_message(body: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        expand(parse_yaml(f"{HEAD}    {body}\n"))
    assert len(str(caught.value)) < 600


def test_long_words_are_compared_with_nothing() -> None:
    assert nearest("a" * 201, ["a" * 201]) is None
    assert nearest("abc", ["b" * 300, "abd"]) == "abd"


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("matmull", "matmul", True),
        ("regs", "registers", True),
        ("tile", "table", True),
        ("files", "reference", False),
        ("sms", "smem_per_sm_bytes", False),
    ],
)
def test_only_what_is_near_is_guessed(word: str, known: str, near: bool) -> None:
    assert nearest(word, [known]) == (known if near else None)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
try:
    print(len(expand(load_yaml(sys.argv[1]))))
except SpecError as error:
    print(error.message)
"""


def outcome(path: Path, text: str) -> str:
    """Expand a spec in a process that may take a gigabyte; return what it says."""
    path.write_text(text)
    command = [sys.executable, "-P", "-c", LIMITED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def many(count: int) -> str:
    return ", ".join(map(str, range(count)))


AXES = ", ".join(f"p{axis}: [{many(10)}]" for axis in range(9))
ONE = f'{HEAD}    args: {{x: "f32[{{a}}]"}}\n    static: {{s: "{{s}}"}}\n'
DEFAULTS = """\
schema: 1
targets: [sm_90a]
defaults: {{entry: "json:loads", args: {{x: "f32[4]"}}, {}}}
kernels:
{}
"""
KERNELS = "\n".join(f"  - {{name: k{number}}}" for number in range(5_000))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{ONE}    matrix: {{{AXES}, a: [1], s: [1]}}\n    exclude: [{{p1: 1}}]",
            "k: 1000000000 variants are more than the 100000 that specs may expand to.",
        ),
        (
            DEFAULTS.format(f'static: {{s: "{{m}}"}}, matrix: {{m: [{many(5000)}]}}', KERNELS),
            "k20: 5000 variants, with 100000 before it, are more than the 100000 that specs may "
            "expand to.",
        ),
        (
            f"{ONE}    matrix: {{a: [{many(5_000)}], s: [1, 2, 3]}}\n"
            f"    exclude: [{', '.join(f'{{a: {n}, s: 1}}' for n in range(2_000))}]\n"
            f"    include: [{', '.join(f'{{a: {n}, s: 4}}' for n in range(1_000))}]",
            "14000",
        ),
    ],
    ids=["excluded", "kernels", "rows"],
)
def test_specs_expand_within_a_gigabyte_or_are_refused(
    text: str, said: str, tmp_path: Path
) -> None:
    assert outcome(tmp_path / "spec.yaml", text).endswith(said)


def test_the_limit_can_be_raised_and_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = parse_yaml(f"{ONE}    matrix: {{a: [{many(30)}], s: [1]}}")
    monkeypatch.setenv("PALLASC_MAX_VARIANTS", "29")
    with pytest.raises(SpecError) as caught:
        expand(specs)
    assert str(caught.value) == (
        "<text>:8:13: k: 30 variants are more than the 29 that specs may expand to."
        "\n  Make the matrix smaller, or allow more: PALLASC_MAX_VARIANTS=30."
    )
    monkeypatch.setenv("PALLASC_MAX_VARIANTS", "30")
    assert len(expand(specs)) == 30
    for wrong in ("0", "many", "²", "9" * 10):
        monkeypatch.setenv("PALLASC_MAX_VARIANTS", wrong)
        with pytest.raises(SpecError, match=f"must be a whole number .*, got '{wrong}'"):
            expand(specs)


def test_targets_and_rows_and_other_kernels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALLASC_MAX_VARIANTS", "11")
    kernel = ONE.partition("kernels:\n")[2].replace("name: k", "name: other")
    text = f"{ONE}    matrix: {{a: [1, 2, 3], s: [1]}}\n    targets: [sm_90a, b200]\n"
    assert len(expand(parse_yaml(text))) == 6
    with pytest.raises(SpecError, match="other: 6 variants, with 6 before it, are more than"):
        expand(
            parse_yaml(f"{text}{kernel}    matrix: {{a: [1, 2], s: [1, 2]}}\n    include: "
                       "[{a: 7, s: 7}, {a: 8, s: 8}]\n")
        )  # fmt: skip
