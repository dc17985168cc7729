"""`pallasc check` of kernels over several devices: numbers and deadlocks."""

import json
from typing import Any

import numpy as np
import pytest

MORE = """

def meeting(body, x, semaphores=1):
    memory = [plgpu.SemaphoreType.REGULAR(())] * semaphores
    shape = jax.ShapeDtypeStruct((128,), jnp.float32)
    return plgpu.kernel(body, **{OUT: shape, SCRATCH: memory})(x)


def swapped(x):
    def body(x, o, semaphore):
        other = 1 - lax.axis_index("d")
        plgpu.remote_ref(o, other)[...] = x[...]
        pl.semaphore_signal(semaphore, 1, device_id=other)
        pl.semaphore_wait(semaphore)

    return meeting(body, x)


def unsignalled(x):
    def body(x, o, semaphore):
        other = 1 - lax.axis_index("d")
        pl.semaphore_wait(semaphore)  # the other one signals behind its own wait
        plgpu.remote_ref(o, other)[...] = x[...]
        pl.semaphore_signal(semaphore, 1, device_id=other)

    return meeting(body, x)


def not_awaited(x):
    def body(x, o, semaphore):
        other = 1 - lax.axis_index("d")
        plgpu.remote_ref(o, other)[...] = x[...]
        pl.semaphore_signal(semaphore, 1, device_id=other)

    return meeting(body, x)


def numbered(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("d").astype(jnp.float32)

    return meeting(body, x, 0)


def of_the_other(x):
    return np.stack([x[1], x[0]])


def with_its_number(x):
    return x + np.arange(2, dtype="f")[:, None]


def of_one_device(x):
    return x[0]
"""


PAIR = {"args": {"x": "f32[128]"}, "mesh": {"d": 2}}
OF_THE_OTHER, NUMBERED = (
    {**PAIR, "reference": f"kernels.py:{name}"} for name in ("of_the_other", "with_its_number")
)
SPEC: list[dict[str, Any]] = [
    {"name": "swapped", **OF_THE_OTHER},
    {"name": "kept", **NUMBERED, "entry": "kernels.py:swapped"},
    {"name": "unsignalled", **OF_THE_OTHER},
    {"name": "not_awaited", **OF_THE_OTHER},
    {"name": "numbered", **NUMBERED},
    {"name": "too_few", **PAIR, "entry": "kernels.py:numbered",
     "reference": "kernels.py:of_one_device"},
]  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    words = ("--level", "artifact", "--schedules", "2")
    return checking.check_kernels(tmp_path_factory.mktemp("devices"), MORE, SPEC, *words)


@pytest.fixture
def results(checked: Any) -> Any:
    return checked.results


@pytest.mark.parametrize("name", ["swapped", "numbered"])
def test_each_device_has_its_own_numbers(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", ""), results[name]


def test_a_device_that_does_not_wait_for_what_its_peer_writes_is_found(
    results: Any, checked: Any
) -> None:
    (finding,) = results["not_awaited"]["findings"]
    assert finding["rule"] == "race"
    assert "may end before the store of device" in finding["message"]
    line = checked.source[finding["location"]["line"] - 1]
    assert "plgpu.remote_ref(o, other)[...] = x[...]" in line


def test_wrong_numbers_of_a_device_are_found(results: Any) -> None:
    (finding,) = results["kept"]["findings"]
    assert finding["rule"] == "wrong-numbers"
    assert "128 of 128 elements differ" in finding["message"]
    assert finding["location"]["file"].endswith("kernels.py")


def test_devices_that_wait_for_each_other_are_a_deadlock(results: Any, checked: Any) -> None:
    finding = results["unsignalled"]["findings"][0]
    assert finding["rule"] == "deadlock"
    told = json.dumps(finding)
    assert "on device 1" in told
    assert "to change, which are 0" in finding["message"]
    assert finding["location"]["line"] == checked.line("behind its own wait")


def test_a_reference_of_one_device_is_refused(results: Any) -> None:
    reason = results["too_few"]["reason"]
    assert results["too_few"]["status"] == "not checked"
    assert "arrays of shapes [[128]]; the kernel returns [[2, 128]]" in reason
    assert "the first dimension is the 2 devices" in reason


def test_inputs_of_a_file_have_the_devices_in_front(checked: Any, checking: Any) -> None:
    folder, x = checked.folder, np.arange(256, dtype="f").reshape(2, 128)
    np.savez(folder / "inputs.npz", x=x)
    words = ("spec.yaml", "--json", "--inputs", "inputs.npz", "-k", "name=numbered")
    ran = checking.check(folder, *words, "--level", "all")
    levels = {each["level"]: each["status"] for each in ran.report["variants"][0]["results"]}
    assert levels == {"interpreter": "passed", "artifact": "passed"}, ran.out
    np.savez(folder / "inputs.npz", x=x[0])
    ran = checking.check(folder, *words, "--level", "artifact")
    assert (ran.code, ran.report["variants"]) == (2, [])
    assert "on 2 devices (the first dimension in files): x in " in ran.report["error"]["message"]
    assert "[2, 128]" in ran.report["error"]["message"]
