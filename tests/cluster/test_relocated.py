"""Paths of home below a folder, and texts with them freed of it."""

from __future__ import annotations

import pytest

from pallasc.compiler.cluster.relocated import at_home, below
from pallasc.compiler.lowering.kernel_output import pack, unpack


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/kernels", "/tmp/r/kernels"),
        ("/kernels/", "/tmp/r/kernels"),
        ("//kernels", "/tmp/r/kernels"),
        ("/a/../../../b", "/tmp/r/b"),
        ("/", "/tmp/r"),
    ],
)
def test_a_path_lies_below_the_root(path: str, expected: str) -> None:
    assert below("/tmp/r", path) == expected


@pytest.mark.parametrize("path", ["", "kernels", "../x", "/a\0b"])
def test_what_is_no_path_of_home_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not an absolute path"):
        below("/tmp/r", path)


def test_texts_of_a_reply_name_the_files_of_home() -> None:
    reply = {
        "error": {"message": "/tmp/r/kernels/k.py is wrong", "location": {"file": "/tmp/r/k.py"}},
        "missed": {"/tmp/r/x": "/tmp/r/k.py:3"},
        "diagnostics": [{"text": "see /tmp/r/kernels/h.py"}],
        "record": {"text": "/tmp/r/stays"},
        "seconds": 2.5,
        "printed": pack("module of /tmp/r/kernels/k.py"),
        "manifest": {"printed": pack("module of /tmp/r/kernels/k.py"), "action": "a"},
    }
    home = at_home(reply, "/tmp/r")
    printed = home.pop("printed")
    assert unpack(printed) == "module of /kernels/k.py"
    assert home == {
        "error": {"message": "/kernels/k.py is wrong", "location": {"file": "/k.py"}},
        "missed": {"/x": "/k.py:3"},
        "diagnostics": [{"text": "see /kernels/h.py"}],
        "record": {"text": "/tmp/r/stays"},
        "seconds": 2.5,
        "manifest": {"printed": printed, "action": "a"},
    }
