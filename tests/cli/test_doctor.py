"""`pallasc doctor`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.cli.doctor import items_text
from pallasc.compiler.toolchain.toolchain import Item
from pallasc.runtime.native import library

NEEDED = ("python", "platform", "jax", "jaxlib", "ptxas", "nvlink", "libdevice", "llvmlite")


def test_doctor_finds_everything_that_these_tests_need(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("doctor")
    states = {line.split()[0]: line for line in result.out.splitlines()}
    assert (result.code, result.err) == (0, "")
    assert all(" ok" in states[name] for name in NEEDED)
    data = json.loads(run("doctor", "--json").out)
    assert (data["schema"], data["ok"]) == (1, True)
    assert {item["name"] for item in data["items"] if item["needed"]} >= set(NEEDED)
    monkeypatch.setenv("PALLASC_PTXAS", str(tmp_path / "ptxas"))
    result = run("doctor")
    assert result.code == 4
    assert result.err == "error: nothing can be compiled: see ptxas in the list.\n"
    (line,) = (line for line in result.out.splitlines() if line.startswith("ptxas "))
    assert line.split() == ["ptxas", "-", "missing", str(tmp_path / "ptxas")]
    result = run("doctor", "--json")
    assert (result.code, json.loads(result.out)["ok"]) == (4, False)


def test_items_are_a_table_and_each_fix_is_told_once() -> None:
    items = [
        Item("jax", "0.12.0", "traces"),
        Item("jaxlib", "", "lowers", problem="missing", fix="pip install x"),
        Item("ptxas", "", "assembles", problem="missing", fix="pip install x"),
        Item("driver", "", "launching needs it", needed=False, problem="none"),
    ]
    assert items_text(items).splitlines() == [
        "NAME    VERSION  STATE                     PATH",
        "jax     0.12.0   ok",
        "jaxlib  -        missing",
        "ptxas   -        missing",
        "driver  -        none; launching needs it",
        "",
        "To fix this:",
        "  pip install x",
    ]


RUNTIME = [
    Item("python", "3.12.1", "runs everything", path="/usr/bin/python"),
    Item("platform", "Linux x86_64", "what the wheels are made for"),
    Item("jax", "", "traces kernels", problem="missing", fix="pip install x"),
    Item("jax-cuda13-plugin", "", "compiles kernels", problem="missing", fix="pip install x"),
    Item("ptxas", "", "assembles", problem="missing", fix="pip install x"),
    Item("cuda-bindings", "13.0", "only launching needs it", needed=False),
]


def test_doctor_says_what_can_be_run_where_nothing_of_a_compiler_is_installed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.compiler.toolchain.toolchain.inventory", lambda ptxas: RUNTIME)
    for found, said in (
        ({(9, 0), (8, 0)}, "The GPUs here run kernels for sm_80, sm_90a.\n"),
        (set(), "No GPU found: launching needs a GPU and NVIDIA's driver.\n"),
    ):
        monkeypatch.setattr(
            "pallasc.runtime.device.devices.capabilities", lambda found=found: found
        )
        result = run("doctor")
        assert (result.code, result.err) == (0, "")
        assert result.out.endswith(
            "No compiler is installed: kernels can be run, but not compiled.\n"
            f'{said}To compile as well: pip install "pallasc[cuda13]"\n'
        )
        data = json.loads(run("doctor", "--json").out)
        assert (data["ok"], data["runs"]) == (False, ["sm_80", "sm_90a"] if found else [])


def test_doctor_says_what_launches_kernels(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def line() -> str:
        result = run("doctor")
        assert result.code == 0
        (found,) = (row for row in result.out.splitlines() if row.startswith("native launch "))
        return " ".join(str(found).split()).removeprefix("native launch ")

    by_python = "kernels are launched by Python, and not in JAX programs"
    monkeypatch.setenv("PALLASC_NATIVE", "0")
    assert line() == f"- the C library is switched off: PALLASC_NATIVE is 0; {by_python}"
    file = tmp_path / "libpallasc.so"
    monkeypatch.setenv("PALLASC_NATIVE", str(file))
    reason = "the extension was not built for this Python"
    monkeypatch.setattr(library, "why_not", lambda: reason)
    assert line() == f"- PALLASC_NATIVE names {file}, which is not a file; {by_python}"
    file.write_text("nothing")
    assert line().startswith("- the C library cannot be loaded: ")
    monkeypatch.setattr(library, "open_library", lambda _: SimpleNamespace(version="0.1.0"))
    assert line() == f"0.1.0 {reason}; calls go through Python {file}"
    monkeypatch.setattr(library, "why_not", lambda: "")
    assert line() == f"0.1.0 ok {file}"
    file.unlink()
    assert line().endswith("is not a file; JAX programs cannot launch kernels")
