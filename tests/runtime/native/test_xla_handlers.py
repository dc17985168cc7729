"""The handlers of XLA's interface on the stand-in driver; fake_xla.c stands for XLA."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_xla
import made
import pytest
import standin as control
from fake_xla import EXECUTE, PREPARE, Site
from processes import captured

from pallasc.runtime.device.devices import active, get_device
from pallasc.runtime.native.library import Library
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan

HERE = Path(__file__).parent
INVALID, NOT_FOUND, FAILED, DATA_LOSS = 3, 5, 9, 15
TEXT = "f32[4, 64]"


@pytest.fixture
def site(native: Library, framework: made.Framework) -> Iterator[Site]:
    call = Site(native.functions)
    call.describe("instantiate")
    yield call
    assert call.end() == 0, "errors of XLA that nobody destroyed"


def plans(*artifacts: Artifact, **options: Any) -> dict[str, bytes]:
    named = {f"{number:03}": artifact for number, artifact in enumerate(artifacts)}
    return {
        f"{key}made@{key}": flat_plan(own, name="made@h100-sxm", **options)
        for key, own in named.items()
    }


def tensors(framework: made.Framework, *texts: str, **where: int) -> list[made.Tensor]:
    return [framework.tensor(text, **where) for text in texts]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on the PATH")
def test_the_declarations_are_those_of_the_installed_jax() -> None:
    ffi = pytest.importorskip("jax.ffi")
    includes = [f"-I{ffi.include_dir()}", f"-I{fake_xla.native_build.SOURCES}"]
    done = captured(["cc", "-std=c11", "-fsyntax-only", *includes, HERE / "xla_header.c"])
    assert done.returncode == 0, done.stderr


def test_execute_launches_into_the_stream_with_the_buffers_of_xla(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    for stage in ("instantiate", "prepare", "execute"):  # the oldest version; may be captured
        assert site.describe(stage) == ([0, 3], 1, None)
    a, b, out = tensors(framework, TEXT, TEXT, TEXT)
    stream = made.stream()
    assert site.instantiate(plans(made.add())) is None
    assert site.run(PREPARE) is None
    with active(get_device(0)):  # as XLA calls handlers
        runtime.clear_log()
        assert site.run(EXECUTE, [a, b], [out], stream=stream) is None
        asked = [call.name for call in runtime.calls()]
    (launch,) = runtime.launches
    assert launch.stream == stream
    assert [launch.pointer(n) for n in range(3)] == [a.pointer, b.pointer, out.pointer]
    assert asked == ["cuCtxGetCurrent", "cuLaunchKernelEx"]


def test_prepare_loads_on_every_gpu_in_use_and_execute_loads_nothing(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    runtime.devices("9.0", "9.0", "8.0", "9.0")
    a, b, out = tensors(framework, TEXT, TEXT, TEXT, device=1)
    for device in (0, 2):
        tensors(framework, TEXT, device=device)
    assert site.instantiate(plans(made.add())) is None
    assert runtime.count("cuFuncLoad") == 0
    assert site.run(PREPARE) is None
    assert runtime.count("cuFuncLoad") == 2  # not on the third, which it is not for, nor the fourth
    runtime.clear_log()
    assert site.run(PREPARE) is None
    assert runtime.calls() == []
    assert site.run(EXECUTE, [a, b], [out], device=1) is None
    assert runtime.count("cuFuncLoad") == 2


def test_the_first_plan_that_the_gpu_can_run_is_launched_or_the_reason_of_each_is_told(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    ampere = made.add(target="a100-sxm", minimum_driver={"cuda": "12.0", "linux": "525.60.13"})
    others = made.add(target="b200"), made.add()
    runtime.devices("8.0")
    a, b, out = tensors(framework, TEXT, TEXT, TEXT)
    assert site.instantiate(plans(*others, ampere)) is None
    assert site.run(EXECUTE, [a, b], [out]) is None
    assert len(runtime.launches) == 1
    assert site.end() == 0
    assert site.instantiate(plans(*others)) is None
    answer = site.run(EXECUTE, [a, b], [out])
    assert answer is not None
    assert answer.code == FAILED
    assert answer.message.startswith("no variant of made fits GPU 0:\n  made@h100-sxm cannot run")
    assert "sm_100a runs on exactly sm_100, and this GPU is sm_80" in answer.message
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_80" in answer.message


@pytest.mark.parametrize(
    ("outputs", "arguments", "results", "message"),
    [
        ([TEXT], [TEXT], [TEXT], "passes 1 of 2 arrays and has room for 1 of 1 results."),
        ([TEXT], [TEXT] * 2, [], "passes 2 of 2 arrays and has room for 0 of 1 results."),
        ([TEXT], [TEXT, "f32[4, 32]"], [TEXT], "b is 128 elements f32 in the program, and"),
        ([TEXT], [TEXT, TEXT], ["f16[4, 64]"], "out is 256 elements f16 in the program, and"),
        (["b"], [TEXT, TEXT], [TEXT], "b is updated in place, and the program gives its result"),
    ],
)
def test_a_program_with_other_arrays_is_refused(
    site: Site, framework: made.Framework, outputs: Any, arguments: Any, results: Any, message: str
) -> None:
    artifact = made.artifact(made.launch("two", 0, 1), outputs=outputs)
    assert site.instantiate(plans(artifact)) is None
    answer = site.run(EXECUTE, tensors(framework, *arguments), tensors(framework, *results))
    assert answer is not None
    assert answer.code == INVALID
    assert message in answer.message


def test_too_little_memory_for_temporaries_is_refused(
    site: Site, framework: made.Framework
) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 2, 3), temporaries=[512])
    assert site.instantiate(plans(artifact)) is None
    a, b, out, temporary = tensors(framework, TEXT, TEXT, TEXT, "u8[256]")
    for shape in ((256,), (-512,), (-1, 1), (2**40, 2**40)):
        answer = site.run(EXECUTE, [a, b], [out, replace(temporary, shape=shape)])
        message = "made: the program has less than 512 bytes for temporaries."
        assert answer == fake_xla.Refused(INVALID, message)
