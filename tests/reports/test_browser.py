"""The report in a real browser: what a reader sees, points at, types and clicks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_browser import Browser, require_browser
from report_case import HOSTILE, Built
from selenium.webdriver.common.keys import Keys

from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.reports.content import Content, grouped
from pallasc.reports.page import render
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.source_lines import Frame, KernelLines, SourceFile, SourceLines
from pallasc.specs.canonical import digest

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
    """Show the report, wide and light; the console must stay empty."""
    open_browser.width(1280)
    open_browser.prefer("light")
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


def test_headings_sort_by_keyboard(browser: Browser) -> None:
    before = _variants(browser, "matmul")
    heading = ".page.open th[data-key=cubin]"
    browser.run(f"document.querySelector('{heading} button').focus()")
    orders = []
    for _ in range(2):
        browser.type(Keys.ENTER)
        direction = browser.run(f"return document.querySelector('{heading}').ariaSort")
        orders.append((direction, [f"#{slug}" for slug in browser.run(VISIBLE)]))
    assert [direction for direction, _ in orders] == ["ascending", "descending"]
    assert orders[0][1] == orders[1][1][::-1]
    assert sorted(orders[0][1]) == sorted(before)


def test_plots_follow_the_chosen_parameter_and_lead_to_variants(browser: Browser) -> None:
    _variants(browser, "add")
    texts = "[...document.querySelector('.page.open .axis.x').querySelectorAll('text')]"
    labels = f"return {texts}.slice(0, -1).map(e => e.textContent).join('')"
    assert browser.run(labels) == "10242048"
    browser.run(
        "const axis = document.querySelector('.page.open select[data-charts]');"
        "axis.value = 'label'; axis.dispatchEvent(new Event('change'))"
    )
    browser.wait(f"{labels} !== '10242048'")
    assert browser.run(labels) == "plain</script><img…"
    link = browser.run("return document.querySelector('.page.open a.dot').getAttribute('href')")
    assert link in {f"#{slug}" for slug in browser.run(VISIBLE)}


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


def test_the_page_is_dark_where_the_reader_prefers_it_or_says_so(browser: Browser) -> None:
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    light = browser.run(paper)
    browser.prefer("dark")
    dark = browser.run(paper)
    assert dark != light
    for theme, colour in (("light", light), ("dark", dark), ("system", dark)):
        browser.run("document.getElementById('theme').click()")
        assert browser.run("return document.querySelector('#theme span').textContent") == theme
        assert browser.run(paper) == colour


def test_source_lines_are_linked_with_ptx_and_sass(
    browser: Browser, content: Content, tmp_path: Path
) -> None:
    entry = next(each for each in content.entries if each.kernel == "add")
    artifact: Any = entry.artifact
    (kernel,) = artifact.kernels
    code = parse_elf(artifact.blob(kernel.cubin)).section(f".text.{kernel.name}")
    assert code is not None
    text = {1: "def add(x):", 2: f"    return x  # {HOSTILE}", 9: "far()"}
    count = artifact.ptx().count("\n")
    lines = SourceLines(
        (KernelLines(kernel.name, digest(code.content), kernel.ptx, (), (1,) * count),),
        ((Frame("k.py", 2, "add"), Frame("k.py", 9, "")),),
        (SourceFile("k.py", "spec", "", text),),
    )
    file = tmp_path / "lines.html"
    shown = replace(content, groups=grouped([entry]))
    codes = disassemble_all({kernel.cubin: artifact.cubin()})
    file.write_text(render(shown, codes, lambda entry: lines))
    browser.open(file)
    browser.go(f"#{entry.slug}")
    browser.point(".page.open .lines.sass [data-instruction='20']")
    assert browser.run(LINKED)["source"] == 2
    rows = browser.run(
        "return [...document.querySelectorAll('.source .line')].map(e => e.textContent)"
    )
    assert rows == ["k.py", "1def add(x):", f"2    return x  # {HOSTILE}", "⋮", "9far()"]
    browser.point(".page.open .lines.source .line:nth-child(3)")
    assert browser.run(LINKED)["sass"] > 20
    assert browser.run(LINKED)["ptx"] == count
