"""`pallasc report`: strangers' texts stay text, equal inputs give equal bytes, and the command."""

import base64
import hashlib
import importlib.util
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_case import HOSTILE, Built, pallasc

from pallasc.checks.findings import LevelResult
from pallasc.compiler.builds.build import build
from pallasc.errors import CorruptError, ToolError
from pallasc.reports.content import Content, Entry, FindingRow, by, grouped
from pallasc.reports.page import make_report, render, require_packages
from pallasc.reports.variant import unpacked
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

ENTRY = Entry(
    slug="v-1", id="k@h100", kernel="k", target="h100", arch="sm_90a", params={}, status="failed"
)


class Reader(HTMLParser):
    """Collects elements and the text in scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def _pages(page: str) -> list[str]:
    """Return the page, and those of its variants."""
    blocks = {str(a.get("id")): text for a, text in Reader(page).scripts if a.get("type")}
    return [page, *(unpacked(text) for name, text in blocks.items() if name.startswith("page-"))]


def _of(*entries: Entry, **fields: Any) -> Content:
    return Content(fields.pop("title", "title"), grouped(entries), (), **fields)


def test_hostile_texts_add_no_elements() -> None:
    finding = FindingRow("artifact", HOSTILE, "error", HOSTILE, HOSTILE, HOSTILE)
    hostile = replace(
        ENTRY,
        id=HOSTILE,
        kernel=HOSTILE,
        target=HOSTILE,
        params={HOSTILE: HOSTILE},
        error=HOSTILE,
        place=HOSTILE,
        warnings=(HOSTILE,),
        findings=(finding,),
        levels=(
            LevelResult(level="artifact", status="not checked", reason=HOSTILE, notes=(HOSTILE,)),
        ),
    )
    content = _of(
        hostile, replace(hostile, slug="v-2"), title=HOSTILE, notes=(HOSTILE,), errors=(HOSTILE,)
    )
    pages = _pages(render(content))
    assert len(pages) == 3
    for page in pages:
        assert not {tag for tag, _ in Reader(page).elements} & {"img", "iframe", "object"}
        assert not any(name.startswith("on") for _, a in Reader(page).elements for name in a)
        assert "&lt;/script&gt;" in page


def test_the_policy_names_the_scripts_of_the_page_and_forbids_requests(built: Built) -> None:
    for page in _pages(built.page):
        for tag, attributes in Reader(page).elements:
            for name in {"src", "href", "action", "data", "srcset"} & attributes.keys():
                assert str(attributes[name]).startswith(("#", "data:")), (tag, attributes)
        assert not re.search(r"url\(|@import", page)
        text = page.split("refused@h100-sxm")[0]  # the traceback of a failure names the user's file
        assert str(built.spec.parent) not in text
    reader = Reader(built.page)
    (policy,) = (str(a["content"]) for tag, a in reader.elements if "http-equiv" in a)
    assert "default-src 'none'" in policy
    executed = [text for attributes, text in reader.scripts if "type" not in attributes]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in executed]
    assert re.findall(r"'sha256-(.*?)'", policy) == [digest.decode() for digest in digests]


def test_every_variant_has_a_page_and_every_name_is_used_once(built: Built) -> None:
    page = Reader(built.page)
    names = [str(a["id"]) for _, a in page.elements if "id" in a]
    rows = [a["data-slug"] for tag, a in page.elements if tag == "tr" and "data-slug" in a]
    assert len(names) == len(set(names))
    assert len(rows) == 7
    assert {f"page-{slug}" for slug in rows} <= set(names)


def test_grids_and_blocks_are_shown_without_trailing_ones() -> None:
    sizes = ((132, 2, 1), (1, 1, 1), (1, 4, 1), (1024, 1, 1))
    assert [by(each) for each in sizes] == ["132 × 2", "1", "1 × 4", "1,024"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_with_several_variants_has_plots(count: int) -> None:
    variants = [replace(ENTRY, slug=f"v-{n}", params={"m": str(n)}) for n in range(count)]
    pages = _pages(render(_of(*variants)))
    charts = [a for page in pages for _, a in Reader(page).elements if "data-charts" in a]
    assert len(charts) == count - 1


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"is not installed") as caught:
        require_packages()
    assert caught.value.hint == "Install it with: pip install 'pallasc[report]'"


def test_a_page_without_a_disassembler_or_an_artifact_is_whole_and_says_how_to_get_one(
    content: Content,
) -> None:
    first = content.entries[0]
    nothing = replace(first, slug="v-000000000001", artifact=None, status="missing", error="")
    bare = replace(content, groups=grouped([first, nothing]))
    pages = _pages(render(bare))
    assert len(pages) == 3
    assert "pip install nvidia-cuda-nvdisasm" in pages[1]
    assert "pallasc inspect SPECS --lines" in pages[1]


def test_equal_inputs_give_equal_bytes_and_a_baseline_tells_what_changed(
    built: Built, report_again: Any
) -> None:
    assert report_again("--no-timings") == built.file.read_bytes()
    same = report_again("--baseline", "store").decode()
    assert "<dt>This build</dt>" in same
    assert b"<dt>This build</dt>" not in built.file.read_bytes()
    assert "0 differ, 6 are the same" in same
    assert "Nothing differs." in _pages(same)[1]


def test_a_damaged_cubin_hides_the_sass_of_no_other(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(cubins: object) -> None:
        raise CorruptError("a cubin is damaged")

    report = build(expand(load_yaml(built.spec)), store=built.store)
    whole = make_report(report, built.store, timing=False)
    monkeypatch.setattr("pallasc.reports.page.disassemble_all", refuse)
    assert make_report(report, built.store, timing=False) == whole


@pytest.fixture
def folder(built: Built, tmp_path: Path) -> Path:
    """Return a copy of the spec and its store."""
    return Path(shutil.copytree(built.spec.parent, tmp_path / "copy"))


def test_results_of_checks_that_the_store_has_are_shown(folder: Path) -> None:
    chosen = ["kernels.yaml", "-k", "block=1024 and label=plain"]
    report = ["report", *chosen, "-o", "report.html", "-q", "--store", "store"]
    assert pallasc(folder, *report).returncode == 0
    assert "The store has no results of checks" in (folder / "report.html").read_text()
    check = ["check", *chosen, "--level", "artifact", "-j", "1", "--store", "store"]
    assert pallasc(folder, *check).returncode == 0
    assert pallasc(folder, *report).returncode == 0
    create = ["bundle", "create", *chosen, "-o", "k.pallasc", "--keep-ptx", "--store", "store"]
    assert pallasc(folder, *create).returncode == 0
    of_bundle = ["k.pallasc", "--store", "store"]
    assert pallasc(folder, "check", *of_bundle, "--level", "artifact", "-j", "1").returncode == 0
    assert pallasc(folder, "report", *of_bundle, "-o", "bundle.html").returncode == 0
    for name in ("report.html", "bundle.html"):
        page = (folder / name).read_text()
        assert "Nothing was found in the 1 variant whose results the store has." in page


def test_a_report_needs_a_name_and_writes_nothing_without_specs(folder: Path) -> None:
    done = pallasc(folder, "report", "kernels.yaml")
    assert done.returncode == 2
    assert "--output" in done.stderr
    done = pallasc(folder, "report", "nothing.yaml", "-o", "nothing.html")
    assert done.returncode == 2
    assert not (folder / "nothing.html").exists()
