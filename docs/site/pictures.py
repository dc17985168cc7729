"""Pictures of a real report for the site, made with headless Chromium where it is installed.

The report is of kernels of the library, which takes JAX and half a minute the first time; its store
stays beside the site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import is_compiler_installed

ROOT = Path(__file__).resolve().parents[2]
SPECS = ["hopper_matmul", "rms_norm", "softmax"]
TARGET = "h100-sxm"
SIZE = "1280,900"
TIMEOUT_S = 900
CAPTIONS = {
    "overview": "What was built, and what stands out.",
    "kernel": "A kernel: its variants as plots and as a table that sorts and filters.",
    "variant": "A variant: figures, occupancy, shared memory, tensor maps with box and swizzle.",
}
NOTE = "Pictures are in sites that are built where Chromium and a compiler are installed."


def find_browser() -> str | None:
    """Return the browser, None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)


def section(folder: Path, store: Path) -> str:
    """Make the pictures, and return the part of a page that shows them.

    Args:
        folder: where the pictures go, beside the page.
        store: of the kernels in the report.
    """
    browser = find_browser()
    if browser is None or not is_compiler_installed():
        return f"\n## Pictures of a report\n\n{NOTE}\n"
    with tempfile.TemporaryDirectory(prefix="pallasc-site-") as name:
        report = Path(name, "report.html")
        make_report(report, store)
        shoot(browser, report, folder)
    shown = (f"![{text}](pictures/{name}.png)\n\n*{text}*\n" for name, text in CAPTIONS.items())
    return "\n".join(["\n## Pictures of a report\n", *shown])


def make_report(report: Path, store: Path) -> None:
    """Write a report about kernels of the library, with the lines of their source."""
    specs = [f"specs/library/{name}.yaml" for name in SPECS]
    chosen = [*specs, "--target", TARGET, "--store", str(store), "--quiet"]
    python = [sys.executable, "-P", "-m", "pallasc"]
    subprocess.run([*python, "report", *chosen, "-o", str(report)], cwd=ROOT, check=True)


def shoot(browser: str, report: Path, folder: Path) -> None:
    """Make a picture of the overview, of the first kernel and of its first variant."""
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
            _shoot(browser, f"{report.as_uri()}#{page}", folder / f"{name}.png", profile)


def _shoot(browser: str, address: str, picture: Path, profile: str) -> None:
    flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    flags += ["--no-sandbox"] if os.getuid() == 0 else []
    subprocess.run(
        [browser, *flags, f"--window-size={SIZE}", "--virtual-time-budget=8000",
         f"--screenshot={picture}", address],
        check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
