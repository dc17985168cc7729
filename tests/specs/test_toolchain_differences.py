"""How the toolchain of a lock differs from another one, in words."""

from __future__ import annotations

import hashlib

import pytest

from pallasc.specs.loading.lock import (
    Component,
    differences,
)


def made(version: str, content: str = "") -> Component:
    return Component(hashlib.sha256(f"{version}{content}".encode()).hexdigest(), version)


@pytest.mark.parametrize(
    ("locked", "now", "clauses"),
    [
        ({"jax": made("1")}, {"jax": made("1")}, []),
        (
            {"jaxlib": made("0.10.2")},
            {"jaxlib": made("0.12.0")},
            ["jaxlib: 0.10.2 before, 0.12.0 here"],
        ),
        (
            {"jax": made("1"), "jaxlib": made("1"), "plugin": made("1")},
            {"jax": made("2"), "jaxlib": made("2"), "plugin": made("2")},
            ["jax, jaxlib and plugin: 1 before, 2 here"],
        ),
        (
            {"ptxas": made("13.5")},
            {"ptxas": made("13.5", "patched")},
            ["ptxas: other content of the same version, 13.5"],
        ),
        (
            {"libdevice": made(""), "nvlink": made("")},
            {"libdevice": made("", "x"), "nvlink": made("", "x")},
            ["libdevice and nvlink: other content"],
        ),
        (
            {"packages": made("numpy 2.1, scipy 1.14")},
            {"packages": made("numpy 2.2, scipy 1.14")},
            ["packages: numpy 2.1 before, numpy 2.2 here"],
        ),
        (
            {"packages": made("numpy 2.1")},
            {"packages": made("numpy 2.1, scipy 1")},
            ["packages: nothing before, scipy 1 here"],
        ),
        (
            {"pallasc": made("0.1", "a"), "tracing packages": made("numpy 2.1")},
            {"pallasc": made("0.2", "b"), "tracing packages": made("numpy 2.2")},
            [
                "pallasc: 0.1 before, 0.2 here",
                "tracing packages: numpy 2.1 before, numpy 2.2 here",
            ],
        ),
        (
            {"pallasc": made("0.1", "a")},
            {"pallasc": made("0.1", "b")},
            ["pallasc: other content of the same version, 0.1"],
        ),
        ({"nvlink": made("")}, {}, ["nvlink: not here"]),
        ({}, {"nvlink": made("")}, ["nvlink: only here"]),
        (
            {"variable XLA_FLAGS": made("")},
            {"variable XLA_FLAGS": made("", "x")},
            ["variable XLA_FLAGS: other content"],
        ),
        ({}, {"variable XLA_FLAGS": made("")}, ["variable XLA_FLAGS: only here"]),
        (
            {"variable XLA_FLAGS": made("")},
            {},
            ["variable XLA_FLAGS: not here"],
        ),
    ],
)
def test_how_toolchains_differ_is_said_in_words(
    locked: dict[str, Component], now: dict[str, Component], clauses: list[str]
) -> None:
    assert differences(locked, now) == clauses
