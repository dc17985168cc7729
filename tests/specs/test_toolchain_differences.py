"""How the toolchain of a lock differs from another one, in words."""

from __future__ import annotations

import hashlib

import pytest

from pallasc.specs.lock import (
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
            ["compiled with jaxlib 0.10.2, but 0.12.0 is installed"],
        ),
        (
            {"jax": made("1"), "jaxlib": made("1"), "plugin": made("1")},
            {"jax": made("2"), "jaxlib": made("2"), "plugin": made("2")},
            ["compiled with jax, jaxlib and plugin 1, but 2 is installed"],
        ),
        (
            {"ptxas": made("13.5")},
            {"ptxas": made("13.5", "patched")},
            ["the content of ptxas differs under the same version, 13.5"],
        ),
        (
            {"libdevice": made(""), "nvlink": made("")},
            {"libdevice": made("", "x"), "nvlink": made("", "x")},
            ["the content of libdevice and nvlink differs"],
        ),
        (
            {"packages": made("numpy 2.1, scipy 1.14")},
            {"packages": made("numpy 2.2, scipy 1.14")},
            ["compiled with numpy 2.1, but numpy 2.2 is installed"],
        ),
        (
            {"packages": made("numpy 2.1")},
            {"packages": made("numpy 2.1, scipy 1")},
            ["compiled without scipy 1"],
        ),
        (
            {"pallasc": made("0.1", "a"), "tracing packages": made("numpy 2.1")},
            {"pallasc": made("0.2", "b"), "tracing packages": made("numpy 2.2")},
            [
                "compiled with numpy 2.1, but numpy 2.2 is installed",
                "pallasc's lowering has changed, between 0.1 and 0.2",
            ],
        ),
        (
            {"pallasc": made("0.1", "a")},
            {"pallasc": made("0.1", "b")},
            ["pallasc's lowering has changed, within version 0.1"],
        ),
        ({"nvlink": made("")}, {}, ["compiled with nvlink, which is not installed"]),
        ({}, {"nvlink": made("")}, ["compiled without nvlink, which is installed"]),
        (
            {"variable XLA_FLAGS": made("")},
            {"variable XLA_FLAGS": made("", "x")},
            ["XLA_FLAGS has another value here"],
        ),
        ({}, {"variable XLA_FLAGS": made("")}, ["XLA_FLAGS is set here, and was not"]),
        (
            {"variable XLA_FLAGS": made("")},
            {},
            ["XLA_FLAGS was set in the environment, and is not here"],
        ),
    ],
)
def test_how_toolchains_differ_is_said_in_words(
    locked: dict[str, Component], now: dict[str, Component], clauses: list[str]
) -> None:
    assert differences(locked, now) == clauses
