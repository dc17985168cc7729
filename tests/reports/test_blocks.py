"""Compressed texts of a page."""

from __future__ import annotations

from pallasc.reports.variant import Blocks, unpacked


def test_a_text_comes_back_and_its_block_holds_no_element() -> None:
    blocks = Blocks()
    name = blocks.add("</script> ☃ " * 1000)
    ((stored, content),) = blocks.items()
    assert (stored, unpacked(content)) == (name, "</script> ☃ " * 1000)
    assert "<" not in content
    assert len(content) < 200


def test_equal_texts_share_a_block_unless_they_are_named() -> None:
    blocks = Blocks()
    assert blocks.add("text") == blocks.add("text") != blocks.add("other")
    assert blocks.add("text", name="page") == "page"
    assert len(blocks.items()) == 3


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    blocks = Blocks()
    blocks.add("\ud800")
    assert unpacked(blocks.items()[0][1]) == "?"
