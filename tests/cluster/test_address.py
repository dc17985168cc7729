"""The text of `--executor`."""

from __future__ import annotations

import importlib.util

import pytest

from pallasc.compiler.cluster.address import Address, parse_address, require_dask
from pallasc.errors import SpecError, ToolError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("dask:", ""),
        (" dask: ", ""),
        ("dask://head", "tcp://head:8786"),
        ("dask://10.0.0.3:9000", "tcp://10.0.0.3:9000"),
        ("dask://head:8786/", "tcp://head:8786"),
        ("dask://[::1]:8786", "tcp://[::1]:8786"),
        ("dask+tls://head.example.org", "tls://head.example.org:8786"),
    ],
)
def test_an_address_is_a_scheduler(text: str, url: str) -> None:
    assert parse_address(text) == Address(text.strip(), url)


@pytest.mark.parametrize(
    "text",
    ["", "dask", "dask:/", "dask://", "dask://:8786", "dask://a:0", "dask://a:70000", "tcp://a:1",
     "dask://a b", "dask://user:secret@a:1", "ray://a", "dask://a:1/path", "dask://a:x"],
)  # fmt: skip
def test_what_is_no_scheduler_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not the address of a scheduler") as caught:
        parse_address(text)
    assert "dask://HOST:8786" in str(caught.value)


def test_a_missing_dask_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_dask()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r'pip install "pallasc\[dask\]"'):
        require_dask()
