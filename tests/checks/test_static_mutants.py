"""Kernels of the library with one synchronisation weakened, compiled for real and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from pallasc.specs import library

NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
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
ENTRIES = {
    "hopper_matmul": ("matmul", MATMUL, "sm_90a"),
    "dequant_matmul": ("dequant_matmul", SCALED, "sm_90a"),
    "blackwell_matmul": ("matmul", MATMUL, "sm_100a"),
}


def kernel_of(name: str, file: str, original: str) -> dict[str, object]:
    """Return the declaration of a kernel in a file that is like one of the library's."""
    function, args, arch = ENTRIES[original]
    return {"name": name, "entry": f"{file}:{function}", "args": args, "targets": [arch]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> tuple[Path, dict[str, Any]]:
    """Check the mutants, and the kernels that they were made of."""
    folder = tmp_path_factory.mktemp("mutants")
    kernels = []
    for name in ENTRIES:
        (folder / f"{name}.py").write_text((LIBRARY / f"{name}.py").read_text())
        kernels.append(kernel_of(name, f"{name}.py", name))
    for name, mutant in MUTANTS.items():
        text = (LIBRARY / f"{mutant.kernel}.py").read_text()
        assert mutant.old in text
        (folder / f"{name}.py").write_text(text.replace(mutant.old, mutant.new))
        kernels.append(kernel_of(name, f"{name}.py", mutant.kernel))
    (folder / "spec.yaml").write_text(json.dumps({"schema": 1, "kernels": kernels}))
    ran = checking.check(folder, "spec.yaml", "--level", "static", "--json")
    assert ran.code == 1, ran.err
    return folder, ran.results


@pytest.mark.parametrize("name", ENTRIES)
def test_a_kernel_of_the_library_has_no_findings(
    name: str, results: tuple[Path, dict[str, Any]]
) -> None:
    found = results[1][name]
    assert (found["status"], found["findings"]) == ("passed", [])


@pytest.mark.skipif(not NEW, reason="PTX of JAX 0.10 leaves some of these undecided")
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
