"""Instructions that an architecture does not have are refused before LLVM ends the process."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.compiler.lowering.constructs import check_instructions, need_of
from pallasc.errors import CompileError
from pallasc.specs.gpus import resolve_target

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
FILE = Path(__file__).parent / "programs" / "architectures.py"
MESSAGES = {
    "registers": "set_max_registers",
    "cluster": "a cluster of blocks",
    "tma": "asynchronous copies by TMA (copy_gmem_to_smem)",
}


def marked_line(name: str) -> int:
    lines = FILE.read_text().splitlines()
    (line,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# HERE {name}")]
    return line


@pytest.mark.parametrize("name", MESSAGES)
def test_a_kernel_is_refused_before_hopper_at_its_line(build: Any, name: str) -> None:
    """`tests/wrong` has kernels that Hopper and Blackwell refuse."""
    error = build("architectures", "sm_80")[name].error
    words = f"the kernel uses {MESSAGES[name]}, which sm_80 does not have, only "
    if name == "tma" and JAX >= (0, 11):
        words = "is only supported Hopper"
    assert words in error["message"]
    assert (Path(error["file"]), error["line"]) == (FILE, marked_line(name))


@pytest.mark.parametrize(
    ("primitive", "tma", "feature"),
    [
        ("tcgen05_commit_arrive", False, "tcgen05"),
        ("async_store_tmem", False, "tcgen05"),
        ("wgmma_accumulator_deref_p", False, "wgmma"),
        ("set_max_registers_p", False, "setmaxnreg"),
        ("griddepcontrol_wait", False, "griddepcontrol"),
        ("try_cluster_cancel", False, "cluster_cancel"),
        ("copy_smem_to_gmem", True, "tma"),
    ],
)
def test_needs_of_primitives(primitive: str, tma: bool, feature: str) -> None:
    need = need_of(primitive, copies_use_tma=tma)
    assert need is not None
    assert need[1] == feature
    for common in ("add", "copy_gmem_to_smem", "barrier_wait", "mma"):
        assert need_of(common, copies_use_tma=False) is None


def _jaxpr(name: str, **params: Any) -> Any:
    equation = SimpleNamespace(
        primitive=SimpleNamespace(name=name),
        params=params,
        source_info=SimpleNamespace(traceback=None),
    )
    return SimpleNamespace(eqns=[equation])


def test_equations_are_looked_for_inside_equations() -> None:
    inner = SimpleNamespace(jaxpr=_jaxpr("wgmma"))
    outer = _jaxpr("pjit", branches=(3, inner), mesh=None)
    check_instructions(outer, resolve_target("sm_90a"))
    with pytest.raises(CompileError, match="wgmma"):
        check_instructions(outer, resolve_target("sm_100a"))
