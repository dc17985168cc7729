"""Library kernels and JAX's own, launched from their artifacts: as JAX does it, in Python and C."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from jax_stub import Executable, MosaicCall, Passed

sys.path.pop(0)
sys.path.pop(0)

from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import ToolError
from pallasc.runtime.native.library import open_library
from pallasc.runtime.opening import open_artifact
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.artifact import Artifact
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

_CLUSTER, _PDL = 4, 6
_MAX_DYNAMIC_SMEM, _NON_PORTABLE_CLUSTER = 8, 14
_DEFAULT_SMEM_BYTES, _PORTABLE_CLUSTER = 48 * 1024, 8


def _variants() -> list[Variant]:
    """Return the first variant of some kernels for an architecture."""
    files = sorted((ROOT / "specs" / "library").glob("*.yaml"))
    first: dict[str, Variant] = {}
    for variant in (variant for file in files for variant in expand(load_yaml(file))):
        if variant.target.arch == SOME.get(variant.name):
            first.setdefault(variant.name, variant)
    return list(first.values())


VARIANTS = _variants()


@dataclass(frozen=True)
class Compiled:
    """A variant, its artifact, and the executable that it came from.

    There is None where XLA wrote some of the kernels: JAX's side of a launch is Mosaic's alone.
    """

    variant: Variant
    artifact: Artifact
    executable: Executable | None


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile all variants, those of an architecture in one process."""
    if jax_stub.runtime_library() is None:
        pytest.skip("JAX's plugin has no runtime library for Mosaic kernels")
    kept = tmp_path_factory.mktemp("executables")
    try:
        _compile(kept)
    except ToolError as error:
        pytest.skip(f"nothing can be compiled here: {error.message}")
    return kept


def _compile(kept: Path) -> None:
    architectures = dict.fromkeys(variant.target.arch for variant in VARIANTS)
    with prepare() as setup:
        command = [
            sys.executable, "-P", HERE / "programs" / "executables.py", kept, setup.toolchain.ptxas
        ]  # fmt: skip
        for arch in architectures:
            listed = [
                variant_to_json(variant) for variant in VARIANTS if variant.target.arch == arch
            ]
            done = subprocess.run(
                command,
                env=dict(setup.environment),
                input=json.dumps(listed),
                text=True,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.id)
def compiled(request: pytest.FixtureRequest, folder: Path) -> Compiled:
    """Give a variant from the folder."""
    own = place(folder, request.param)
    artifact = Artifact(
        json.loads((own / "record.json").read_text()),
        lambda key: (own / "blobs" / key).read_bytes(),
    )
    return Compiled(request.param, artifact, Executable.read((own / "executable").read_bytes()))


def test_a_launch_passes_what_the_plan_says_and_what_jax_passes(
    compiled: Compiled, runtime: control.Standin, framework: made.Framework
) -> None:
    _use_model(runtime, compiled)
    runtime.configure(check_pointers=1)
    kernel = open_artifact(compiled.artifact)
    for offset in (0, 256, 4096):  # the second and third time tensor maps are copied
        plan = compiled.artifact.plan
        arrays = [_tensor(framework, array.dtype, array.shape, offset) for array in plan.inputs]
        trees = {name: tree for name, tree in plan.input_tree.items() if tree is not None}
        results = [
            _tensor(framework, array.dtype, array.shape, offset)
            for array in kernel.signature.results
        ]
        runtime.clear_log()
        kernel.into(
            **{name: unflatten(tree, arrays) for name, tree in trees.items()},
            out=unflatten(plan.output_tree, results),
        )
        ours = runtime.launches
        assert [launch.code for launch in ours] == [0] * len(plan.launches)
        if compiled.executable is not None:
            inputs = [array.pointer for array in arrays]
            theirs = _as_jax(compiled.executable, inputs, results, runtime)
            assert [_passed(launch) for launch in ours] == theirs


def test_c_asks_the_driver_for_what_python_asks(
    compiled: Compiled, runtime: control.Standin
) -> None:
    library = open_library(native_build.build())
    python, c = native_comparison.compare(runtime, library, compiled.artifact)
    assert c == python


def _use_model(runtime: control.Standin, compiled: Compiled) -> None:
    """Let the device be the model that a variant was compiled for."""
    target = compiled.variant.target
    runtime.devices(
        control.Device(
            f"{target.major}.{target.minor}",
            name=target.description,
            sms=target.sm_count,
            smem_optin_bytes=target.smem_optin_bytes,
        )
    )


def _tensor(
    framework: made.Framework, dtype: str, shape: Sequence[int], offset: int
) -> made.Tensor:
    """Return a tensor that starts behind the beginning of its memory."""
    whole = framework.tensor(f"u8[{_bytes(dtype, shape) + offset}]")
    return made.Tensor(whole.pointer + offset, dtype, tuple(shape))


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    total = parse_dtype(dtype).bits
    for size in shape:
        total *= size
    return total // 8


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
    return [jax_stub.launch(call, _located(call, places), runtime) for call in executable.calls]


def _located(call: MosaicCall, places: Mapping[int, int]) -> list[int]:
    return [places[allocation] + offset for allocation, offset in call.slices]


def _passed(launch: control.Launch) -> Passed:
    return Passed(
        launch.kernel,
        launch.grid,
        launch.block,
        launch.cluster,
        launch.smem_bytes,
        launch.pdl,
        launch.parameters,
    )
