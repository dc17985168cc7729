"""Where bytes come from: files that may be cut off, closed or no files at all."""

import os
from pathlib import Path

import pytest

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.reader import MemorySource
from pallasc.specs.bundle.verify import verify


class _Endless(MemorySource):
    """A bundle with a terabyte behind its end, which is not to be read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size = 2**40

    def read(self, at: int, size: int) -> bytes:
        assert size < 2**20
        return super().read(at, size).ljust(size, b"\0")


def test_what_stands_behind_the_end_is_refused_by_its_size_and_not_read(small: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^x is damaged: the \d+ bytes after its end are not"):
        Bundle(_Endless(small), "x")


def test_a_file_cut_off_while_open_or_closed_is_an_error(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "kernels.pallasc"
    path.write_bytes(small)
    with open_bundle(path) as bundle:
        entry = next(bundle.entries())
        os.truncate(path, 300)
        with pytest.raises(CorruptError, match=r"kernels\.pallasc is damaged: it was cut off"):
            bundle.artifact(entry).cubin()
        with pytest.raises(CorruptError, match="cut off while it was open"):
            verify(bundle)
    with pytest.raises(SpecError, match=r"kernels\.pallasc is closed"):
        verify(bundle)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.pallasc cannot be read: No such file"):
        open_bundle(tmp_path / "none.pallasc")
    with pytest.raises(SpecError, match="cannot be read"):
        open_bundle(tmp_path)
    (tmp_path / "empty.pallasc").touch()
    with pytest.raises(CorruptError, match=r"empty\.pallasc is empty"):
        open_bundle(tmp_path / "empty.pallasc")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="pipe cannot be read: it is not a file"):
        open_bundle(tmp_path / "pipe")
