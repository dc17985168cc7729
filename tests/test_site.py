"""The site is built without warnings, without JAX, and without a network; its links are valid."""

import importlib
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from commands import output_of

import pallasc

ROOT = Path(__file__).resolve().parents[1]
CONFINED = """
import runpy, socket, sys

def refuse(*_, **__):
    raise OSError("the site needs no network")

socket.socket.connect = socket.getaddrinfo = refuse
sys.modules["jax"] = sys.modules["jaxlib"] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Page(HTMLParser):
    """The links of a page, and the places that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("img", "script", "link"):
            self.loaded.append(values.get("src") or values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make site` does."""
    output = tmp_path_factory.mktemp("site")
    build = str(ROOT / "docs" / "site" / "build.py")
    program = f"import sys; sys.argv = [{build!r}, {str(output)!r}]{CONFINED}"
    output_of([sys.executable, "-P", "-c", program])
    return output / "html"


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text("utf-8")) for file in site.rglob("*.html")}


def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(
    site: Path, read: dict[Path, Page]
) -> None:
    dead = []
    for file, page in read.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            wrong_place = target in read and parts.fragment not in {"", *read[target].places}
            if not target.exists() or wrong_place:
                dead.append(f"{file.relative_to(site)}: {link}")
    assert dead == []


def test_a_page_loads_nothing_from_elsewhere(read: dict[Path, Page]) -> None:
    assert [link for page in read.values() for link in page.loaded if urlsplit(link).netloc] == []


def test_every_page_of_the_docs_is_in_the_navigation(site: Path, read: dict[Path, Page]) -> None:
    links = {link.partition("#")[0] for link in read[site / "index.html"].links}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= links


def test_the_reference_has_every_public_name(site: Path, read: dict[Path, Page]) -> None:
    names = {f"pallasc.{name}" for name in pallasc.__all__ if name != "__version__"}
    assert names <= read[site / "api.html"].places


def test_pages_link_to_those_that_they_name_and_leave_code_alone(site: Path) -> None:
    text = (site / "overview.html").read_text("utf-8")
    assert re.search(r'<a[^>]* href="spec\.html"', text)
    assert "docs/spec.md" not in text


def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    assert all(word in index for word in ("spill", "watch", "bundl"))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return importlib.import_module("pictures")


def test_a_terminal_is_drawn_without_fonts_from_a_server(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "COMMANDS", ("pallasc list kernels.yaml",))
    picture = tmp_path / "terminal.svg"
    pictures.draw_terminal(picture)
    text = picture.read_text("utf-8")
    assert "scale_add[n=4096,dtype=f32]@h100-sxm" in text
    assert set(re.findall(r"https?://[\w.]*", text)) <= {
        "http://www.w3.org",
        "https://www.textualize.io",
    }


def test_erased_lines_are_not_drawn(pictures: ModuleType) -> None:
    output = "0/1\r\n1 running\r\x1b[2K\x1b[1A\x1b[2K\x1b[32mcompiled\x1b[0m\r\ndone\r\n"
    assert pictures.on_screen(output) == ["\x1b[32mcompiled\x1b[0m", "done"]


def test_pictures_are_made_of_three_pages_of_a_report(pictures: ModuleType, tmp_path: Path) -> None:
    browser = pictures.find_browser()
    if browser is None:
        pytest.skip("no chromium on PATH (Debian: chromium)")
    report = tmp_path / "report.html"
    report.write_text('<h1>report</h1><a href="#k-1f">kernel</a><a href="#v-2e">variant</a>')
    pictures.draw_pages(browser, report, tmp_path / "pictures")
    made = sorted((tmp_path / "pictures").iterdir())
    assert [picture.name for picture in made] == ["kernel.png", "overview.png", "variant.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in made)
