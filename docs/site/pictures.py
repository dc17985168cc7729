"""Pictures of real output, for the site and the README; Chromium draws the report.

`python -P docs/site/pictures.py` writes the pictures of the README again.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import is_compiler_installed

ROOT = Path(__file__).resolve().parents[2]
SPECS = ["hopper_matmul", "rms_norm", "softmax"]
TARGET = "h100-sxm"
SIZE = "1280,900"
TIMEOUT_S = 900
CAPTIONS = {
    "overview": "The overview: all kernels, and the variants that stand out.",
    "kernel": "A kernel: its variants as plots and as a table that sorts and filters.",
    "variant": "A variant: figures, occupancy, shared memory, tensor maps with box and swizzle.",
}
COMMANDS = (
    "pallasc build kernels.yaml",
    "pallasc check kernels.yaml -k n=4096",
    "pallasc inspect kernels.yaml --lines -k 'n=4096 and dtype=f32'",
)
"""The commands in the picture of a terminal, run on the files that `pallasc init` writes."""
COLUMNS = 96
NOTE = "A site that is built where Chromium is installed has pictures."


def find_browser() -> str | None:
    """Return the path of Chromium or Chrome."""
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)


def section(folder: Path, store: Path) -> str:
    """Make the pictures in `folder`, and return the part of a page that shows them."""
    browser = find_browser()
    if browser is None or not is_compiler_installed():
        return f"\n## Pictures of a report\n\n{NOTE}\n"
    with tempfile.TemporaryDirectory(prefix="pallasc-site-") as name:
        report = Path(name, "report.html")
        make_report(report, store)
        draw_pages(browser, report, folder)
    shown = (f"![{text}](pictures/{name}.png)\n\n*{text}*\n" for name, text in CAPTIONS.items())
    return "\n".join(["\n## Pictures of a report\n", *shown])


def make_report(report: Path, store: Path) -> None:
    """Write a report about kernels of the library."""
    specs = [f"specs/library/{name}.yaml" for name in SPECS]
    chosen = [*specs, "--target", TARGET, "--store", str(store), "--quiet"]
    python = [sys.executable, "-P", "-m", "pallasc"]
    subprocess.run([*python, "report", *chosen, "-o", str(report)], cwd=ROOT, check=True)


def draw_pages(browser: str, report: Path, folder: Path) -> None:
    """Draw the overview, a kernel, and a variant."""
    text = report.read_text("utf-8")
    pages = {"overview": "overview"}
    for name, letter in (("kernel", "k"), ("variant", "v")):
        found = re.search(rf"#({letter}-[0-9a-f]+)\b", text)
        if found is None:
            raise SystemExit(f"docs/site/pictures.py: the report has no page of a {name}")
        pages[name] = found[1]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-site-") as profile:
        for name, page in pages.items():
            _draw_page(browser, f"{report.as_uri()}#{page}", folder / f"{name}.png", profile)


def _draw_page(browser: str, address: str, picture: Path, profile: str) -> None:
    flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    flags += ["--no-sandbox"] if os.getuid() == 0 else []
    subprocess.run(
        [browser, *flags, f"--window-size={SIZE}", "--virtual-time-budget=8000",
         f"--screenshot={picture}", address],
        check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def draw_terminal(picture: Path) -> None:
    """Run `COMMANDS` in a terminal, and draw its last state as SVG."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-site-") as folder:
        _in_terminal(["pallasc", "init"], folder)
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold"))
            for line in on_screen(_in_terminal(shlex.split(command), folder)):
                console.print(Text.from_ansi(line))
    # Remove the font, which rich's format would load from a server.
    svg_format = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg_format = svg_format.replace("font-family: Fira Code", "font-family: Fira Code, Menlo")
    console.save_svg(str(picture), title="pallasc", code_format=svg_format, unique_id="terminal")


def _in_terminal(command: Sequence[str], folder: str) -> str:
    shown = bytearray()

    def read(terminal: int) -> bytes:
        data = os.read(terminal, 4096)
        shown.extend(data)
        return b"\n" * bool(data)  # pty.spawn also writes it to our terminal

    before = Path.cwd()
    os.environ |= {"COLUMNS": str(COLUMNS), "PALLASC_CACHE_DIR": str(Path(folder, "store"))}
    os.chdir(folder)
    try:
        status = pty.spawn([sys.executable, "-P", "-m", *command], read)
    finally:
        os.chdir(before)
    text = shown.decode()
    if status:
        raise SystemExit(f"docs/site/pictures.py: {shlex.join(command)} failed:\n{text}")
    return text


def on_screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after `output`, with colors."""
    lines = [""]
    for part in re.split(r"(\r\n|\r|\x1b\[2K|\x1b\[1A|\x1b\[\?25[hl])", output):
        if part == "\r\n":
            lines.append("")
        elif part == "\x1b[1A":
            lines.pop()
        elif part in ("\x1b[2K", "\r"):
            lines[-1] = ""
        elif not part.startswith("\x1b[?"):
            lines[-1] += part
    return lines if lines[-1] else lines[:-1]


def main() -> None:
    """Write the pictures of the README."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    draw_terminal(folder / "terminal.svg")
    browser = find_browser()
    if browser is None:
        raise SystemExit("docs/site/pictures.py: the picture of a report needs Chromium")
    with tempfile.TemporaryDirectory(prefix="pallasc-site-") as name:
        report = Path(name, "report.html")
        make_report(report, ROOT / "build" / "site" / "store")
        _draw_page(browser, f"{report.as_uri()}#overview", folder / "report.png", name)


if __name__ == "__main__":
    main()
