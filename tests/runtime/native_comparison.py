"""One artifact launched by Python and by C on the stand-in: what the driver was asked, comparable.

`asked_by_python` and `asked_by_c` do the same: they make an artifact ready on device 0, then launch
it at several sets of addresses. Both return a `Log`, in which nothing is left of a process but what
was asked: handles and addresses that the driver gave are numbered as they appear. How often tensor
maps are encoded is not compared, but what launches get: their bytes.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import made
import standin as control
from native_calls import open_found
from standin_records import MAP_BYTES, decode_map

from pallasc.runtime.calls.plain import PlainSteps
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.device.streams import lay_out
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import device_refusal
from pallasc.runtime.native.library import Library
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan

OFFSETS = (0, 256, 4096, 0)
"""Where arrays and workspace begin, launch by launch; the last set is the first again."""

_ROOM = 1 << 38
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux: no page is promised before it is used
_GAP = 1 << 20
_HANDLES = range(0x7E5700000000, 0x7E5800000000)
_POINTER_BYTES = 8
_MAPS = ("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapReplaceAddress")
_TEXTS = ("cuGetErrorName", "cuGetErrorString")
"""What Python asks in words for the answer that tells it that a kernel has no more parameters."""

Asked = tuple[Any, ...]


@dataclass
class Log:
    """What the driver was asked: to make an artifact ready, then at each launch.

    Attributes:
        ready: calls that made it ready.
        steps: of each launch, all calls but those that encode tensor maps, with launches in full.
    """

    ready: list[Asked] = field(default_factory=list)
    steps: list[list[Asked]] = field(default_factory=list)


class Memory:
    """Addresses for arrays and workspace, the same for Python and C; pages are made when used.

    Attributes:
        start: where it begins, at a multiple of a megabyte.
    """

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._room = mmap.mmap(-1, _ROOM, flags=flags)
        view = (ctypes.c_ubyte * 1).from_buffer(self._room)
        self.start = -(-ctypes.addressof(view) // _GAP) * _GAP
        del view

    def adopt(self, driver: control.Standin, size: int) -> None:
        """Let it be memory of device 0 from its start on."""
        assert not driver.library.standin_adopt(self.start, size, 0)

    def sets(self, driver: control.Standin, sizes: Sequence[int]) -> Iterator[list[int]]:
        """Give the addresses of arrays of these sizes, once for each of OFFSETS."""
        at, starts = self.start, []
        for size in sizes:
            starts.append(at)
            at += -(-(size + max(OFFSETS)) // _GAP) * _GAP + _GAP
        self.adopt(driver, at - self.start)
        for offset in OFFSETS:
            yield [start + offset for start in starts]


@functools.cache
def memory() -> Memory:
    """Return the one range of addresses of this process."""
    return Memory()


def use_model(driver: control.Standin, artifact: Artifact) -> None:
    """Let the device be the model that an artifact was compiled for."""
    target = artifact.target
    arch = target.arch.removeprefix("sm_").rstrip("af")
    device = control.Device(
        f"{arch[:-1]}.{arch[-1]}",
        sms=target.sm_count,
        smem_optin_bytes=target.smem_optin_bytes,
    )
    driver.devices(device)


def asked_by_python(driver: control.Standin, artifact: Artifact) -> Log:
    """Launch through cuda-python."""
    made.forget()
    candidate = Candidate("made", {}, artifact)
    device = get_device(0)
    assert device_refusal(candidate, device) is None
    reader = Reader(driver)
    steps = PlainSteps(candidate, device)
    log = Log(ready=reader.read())
    signature = candidate.signature
    sizes = (*(own.size_bytes for own in signature.passed), lay_out(artifact.plan)[1])
    for *pointers, workspace in memory().sets(driver, sizes):
        steps.launch(pointers, workspace=workspace if sizes[-1] else 0)
        add_launch(log, reader.read())
    driver.check()
    return log


def asked_by_c(
    driver: control.Standin, library: Library, artifact: Artifact, *, inside: bool
) -> Log:
    """Launch through the C library."""
    library.functions.pallasc_forget()
    name = Candidate("made", {}, artifact).id
    find = None if inside else artifact.blob
    plan = open_found(library, flat_plan(artifact, name=name, inside=inside), find)
    reader = Reader(driver)
    plan.prepare(0)
    asked = reader.read()
    first = next(n for n, call in enumerate(asked) if call[0] == "cuDevicePrimaryCtxRetain") + 1
    log = Log(ready=asked[first:])
    sizes = [*(own.size_bytes for own in artifact.plan.passed), lay_out(artifact.plan)[1]]
    for *pointers, workspace in memory().sets(driver, sizes):
        plan.launch(pointers, workspace=workspace if sizes[-1] else 0)
        add_launch(log, reader.read())
    driver.check()
    return log


def add_launch(log: Log, asked: list[Asked]) -> None:
    """Add what was asked for one launch."""
    log.steps.append([call for call in asked if call[0] not in _MAPS])


class Reader:
    """Reads the log of the driver from where it stopped last."""

    def __init__(self, driver: control.Standin) -> None:
        self._driver = driver
        driver.clear_log()
        self._names: dict[tuple[str, int], int] = {}
        self._allocations: list[tuple[int, int]] = []

    def read(self) -> list[Asked]:
        """Return what was asked since, and forget it."""
        launches = iter(self._driver.launches)
        asked = []
        for call in self._driver.calls():
            if call.name in _TEXTS:
                continue
            values = list(call.values)
            if call.name == "cuMemAlloc_v2":
                self._allocations.append((values[1], values[0]))
            if call.name.startswith("cuMemcpyHtoD"):
                values[1] = 0  # memory of the host
            if call.name in _MAPS and self._given(values[0]):
                values[-1] = 0  # the map's bytes hold that address
            row: Asked = (call.name, call.code, self._plain(call.stream))
            row += tuple(map(self._plain, values))
            if call.name == "cuLaunchKernelEx" and call.code == 0:
                row += self._launch(next(launches))
            asked.append(row)
        self._driver.clear_log()
        return asked

    def _given(self, address: int) -> tuple[int, int] | None:
        """Return which allocation of the driver's an address lies in, and where."""
        for number, (start, size) in enumerate(self._allocations):
            if start <= address < start + max(1, size):
                return number, address - start
        return None

    def _plain(self, value: int) -> Any:
        if value in _HANDLES:
            return "handle", self._names.setdefault(("handle", value), len(self._names))
        return ("constant", *found) if (found := self._given(value)) else value

    def _launch(self, launch: control.Launch) -> Asked:
        return (
            launch.kernel, launch.grid, launch.block, launch.cluster, launch.smem_bytes,
            launch.attributes, launch.device, launch.code,
            tuple(self._parameter(data) for data in launch.parameters),
        )  # fmt: skip

    def _parameter(self, data: bytes) -> Any:
        if len(data) == _POINTER_BYTES:
            return self._plain(int.from_bytes(data, "little"))
        for at in range(0, len(data) - MAP_BYTES + 1, 64):
            encoded = decode_map(data[at:])
            if encoded is not None and (found := self._given(encoded.address)):
                where = repr(found).encode().ljust(8)[:8]
                data = data[: at + 8] + where + data[at + 16 :]
        return data


def compare(driver: control.Standin, library: Library, artifact: Artifact) -> tuple[Log, Log]:
    """Return what Python asked, and what C asked."""

    def fresh(ask: Callable[[], Log]) -> Log:
        driver.reset()
        use_model(driver, artifact)
        return ask()

    python = fresh(lambda: asked_by_python(driver, artifact))
    inside = fresh(lambda: asked_by_c(driver, library, artifact, inside=True))
    found = fresh(lambda: asked_by_c(driver, library, artifact, inside=False))
    assert found == inside
    return python, inside
