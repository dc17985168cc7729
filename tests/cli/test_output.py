"""Tables, JSON and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.cli.arguments.command import keep_layout
from pallasc.cli.output.text import count, json_text, table, write_text
from pallasc.errors import SpecError


def test_table_aligns_columns_and_leaves_no_spaces_at_the_ends() -> None:
    text = table(["NAME", "SIZE", "WORDS"], [["a", "1", ""], ["long", "1000", "x y"]])
    assert text == "NAME  SIZE  WORDS\na     1\nlong  1000  x y"


def test_table_aligns_numbers_to_the_right() -> None:
    text = table(["NAME", "SIZE"], [["a", "1"], ["b", "1000"]], right=["SIZE"])
    assert text == "NAME  SIZE\na        1\nb     1000"


def test_table_without_rows_has_its_head() -> None:
    assert table(["NAME", "SIZE"], []) == "NAME  SIZE"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (1024, "1,024 bytes")]
)
def test_count_writes_number_and_noun(number: int, text: str) -> None:
    assert count(number, "byte") == text


def test_json_text_sorts_keys_and_states_its_schema() -> None:
    assert json_text({"b": 1, "a": "é"}) == '{\n  "a": "\\u00e9",\n  "b": 1,\n  "schema": 1\n}'


def test_write_text_makes_the_folder_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "plan.txt"
    write_text(path, "text\n")
    assert path.read_text() == "text\n"
    assert capfd.readouterr() == ("", f"wrote {path}\n")


def test_write_text_refuses_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"file/plan\.txt cannot be written: File exists"):
        write_text(tmp_path / "file" / "plan.txt", "")
    with pytest.raises(SpecError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "")


def test_keep_layout_marks_only_paragraphs_with_indented_lines() -> None:
    text = """First line
        and more.

        Examples:
          one
          two
        """
    assert keep_layout(text) == "First line\nand more.\n\n\b\nExamples:\n  one\n  two"
