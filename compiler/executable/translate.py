"""Translate an XLA executable's thunks into a launch plan.

Buffers come from the executable's allocations, steps from its thunks, cubins from the thunks and
from the module. What each thunk means: `xla/backends/gpu/runtime/` in the OpenXLA repository, one
file for each. Asynchronous thunks run where they start: a plan has one stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from pallasc.compiler.executable.allocations import (
    Places,
    constant_bytes,
    number_buffers,
    output_allocations,
)
from pallasc.compiler.executable.launch_parameters import check_signature, mosaic_parameter
from pallasc.compiler.executable.mosaic_kernel import MosaicKernel, Regions, read_mosaic_kernel
from pallasc.compiler.executable.peer_tables import peer_table, uses_peers
from pallasc.compiler.executable.slices import constant_places, fusion_places, packed, place
from pallasc.compiler.executable.tensor_maps import from_xla
from pallasc.compiler.executable.unsupported import (
    UNSUPPORTED_HINT,
    describe_call,
    source_frames,
)
from pallasc.compiler.executable.xla_schema import describe_thunk, refuse_unknown_fields
from pallasc.errors import CompileError, UnsupportedError
from pallasc.specs.artifacts.cubin import Kernel, parse_cubin
from pallasc.specs.artifacts.plan import (
    Buffer,
    Bytes,
    Copy,
    Dim3,
    Fill,
    Launch,
    Parameter,
    Pointer,
    Step,
)
from pallasc.specs.artifacts.profile import Profile
from pallasc.specs.canonical import digest

MOSAIC_TARGET = "mosaic_gpu_v2"
MOSAIC_ALIGNMENT = 256
"""The alignment that Mosaic assumes of every buffer (`kExpectedHbmAlignment`)."""

MOST_STEPS = 4096
"""Steps that a plan may have because of loops."""

_MESH_HINT = "Declare the devices that run it together: mesh: {x: 4}."
_STATEFUL = "rng_get_and_update_state"
"""XLA's kernel that keeps a state in its module: each launch would give something else."""


class UnsupportedStepError(UnsupportedError):
    """A step that cannot be launched; `frames` are its Python frames, where they are known."""

    frames: list[tuple[str, int]]


@dataclass(slots=True)
class Translation:
    """The contents of an executable: buffers, steps and the bytes that they name by digest.

    `output_buffers` holds the buffer of each output leaf, in order.
    """

    buffers: list[Buffer]
    output_buffers: list[int]
    steps: list[Step] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    mosaic: list[MosaicKernel] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)


def translate(executable: Any, *, ranks: int = 1, regions: Sequence[Regions] = ()) -> Translation:
    """Translate the `GpuExecutableProto` of a function whose unused arguments were kept.

    Args:
        executable: the message.
        ranks: how many devices run it together.
        regions: how to read what profiled kernels measure.

    Raises:
        UnsupportedStepError: the function contains what cannot be launched from a cubin.
        CompileError: the executable is not made as those of the supported JAX versions.
        CorruptError: a cubin in it is damaged.
    """
    try:
        return _translate(executable, ranks, regions)
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise CompileError(f"the executable's parts contradict each other: {error!r}") from error


def _translate(executable: Any, ranks: int, regions: Sequence[Regions]) -> Translation:
    buffers, places = number_buffers(executable, ranks=ranks)
    outputs = [places[index][0] for index in output_allocations(executable)]
    result = Translation(buffers, outputs)
    for number, data in constant_bytes(executable, places, buffers).items():
        key = digest(data)
        result.blobs[key] = data
        buffers[number] = Buffer("constant", len(data), digest=key)
    module = executable.hlo_module_with_config.hlo_module
    by_hash = {kernel.kernel: kernel for kernel in regions}
    translator = _Translator(module, executable.binary, result, ranks, by_hash)
    translator.run(executable.thunks, places)
    return result


@dataclass(slots=True)
class _Translator:
    module: Any
    module_cubin: bytes
    result: Translation
    ranks: int = 1
    regions: Mapping[str, Regions] = field(default_factory=dict)
    _kernels: dict[str, Mapping[str, Kernel]] = field(default_factory=dict)
    _mosaics: dict[bytes, MosaicKernel] = field(default_factory=dict)
    _rounds: list[int] = field(default_factory=list)

    def run(self, thunks: Sequence[Any], places: Places) -> None:
        for thunk in thunks:
            kind, body = self._kind(thunk)
            handler = _HANDLERS.get(kind)
            if handler is None:
                self._refuse(thunk, describe_thunk(kind))
            else:
                refuse_unknown_fields(body)
                handler(self, thunk, body, places)

    def _kind(self, thunk: Any) -> tuple[str, Any]:
        refuse_unknown_fields(thunk, deep=False)
        kinds = [(f.name, value) for f, value in thunk.ListFields() if f.name != "thunk_info"]
        if len(kinds) != 1:
            raise CompileError(f"a thunk of the executable has {len(kinds)} kinds instead of one")
        return kinds[0]

    def _refuse(self, thunk: Any, what: str, hint: str = UNSUPPORTED_HINT) -> NoReturn:
        name = thunk.thunk_info.profile_annotation
        error = UnsupportedStepError(
            f"the function contains {what}, which cannot be launched from a cubin",
            hint=hint,
        )
        error.frames = source_frames(self.module, name)
        raise error

    def sequential(self, _: Any, body: Any, places: Places) -> None:
        self.run(body.thunks, places)

    def async_start(self, _: Any, body: Any, places: Places) -> None:
        self.run(body.thunks.thunks, places)

    def loop(self, thunk: Any, body: Any, places: Places) -> None:
        """Unroll a loop whose trip count XLA has found.

        XLA itself runs the body of such a loop that often and does not evaluate the condition.
        """
        if not body.HasField("trip_count"):
            self._refuse(thunk, describe_thunk("while_thunk"))
        rounds = body.trip_count
        for done in range(max(0, min(rounds, MOST_STEPS))):
            self._rounds.append(done)
            self.run(body.body_thunk_sequence.thunks, places)
            self._rounds.pop()
            if len(self.result.steps) > MOST_STEPS:
                break
        if rounds < 0 or rounds > MOST_STEPS or len(self.result.steps) > MOST_STEPS:
            self._refuse(thunk, f"a loop of {rounds} rounds (more than {MOST_STEPS} steps)")

    def nothing(self, _: Any, __: Any, ___: Places) -> None:
        """Do nothing: on one stream, what was started has finished before the next step."""

    def copy(self, _: Any, body: Any, places: Places) -> None:
        copy = body.copy_thunk if hasattr(body, "copy_thunk") else body
        source, source_offset = place(copy.source_buffer.slice, places)
        target, target_offset = place(copy.destination_buffer.slice, places)
        if copy.mem_size and (source, source_offset) != (target, target_offset):
            self.result.steps.append(
                Copy(source, source_offset, target, target_offset, copy.mem_size)
            )

    def memzero(self, _: Any, body: Any, places: Places) -> None:
        self._fill(body.dest_buffer.slice, places, 0, 1)

    def memset32(self, _: Any, body: Any, places: Places) -> None:
        self._fill(body.dest_buffer, places, body.value, 4)

    def _fill(self, where: Any, places: Places, value: int, width: Literal[1, 4]) -> None:
        if where.size:
            buffer, offset = place(where, places)
            self.result.steps.append(Fill(buffer, offset, where.size, value, width))

    def kernel(self, thunk: Any, body: Any, places: Places) -> None:
        """Launch a kernel of XLA's in the cubin of the module."""
        self._launch_xla(
            thunk,
            cubin=self.module_cubin,
            kernel=body.kernel_name,
            slices=list(body.args),
            body=body,
            places=places,
            shape=(
                _dim3(body.launch_dimensions.block_counts),
                _dim3(body.launch_dimensions.thread_counts_per_block),
                _dim3(body.cluster_dim) if body.HasField("cluster_dim") else None,
            ),
            smem=body.shmem_bytes,
        )

    def custom_kernel(self, thunk: Any, body: Any, places: Places) -> None:
        """Launch a kernel of XLA's that brings its own cubin."""
        kernel = body.custom_kernel
        spec = kernel.kernel_spec
        if not spec.cubin.data:
            self._refuse(thunk, f"XLA's built-in kernel {spec.kernel_name}")
        if spec.kernel_name.startswith(_STATEFUL):
            self._refuse(thunk, "a random seed drawn at run time")
        self._launch_xla(
            thunk,
            cubin=spec.cubin.data,
            kernel=spec.kernel_name,
            slices=packed([argument.slice for argument in body.args], spec),
            body=body,
            places=places,
            shape=(
                _dim3(kernel.block_dims),
                _dim3(kernel.thread_dims),
                _dim3(kernel.cluster_dim) if kernel.HasField("cluster_dim") else None,
            ),
            smem=kernel.shared_memory_bytes,
        )

    def _launch_xla(
        self, thunk: Any, *, cubin: bytes, kernel: str, slices: list[Any], body: Any,
        places: Places, shape: tuple[Dim3, Dim3, Dim3 | None], smem: int,
    ) -> None:  # fmt: skip
        for index in body.zeroed_output_buffer_indices:
            self._fill(slices[index], places, 0, 1)
        maps = {entry.key: entry.value for entry in body.tma_metadata.arg_index_to_tma_info}
        parameters: list[Parameter] = []
        for index, piece in enumerate(slices):
            buffer, offset = place(piece, places)
            if index in maps:
                tensor_map = from_xla(maps[index], buffer=buffer, offset=offset)
                parameters.append(Bytes(128, "", ((0, tensor_map),)))
            else:
                size = self._size_before_others((buffer, offset), piece.size)
                parameters.append(Pointer(buffer, offset, size))
        grid, block, cluster = shape
        cluster = None if cluster == (1, 1, 1) else cluster
        self._append(
            Launch(
                kernel=kernel, cubin=self._keep(cubin), grid=grid, cluster=cluster, block=block,
                dynamic_smem_bytes=smem, pdl=body.use_pdl, parameters=tuple(parameters),
                origin="xla", label=thunk.thunk_info.profile_annotation,
            )
        )  # fmt: skip

    def custom_call(self, thunk: Any, body: Any, places: Places) -> None:
        if body.target_name != MOSAIC_TARGET:
            self._refuse(thunk, describe_call(body.target_name))
        if self.ranks == 1 and uses_peers(body):
            self._refuse(thunk, "a Mosaic kernel over several devices", _MESH_HINT)
        slices = [
            item.shaped_slice.slice
            for item in (*body.operands, *body.results)
            if item.HasField("shaped_slice")
        ]
        mosaic = self._mosaic(body.execution_state.state, len(slices))
        if mosaic.uses_nvshmem or (self.ranks == 1 and mosaic.uses_multimem):
            what = "a Mosaic kernel over several devices (NVSHMEM or multimem)"
            self._refuse(thunk, what, _MESH_HINT)
        launch = mosaic.launch
        positions = [place(piece, places) for piece in slices]
        sizes = [
            self._size_before_others(position, piece.size)
            for position, piece in zip(positions, slices, strict=True)
        ]
        if mosaic.hash in self.regions:
            positions[-1] = self._profile(self.regions[mosaic.hash], mosaic)
            sizes[-1] = 0
        operands = sum(item.HasField("shaped_slice") for item in body.operands)
        into, back = self._aligned(positions, [piece.size for piece in slices], operands)
        self.result.steps += into
        self._append(
            Launch(
                kernel=mosaic.name,
                cubin=self._keep(mosaic.cubin),
                grid=launch.grid,
                cluster=launch.cluster if any(launch.cluster) else None,
                block=launch.block,
                dynamic_smem_bytes=launch.dynamic_smem_bytes,
                pdl=launch.pdl,
                parameters=tuple(mosaic_parameter(a, positions, sizes) for a in launch.arguments),
                origin="mosaic",
                label=thunk.thunk_info.profile_annotation,
                peer_table=peer_table(
                    body, positions, multimem=mosaic.uses_multimem, ranks=self.ranks
                ),
            )
        )
        self.result.steps += back

    def _size_before_others(self, position: tuple[int, int], size: int) -> int:
        """Return the size of an array, or 0 where it extends to the end of its buffer."""
        buffer, offset = position
        return size if offset + size < self.result.buffers[buffer].size else 0

    def _mosaic(self, state: bytes, buffers: int) -> MosaicKernel:
        """Return the kernel of a call, which is read once for all rounds of a loop."""
        if state not in self._mosaics:
            self._mosaics[state] = read_mosaic_kernel(state, buffers=buffers, ranks=self.ranks)
            self.result.mosaic.append(self._mosaics[state])
        return self._mosaics[state]

    def _aligned(
        self, positions: list[tuple[int, int]], sizes: Sequence[int], operands: int
    ) -> tuple[list[Step], list[Step]]:
        """Give arrays that are not aligned as Mosaic assumes buffers of their own.

        Args:
            positions: where operands and then results lie; changed in place.
            sizes: their bytes.
            operands: how many of them are operands.

        Returns:
            The copies before the launch and after it.
        """
        moved: dict[tuple[int, int, int], int] = {}
        into: list[Step] = []
        back: list[Step] = []
        for index, ((buffer, offset), size) in enumerate(zip(list(positions), sizes, strict=True)):
            if offset % MOSAIC_ALIGNMENT == 0:
                continue
            piece = (buffer, offset, size)
            if piece not in moved:
                moved[piece] = len(self.result.buffers)
                self.result.buffers.append(Buffer("temporary", size))
                if index < operands and size:
                    into.append(Copy(buffer, offset, moved[piece], 0, size))
            positions[index] = (moved[piece], 0)
            if index >= operands and size:
                back.append(Copy(moved[piece], 0, buffer, offset, size))
        return into, back

    def _profile(self, regions: Regions, mosaic: MosaicKernel) -> tuple[int, int]:
        """Add a buffer for what a launch measures, since XLA gives its memory to later steps."""
        number = len(self.result.buffers)
        size = regions.buffer_bytes(mosaic.launch.grid)
        self.result.buffers.append(Buffer("temporary", size))
        launch = sum(isinstance(step, Launch) for step in self.result.steps)
        self.result.profiles.append(
            Profile(launch, number, regions.words, regions.traces, regions.names)
        )
        return number, 0

    def dynamic_slice(self, thunk: Any, body: Any, places: Places) -> None:
        self._run_on_slices(thunk, body.embedded_thunk, constant_places(body, places))

    def dynamic_slice_fusion(self, thunk: Any, body: Any, places: Places) -> None:
        inner = fusion_places(body, places, self._rounds)
        self._run_on_slices(thunk, body.embedded_thunks, inner)

    def _run_on_slices(self, thunk: Any, sequence: Any, places: Places | None) -> None:
        if places is None:
            self._refuse(thunk, "a slice at an offset that is computed at run time")
        self.run(sequence.thunks, places)

    def _keep(self, cubin: bytes) -> str:
        key = digest(cubin)
        self.result.blobs[key] = cubin
        if key not in self._kernels:
            self._kernels[key] = parse_cubin(cubin).kernels
        return key

    def _append(self, launch: Launch) -> None:
        check_signature(launch, self._kernels[launch.cubin])
        self.result.steps.append(launch)


_HANDLERS = {
    "sequential_thunk": _Translator.sequential,
    "copy_thunk": _Translator.copy,
    "device_to_device_copy_thunk": _Translator.copy,
    "kernel_thunk": _Translator.kernel,
    "dynamic_slice_thunk": _Translator.dynamic_slice,
    "memzero_thunk": _Translator.memzero,
    "memset32bit_value_thunk": _Translator.memset32,
    "custom_call_thunk": _Translator.custom_call,
    "custom_kernel_thunk": _Translator.custom_kernel,
    "while_thunk": _Translator.loop,
    "async_start_thunk": _Translator.async_start,
    "async_done_thunk": _Translator.nothing,
    "dynamic_slice_fusion_thunk": _Translator.dynamic_slice_fusion,
}


def _dim3(message: Any) -> Dim3:
    point = message.coordinates
    return (max(1, point.x), max(1, point.y), max(1, point.z))
