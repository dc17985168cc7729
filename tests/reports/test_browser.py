"""The report in a real browser: what a reader sees, points at, types and clicks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from report_browser import Browser, require_browser
from report_case import HOSTILE, Built

VISIBLE = (
    "return [...document.querySelectorAll('.page.open tbody tr[data-slug]')]"
    ".filter(row => !row.hidden).map(row => row.dataset.slug)"
)
LINKED = (
    "return Object.fromEntries(['source', 'ptx', 'sass'].map(name => [name, "
    "document.querySelectorAll('.page.open .lines.' + name + ' .linked').length]))"
)


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require_browser()
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(open_browser: Browser, built: Built) -> Iterator[Browser]:
    """Show the report in a wide window; the console must stay empty."""
    open_browser.width(1280)
    open_browser.open(built.file)
    yield open_browser
    assert open_browser.console() == []


def _kernel(browser: Browser, name: str) -> str:
    """Return the page of a kernel."""
    links = browser.run(
        "return [...document.querySelectorAll('#kernel-table a')].map(a => [a.textContent, a.hash])"
    )
    return str(dict(links)[name])


def _variants(browser: Browser, kernel: str) -> list[str]:
    """Open a kernel and return the pages of its variants."""
    browser.go(_kernel(browser, kernel))
    return [f"#{slug}" for slug in browser.run(VISIBLE)]


def test_pages_at_two_widths_are_drawn_and_do_not_scroll_sideways(browser: Browser) -> None:
    failed, variant = _variants(browser, "refused")[0], _variants(browser, "matmul")[0]
    for width in (1280, 360):
        browser.width(width)
        for page in ("#overview", _kernel(browser, "matmul"), variant, failed):
            browser.go(page)
            assert len(browser.screenshot()) > 8_000, page
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide == width, (page, width)


def test_every_link_leads_to_a_page_and_hostile_names_are_shown_as_they_are(
    browser: Browser,
) -> None:
    title = "return document.querySelector('.page.open h1').textContent"
    slugs = {page for name in ("matmul", "add", "refused") for page in _variants(browser, name)}
    links = set(
        browser.run("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    )
    assert slugs <= links
    titles = set()
    for link in sorted(links - {"#content"}):
        browser.go(link)
        titles.add(browser.run(title))
    assert f"add[block=2048,label={HOSTILE}]@h100-sxm" in titles
    assert not titles & {"", "Not in this report"}
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.go("#v-000000000000")
    text = browser.run("return document.querySelector('.page.open').textContent")
    assert "There is no page v-000000000000 here" in text


@pytest.mark.parametrize(
    ("text", "shown", "said"),
    [
        ("", 4, "4 variants"),
        ("block>=1025 plain", 1, "1 of 4 variants"),
        ("registers>255", 0, "0 of 4 variants"),
        ("blok=3", 4, "no column blok; columns: number, block, label, registers"),
    ],
)
def test_a_filter_keeps_the_rows_that_match(
    browser: Browser, text: str, shown: int, said: str
) -> None:
    _variants(browser, "add")
    browser.run("document.querySelector('.page.open input[type=search]').focus()")
    browser.type(text)
    assert len(browser.run(VISIBLE)) == shown
    output = browser.run("return document.querySelector('.page.open output').textContent")
    assert output.startswith(said)
    dots = browser.run(
        "return [...document.querySelectorAll('.page.open figure:first-child a.dot')]"
        ".filter(dot => !dot.classList.contains('off')).length"
    )
    assert dots == shown


def test_pointing_at_sass_marks_its_ptx_and_back(browser: Browser) -> None:
    browser.go(_variants(browser, "add")[0])
    browser.point(".page.open .lines.sass [data-instruction='20']")
    marked = browser.run(LINKED)
    assert (marked["sass"], marked["ptx"]) == (1, 1)
    line = browser.run("return document.querySelector('.lines.ptx .linked').id")
    browser.point(f"#{line}")
    marked = browser.run(LINKED)
    assert marked["ptx"] == 1
    assert marked["sass"] >= 1
