"""Reading YAML safely, with places and within bounds."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading import matrix
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs, parse_yaml
from pallasc.specs.loading.yaml_text import MOST_BYTES, MOST_VALUES, parse_document, read_document
from pallasc.specs.spelling import nearest


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1e3", {"a": 1000.0}), ("a: 1.0e-2", {"a": 0.01}), ("a: .5", {"a": 0.5}),
        ("a: -0x10", {"a": "-0x10"}), ("a: 0x10", {"a": 16}), ("a: 0o17", {"a": 15}),
        ("a: -3", {"a": -3}), ("a: False", {"a": False}), ("a: ~", {"a": None}),
        ("a:", {"a": None}), ("a: 'no'", {"a": "no"}),
        ("a: y", {"a": "y"}), ("n: [1]", {"n": [1]}), ("a: json:dumps", {"a": "json:dumps"}),
        ("a: 1.2.3", {"a": "1.2.3"}), ("a: bf16[{m}, 4]", {"a": "bf16[{m}, 4]"}),
        ("a: &x {b: 1}\nc: [*x, *x]", {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}),
        ("\ufeffa: 1", {"a": 1}), (r'{"a": "\U0001f600"}', {"a": "\U0001f600"}),
        ("a: 1" + "_" * 100_000 + "x", {"a": "1" + "_" * 100_000 + "x"}),
    ],
    ids=range(20),
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, data: Any) -> None:
    assert repr(parse_document(text, "t").data) == repr(data)


@pytest.mark.parametrize("word", ["No", "on", "-07", "1_000", "190:20:30", "2026-01-01"])
def test_words_that_yaml_versions_read_differently_are_refused(word: str) -> None:
    for text in (f"a: {word}", f"{word}: 1"):
        with pytest.raises(SpecError, match="read this differently"):
            parse_document(text, "t")


@pytest.mark.parametrize("text", [r'a: "a\uD800b"', r'"\uDE00\uD83D": 1'])
def test_half_of_a_character_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"{HEAD}    args: {{}}\n    static: {{{text}}}\n"
    with pytest.raises(SpecError, match="found invalid Unicode character escape code"):
        parse_yaml(spec)
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    with pytest.raises(SpecError, match="a lone surrogate, which is only half of a character"):
        parse_yaml(spec)


def test_every_value_and_key_has_its_place() -> None:
    document = parse_document("a:\n  - b: 1\n    c: x\n", "t.yaml")
    assert str(document.place(("a", 0, "c"))) == "t.yaml:3:8"
    assert str(document.place(("a", 0, "c"), at_key=True)) == "t.yaml:3:5"
    assert str(document.place(("a", 0, "missing", 3))) == "t.yaml:2:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: the file is empty."),
        ("a: 1\na: 2", "t:2:1: key 'a' is given twice, first at t:1:1."),
        ("a: !foo 1", "t:1:4: the tag !foo is not allowed."),
        ("a: !!int '1'", "t:1:4: the tag !!int is not allowed."),
        ("a: !!python/name:os.system", "t:1:4: the tag !!python/name:os.system is not allowed."),
        ("? [1]\n: 2", "t:1:3: a key must be text."),
        ("a: *x", "t:1:4: not YAML: found undefined alias 'x'."),
        ("a: !!str 1", "t:1:4: the tag !!str is not allowed."),
        ("a: &x [*x]", "t:1:8: an alias refers to a value that contains it."),
        ("a: 1\n---\nb: 2", "t:2:1: a file must be one document; a second one begins here."),
        (
            "a: \x01",
            "t: not YAML: unacceptable character #x0001: control characters are not allowed",
        ),
    ],
)
def test_what_is_not_plain_data_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_document(text, "t")
    assert str(caught.value).partition("\n")[0] == message


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(SpecError, match=f"more than {MOST_VALUES} values, aliases counted"):
        parse_document("\n".join(lines), "t")


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(SpecError) as caught:
        read_document(str(file))
    assert str(caught.value) == f"{file}:2: byte 0xff is not UTF-8.\n  Save the file as UTF-8."


def test_a_file_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_document(str(tmp_path / "missing.yaml"))
    with pytest.raises(SpecError, match="directory"):
        read_document(str(tmp_path))


@given(st.text(alphabet="ab:- \n[]{},&*!|>'\"#%\t0123<.~?", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(SpecError):
        assert parse_document(text, "t").file


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


@pytest.mark.parametrize("number", ["9" * 101, "0x" + "f" * 100, "1" * 2_000_000 + ".5"])
def test_a_number_has_at_most_a_hundred_characters(number: str) -> None:
    with pytest.raises(SpecError, match="this number is too long"):
        parse_document(f"a: {number}", "t")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('args: {x: "f32[' + "1," * 400_000 + '1]"}', r"an array has at most 1000 characters"),
        ('args: {}\n    static: {s: "{' + "a+" * 1000 + 'a}"}', r"is not an expression"),
        ("args: {}\n    " + "x" * 1000 + ": 1", r"unknown field 'x{76}…'"),
    ],
    ids=["array", "expression", "key"],
)
def test_long_text_is_refused_with_a_short_message(body: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        expand(parse_yaml(f"{HEAD}    {body}\n"))
    assert len(str(caught.value)) < 600


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
    assert nearest("a" * 201, ["a" * 201]) is None


def many(count: int) -> str:
    return ", ".join(map(str, range(count)))


ONE = f'{HEAD}    args: {{x: "f32[{{a}}]"}}\n    static: {{s: "{{s}}"}}\n'
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{ONE}    matrix: {{{', '.join(f'p{n}: [{many(10)}]' for n in range(9))}, a: [1], "
            "s: [1]}\n    exclude: [{p1: 1}]",
            "k: with the earlier specs, 1000000000 variants exceed the limit of 100000.",
        ),
        (
            f"{ONE}    matrix: {{a: [{many(5_000)}], s: [1, 2, 3]}}\n"
            f"    exclude: [{', '.join(f'{{a: {n}, s: 1}}' for n in range(2_000))}]\n"
            f"    include: [{', '.join(f'{{a: {n}, s: 4}}' for n in range(1_000))}]",
            "14000",
        ),
    ],
    ids=["excluded", "rows"],
)
def test_specs_expand_within_a_gigabyte_or_are_refused(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    command = [sys.executable, "-P", "-c", LIMITED, str(tmp_path / "spec.yaml")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip().endswith(said)


def test_all_points_and_targets_of_all_kernels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "MOST_VARIANTS", 12)
    kernel = ONE.partition("kernels:\n")[2].replace("name: k", "name: other")
    text = f"{ONE}    matrix: {{a: [1, 2, 3], s: [1]}}\n    targets: [sm_90a, b200]\n{kernel}"
    rows = "    matrix: {a: [1, 2], s: [1, 2]}\n    include: [{a: 7, s: 7}, {a: 8, s: 8}]\n"
    assert len(expand(parse_yaml(text + rows))) == 12
    monkeypatch.setattr(matrix, "MOST_VARIANTS", 11)
    with pytest.raises(SpecError) as caught:
        expand(parse_yaml(text + rows))
    assert str(caught.value) == (
        "<text>:14:13: other: with the earlier specs, 12 variants exceed the limit of 11."
        "\n  Make the matrix smaller."
    )
