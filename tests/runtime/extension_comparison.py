"""One artifact launched through the extension on the stand-in: the third way of native_comparison.

The extension launches with what Python has made ready, by C of its own (`runtime/native/steps.c`).
`asked_by_extension` makes an artifact ready in Python and encodes its tensor maps, then launches it
at the same sets of addresses as `native_comparison.asked_by_python`. Each set is launched twice:
into given arrays, and into arrays that the call allocates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import made
import native_comparison
import standin as control
from exchange import exchange
from native_comparison import Log, Reader, add_launch, memory

from pallasc.runtime.calls.launch import Route
from pallasc.runtime.calls.native_path import NativePaths
from pallasc.runtime.device.devices import active, get_device
from pallasc.runtime.matching.arrays import Exchange
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.native.extension import why_not
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding, plan_to_json
from pallasc.specs.artifacts.signature import Signature

CONTEXT = ("cuCtxGetCurrent", 0)
"""What the extension asks at each launch, to leave other contexts to Python."""


def compare(driver: control.Standin, artifact: Artifact) -> tuple[Log, Log] | None:
    """Return what Python asked and what the extension asked, less what is needless.

    None where the extension leaves such arrays to Python: dtypes that DLPack cannot name or that
    are smaller than a byte, no inputs, more than 31 arrays.
    """
    assert why_not() == ""
    driver.reset()
    native_comparison.use_model(driver, artifact)
    python = native_comparison.asked_by_python(driver, artifact)
    driver.reset()
    native_comparison.use_model(driver, artifact)
    native = asked_by_extension(driver, artifact)
    if native is None:
        return None
    return _comparable(python), _comparable(native)


def _comparable(log: Log) -> Log:
    """Leave out what is needless, and of maps that are changed how: their address and bytes stay.

    A map that lies at an odd place of its parameter is encoded anew by Python; the extension
    changes it beside and copies it there.
    """
    log = native_comparison.without_needless(log)
    changed = [[(call[1], call[3], call[-1]) for call in calls] for calls in log.maps[1:]]
    return Log(log.ready, [log.maps[0], *changed], log.steps)


def asked_by_extension(driver: control.Standin, artifact: Artifact) -> Log | None:
    """Launch through fronts of the extension, None where it takes no such arrays."""
    made.forget()
    candidate = Candidate("made", {}, _flat(artifact))
    signature = candidate.signature
    device = get_device(0)
    reader = Reader(driver)
    route = Route([candidate])
    route.choose(candidate, device)
    program = route.program(0)
    log = Log(ready=reader.read())
    arrays = _Arrays(signature, program.workspace_bytes)
    paths = NativePaths([candidate], checks=True)
    fronts = paths.add(route, arrays.exchange, {"call": _left, "into": _left})
    if fronts["into"] is _left:
        return None
    sizes = (*signature.sizes_bytes, program.workspace_bytes)
    for pointers in memory().sets(driver, sizes):
        with active(device):
            if not log.steps:
                program.bind(0, pointers[:-1], pointers[-1])
        encoded = [call for call in reader.read() if call[0].startswith("cuTensorMapEncode")]
        with _launched(reader, log, encoded, device):
            arrays.place(pointers, allocates=False)
            fronts["into"](*arrays.inputs, out=arrays.out)
        again = Log()
        with _launched(reader, again, encoded, device):
            arrays.place(pointers, allocates=True)
            fronts["call"](*arrays.inputs)
        assert (again.maps, again.steps) == (log.maps[-1:], log.steps[-1:])
    driver.check()
    _leave_out_first(log)
    return log


@contextmanager
def _launched(reader: Reader, log: Log, encoded: Sequence[Any], device: Any) -> Iterator[None]:
    """Add to a log what is asked within, without the question for the current context."""
    with active(device):
        yield
    asked = reader.read()
    own = max(n for n, call in enumerate(asked) if call[:2] == CONTEXT)
    add_launch(log, [*encoded, *asked[:own], *asked[own + 1 :]])


def _leave_out_first(log: Log) -> None:
    """Leave out what gives maps the addresses that they were encoded for, or have already.

    Python keeps the plan of a set of addresses, and so asks nothing for one that it has seen; the
    extension keeps none, and sets them at each launch.
    """
    count = len(log.maps[0]) // 2
    encoded, given = log.maps[0][:count], log.maps[0][count:]
    assert [call[3] for call in given] == [call[3] for call in encoded]
    log.maps[0] = encoded
    assert log.maps[-1] == given
    log.maps[-1] = []


def _left(*arrays: Any, **named: Any) -> None:
    raise AssertionError("the extension left a call to Python")


def _flat(artifact: Artifact) -> Artifact:
    """Return an artifact whose arrays are passed one by one: structures ask the driver nothing."""
    plan = artifact.plan
    outputs: Any = {"tuple": list(range(len(plan.outputs)))}
    inputs = list(range(len(plan.inputs)))
    changed = replace(plan, input_tree=inputs, output_tree=outputs, parameters=())
    record: Mapping[str, object] = {**artifact.record, "plan": plan_to_json(changed)}
    return Artifact(record, artifact.blob)


class _Arrays:
    """The arrays of a call, and a framework that allocates results and workspace where it is told.

    Attributes:
        exchange: how the extension asks that framework.
        inputs, out: arguments of a call.
    """

    def __init__(self, signature: Signature, workspace_bytes: int) -> None:
        self._signature = signature
        self._workspace_bytes = workspace_bytes
        self._new: list[made.Tensor] = []
        self.inputs: list[made.Tensor] = []
        self.out: tuple[made.Tensor, ...] = ()
        own = made.Framework().exchange()
        self.exchange: Exchange = replace(
            own, capsule=exchange(lambda _: 0), new_here=self._allocate
        )

    def place(self, pointers: Sequence[int], *, allocates: bool) -> None:
        """Take the addresses of inputs, results and workspace, for a call."""
        own = self._signature
        count = len(own.inputs)
        self.inputs = list(map(_tensor, own.inputs, pointers))
        results = list(map(_tensor, own.results, pointers[count:]))
        self.out = tuple(
            results[number] if source == "result" else self.inputs[number]
            for source, number in own.sources
        )
        workspace = made.Tensor(pointers[-1], "u8", (self._workspace_bytes,))
        self._new = [*results * allocates, *[workspace] * (self._workspace_bytes > 0)]

    def _allocate(self, shape: tuple[int, ...], strides: Any, dtype: str) -> made.Tensor:
        """Return what a call allocates next."""
        found = self._new.pop(0)
        assert (found.dtype, found.shape) == (dtype, shape)
        return found


def _tensor(binding: Binding, pointer: int) -> made.Tensor:
    return made.Tensor(pointer, binding.dtype, binding.shape, strides=binding.strides)
