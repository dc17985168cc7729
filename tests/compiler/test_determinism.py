"""The same kernel gives the same bytes and keys: in any folder, at any line, with any hash seed."""

import os
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NAMES = ("around", "zeros_and_constant", "all_dtypes")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, run_build: Any) -> dict[str, Any]:
    """Compile copies of some functions alone: in another folder, further down, another seed."""
    folder = tmp_path_factory.mktemp("folder") / "deep"
    folder.mkdir()
    docstring, rest = (PROGRAMS / "functions.py").read_text().split("\n\n", 1)
    rest = rest.replace(
        "from constants", f"import sys\n\nsys.path[:0] = [{str(PROGRAMS)!r}]\nfrom constants"
    )
    file = folder / "functions_copied.py"
    file.write_text(f"{docstring}\n\n" + "# A comment more.\n" * 37 + rest)
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "HOME": str(folder)}
    found: dict[str, Any] = run_build(
        folder / "out.json", file, "h100-sxm", *NAMES, cwd=folder, env=environment
    )
    return found


def test_artifacts_and_keys_are_equal_and_name_no_folder(build: Any, moved: dict[str, Any]) -> None:
    for name in NAMES:
        first, other = build("functions")[name], moved[name]  # the first after many others
        assert first.record == other.record
        assert first.artifact.digest == other.artifact.digest
        assert first.blobs == other.blobs
        assert first.key == other.key
        text = repr(other.record).encode() + b"".join(other.blobs.values())
        for word in (b"functions_copied", b"site-packages", str(PROGRAMS).encode(), b"/deep"):
            assert word not in text
    assert len({moved[name].key for name in NAMES}) == len(NAMES)


def test_errors_that_were_explained_before_change_nothing(build: Any, build_alone: Any) -> None:
    after, alone = build("failing")["fine"], build_alone("failing", "h100-sxm", "fine")["fine"]
    assert after.key == alone.key
    assert after.artifact.digest == alone.artifact.digest
