"""Library kernels and JAX's own, launched from their artifacts: as JAX does it, in Python and C."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import made
import native_build
import native_comparison
import pytest
import standin as control

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "programs"))

import jax_stub
from executables import place
from jax_stub import Executable, Passed

sys.path.pop(0)
sys.path.pop(0)

from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import ToolError
from pallasc.runtime.native.library import open_library
from pallasc.runtime.opening import open_artifact
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import unflatten
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant, variant_to_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOME = {
    "add": "sm_90a",
    "hopper_matmul": "sm_90a",
    "jax_attention": "sm_90a",
    "jax_ragged_dot": "sm_90a",
    "blackwell_matmul": "sm_100a",
}
"""The kernels of which one variant is compiled, each for an architecture."""


def _variants() -> list[Variant]:
    """Return the first variant of some kernels for an architecture."""
    files = sorted((ROOT / "specs" / "library").glob("*.yaml"))
    first: dict[str, Variant] = {}
    for variant in (variant for file in files for variant in expand(load_yaml(file))):
        if variant.target.arch == SOME.get(variant.name):
            first.setdefault(variant.name, variant)
    return list(first.values())


VARIANTS = _variants()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile all variants, those of an architecture in one process."""
    if jax_stub.runtime_library() is None:
        pytest.skip("JAX's plugin has no runtime library for Mosaic kernels")
    kept = tmp_path_factory.mktemp("executables")
    try:
        with prepare() as setup:
            program, ptxas = HERE / "programs" / "executables.py", setup.toolchain.ptxas
            for arch in dict.fromkeys(variant.target.arch for variant in VARIANTS):
                own = [variant for variant in VARIANTS if variant.target.arch == arch]
                done = subprocess.run(
                    [sys.executable, "-P", program, kept, ptxas],
                    env=dict(setup.environment),
                    input=json.dumps([variant_to_json(variant) for variant in own]),
                    text=True,
                    capture_output=True,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
    except ToolError as error:
        pytest.skip(f"nothing can be compiled here: {error.message}")
    return kept


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_a_launch_passes_what_jax_passes_in_python_and_in_c(
    variant: Variant, folder: Path, runtime: control.Standin, framework: made.Framework
) -> None:
    own = place(folder, variant)
    record = json.loads((own / "record.json").read_text())
    artifact = Artifact(record, lambda key: (own / "blobs" / key).read_bytes())
    # There is none where XLA wrote some of the kernels: JAX's side of a launch is Mosaic's alone.
    executable = Executable.read((own / "executable").read_bytes())
    target = variant.target
    model = control.Device(
        f"{target.major}.{target.minor}",
        name=target.description,
        sms=target.sm_count,
        smem_optin_bytes=target.smem_optin_bytes,
    )
    runtime.devices(model)
    runtime.configure(check_pointers=1)
    kernel, plan = open_artifact(artifact), artifact.plan
    trees = {name: tree for name, tree in plan.input_tree.items() if tree is not None}
    for offset in (0, 256, 4096):  # the second and third time tensor maps are copied
        arrays, results = (
            [_tensor(framework, array, offset) for array in bindings]
            for bindings in (plan.inputs, kernel.signature.results)
        )
        runtime.clear_log()
        named = {name: unflatten(tree, arrays) for name, tree in trees.items()}
        kernel.into(**named, out=unflatten(plan.output_tree, results))
        ours = runtime.launches
        assert [launch.code for launch in ours] == [0] * len(plan.launches)
        if executable is not None:
            inputs = [array.pointer for array in arrays]
            assert [_passed(launch) for launch in ours] == _as_jax(
                executable, inputs, results, runtime
            )
    python, c = native_comparison.compare(runtime, open_library(native_build.build()), artifact)
    assert c == python


def _tensor(framework: made.Framework, array: Binding, offset: int) -> made.Tensor:
    """Return a tensor that starts behind the beginning of its memory."""
    whole = framework.tensor(f"u8[{array.size_bytes + offset}]")
    return made.Tensor(whole.pointer + offset, array.dtype, array.shape)


def _as_jax(
    executable: Executable,
    inputs: Sequence[int],
    results: Sequence[made.Tensor],
    runtime: control.Standin,
) -> list[Passed]:
    """Return what JAX passes for arrays at the same addresses."""
    places = {executable.parameters[number]: address for number, address in enumerate(inputs)}
    for allocation, result in zip(executable.results, results, strict=True):
        assert places.setdefault(allocation, result.pointer) == result.pointer
    return [
        jax_stub.launch(call, [places[own] + offset for own, offset in call.slices], runtime)
        for call in executable.calls
    ]


def _passed(launch: control.Launch) -> Passed:
    fields = ("kernel", "grid", "block", "cluster", "smem_bytes", "pdl", "parameters")
    return Passed(*(getattr(launch, name) for name in fields))
