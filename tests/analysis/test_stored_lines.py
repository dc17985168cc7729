"""Source lines in a store: they come back, fit their source, and go with their artifact."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pallasc.analysis.find_lines import Files
from pallasc.analysis.lines import key_of, put_source_lines, read_source_lines
from pallasc.cache.format import MANIFESTS
from pallasc.cache.inventory import stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import clear
from pallasc.cache.store import Store
from pallasc.cache.verify import verify
from pallasc.errors import CompileError
from pallasc.specs.artifacts.source_lines import KernelLines, SourceLines

KEY = "ab" * 32
SOURCE = """\
import jax


def kernel(x):
    def body(ref):
        return ref[...]

    return body(x)


LAST = kernel(1)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a record, and source lines of `spec/kernel.py` beside it."""
    folder = tmp_path / "spec"
    folder.mkdir()
    (folder / "kernel.py").write_text(SOURCE)
    held = Store(tmp_path / "store")
    held.put_artifact(KEY, {"a": 1}, {"cubin": b"code"})
    put_source_lines(held, KEY, lines_of(folder))
    return held


def lines_of(folder: Path) -> SourceLines:
    """Return source lines with two frames of a file."""
    files = Files(str(folder), time.time_ns())
    stack = tuple(files.frame(str(folder / "kernel.py"), line) for line in (6, 11))
    kernel = KernelLines("k", "c" * 64, "d" * 64, (1, 2, 3, 0), (0, 1, 0))
    return SourceLines((kernel,), (stack,), files.files())


def test_lines_come_back_with_functions_and_text(store: Store, tmp_path: Path) -> None:
    found = read_source_lines(store, KEY, base_dir=str(tmp_path / "spec"))
    assert found == lines_of(tmp_path / "spec")
    assert [str(frame) for frame in found.stack(1)] == ["kernel.py:6", "kernel.py:11"]
    assert [frame.function for frame in found.stack(1)] == ["kernel.body", ""]
    assert found.text(found.stack(1)[0]) == "        return ref[...]"
    # The whole of the functions that frames are in is shown, and nothing else of the file.
    assert sorted(found.files[0].text) == [*range(4, 9), 11]
    # Lines of PTX without a location belong to a neighbour.
    assert found.kernels[0].stacks == (1, 1, 1, 0)
    assert found.of("k", "c" * 64) is found.kernels[0]
    assert found.of("k", "d" * 64) is None


def test_lines_of_a_source_that_has_changed_do_not_fit(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "spec" / "kernel.py"
    source.write_text(f"# a line more\n{SOURCE}")
    assert read_source_lines(store, KEY, base_dir=str(source.parent)) is None
    assert read_source_lines(store, KEY) is not None  # as they were, with their text
    source.unlink()
    assert read_source_lines(store, KEY, base_dir=str(source.parent)) is None


def test_lines_count_as_python_counts_them(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_bytes(b"one = 1\r\n\x0c\r\ntwo = 2  # \x0c\rthree = 3\n")
    files = Files(str(tmp_path), time.time_ns())
    files.frame(str(tmp_path / "kernel.py"), 4)
    assert files.files()[0].text == {4: "three = 3"}


def test_a_file_that_changes_while_lines_are_found_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(SOURCE)
    with pytest.raises(CompileError, match=r"kernel\.py changed while it was compiled again"):
        Files(str(tmp_path), 0).frame(str(tmp_path / "kernel.py"), 6)


@pytest.mark.parametrize("lines", ["no base64", "eJwDAAAAAAE=", ""])
def test_a_damaged_record_is_none(store: Store, lines: str) -> None:
    store.put_manifest(key_of(KEY), Manifest(action=KEY, lines=lines))
    assert read_source_lines(store, KEY) is None


def test_they_are_counted_verified_and_go_with_their_artifact(store: Store) -> None:
    assert (stats(store).source_lines, verify(store).ok) == (1, True)
    path = store.path(MANIFESTS, key_of(KEY))
    held = path.read_bytes()
    path.write_bytes(held.replace(b'"lines":"', b'"lines":"A'))
    assert [finding.kind for finding in verify(store).findings] == ["corrupt"]
    path.write_bytes(held)
    clear(store)
    assert not store.names(MANIFESTS)
