"""Kernels that do not compile: each gives exactly the text and the exit code beside it.

`kernels/` has a YAML file, a Python file and a text for each case. What JAX versions say
differently lies in a text for each: `case.0.10.txt`, `case.0.12.txt`; a version takes the newest
that is not newer than itself. In a text, `…` stands for anything on that line. All cases are
compiled by one run of the command line. After a change of messages,
`python tests/wrong/test_wrong_kernels.py` writes the texts for the JAX at hand.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store

FOLDER = Path(__file__).parent / "kernels"
CASES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
ROWS, COLUMNS = 24, 100
"""A small screen: longer lines go on in the next row."""

DONE = re.compile(r"^\[ *\d+/\d+\] (?=\w+ +(?P<case>\w+)@)", re.MULTILINE)
RUNNING = re.compile(r"\[ *\d+/\d+\] (compiling|getting ready|waiting)\b")
OF_A_VERSION = re.compile(r".*\.(?P<major>\d+)\.(?P<minor>\d+)\.txt")


@dataclass(frozen=True, slots=True)
class Built:
    """What one run said about every case, and how it ended.

    `texts` are `shown` less the folder of the cases.
    """

    code: int
    shown: dict[str, str]
    texts: dict[str, str]
    summary: str
    report: dict[str, dict[str, Any]]
    store: Path


def pallasc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, in the folder of the cases."""
    command = [sys.executable, "-P", "-m", "pallasc", *map(str, arguments)]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)


def build(store: Path) -> Built:
    """Compile every case in one run."""
    run = pallasc("build", ".", "--json", "--store", store, "--jobs", "1")
    variants = json.loads(run.stdout)["variants"]
    report = {variant["name"]: variant for variant in variants}
    *lines, summary = said(run.stderr)
    told = lines[: lines.index("failed:")]  # where all that failed is listed once more
    shown = split("\n".join(told) + "\n")
    texts = {case: text.replace(f"{FOLDER}/", "") for case, text in shown.items()}
    return Built(run.returncode, shown, texts, summary, report, store)


def said(text: str) -> list[str]:
    """Return the lines of a run without those that only say what is running."""
    return [line for line in text.splitlines() if not RUNNING.match(line)]


def split(text: str) -> dict[str, str]:
    """Return what was printed for each case, without counters."""
    starts = [*DONE.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    return {start["case"]: text[start.end() : end] for start, end in zip(starts, ends, strict=True)}


def expected_file(case: str) -> Path:
    """Return the file with the text that this JAX version gives."""
    found = [
        ((int(match["major"]), int(match["minor"])), path)
        for path in FOLDER.glob(f"{case}.*.txt")
        if (match := OF_A_VERSION.fullmatch(path.name))
    ]
    fitting = [item for item in found if item[0] <= JAX]
    return max(fitting)[1] if fitting else FOLDER / f"{case}.txt"


def matches(text: str, wanted: str) -> bool:
    """Return whether a text is the wanted one, in which `…` stands for anything on its line."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), text) is not None


def told(built: Built, case: str) -> str:
    """Return the text and the exit code of a case, as the file beside it has them."""
    error = built.report[case]["error"]
    code = 0 if error is None else error["exit_code"]
    return f"{built.texts[case]}exit code {code}\n"


def rows(text: str) -> int:
    """Return how many rows of a screen a text takes."""
    return sum(max(1, math.ceil(len(line) / COLUMNS)) for line in text.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Built:
    """Compile every case once."""
    folder = tmp_path_factory.mktemp("wrong")
    return build(Path(shutil.copytree(warm_store.root, folder / "store")))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_kernel_gives_its_exact_message(case: str, built: Built) -> None:
    wanted = expected_file(case).read_text("utf-8")
    text = told(built, case)
    assert text == wanted or matches(text, wanted)
    assert rows(built.shown[case]) <= ROWS
    error = built.report[case]["error"]
    assert Path(error["file"]).name in (f"{case}.py", f"{case}.yaml")
    assert error["message"].splitlines()[-1] in text
    assert f"{case}{Path(error['file']).suffix}:{error['line']}:" in text
    assert all(f"      {line}" in text for line in (error["hint"] or "").splitlines())


def test_the_run_ends_with_1_and_counts_the_failures(built: Built) -> None:
    assert built.code == 1
    words = rf"{len(CASES)} variants in (\d+ min )?[\d.]+ s: {len(CASES)} failed"
    assert re.fullmatch(words, built.summary)
    assert {path.name.split(".")[0] for path in FOLDER.glob("*.txt")} == {*CASES}


@pytest.mark.parametrize(("case", "code"), [("call_raises", 2), ("over_budget", 5)])
def test_a_run_of_its_own_ends_with_the_exit_code_of_the_case(
    case: str, code: int, built: Built
) -> None:
    run = pallasc("build", f"{case}.yaml", "--store", built.store)
    first, *rest = said(run.stderr)
    assert run.returncode == code
    assert first.startswith("[1/1] failed  ")
    *text, summary = [line.replace(f"{FOLDER}/", "") for line in rest]
    assert text == built.texts[case].splitlines()[1:]
    assert summary.endswith(": 1 failed")


def write_texts() -> None:
    """Write the texts of all cases for the JAX at hand."""
    with tempfile.TemporaryDirectory() as folder:
        now = build(Path(folder) / "store")
    version = ".".join(map(str, JAX))
    for case in CASES:
        text, path = told(now, case), expected_file(case)
        if path.exists() and matches(text, path.read_text("utf-8")):
            continue
        if path.exists() and "--split" in sys.argv:
            path = FOLDER / f"{case}.{version}.txt"
        path.write_text(text, "utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    write_texts()
