"""The stand-in in processes of its own: found by name, configured by the environment, forked."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from rig import Rig, code_of
from standin import SOURCES

FreshProcess = Callable[..., "subprocess.CompletedProcess[str]"]

_FACTS = """
import json
from cuda.bindings import driver
facts = {"init": int(driver.cuInit(0)[0]), "version": driver.cuDriverGetVersion()[1]}
error, count = driver.cuDeviceGetCount()
names = [driver.cuDeviceGetName(64, i)[1].partition(b"\\0")[0].decode() for i in range(count or 0)]
print(json.dumps({**facts, "count": count, "names": names}))
"""


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_finds_the_stand_in_by_name(fresh_process: FreshProcess) -> None:
    facts = _json(fresh_process(_FACTS, devices="8.0,10.3", driver=12080))
    assert facts == {
        "init": 0,
        "version": 12080,
        "count": 2,
        "names": ["Stand-in A100", "Stand-in B300"],
    }


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0", ["Stand-in A100"]),
        ("1,0", ["Stand-in B300", "Stand-in A100"]),
        ("1,5,0", ["Stand-in B300"]),
        ("-1", []),
        ("", []),
    ],
)
def test_a_process_sees_the_devices_that_are_made_visible(
    fresh_process: FreshProcess, visible: str, names: list[str]
) -> None:
    facts = _json(fresh_process(_FACTS, devices="8.0,10.3", visible=visible))
    assert facts["names"] == names
    assert facts["init"] == (0 if names else 100)


_LOADS = """
import rig
from cuda.bindings import driver
driver.cuInit(0)
print(int(rig.load(rig.cubin("sm_100a"))[0]))
"""


@pytest.mark.parametrize(("mode", "code"), [("EAGER", 209), ("LAZY", 0)])
def test_a_process_can_load_at_once(fresh_process: FreshProcess, mode: str, code: int) -> None:
    assert _json(fresh_process(_LOADS, devices="9.0", loading=mode)) == code


INITS: dict[int, dict[str, Any]] = {
    100: {"devices": ""},
    803: {"init": 803},
    999: {"faults": [("cuInit", 1, 999)]},
}


@pytest.mark.parametrize(("code", "options"), INITS.items(), ids=map(str, INITS))
def test_a_process_can_be_given_an_init_that_fails(
    fresh_process: FreshProcess, code: int, options: dict[str, Any]
) -> None:
    assert _json(fresh_process(_FACTS, **options))["init"] == code


_MISSING = """
from cuda.bindings import driver
driver.cuInit(0)
calls = {"cuKernelGetParamInfo": (0, 0), "cuStreamGetId": (0,), "cuKernelGetFunction": (0,)}
for name, arguments in calls.items():
    try:
        getattr(driver, name)(*arguments)
        print(name, "is there")
    except RuntimeError as error:
        print(error)
"""


def test_a_hidden_function_is_missing(fresh_process: FreshProcess) -> None:
    done = fresh_process(_MISSING, hide=["cuKernelGetParamInfo"], driver=13020)
    missing, *there = done.stdout.splitlines()
    assert "cuKernelGetParamInfo" in missing
    assert "not found" in missing
    assert there == ["cuStreamGetId is there", "cuKernelGetFunction is there"]


def test_an_old_driver_lacks_newer_functions(fresh_process: FreshProcess) -> None:
    done = fresh_process(_MISSING, driver=12030)
    missing, *there = done.stdout.splitlines()
    assert "cuKernelGetParamInfo" in missing
    assert "not found" in missing
    assert there == ["cuStreamGetId is there", "cuKernelGetFunction is there"]


def _in_child(work: Callable[[], int]) -> int:
    child = os.fork()
    if not child:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_of_a_started_process_has_no_driver(rig: Rig) -> None:
    driver, kernel = rig.driver, rig.kernel("none")
    assert _in_child(lambda: code_of(driver.cuInit(0))) == 3
    assert _in_child(lambda: code_of(driver.cuMemAlloc(16))) == 3
    assert _in_child(lambda: rig.launch(kernel)) == 3
    assert rig.launch("none") == 0


def test_no_source_is_long() -> None:
    long = {
        path.name: count
        for path in SOURCES.iterdir()
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
