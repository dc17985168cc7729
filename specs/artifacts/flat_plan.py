"""Write an artifact as a flat plan: one block of bytes that C code reads and launches.

The format's grammar and version history are in `runtime/native/flat_plan.h`. One `struct.Struct`
per table lists the table's fields in the same order as that file. Equal artifacts give equal bytes.
The C code checks limits, and that the entries of tables fit together.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from pallasc.errors import CorruptError, UnsupportedError
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.artifact import Artifact, blocks_per_sm
from pallasc.specs.artifacts.cubin import Cubin, api_version, parse_cubin
from pallasc.specs.artifacts.plan import (
    DTYPES,
    FLAT_VERSION,
    INTERLEAVES,
    PROMOTIONS,
    STEP_KINDS,
    SWIZZLES,
    Binding,
    Bytes,
    Fill,
    Im2col,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
    kind_of,
)

_MAGIC = b"PALLASC\n"
_NONE = 0xFFFFFFFF
_HEAD = struct.Struct("<8sIIQ32s")
_TABLE = struct.Struct("<QII")
_ALIGNMENT = 16
_ROWS = {
    "strings": "<B",
    "numbers": "<q",
    "facts": "<6I32s",
    "buffers": "<Q3I4x",
    "arrays": "<8I",
    "outputs": "<8I",
    "steps": "<4I4Q",
    "launches": "<15I4x",
    "parameters": "<2IQ3I4x",
    "maps": "<2IQ5Q4Q5I5I3i3i2I7Bx",
    "values": "<B",
    "kernels": "<5I4x",
    "sizes": "<I",
    "cubins": "<3I4x",
    "blobs": "<32s2QI4x",
    "data": "<B",
}
"""The tables in order, with the `struct` format of an entry."""

_ROLES = {"input": 0, "output": 1, "constant": 2, "temporary": 3}
_STEP_FIELDS = "target", "source", "width", "target_offset", "source_offset", "size", "value"
_POINTER, _VALUE, _ZEROS = 0, 1, 2
_NO_WINDOW = Im2col(lower=[], upper=[], channels_per_pixel=0, pixels_per_column=0)
_INPUT, _RESULT, _UPDATED = 1, 2, 4


def flat_plan(artifact: Artifact, *, name: str, inside: bool = True) -> bytes:
    """Return an artifact as a flat plan.

    Args:
        artifact: the compiled artifact.
        name: its name for messages, `matmul[m=1024]@h100-sxm`.
        inside: True to include the cubins and constants; otherwise, the plan has only their
            digests, and the program that opens the plan provides them.

    Raises:
        CorruptError: the artifact is damaged.
        UnsupportedError: the plan runs on several devices, or exceeds a limit of the format.
    """
    try:
        return _Writer(artifact, name, inside=inside).write()
    except (CorruptError, UnsupportedError) as error:
        raise type(error)(f"{name}: {error.message}", hint=error.hint) from error


class _Table(Struct):
    """The bytes of a table; its length is the number of entries."""

    row: struct.Struct
    data: bytearray = bytearray()

    def add(self, *values: int | bytes) -> int:
        """Add an entry and return its number."""
        number = len(self)
        try:
            self.data += self.row.pack(*values)
        except struct.error as error:
            raise UnsupportedError(
                f"a number of the launch plan does not fit into a flat plan: {error}."
            ) from error
        return number

    def add_all(self, values: Iterable[int]) -> int:
        """Add an entry for each value, and return the number of the first."""
        first = len(self)
        for value in values:
            self.add(value)
        return first

    def __len__(self) -> int:
        return len(self.data) // self.row.size


class _Writer:
    def __init__(self, artifact: Artifact, name: str, *, inside: bool) -> None:
        self._artifact = artifact
        self._plan = artifact.plan
        self._name = name
        self._inside = inside
        self._strings: dict[str, int] = {}
        self._blobs: dict[str, int] = {}
        self._cubins: dict[str, tuple[int, Cubin]] = {}
        self._kernels: dict[tuple[str, str], int] = {}
        self._tables = {name: _Table(struct.Struct(row)) for name, row in _ROWS.items()}

    def write(self) -> bytes:
        plan = self._plan
        if plan.device_count != 1:
            raise UnsupportedError(
                f"it runs on {plan.device_count} devices together, and a flat plan is for one."
            )
        plan.check_arrays()
        self._add_facts()
        for buffer in plan.buffers:
            blob = _NONE if buffer.digest is None else self._blob(buffer.digest)
            role = _ROLES[buffer.role]
            self._tables["buffers"].add(buffer.size, buffer.alignment, role, blob)
        self._add_arrays(plan)
        for step in plan.steps:
            self._add_step(step)
        return self._block()

    def _block(self) -> bytes:
        header_bytes = _HEAD.size + _TABLE.size * len(_ROWS)
        heads, content = bytearray(), bytearray()
        for table in self._tables.values():
            content += bytes(-(header_bytes + len(content)) % _ALIGNMENT)
            heads += _TABLE.pack(header_bytes + len(content), len(table), table.row.size)
            content += table.data
        rest = bytes(heads + content)
        digest = hashlib.sha256(rest).digest()
        return _HEAD.pack(_MAGIC, FLAT_VERSION, header_bytes, _HEAD.size + len(rest), digest) + rest

    def _string(self, text: str) -> int:
        """Return the offset of a string, adding it if it is new."""
        if text not in self._strings:
            # JSON can contain unpaired surrogates, and UTF-8 cannot.
            data = text.encode(errors="replace")
            if "\0" in text or data.decode() != text:
                raise CorruptError(f"a name of the artifact is not Unicode without zeros: {text!r}")
            table = self._tables["strings"]
            self._strings[text] = len(table)
            table.data += data + b"\0"
        return self._strings[text]

    def _add_facts(self) -> None:
        artifact, target = self._artifact, self._artifact.target
        minimum = artifact.record.get("minimum_driver") or {}
        driver = api_version(minimum.get("cuda", "")) or 0
        package = minimum.get("linux") if driver else None
        self._tables["facts"].add(
            self._string(self._name),
            self._string(target.arch),
            driver,
            self._string(package) if package else _NONE,
            target.sm_count,
            len(self._plan.inputs),
            bytes.fromhex(artifact.digest),
        )

    def _blob(self, digest: str) -> int:
        """Return the number of a cubin or constant, adding it if it is new."""
        if digest not in self._blobs:
            size, offset = self._artifact.blob_bytes(digest), 0
            if self._inside:
                content = self._artifact.blob(digest)
                data = self._tables["data"].data
                data += bytes(-len(data) % _ALIGNMENT)
                offset, size = len(data), len(content)
                data += content
            self._blobs[digest] = self._tables["blobs"].add(
                bytes.fromhex(digest), offset, size, int(self._inside)
            )
        return self._blobs[digest]

    def _add_arrays(self, plan: LaunchPlan) -> None:
        for number, binding in enumerate(plan.passed):
            updated = _UPDATED if number in plan.updated else 0
            role = _INPUT if number < len(plan.inputs) else _RESULT
            self._add_array("arrays", binding, number, role | updated)
        for binding, (kind, number) in zip(plan.outputs, plan.sources, strict=True):
            place = number + (len(plan.inputs) if kind == "result" else 0)
            self._add_array("outputs", binding, place, 0)

    def _add_array(self, table: str, binding: Binding, place: int, flags: int) -> None:
        dtype = parse_dtype(binding.dtype)
        first = self._tables["numbers"].add_all((*binding.shape, *binding.strides))
        self._tables[table].add(
            self._string(binding.path),
            self._string(dtype.name),
            dtype.bits,
            len(binding.shape),
            first,
            place,
            binding.buffer,
            flags,
        )

    def _add_step(self, step: Step) -> None:
        if isinstance(step, Launch):
            values = {"target": self._add_launch(step)}
        elif step.size:
            values = asdict(step)
        else:
            return  # the runtime skips it as well
        if isinstance(step, Fill):
            values |= {"target": step.buffer, "target_offset": step.offset}
        row = (values.get(name, 0) for name in _STEP_FIELDS)
        self._tables["steps"].add([*STEP_KINDS].index(kind_of(step)), *row)

    def _add_launch(self, launch: Launch) -> int:
        kernel = self._kernel(launch)
        parameters = self._tables["parameters"]
        first = len(parameters)
        for parameter in launch.parameters:
            self._add_parameter(parameter, launch.kernel)
        return self._tables["launches"].add(
            kernel,
            *launch.grid,
            *(launch.cluster or (0, 0, 0)),
            *launch.block,
            launch.dynamic_smem_bytes,
            int(launch.pdl),
            first,
            len(launch.parameters),
            blocks_per_sm(launch, self._artifact.kernel_of(launch), self._artifact.target),
        )

    def _kernel(self, launch: Launch) -> int:
        """Return the number of a launch's kernel; its parameters must match the cubin."""
        cubin_number, cubin = self._cubin(launch.cubin)
        own = cubin.kernel(launch.kernel)
        sizes = own.parameter_bytes
        launch.check_parameters(sizes, "its cubin")
        key = (launch.cubin, launch.kernel)
        if key not in self._kernels:
            first = self._tables["sizes"].add_all(sizes)
            self._kernels[key] = self._tables["kernels"].add(
                self._string(launch.kernel),
                cubin_number,
                own.static_smem_bytes,
                first,
                len(sizes),
            )
        return self._kernels[key]

    def _cubin(self, digest: str) -> tuple[int, Cubin]:
        if digest not in self._cubins:
            cubin = parse_cubin(self._artifact.blob(digest))
            cubin.check_arch(self._artifact.target.arch)
            toolkit = package = _NONE
            if cubin.toolkit:
                toolkit = self._string(cubin.toolkit)
                package = self._string(cubin.driver_package)
            number = self._tables["cubins"].add(self._blob(digest), toolkit, package)
            self._cubins[digest] = number, cubin
        return self._cubins[digest]

    def _add_parameter(self, parameter: Parameter, kernel: str) -> None:
        maps, values = self._tables["maps"], self._tables["values"]
        add = self._tables["parameters"].add
        if isinstance(parameter, Pointer):
            add(_POINTER, parameter.buffer, parameter.offset, 8, len(maps), 0)
        elif isinstance(parameter, Bytes):
            data = bytes.fromhex(parameter.data)
            kind, offset = (_VALUE, len(values)) if data else (_ZEROS, 0)
            values.data += data
            placed = sorted(parameter.tensor_maps, key=lambda place: place[0])
            add(kind, 0, offset, parameter.size, len(maps), len(placed))
            for at, tensor_map in placed:
                self._add_map(at, tensor_map)
        else:
            raise UnsupportedError(f"{kernel} takes a table of peers; flat plans have none.")

    def _add_map(self, at: int, m: TensorMap) -> None:
        window = m.im2col or _NO_WINDOW
        modes = SWIZZLES[m.swizzle], INTERLEAVES[m.interleave], PROMOTIONS[m.l2_promotion]
        self._tables["maps"].add(
            at,
            m.buffer,
            m.offset,
            *_padded(m.dims, 5),
            *_padded(m.strides, 4),
            *_padded(() if m.im2col else m.box, 5),
            *_padded(m.element_strides, 5),
            *_padded(window["lower"], 3),
            *_padded(window["upper"], 3),
            window["channels_per_pixel"],
            window["pixels_per_column"],
            DTYPES[m.dtype],
            len(m.dims),
            *modes,
            int(m.nan_fill),
            int(m.im2col is not None),
        )


def _padded(values: Sequence[int], count: int) -> tuple[int, ...]:
    return (*values, *[0] * (count - len(values)))
