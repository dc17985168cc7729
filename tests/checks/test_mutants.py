"""Matrix products that lack one synchronization are found with their lines; others are not.

`bench/check.py` measures this for every synchronization of many kernels.
"""

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

NEW = tuple(map(int, metadata.version("jax").split(".")[:2])) >= (0, 12)
CHANGES = {
    "unchanged": ("", ""),
    # The last wait of a kernel only has to keep shared memory until it is read.
    "harmless": ("smem_to_gmem(0)", "smem_to_gmem(0, wait_read_only=True)"),
    "products_in_flight": ("plgpu.wgmma_wait(0)", "pass"),
    "writes_unseen": ("plgpu.commit_smem()", "pass"),
}
KERNEL = {
    "args": {"a": "f16[256, 320]", "b": "f16[320, 64]"},
    "static": {"tile_m": 128, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2},
    "tolerance": {"rtol": 4e-3, "atol": 4e-2},
}


@pytest.mark.skipif(not NEW, reason="the lines of findings are those of JAX 0.12")
def test_a_missing_synchronization_is_found_in_its_function(checking: Any, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("pallasc.specs.library.hopper_matmul")
    assert spec is not None
    source = Path(str(spec.origin)).read_text()
    for name, (line, instead) in CHANGES.items():
        assert line in source
        (tmp_path / f"{name}.py").write_text(source.replace(line, instead) if line else source)
    kernels = [
        {"name": n, "entry": f"{n}.py:matmul", "reference": f"{n}.py:matmul_reference", **KERNEL}
        for n in CHANGES
    ]
    (tmp_path / "spec.yaml").write_text(checking.spec_of(*kernels))
    results = checking.check(tmp_path, "spec.yaml", "--json", "--level", "artifact").results
    found = {name: result["findings"] for name, result in results.items()}
    assert [result["status"] for result in results.values()] == ["passed"] * 2 + ["found"] * 2
    assert found["unchanged"] == found["harmless"] == []
    starts = (source.index(text) for text in ("def matmul_body", "kernel = "))
    first, last = (source[:start].count("\n") for start in starts)
    for name in ("products_in_flight", "writes_unseen"):
        location = found[name][0]["location"]
        assert Path(location["file"]).name == f"{name}.py"
        assert first < location["line"] <= last
