"""Reading YAML safely, with places."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading.yaml_text import MOST_VALUES, parse_document, read_document


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1e3", {"a": 1000.0}), ("a: 1.0e-2", {"a": 0.01}), ("a: .5", {"a": 0.5}),
        ("a: -0x10", {"a": "-0x10"}), ("a: 0x10", {"a": 16}), ("a: 0o17", {"a": 15}),
        ("a: -3", {"a": -3}), ("a: False", {"a": False}), ("a: ~", {"a": None}),
        ("a:", {"a": None}), ("a: 'no'", {"a": "no"}), ("a: !!str 1", {"a": "1"}),
        ("a: y", {"a": "y"}), ("n: [1]", {"n": [1]}), ("a: json:dumps", {"a": "json:dumps"}),
        ("a: 1.2.3", {"a": "1.2.3"}), ("a: bf16[{m}, 4]", {"a": "bf16[{m}, 4]"}),
        ("a: &x {b: 1}\nc: {<<: [*x, {b: 2, e: 3}]}", {"a": {"b": 1}, "c": {"b": 1, "e": 3}}),
        ("a: &x {b: 1, d: 2}\nc: {<<: *x, d: 3}", {"a": {"b": 1, "d": 2}, "c": {"b": 1, "d": 3}}),
        ("\ufeffa: 1", {"a": 1}), (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        ("a: 1" + "_" * 100_000 + "x", {"a": "1" + "_" * 100_000 + "x"}),
    ],
    ids=range(22),
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, data: Any) -> None:
    assert repr(parse_document(text, "t").data) == repr(data)


@pytest.mark.parametrize("word", ["No", "on", "-07", "1_000", "190:20:30", "2026-01-01"])
def test_words_that_yaml_versions_read_differently_are_refused(word: str) -> None:
    for text in (f"a: {word}", f"{word}: 1"):
        with pytest.raises(SpecError, match="read this differently"):
            parse_document(text, "t")


@pytest.mark.parametrize("text", [r'a: "a\uD800b"', r'"\uDE00\uD83D": 1'])
def test_half_of_a_character_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="holds half of a character, which cannot be written"):
        parse_document(text, "t.yaml")


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
        ("<<: 1", "t:1:5: '<<' takes a mapping."),
        ("a: &x [*x]", "t:1:8: an alias refers to what contains it."),
        ("a: 1\n---\nb: 2", "t:2:1: a file must be one document; a second one begins here."),
        ("a: \x01", "t:1: not YAML: character 0x1 is not allowed."),
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
        assert parse_document(text, "t").root
