"""A plugin of pytest that writes down which arithmetic the tests apply: `test_opcodes` runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

RECORD = "RECORDED_NUMBERS"
"""The environment variable that says where to."""

_seen: set[str] = set()


def _recording(function: Any) -> Any:
    def recorded(opcode: str, *operands: Any, **shape: Any) -> Any:
        _seen.add(opcode)
        return function(opcode, *operands, **shape)

    return recorded


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take down what is given to `run` of the vectors, or to `find` where tests have no `run`."""
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        name = "run" if hasattr(module, "run") else "find"
        setattr(module, name, _recording(getattr(module, name)))


def pytest_sessionfinish() -> None:
    """Write the mnemonics."""
    Path(os.environ[RECORD]).write_text(json.dumps(sorted(_seen)), encoding="utf-8")
