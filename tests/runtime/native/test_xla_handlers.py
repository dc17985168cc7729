"""The handlers of XLA's interface on the stand-in driver; fake_xla.c stands for XLA."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_xla
import made
import pytest
import standin as control
from fake_xla import EXECUTE, PREPARE, Site

from pallasc.errors import CorruptError
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


def plan(artifact: Artifact, name: str = "made@h100-sxm", **options: Any) -> bytes:
    return flat_plan(artifact, name=name, **options)


def plans(*artifacts: Artifact, **options: Any) -> dict[str, bytes]:
    named = {f"{number:03}": artifact for number, artifact in enumerate(artifacts)}
    return {f"{key}made@{key}": plan(made_of, **options) for key, made_of in named.items()}


def tensors(framework: made.Framework, *texts: str, **where: int) -> list[made.Tensor]:
    return [framework.tensor(text, **where) for text in texts]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on the PATH")
def test_the_declarations_are_those_of_the_installed_jax() -> None:
    ffi = pytest.importorskip("jax.ffi")
    includes = [f"-I{ffi.include_dir()}", f"-I{fake_xla.native_build.SOURCES}"]
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", *includes, HERE / "xla_header.c"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stage", ["instantiate", "prepare", "execute"])
def test_handlers_ask_for_the_oldest_version_and_may_be_captured(site: Site, stage: str) -> None:
    assert site.describe(stage) == ([0, 3], 1, None)


def test_execute_launches_into_the_stream_with_the_buffers_of_xla(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
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


def test_inputs_updated_in_place_are_the_memory_of_their_results(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    a, b, out, workspace = tensors(framework, *[TEXT] * 3, "u8[512]")
    artifact = made.artifact(
        made.launch("four", 0, 1, 2, 3), outputs=["f32[4, 64]", "b"], temporaries=[512]
    )
    assert site.instantiate(plans(artifact)) is None
    assert site.run(EXECUTE, [a, b], [b, out, workspace]) is None
    launch = runtime.launches[-1]
    passed = [launch.pointer(n) for n in range(4)]
    assert passed == [t.pointer for t in (a, b, out, workspace)]


def test_a_program_without_the_alias_of_an_input_updated_in_place_is_refused(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    a, b, other = tensors(framework, *[TEXT] * 3)
    assert site.instantiate(plans(made.artifact(made.launch("two", 0, 1), outputs=["b"]))) is None
    refused = site.run(EXECUTE, [a, b], [other])
    assert refused == fake_xla.Refused(
        INVALID, "made: b is updated in place, and the program gives its result other memory."
    )
    assert runtime.launches == []


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


def test_the_first_plan_that_the_gpu_can_run_is_launched(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    blackwell = made.add(target="b200")
    ampere = made.add(target="a100-sxm", minimum_driver={"cuda": "12.0", "linux": "525.60.13"})
    runtime.devices("8.0")
    a, b, out = tensors(framework, TEXT, TEXT, TEXT)
    assert site.instantiate(plans(blackwell, made.add(), ampere)) is None
    assert site.run(EXECUTE, [a, b], [out]) is None
    assert len(runtime.launches) == 1


def test_no_plan_for_the_gpu_gives_the_reason_of_each(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    runtime.devices("8.0")
    a, b, out = tensors(framework, TEXT, TEXT, TEXT)
    assert site.instantiate(plans(made.add(target="b200"), made.add())) is None
    answer = site.run(EXECUTE, [a, b], [out])
    assert answer is not None
    assert answer.code == FAILED
    assert answer.message.startswith("no variant of made fits GPU 0:\n  made@h100-sxm cannot run")
    assert "sm_100a runs on exactly sm_100, and this GPU is sm_80" in answer.message
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_80" in answer.message


def test_a_flipped_byte_is_told(site: Site) -> None:
    damaged = bytearray(plan(made.add()))
    damaged[-100] ^= 1
    answer = site.instantiate({"000made@h100-sxm": bytes(damaged)})
    assert answer is not None
    assert answer.code == DATA_LOSS
    assert answer.message.startswith("made: ")
    assert "digest" in answer.message


def test_what_is_named_by_digest_is_found(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    artifact = made.add()
    asked = []

    def find(*names: str) -> bytes:
        asked.append(names)
        return artifact.blob(names[2])

    held = site.find_with(find)
    a, b, out = tensors(framework, TEXT, TEXT, TEXT)
    assert site.instantiate(plans(artifact, inside=False)) is None
    assert held == []
    assert asked == [("made", "made@000", artifact.kernels[0].cubin)]
    assert site.run(EXECUTE, [a, b], [out]) is None
    assert len(runtime.launches) == 1


def test_a_missing_bundle_is_named(site: Site) -> None:
    answer = site.instantiate(plans(made.add(), inside=False), origin="mylib 1.0")
    assert answer is not None
    assert answer.code == NOT_FOUND
    head, reason, hint = answer.message.splitlines()
    assert head == "the program names made by digest, and no open bundle has its cubins:"
    assert reason.startswith("  made@h100-sxm: ")
    assert hint.startswith("Open mylib 1.0 before, with pallasc.load or pallasc.open_bundle")


def test_a_damaged_bundle_is_told_as_damaged(site: Site) -> None:
    def find(*_: str) -> bytes:
        raise CorruptError("/here/mylib.pallasc is damaged: blob 3 does not match its digest.")

    site.find_with(find)
    answer = site.instantiate(plans(made.add(), inside=False), origin="mylib 1.0")
    assert answer == fake_xla.Refused(
        DATA_LOSS,
        "the program names made by digest, and the bundle that has its cubins is damaged:\n"
        "  /here/mylib.pallasc is damaged: blob 3 does not match its digest.\n"
        "Install or copy that bundle again.",
    )


def test_plans_for_other_arrays_are_refused(site: Site) -> None:
    other = made.add(inputs={"a": "f32[4, 64]", "b": "f32[8, 64]"})
    answer = site.instantiate(plans(made.add(), other))
    assert answer is not None
    assert answer.message == "made: the plans of the call take different arrays."


@pytest.mark.parametrize(
    ("arguments", "results", "message"),
    [
        ([TEXT], [TEXT], "made: the program passes 1 of 2 arrays and has room for 1 of 1 results."),
        ([TEXT] * 2, [], "made: the program passes 2 of 2 arrays and has room for 0 of 1 results."),
        (
            [TEXT, "f32[4, 32]"],
            [TEXT],
            "made: b is 128 elements f32 in the program, and the kernel takes 256 f32.",
        ),
        (
            [TEXT, TEXT],
            ["f16[4, 64]"],
            "made: out is 256 elements f16 in the program, and the kernel takes 256 f32.",
        ),
    ],
)
def test_a_program_with_other_arrays_is_refused(
    site: Site, framework: made.Framework, arguments: Any, results: Any, message: str
) -> None:
    assert site.instantiate(plans(made.add())) is None
    answer = site.run(EXECUTE, tensors(framework, *arguments), tensors(framework, *results))
    assert answer == fake_xla.Refused(INVALID, message)


def test_too_little_memory_for_temporaries_is_refused(
    site: Site, framework: made.Framework
) -> None:
    artifact = made.artifact(made.launch("four", 0, 1, 2, 3), temporaries=[512])
    assert site.instantiate(plans(artifact)) is None
    message = "made: the program has less than 512 bytes for temporaries."
    for shape in ((256,), (-512,), (-1, 1), (2**40, 2**40)):
        inputs, (out, temporary) = (
            tensors(framework, TEXT, TEXT),
            tensors(framework, TEXT, "u8[256]"),
        )
        answer = site.run(EXECUTE, inputs, [out, replace(temporary, shape=shape)])
        assert answer == fake_xla.Refused(INVALID, message)


def test_a_launch_that_the_driver_refuses_says_so(
    site: Site, runtime: control.Standin, framework: made.Framework
) -> None:
    given = tensors(framework, TEXT, TEXT), tensors(framework, TEXT)
    assert site.instantiate(plans(made.add())) is None
    assert site.run(PREPARE) is None
    runtime.fault("cuLaunchKernelEx", 701)
    answer = site.run(EXECUTE, *given)
    assert answer is not None
    assert answer.message.startswith("made@h100-sxm cannot be launched: cuLaunchKernelEx answers")


def test_a_plan_whose_elements_are_wider_than_those_of_xla_is_refused(
    site: Site, framework: made.Framework
) -> None:
    data = bytearray(plan(made.add()))
    at = data.index(struct.pack("<5I", 32, 2, 0, 0, 0))  # bits, rank, numbers, place, buffer
    data[at : at + 4] = struct.pack("<I", 64)
    data[24:56] = hashlib.sha256(data[56:]).digest()
    answer = site.instantiate({"000made@h100-sxm": bytes(data)})
    if answer is None:
        answer = site.run(EXECUTE, tensors(framework, TEXT, TEXT), tensors(framework, TEXT))
    assert answer is not None
    assert answer.code == DATA_LOSS
