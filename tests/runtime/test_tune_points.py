"""Points of a contest, the file of results, what NVML tells; all processes but one are fakes."""

import math
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tuned_jobs
from msgspec.structs import replace
from tuned_jobs import point_id

from pallasc.errors import DeviceError, SpecError
from pallasc.runtime.device.devices import Device, look_at_device
from pallasc.runtime.timing import Conditions, ask_nvml, pci_address
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.tuning import measure
from pallasc.tuning.contest import Rules
from pallasc.tuning.measure import Referee, Run, Setup, read_job
from pallasc.tuning.point_process import PointError, PointProcess
from pallasc.tuning.results import (
    Contest,
    Done,
    Start,
    check_start,
    open_results,
    read_results,
)

NAME = "NVIDIA H100 80GB HBM3"
FOUND = Start("5a" * 32, NAME, "h100-sxm", "sm_90", "580.95.05", "2026-11-23", {})
END = Done("double", (1,), winner=None, why="known")
START = Start("5a" * 32, "Stand-in H100", None, "sm_90", "", "", {})
DEVICE = Device(0, "Stand-in H100", 9, 0, 132, 232448)


@pytest.mark.usefixtures("_library")
def test_a_hanging_process_dies_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tuned_jobs.write_job(tmp_path / "job.pallasc", points=1)
    kernels = {"v0": {"us": 1, "hang_at": 2, "starts": str(tmp_path / "child")}}
    for name, value in tuned_jobs.environment(tmp_path, kernels).items():
        monkeypatch.setenv(name, value)
    with open_bundle(job) as bundle:
        (entry,) = bundle.entries()
        memory = os.memfd_create("input")
        os.write(memory, bytes(256))
        process = PointProcess(entry.id, 1800.0, [memory])
        assert process.ask({"op": "open", "device": 0}) == {}
        named = {"name": entry.name, "params": dict(entry.params), "target": entry.target}
        place = {"bundle": str(job), "job": bundle.digest}
        arrays = {"inputs": [memory], "outputs": process.outputs}
        assert process.ask({"op": "launch", **named, **place, **arrays}) == {"sizes": [256]}
        assert process.read_outputs([256]) == [bytes(256)]
        child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
        assert child.exists()
        process._socket.settimeout(0.2)
        with pytest.raises(PointError, match=r"no answer in 0\.2 s: it hangs"):
            process.ask({"op": "time", "repeats": 1, "cold": False})
        process.kill()
        assert process._process.returncode == -9
        while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
            os.sched_yield()  # it is dead as soon as the kernel gets to it
        os.close(memory)


# ---- contests with fake processes


@dataclass
class World:
    """A GPU with room for some processes, and what its kernels do.

    Attributes:
        room: how many processes have a context at a time.
        us: what a point takes.
        broken_after: after so many launches, no process can open the GPU.
        exclusive: only one may.
        live: the processes that have a context, the one that was launched last at the end.
        launches: how many have been launched.
        most: how many have lived at a time.
    """

    room: int
    us: dict[str, float]
    broken_after: float = math.inf
    exclusive: bool = False
    live: list[str] = field(default_factory=list)
    launches: int = 0
    most: int = 0


class FakeProcess:
    world: World

    def __init__(self, name: str, timeout_s: float, descriptors: Sequence[int]) -> None:
        self.name = name
        self.outputs = os.memfd_create("outputs")
        assert all(os.fstat(descriptor).st_size == 256 for descriptor in descriptors)

    def ask(self, message: dict[str, Any]) -> dict[str, object]:
        world = self.world
        if message["op"] == "open":
            if world.launches >= world.broken_after:
                raise PointError("no GPU", 100)
            if world.exclusive and world.live:
                raise PointError("the GPU is busy", 46)
            world.live.append(self.name)
            world.most = max(world.most, len(world.live))
            return {}
        if message["op"] == "launch":
            if len(world.live) > world.room:
                raise PointError("no memory", 2)
            world.launches += 1
            return {"sizes": [1]}
        return {"us": world.us[self.name]}

    def read_outputs(self, sizes: Sequence[int]) -> list[bytes]:
        return [b"right"]

    def kill(self) -> None:
        if self.name in self.world.live:
            self.world.live.remove(self.name)


class Whatever(Referee):
    """A referee for whom all is right."""

    def inputs(self, entry: Any, signature: Any) -> list[bytes]:
        return [bytes(256)]

    def disagreement(self, entry: Any, signature: Any, outputs: Sequence[bytes]) -> str:
        return ""


Play = Callable[..., tuple[Contest, list[tuple[str, str]]]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a job of one key in a world, and return its contest and the excluded points."""
    monkeypatch.setattr(measure, "PointProcess", FakeProcess)

    def run(world: World, rules: Rules, name: str = "results.jsonl") -> Any:
        FakeProcess.world = world
        job = tuned_jobs.write_job(tmp_path / "job.pallasc", points=len(world.us))
        lost: list[tuple[str, str]] = []
        with open_bundle(job) as bundle, open_results(tmp_path / name, START) as file:
            matches = read_job(bundle, DEVICE)
            setup = Setup(bundle, 0, 60.0, 1, cold=False)
            run = Run(file, setup, rules, Conditions(), Whatever, lambda *own: lost.append(own))
            assert len([*run.all(matches)]) == len(matches)
            assert not world.live
            (contest,) = read_results(tmp_path / name).contests.values()
            assert contest == next(iter(file.results.contests.values()))
        return contest, lost

    return run


def us(*times: float) -> dict[str, float]:
    return {point_id(1, number): time for number, time in enumerate(times)}


def test_processes_live_together_as_many_as_memory_allows(play: Play) -> None:
    world = World(room=2, us=us(12, 10, 11, 13))
    contest, lost = play(world, Rules(together=4))
    assert (contest.winner, lost, world.most) == (point_id(1, 1), [], 3)
    many = World(room=100, us=us(12, 10, 11, 13, 14, 9, 15))
    contest, _ = play(many, Rules(together=3), "many.jsonl")
    assert (contest.winner, many.most) == (point_id(1, 5), 3)
    none = World(room=0, us=us(10, 11))
    contest, lost = play(none, Rules(), "none.jsonl")
    assert (contest.winner, lost) == (None, [(name, "no memory") for name in none.us])
    alone = World(room=9, us=us(12, 10, 11), exclusive=True)
    contest, lost = play(alone, Rules(), "alone.jsonl")
    assert (contest.winner, lost, alone.most) == (point_id(1, 1), [], 1)
    # Each once to judge it, then each in every round, unless it was the last of the one before.
    assert alone.launches <= 3 + sum(len(own.times_us) for own in contest.points.values())


@pytest.mark.parametrize("launches", [0, 1])
def test_a_gpu_that_is_lost_ends_the_run_and_no_point(
    play: Play, tmp_path: Path, launches: int
) -> None:
    with pytest.raises(DeviceError, match="GPU 0 cannot be used by a new process: no GPU"):
        play(World(room=9, us=us(10, 9), broken_after=launches), Rules())
    results = read_results(tmp_path / "results.jsonl")
    assert not any(contest.failed for contest in results.contests.values())
    assert play(World(room=9, us=us(10, 9)), Rules())[0].winner == point_id(1, 1)


# ---- the file


def test_another_run_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    with open_results(path, START) as file:
        assert not file.resumed
        busy = pytest.raises(SpecError, match="another pallasc tune run is writing")
        with busy, open_results(path, START):
            pass
    with open_results(path, START) as file:
        assert file.resumed


def test_a_run_continues_in_a_file_that_could_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_results(path, START) as file:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
            with pytest.raises(SpecError, match="cannot be written: File too large"):
                file.add(END)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*read_results(path).contests] == []
    with open_results(path, START) as file:
        file.add(END)
    assert [own.done for own in read_results(path).contests.values()] == ["known"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"job": "00" * 32}, "another job: 5a5a5a5a5a5a…, and this is 000000000000…"),
        ({"device": "NVIDIA B200"}, f"another GPU: {NAME} .*, and this is NVIDIA B200"),
        ({"arch": "sm_100"}, r"another GPU: .*sm_90\), and this is .*sm_100\)"),
        ({"settings": {"cold": True}}, "with another --cold: false, and this is true"),
        ({"settings": {"repeats": 4}}, "with another --repeats: 8, and this is 4"),
        ({"settings": {"rounds": 8}}, None),
    ],
)
def test_times_of_another_job_gpu_or_kind_are_refused_by_name(
    changed: dict[str, Any], message: str | None
) -> None:
    settings = {"cold": False, "repeats": 8, "rounds": 200}
    before = replace(FOUND, settings=settings)
    now = replace(before, **{**changed, "settings": {**settings, **changed.get("settings", {})}})
    if message is None:
        return check_start(before, now, "r.jsonl")
    with pytest.raises(SpecError, match=message):
        check_start(before, now, "r.jsonl")


# ---- conditions


class NvmlError(Exception):
    pass


def nvml(**changed: Any) -> Any:
    def missing(*_: Any) -> None:
        raise NvmlError("not supported")

    functions = {
        "init_v2": lambda: None,
        "device_get_handle_by_pci_bus_id_v2": lambda address: address,
        "device_get_clock_info": lambda handle, kind: 1755,
        "device_get_temperature_v": lambda handle, sensor: 51,
        "device_get_current_clocks_event_reasons": lambda handle: 0x4 | 0x1 | 0x40,
        "system_get_driver_version": lambda: "580.95.05",
        "ClockType": SimpleNamespace(CLOCK_SM=1),
        "TemperatureSensors": SimpleNamespace(TEMPERATURE_GPU=0),
        "NvmlError": NvmlError,
    }
    lacking = {name: missing for name, own in changed.items() if own is None}
    return SimpleNamespace(**{**functions, **changed, **lacking})


def test_clock_heat_and_throttling_are_told_as_far_as_they_are_known() -> None:
    throttled = ["power cap", "hardware thermal"]
    known = ask_nvml(nvml(), "0000:01:00.0")
    assert known.read() == {"clock_mhz": 1755, "temperature_c": 51, "throttled": throttled}
    assert (known.driver(), known.missing) == ("580.95.05", "")
    known = ask_nvml(nvml(device_get_clock_info=None, device_get_temperature_v=None), "")
    assert known.read() == {"throttled": throttled}
    calm = ask_nvml(nvml(device_get_current_clocks_event_reasons=lambda handle: 1), "")
    assert calm.read() == {"clock_mhz": 1755, "temperature_c": 51}
    known = ask_nvml(nvml(init_v2=None), "")
    assert (known.read(), known.missing) == ({}, "NVML does not start: not supported")


def test_a_gpu_is_found_by_its_place_on_the_bus(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    assert [pci_address(look_at_device(number)) for number in range(2)] == [
        "0000:01:00.0",
        "0000:02:00.0",
    ]
    assert not runtime.calls("cuDevicePrimaryCtxRetain")
