"""Translate an XLA executable's thunks into a launch plan.

Buffers come from the executable's allocations, constants from the executable or its HLO module,
steps and cubins from its thunks. The OpenXLA repository defines each thunk in a separate file in
`xla/backends/gpu/runtime/`. A plan has one stream, so an asynchronous operation runs completely
where it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from msgspec.structs import replace

from pallasc.compiler.lowering.allocations import (
    Places,
    constant_bytes,
    fusion_places,
    number_buffers,
    output_allocations,
    packed,
    place,
)
from pallasc.compiler.lowering.mosaic_kernel import (
    MosaicKernel,
    peer_table,
    placed,
    read_mosaic_kernel,
    uses_peers,
)
from pallasc.compiler.lowering.serialized import refuse_unknown_fields
from pallasc.errors import CompileError, CorruptError, UnsupportedError
from pallasc.specs.artifacts.cubin import Cubin, parse_cubin
from pallasc.specs.artifacts.plan import (
    Buffer,
    Copy,
    Dim3,
    Fill,
    Launch,
    Pointer,
    Step,
)
from pallasc.specs.canonical import digest

MOSAIC_TARGET = "mosaic_gpu_v2"
MOSAIC_ALIGNMENT = 256
"""Alignment that Mosaic assumes for every buffer (`kExpectedHbmAlignment`)."""

UNSUPPORTED_HINT = "Leave it out of the function, or give the kernel alone as the entry."

MOST_STEPS = 4096
"""Maximum number of steps in a plan with unrolled loops."""

_MESH_HINT = "Declare the devices that run it together: mesh: {x: 4}."
_STATEFUL = "rng_get_and_update_state"
"""XLA's kernel that keeps state in its module, so each launch would give a different result."""


class UnsupportedStepError(UnsupportedError):
    """A step that cannot be launched; `frames` are its Python frames, if known."""

    frames: list[tuple[str, int]]


@dataclass(slots=True)
class Translation:
    """The contents of an executable: buffers, steps, and the blobs that steps name by digest.

    `output_buffers` contains the buffer of each output leaf, in order.
    """

    buffers: list[Buffer]
    output_buffers: list[int]
    steps: list[Step] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    _cubins: dict[str, Cubin] = field(default_factory=dict)

    def cubin(self, key: str) -> Cubin:
        """Return a cubin by its digest, parsed."""
        if key not in self._cubins:
            self._cubins[key] = parse_cubin(self.blobs[key])
        return self._cubins[key]


def translate(executable: Any, *, ranks: int = 1) -> Translation:
    """Translate the `GpuExecutableProto` of a function, jitted with `keep_unused=True`.

    Args:
        executable: the message.
        ranks: number of devices that run it together.

    Raises:
        UnsupportedStepError: the function contains a step that cannot be launched from a cubin.
        CompileError: no supported JAX version makes such an executable.
        CorruptError: a cubin in it is damaged.
    """
    try:
        buffers, places = number_buffers(executable, ranks=ranks)
        outputs = [places[index][0] for index in output_allocations(executable)]
        result = Translation(buffers, outputs)
        for number, data in constant_bytes(executable, places, buffers).items():
            key = digest(data)
            result.blobs[key] = data
            buffers[number] = Buffer("constant", len(data), digest=key)
        _Translator(executable, result, ranks).run(executable.thunks, places)
        return result
    except (LookupError, ValueError, TypeError, OverflowError) as error:
        raise CompileError(f"the executable's parts contradict each other: {error!r}") from error


@dataclass(slots=True)
class _Translator:
    """Translates thunks; the method for each kind has the name of its field in `ThunkProto`."""

    executable: Any
    result: Translation
    ranks: int
    _mosaics: dict[bytes, MosaicKernel] = field(default_factory=dict)
    _rounds: list[int] = field(default_factory=list)

    def run(self, thunks: Sequence[Any], places: Places) -> None:
        for thunk in thunks:
            refuse_unknown_fields(thunk, deep=False)
            kinds = [(f.name, value) for f, value in thunk.ListFields() if f.name != "thunk_info"]
            ((kind, body),) = kinds
            translate_kind = getattr(self, kind, None)
            if translate_kind is None:
                self._refuse(thunk, describe_thunk(kind))
            refuse_unknown_fields(body)
            translate_kind(thunk, body, places)

    def _refuse(self, thunk: Any, what: str, hint: str = UNSUPPORTED_HINT) -> NoReturn:
        error = UnsupportedStepError(
            f"the function contains {what}, which cannot be launched from a cubin", hint=hint
        )
        module = self.executable.hlo_module_with_config.hlo_module
        error.frames = source_frames(module, thunk.thunk_info.profile_annotation)
        raise error

    def sequential_thunk(self, _: Any, body: Any, places: Places) -> None:
        self.run(body.thunks, places)

    def async_start_thunk(self, _: Any, body: Any, places: Places) -> None:
        self.run(body.thunks.thunks, places)

    def while_thunk(self, thunk: Any, body: Any, places: Places) -> None:
        """Unroll a loop with a trip count that XLA has determined.

        XLA itself runs the body of such a loop that many times and does not evaluate the condition.
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

    def async_done_thunk(self, _: Any, __: Any, ___: Places) -> None:
        """Do nothing: on one stream, a step has finished before the next one starts."""

    def device_to_device_copy_thunk(self, thunk: Any, body: Any, places: Places) -> None:
        self.copy_thunk(thunk, body.copy_thunk, places)

    def copy_thunk(self, _: Any, body: Any, places: Places) -> None:
        source = place(body.source_buffer.slice, places)
        target = place(body.destination_buffer.slice, places)
        if body.mem_size and source != target:
            self.result.steps.append(Copy(*source, *target, body.mem_size))

    def memzero_thunk(self, _: Any, body: Any, places: Places) -> None:
        self._fill(body.dest_buffer.slice, places, 0, 1)

    def memset32bit_value_thunk(self, _: Any, body: Any, places: Places) -> None:
        self._fill(body.dest_buffer, places, body.value, 4)

    def _fill(self, where: Any, places: Places, value: int, width: Literal[1, 4]) -> None:
        if where.size:
            buffer, offset = place(where, places)
            self.result.steps.append(Fill(buffer, offset, where.size, value, width))

    def custom_kernel_thunk(self, thunk: Any, body: Any, places: Places) -> None:
        """Launch an XLA kernel; each has its own cubin in all supported versions of JAX."""
        kernel = body.custom_kernel
        spec, cluster = kernel.kernel_spec, _dim3(kernel.cluster_dim)
        if not spec.cubin.data:
            self._refuse(thunk, f"XLA's built-in kernel {spec.kernel_name}")
        if spec.kernel_name.startswith(_STATEFUL):
            self._refuse(thunk, describe_thunk("rng_seed_thunk"))
        if body.tma_metadata:
            self._refuse(thunk, "a kernel of XLA with tensor maps")
        slices = packed([argument.slice for argument in body.args], spec)
        for index in body.zeroed_output_buffer_indices:
            self._fill(slices[index], places, 0, 1)
        launch = Launch(
            kernel=spec.kernel_name,
            cubin="",
            grid=_dim3(kernel.block_dims),
            cluster=None if cluster == (1, 1, 1) else cluster,
            block=_dim3(kernel.thread_dims),
            dynamic_smem_bytes=kernel.shared_memory_bytes,
            pdl=body.use_pdl,
            parameters=tuple(self._arrays(slices, places)),
            origin="xla",
        )
        self._launch(thunk, spec.cubin.data, launch)

    def _arrays(self, slices: Sequence[Any], places: Places) -> list[Pointer]:
        """Return a pointer parameter for each slice of an allocation."""
        arrays = []
        for piece in slices:
            buffer, offset = place(piece, places)
            is_last = offset + piece.size >= self.result.buffers[buffer].size
            arrays.append(Pointer(buffer, offset, 0 if is_last else piece.size))
        return arrays

    def custom_call_thunk(self, thunk: Any, body: Any, places: Places) -> None:
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
        arrays = self._arrays(slices, places)
        operands = sum(item.HasField("shaped_slice") for item in body.operands)
        into, back = self._aligned(arrays, [piece.size for piece in slices], operands)
        self.result.steps += into
        launch = replace(
            mosaic.launch,
            parameters=tuple(placed(each, arrays) for each in mosaic.launch.parameters),
            peer_table=peer_table(body, arrays, multimem=mosaic.uses_multimem, ranks=self.ranks),
        )
        self._launch(thunk, mosaic.cubin, launch)
        self.result.steps += back

    def _mosaic(self, state: bytes, buffers: int) -> MosaicKernel:
        """Return the kernel of a call; it is parsed once for all iterations of a loop."""
        if state not in self._mosaics:
            self._mosaics[state] = read_mosaic_kernel(state, buffers=buffers, ranks=self.ranks)
        return self._mosaics[state]

    def _aligned(
        self, arrays: list[Pointer], sizes: Sequence[int], operands: int
    ) -> tuple[list[Step], list[Step]]:
        """Copy misaligned arrays of a Mosaic call to separate buffers, and results back.

        Args:
            arrays: operands, then results; changed in place.
            sizes: their sizes in bytes.
            operands: number of operands among them.

        Returns:
            The copies before the launch and after it.
        """
        moved: dict[tuple[int, int, int], int] = {}
        into: list[Step] = []
        back: list[Step] = []
        for index, (array, size) in enumerate(zip([*arrays], sizes, strict=True)):
            piece = (array.buffer, array.offset, size)
            if array.offset % MOSAIC_ALIGNMENT == 0:
                continue
            if piece not in moved:
                moved[piece] = len(self.result.buffers)
                self.result.buffers.append(Buffer("temporary", size))
                if index < operands and size:
                    into.append(Copy(*piece[:2], moved[piece], 0, size))
            arrays[index] = replace(array, buffer=moved[piece], offset=0)
            if index >= operands and size:
                back.append(Copy(moved[piece], 0, *piece))
        return into, back

    def dynamic_slice_fusion_thunk(self, thunk: Any, body: Any, places: Places) -> None:
        inner = fusion_places(body, places, self._rounds)
        if inner is None:
            self._refuse(thunk, "a slice at an offset that is computed at run time")
        self.run(body.embedded_thunks.thunks, inner)

    def _launch(self, thunk: Any, cubin: bytes, launch: Launch) -> None:
        """Append a launch of a kernel in a cubin."""
        key = digest(cubin)
        self.result.blobs[key] = cubin
        launch = replace(launch, cubin=key, label=thunk.thunk_info.profile_annotation)
        kernels = self.result.cubin(key).kernels
        if launch.kernel not in kernels:
            raise CompileError(f"the cubin does not contain the kernel {launch.kernel}")
        sizes = kernels[launch.kernel].parameter_bytes
        try:
            launch.check_parameters(sizes, "its cubin")
        except CorruptError as error:
            raise CompileError(error.message) from error
        self.result.steps.append(launch)


def _dim3(message: Any) -> Dim3:
    point = message.coordinates
    return (max(1, point.x), max(1, point.y), max(1, point.z))


# ---- names for messages

_UNSUPPORTED_THUNKS = {
    "a matrix product by cuBLAS": "gemm cublas_lt_matmul",
    "a triangular solve by cuBLAS": "triangular_solve",
    "a Fourier transform by cuFFT": "fft",
    "a cuDNN convolution": "convolution convolution_reorder",
    "control flow (lax.cond or lax.switch)": "conditional",
    "control flow (lax.while_loop, fori_loop or scan)": "while",
    "a random seed drawn at run time": "rng_seed",
}
"""Kinds of thunks, by the name under which users know the operation."""


def describe_thunk(kind: str) -> str:
    """Name the operation of a thunk that cannot be launched; `kind` is a field of `ThunkProto`."""
    kind = kind.removesuffix("_thunk")
    names = (words for words, kinds in _UNSUPPORTED_THUNKS.items() if kind in kinds.split())
    return next(names, f"XLA's operation {kind}")


def describe_call(target: str) -> str:
    """Name the operation of a custom call."""
    if "callback" in target:
        return f"a host callback ({target})"
    if target.startswith(("cusolver", "cublas", "cusparse", "cudnn", "cufft")):
        return f"a call into NVIDIA's library {target.split('_')[0]} ({target})"
    return f"a call of the library function {target}"


def source_frames(module: Any, instruction: str) -> list[tuple[str, int]]:
    """Return (file, line) of the Python frames that made an HLO instruction, innermost first.

    `module` is the executable's `HloModule`; the list is empty if it has no locations.
    """
    for computation in module.computations:
        for candidate in computation.instructions:
            if candidate.name == instruction:
                return list(_frames(module.stack_frame_index, _metadata(module, candidate)))
    return []


def _metadata(module: Any, instruction: Any) -> Any:
    """Return the metadata of an instruction; if it has no name, of its first callee's root."""
    called = instruction.called_computation_ids[:1]
    roots = (
        inner.metadata
        for computation in module.computations
        if computation.id in called
        for inner in computation.instructions
        if inner.id == computation.root_id
    )
    own = instruction.metadata
    return own if own.op_name else next(roots, own)


def _frames(index: Any, metadata: Any) -> Iterator[tuple[str, int]]:
    frame_id = metadata.stack_frame_id
    for _ in index.stack_frames:  # a bound, as damaged frames may form a cycle
        if frame_id <= 0:
            break
        frame = index.stack_frames[frame_id - 1]
        location = index.file_locations[frame.file_location_id - 1]
        yield index.file_names[location.file_name_id - 1], location.line
        frame_id = frame.parent_frame_id
    if metadata.source_file and not metadata.stack_frame_id:
        yield metadata.source_file, metadata.source_line
