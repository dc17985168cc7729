"""Build docs/ as a site: gather the pages, write the reference of the Python API, run Sphinx.

Names of pages in the text, such as `docs/jax.md`, become links. Nothing is fetched. JAX is imported
only with `--pictures`, which compiles kernels.

    python -P docs/site/build.py [--pictures] [OUTPUT]
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pallasc

SITE = Path(__file__).resolve().parent
sys.path.insert(0, str(SITE))

import pictures  # noqa: E402 - a module in docs/

DOCS = SITE.parent
ROOT = DOCS.parent
_NO_PAGES = ("build.py", "pictures.py", "__pycache__")
NAMES = {"README": "overview", "ARCHITECTURE": "architecture", "CHANGELOG": "changelog"}
NAMES |= {"SECURITY": "security"}
"""Pages in the repository's root, with their names on the site."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(?:docs/([a-z-]+)|([A-Z]+))\.md`")


def main(arguments: list[str]) -> int:
    """Build the site; Sphinx's warnings are errors."""
    from sphinx.cmd.build import build_main

    places = [argument for argument in arguments if argument != "--pictures"]
    output = Path(*places[:1] or [ROOT / "build" / "site"]).resolve()
    source = output / "source"
    shutil.rmtree(source, ignore_errors=True)
    gather(source)
    if "--pictures" in arguments:
        with (source / "inspect.md").open("a", encoding="utf-8") as page:
            page.write(pictures.section(source / "pictures", output / "store"))
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    code = build_main([*options, "-d", str(output / "doctrees"), str(source), str(output / "html")])
    if not code:
        print(f"open {output / 'html' / 'index.html'}")
    return code


def gather(source: Path) -> None:
    """Write everything that Sphinx reads into the folder `source`."""
    shutil.copytree(SITE, source, ignore=shutil.ignore_patterns(*_NO_PAGES))
    index = source / "index.md"
    index.write_text(with_others(index.read_text("utf-8")), "utf-8")
    for path in pages():
        text = path.read_text("utf-8")
        (source / f"{site_name(path.stem)}.md").write_text(linked(text), "utf-8")
    (source / "api.rst").write_text(api_page(), "utf-8")
    shutil.copytree(DOCS / "pictures", source / "docs" / "pictures")
    (source / "extra").mkdir()
    shutil.copy(DOCS / "spec.schema.json", source / "extra")


def pages() -> Iterator[Path]:
    """Yield the Markdown pages of the repository."""
    yield from (ROOT / f"{name}.md" for name in NAMES)
    yield from sorted(DOCS.glob("*.md"))


def with_others(index: str) -> str:
    """Return the first page, with the pages that its navigation lacks added to the guides."""
    named = {line.rpartition("<")[2].rstrip(">") for line in index.splitlines()}
    others = [name for path in pages() if (name := site_name(path.stem)) not in named]
    return index.replace("OTHERS\n", "".join(f"{name}\n" for name in others))


def site_name(stem: str) -> str:
    """Return the name of a page on the site."""
    return NAMES.get(stem, stem)


def linked(text: str) -> str:
    """Replace names of pages outside of code blocks with links."""
    parts = FENCE.split(text)
    parts[::2] = [NAMED.sub(_link, part) for part in parts[::2]]
    return "".join(parts)


def _link(match: re.Match[str]) -> str:
    name = match[1] or NAMES.get(match[2], "")
    return f"[]({name}.md)" if name else match[0]


def api_page() -> str:
    """Return the reference of the public names, in reStructuredText."""
    functions, classes, errors = [], [], []
    for name in pallasc.__all__:
        value = getattr(pallasc, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            errors.append(f".. autoexception:: pallasc.{name}\n   :show-inheritance:\n")
        elif inspect.isclass(value):
            classes.append(f".. autoclass:: pallasc.{name}\n   :members:\n")
        elif callable(value):
            functions.append(f".. autofunction:: pallasc.{name}\n")
    return "\n".join(
        [
            *_heading("Python", "="),
            "Each name is imported when it is first used: ``import pallasc`` takes no time.\n",
            *_heading("Functions", "-"),
            *functions,
            *_heading("Classes", "-"),
            *classes,
            *_heading("Errors", "-"),
            *errors,
        ]
    )


def _heading(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
