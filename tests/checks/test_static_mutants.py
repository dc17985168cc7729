"""Kernels of the library with one synchronisation weakened, compiled for real and checked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs import library

LIBRARY = Path(library.__file__).resolve().parent
MATMUL = {"a": "bf16[256, 4096]", "b": "bf16[4096, 256]"}
SCALED = {"x": "bf16[128, 1024]", "weights": "i8[1024, 128]", "scales": "f32[128]"}


@dataclass(frozen=True)
class Mutant:
    """A kernel of the library in which `old` is replaced, and what is found in it.

    `line` stands on the line that is told.
    """

    kernel: str
    old: str
    new: str
    rule: str
    line: str


MUTANTS = {
    "product_not_waited_for": Mutant(
        "hopper_matmul", "plgpu.wgmma_wait(0)", "None", "operand-overwritten",
        "run_pipeline(acc)",
    ),
    "short_product_not_waited_for": Mutant(
        "short_matmul", "plgpu.wgmma_wait(0)", "None", "operand-overwritten", "run_pipeline(acc)",
    ),
    "last_product_not_waited_for": Mutant(
        "hopper_matmul", "plgpu.wgmma_wait(0)", "plgpu.wgmma_wait(1)", "operand-overwritten",
        "run_pipeline(acc)",
    ),
    "no_fence": Mutant(
        "hopper_matmul", "plgpu.commit_smem()", "None", "missing-proxy-fence",
        "plgpu.copy_smem_to_gmem(out_smem",
    ),
    "store_not_waited_for": Mutant(
        "hopper_matmul", "plgpu.wait_smem_to_gmem(0)", "None", "unfinished-copy",
        "plgpu.copy_smem_to_gmem(out_smem",
    ),
    "weights_overwritten": Mutant(
        "dequant_matmul", "plgpu.wgmma_wait(0)", "None", "operand-overwritten", "weights_smem"
    ),
    "scales_not_waited_for": Mutant(
        "dequant_matmul", "plgpu.barrier_wait(", "(lambda _: None)(", "read-before-wait", "scales"
    ),
    "operands_not_waited_for": Mutant(
        "blackwell_matmul", "plgpu.barrier_wait(loaded.at[slot])", "None", "read-before-wait",
        "plgpu.tcgen05_mma(",
    ),
    "readers_not_waited_for": Mutant(
        "blackwell_matmul", "plgpu.barrier_wait(consumed.at[slot])", "None",
        "refill-without-wait", "plgpu.copy_gmem_to_smem(a_gmem",
    ),
    "too_many_arrivals": Mutant(
        "blackwell_matmul", "Barrier(num_arrivals=2,", "Barrier(num_arrivals=3,", "arrivals", ""
    ),
}  # fmt: skip
SHORT = {"a": "f16[256, 320]", "b": "f16[320, 64]"}
SMALL_TILES = {"tile_m": 128, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}
"""Five steps: the loop that copies is unrolled, and the one that multiplies is not."""
ENTRIES = {
    "short_matmul": ("matmul", SHORT, "sm_90a"),
    "hopper_matmul": ("matmul", MATMUL, "sm_90a"),
    "dequant_matmul": ("dequant_matmul", SCALED, "sm_90a"),
    "blackwell_matmul": ("matmul", MATMUL, "sm_100a"),
}

OF_A_BUNDLE = {"no_fence": 1, "hopper_matmul": 0}
"""What is checked from a bundle and by its key, and how that ends."""


def source_of(name: str) -> str:
    """Return the source of a kernel of the library."""
    return (LIBRARY / f"{name.replace('short', 'hopper')}.py").read_text()


def kernel_of(name: str, file: str, original: str) -> dict[str, object]:
    """Return the declaration of a kernel in a file that is like one of the library's."""
    function, args, arch = ENTRIES[original]
    static = SMALL_TILES if original == "short_matmul" else {}
    return {
        "name": name, "entry": f"{file}:{function}", "args": args, "static": static,
        "targets": [arch],
    }  # fmt: skip


@pytest.fixture(scope="module")
def checked_mutants(
    tmp_path_factory: pytest.TempPathFactory, checking: Any, request: pytest.FixtureRequest
) -> tuple[Path, Any]:
    """Check the mutants that tests ask for, and the kernels that they were made of."""
    folder = tmp_path_factory.mktemp("mutants")
    own = [item for item in request.session.items if item.path == request.path]
    chosen = {item.callspec.params.get("name") for item in own}  # type: ignore[attr-defined]
    chosen |= set(OF_A_BUNDLE)
    kernels = []
    for name in filter(chosen.__contains__, ENTRIES):
        (folder / f"{name}.py").write_text(source_of(name))
        kernels.append(kernel_of(name, f"{name}.py", name))
    for name in filter(chosen.__contains__, MUTANTS):
        mutant = MUTANTS[name]
        text = source_of(mutant.kernel)
        assert mutant.old in text
        (folder / f"{name}.py").write_text(text.replace(mutant.old, mutant.new))
        kernels.append(kernel_of(name, f"{name}.py", mutant.kernel))
    (folder / "spec.yaml").write_text(json.dumps({"schema": 1, "kernels": kernels}))
    ran = checking.check(folder, "spec.yaml", "--level", "static", "--json")
    assert ran.code == 1, ran.err
    return folder, ran


@pytest.fixture(scope="module")
def results(checked_mutants: tuple[Path, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the mutants, and their results."""
    folder, ran = checked_mutants
    return folder, ran.results


@pytest.mark.parametrize("name", ENTRIES)
def test_a_kernel_of_the_library_has_no_findings(
    name: str, results: tuple[Path, dict[str, Any]]
) -> None:
    found = results[1][name]
    assert (found["status"], found["findings"]) == ("passed", [])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_with_its_rule_and_the_users_line(
    name: str, results: tuple[Path, dict[str, Any]]
) -> None:
    folder, found = results
    finding = found[name]["findings"][0]
    assert finding["rule"] == MUTANTS[name].rule
    assert finding["severity"] == "error"
    place = finding["location"]
    lines = (folder / f"{name}.py").read_text().splitlines()
    assert Path(place["file"]).resolve() == (folder / f"{name}.py").resolve()
    assert MUTANTS[name].line in "".join(lines[place["line"] - 1 : place["line"] + 1])


@pytest.mark.parametrize("kind", ["bundle", "key"])
def test_a_bundle_and_a_key_are_checked_without_source(
    kind: str, checked_mutants: tuple[Path, Any], checking: Any
) -> None:
    folder, ran = checked_mutants
    by_name = {check["name"]: check for check in ran.report["variants"]}
    for name, code in OF_A_BUNDLE.items():
        what: str | Path = by_name[name]["action_key"]
        if kind == "bundle":
            what = folder / f"{name}.pallasc"
            made = subprocess.run(
                [sys.executable, "-P", "-m", "pallasc", "bundle", "create", "spec.yaml",
                 "--output", what, "--keep-ptx", "--store", "store", "-k", f"name={name}"],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
        again = checking.check(folder, what, "--level", "static", "--json")
        assert again.code == code, again.err
        ((result,),) = [check["results"] for check in again.report["variants"]]
        with_source = by_name[name]["results"][0]
        assert result["status"] == with_source["status"] == ("found" if code else "passed")
        assert result["notes"] == with_source["notes"]
        told, expected = (
            [(found["rule"], found["message"], found["ptx_line"]) for found in each["findings"]]
            for each in (result, with_source)
        )
        assert told == expected
        assert all(found["location"] is None for found in result["findings"])
