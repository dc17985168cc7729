"""`pallasc build`, with a real build behind it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import format
from pallasc.specs.artifacts.artifact import Resources

COMPILED = re.compile(
    r"\[(?P<done>\d)/2\] compiled  (?P<id>add\[m=1024,dtype=\w+\]@h100-sxm)  "
    r"\d+\.\d\d s, [\d,]+ bytes, \d+ registers"
)
FAILING = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: raises
    entry: kernels.py:raises
    args: {x: "f32[2048]"}
  - name: exits
    entry: kernels.py:exits
    args: {x: "f32[2048]"}
"""
FAILING_KERNELS = """\
import os


def raises(x):
    raise ValueError(f"no kernel for {x.shape}")


def exits(x):
    print("last words", flush=True)
    os._exit(3)
"""


def test_a_first_build_compiles_each_variant_and_says_so_in_one_line(built: Any) -> None:
    lines = built.first.err.splitlines()
    matches = [COMPILED.fullmatch(line) for line in lines[:-1]]
    assert (built.first.code, built.first.out) == (0, "")
    assert [match and match["done"] for match in matches] == ["1", "2"]
    assert {match and match["id"] for match in matches} == {
        "add[m=1024,dtype=f32]@h100-sxm",
        "add[m=1024,dtype=bf16]@h100-sxm",
    }
    assert re.fullmatch(r"2 variants in (\d+ min )?[\d.]+ s: 2 compiled", lines[-1])


def test_a_store_that_cannot_be_written_fails_in_ci_and_where_a_variable_says_so(
    run: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    arguments = (built.spec, "--store", tmp_path / "file" / "store", "-k", "dtype=f32")
    for ci, code, told in (("true", 4, "error: "), ("false", 0, "warning: the store ")):
        monkeypatch.setenv("CI", ci)
        result = run("build", *arguments, "--jobs", "1", "--json")
        error = json.loads(result.out)["error"]
        assert (result.code, error and error["exit_code"]) == (code, code or None)
        assert told in result.err
    monkeypatch.setenv("PALLASC_REQUIRE_STORE", "1")
    for command in (
        ("build",),
        ("lock", "--update", "--lock", tmp_path / "a.lock"),
        ("bundle", "create", "-o", tmp_path / "a.pallasc"),
        ("inspect",),
    ):
        result = run(*command, *arguments)
        assert (result.code, "file/store cannot be written: " in result.err) == (4, True)
        assert "PALLASC_REQUIRE_STORE=0 compiles without storing anything." in result.err
        assert "Traceback" not in result.err
    monkeypatch.setenv("PALLASC_REQUIRE_STORE", "yes")
    result = run("build", *arguments)
    told = "PALLASC_REQUIRE_STORE must be 1 or 0, got 'yes'"
    assert (result.code, told in result.err) == (2, True)


@pytest.mark.parametrize("limit", ["abc", "-1", "0s", "nan", "inf", ""])
def test_a_time_limit_that_is_no_number_is_refused(limit: str, run: Any, built: Any) -> None:
    result = run("build", *built.arguments, "--timeout", limit)
    told = f"error: --timeout must be a positive number of seconds, got {limit!r}.\n"
    assert (result.code, result.out) == (2, "")
    assert result.err == f"{told}  0 or none: no limit.\n"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("much", "--memory"),
        ("3", "'3' has no unit"),
        ("3B", "'3B' is less than 64 MiB"),
        ("63MiB", "less than 64 MiB"),
    ],
)
def test_an_amount_of_memory_that_nobody_means_is_refused(
    size: str, why: str, run: Any, built: Any
) -> None:
    for command in ("build", "list", "lock", "inspect"):
        result = run(command, *built.arguments, "--memory", size)
        assert (result.code, result.out) == (2, "")
        assert why in result.err


def test_a_reproduction_says_what_is_wrong_with_what_the_store_has(
    run: Any, built: Any, tmp_path: Path
) -> None:
    shutil.copytree(built.store, tmp_path / "store")
    for path in (tmp_path / "store" / "v1" / "ac").rglob("*"):
        if path.is_file():
            body, _ = format.decode("artifact", path.name, path.read_bytes(), dict)
            body["artifact"]["minimum_driver"]["cuda"] = "99.0"
            path.write_bytes(format.encode("artifact", path.name, body)[0])
    store = ("--store", tmp_path / "store", "--jobs", "1", "-k", "dtype=f32")
    result = run("build", built.spec, *store, "--reproduce", "1")
    assert (result.code, result.out) == (1, "")
    assert "different  add[m=1024,dtype=f32]@h100-sxm" in result.err
    assert "compiled again, it gave different bytes:" in result.err
    assert "the store was modified" in result.err


def test_the_process_of_a_build_that_compiles_imports_no_jax(built: Any) -> None:
    assert "pallasc.compiler.builds.build" in built.modules
    assert built.modules & {"jax", "jaxlib", "numpy", "llvmlite", "google.protobuf"} == set()


def test_a_second_build_compiles_nothing(
    run: Any, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("0", "none"):
        result = run("build", *built.arguments, "--timeout", limit)
        assert (result.code, result.out) == (0, "")
        first, second, last = result.err.splitlines()
        assert first == "[1/2] hit       add[m=1024,dtype=f32]@h100-sxm"
        assert second == "[2/2] hit       add[m=1024,dtype=bf16]@h100-sxm"
        assert re.fullmatch(r"2 variants in \d+\.\d s: 2 hits \(100 %\), .* s saved", last)
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(built.store))
    assert ": 2 hits (100 %), " in run("build", built.spec).err.splitlines()[-1]


def test_the_report_is_json(run: Any, built: Any) -> None:
    result = run("build", *built.arguments, "--json", "-k", "dtype=f32")
    data = json.loads(result.out)
    (variant,) = data["variants"]
    assert (data["schema"], data["notes"]) == (1, [])
    assert data["totals"] == {
        "hit": 1, "lowered": 0, "shared": 0, "compiled": 0, "failed": 0, "missing": 0, "skipped": 0,
    }  # fmt: skip
    assert variant["id"] == "add[m=1024,dtype=f32]@h100-sxm"
    assert (variant["status"], variant["error"]) == ("hit", None)
    assert re.fullmatch("[0-9a-f]{64}", variant["digest"])
    assert re.fullmatch("[0-9a-f]{64}", variant["action_key"])
    assert variant["cubin_bytes"] > 0
    (kernel,) = variant["kernels"]
    assert kernel["registers"] > 0
    taken = variant["resources"]
    assert {*taken} == {*Resources._fields}
    assert taken["registers"] == kernel["registers"]
    assert taken["cubin_bytes"] == variant["cubin_bytes"]
    assert taken["spill_bytes"] == 0
    assert taken["occupancy"] in range(4, 65, 4)


def test_a_kernel_that_fails_shows_its_own_line_and_the_others_go_on(
    run: Any, tmp_path: Path
) -> None:
    spec = tmp_path / "kernels.yaml"
    spec.write_text(FAILING)
    kernels = tmp_path / "kernels.py"
    kernels.write_text(FAILING_KERNELS)
    limits = ("--jobs", "1", "--memory", "4GiB")
    result = run("build", spec, "--store", tmp_path / "store", "--json", *limits)
    text = result.err
    assert result.code == 1
    assert (
        f"failed    raises@h100-sxm\n"
        f"    {kernels}:5: ValueError: no kernel for (2048,)\n"
        f'        5 | raise ValueError(f"no kernel for {{x.shape}}")\n'
    ) in text
    assert "failed    exits@h100-sxm\n" in text
    alone = f"pallasc build {spec} -k exits@h100-sxm --target h100-sxm"
    assert (
        f"ended with exit code 3\n      To build only this variant: {alone}\n"
        "    output:\n    last words\n"
    ) in text
    assert text.endswith(": 2 failed\n")
    assert "Traceback" not in text
    raises, exits = json.loads(result.out)["variants"]
    assert raises["error"] == {
        "column": None,
        "exit_code": 1,
        "file": str(kernels),
        "hint": None,
        "line": 5,
        "message": "ValueError: no kernel for (2048,)",
    }
    assert (exits["status"], exits["output"]) == ("failed", "last words\n")


WARNING_SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: tuned
    entry: warns.py:tuned
    args: {x: "f32[8, 2048]", y: "f32[8, 2048]"}
  - name: bare
    entry: warns.py:bare
    args: {x: "f32[8, 128]"}
"""
WARNING_KERNELS = """\
import warnings

import jax.numpy as jnp
from pallasc.specs.library.elementwise import add


def tuned(x, y):
    warnings.warn("autotuning cache miss: heuristics")
    return jnp.sin(add(x, y, block_size=2048)) * 2


def bare(x):
    return jnp.tanh(x) * 2
"""


def test_warnings_and_kernels_of_xla_are_told_of_a_compilation_and_of_a_hit(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "warns.py").write_text(WARNING_KERNELS)
    (tmp_path / "warns.yaml").write_text(WARNING_SPEC)
    arguments = ("build", tmp_path / "warns.yaml", "--store", tmp_path / "store", "--jobs", "1")
    first = run(*arguments)
    again = run(*arguments, "--json")
    for result in (first, again):
        assert result.code == 0
        assert "tuned@h100-sxm  " in result.err
        assert "warning: 1 variant holds no Pallas Mosaic GPU kernel" in result.err
        assert re.search(r"^  tuned \(1 variant\): \w*(sine|fusion)\w*$", result.err, re.MULTILINE)
    assert re.search(r"compiled  bare@h100-sxm  .*, no Mosaic kernel$", first.err, re.MULTILINE)
    assert "hit       tuned@h100-sxm  1 warning\n" in again.err
    said = "warns.py:8: UserWarning: autotuning cache miss: heuristics"
    for result in (first, again):
        assert f"warnings:\n  {said}\n    1 variant: tuned@h100-sxm\n" in result.err
    data = json.loads(again.out)
    assert (data["warnings"], [len(item["warnings"]) for item in data["variants"]]) == (1, [1, 0])
    assert [item["pallas_kernels"] for item in data["variants"]] == [1, 0]

    failing = run(*arguments, "--fail-on-warning", "Cache Miss", "--json")
    assert failing.code == 1
    assert "failed    tuned@h100-sxm\n" in failing.err
    tuned, bare = json.loads(failing.out)["variants"]
    assert (tuned["error"]["line"], tuned["error"]["exit_code"]) == (8, 1)
    assert tuned["error"]["message"] == f"it compiles with a warning: {said}"
    assert (tuned["status"], bare["status"]) == ("failed", "hit")

    shown = run("inspect", *arguments[1:])
    assert f"\nwarnings\n  {said}\n" in shown.out
    assert "kernels    none from Mosaic GPU, 1 from XLA: " in shown.out
    create = ("bundle", "create", *arguments[1:], "-o", tmp_path / "k.pallasc")
    packed = run(*create, "--fail-on-warning", ".")
    assert (packed.code, (tmp_path / "k.pallasc").exists()) == (1, False)
    packed = run(*create)
    assert packed.code == 0
    assert "autotuning cache miss" in packed.err
    result = run(*arguments, "--fail-on-warning", "(")
    assert (result.code, result.out) == (2, "")
    assert "'(' is not a regular expression" in result.err
