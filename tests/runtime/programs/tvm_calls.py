"""Call an export through tvm-ffi on the stand-in, with arrays of numpy as device memory.

Usage: tvm_calls.py LIBRARY PROGRAM: the program of the page is run, too, with `kernels/` replaced.
Nothing of pallasc is imported.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy
import standin
import tvm_ffi

CUDA, CPU = 2, 1
NAMES = ("f16", "bool", "i8", "u32", "c64")
driver = standin.load()


class OnDevice:
    """An array that DLPack says lies on a GPU; its memory is numpy's."""

    def __init__(
        self, values: Any, *, kind: int = CUDA, device: int = 0, adopt: bool = True
    ) -> None:
        room = numpy.zeros(values.nbytes + 256, numpy.uint8)
        skipped = -room.ctypes.data % 256
        self.array = room[skipped : skipped + values.nbytes].view(values.dtype)
        self.array = self.array.reshape(values.shape)
        self.array[...] = values
        self.kind, self.device = kind, device
        if adopt:
            driver.adopt(self.array, device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # DLManagedTensor begins with the DLTensor: its data, then type and number of the device.
        device = (ctypes.c_int32 * 2).from_address(get(capsule, b"dltensor") + 8)
        device[:] = self.kind, self.device
        return capsule


def filled(value: float, *, columns: int = 64, dtype: Any = numpy.float32, **where: Any) -> Any:
    """Return an array of equal numbers."""
    return OnDevice(numpy.full((4, columns), value, dtype), **where)


def refusal(kind: type[Exception], function: Any, *arguments: Any) -> str:
    """Return the words of the error that a call raises."""
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main() -> None:
    """Check what the module does, one thing after the other."""
    program = Path(sys.argv[2]).read_text().replace("build/kernels/libkernels.so", sys.argv[1])

    @driver.kernel("three")
    def _(launch: standin.Launch) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[:] = a + b

    x, y, out = filled(1), filled(2), filled(0)
    shown = {"x": x, "y": y, "out": out}
    exec(program, shown)  # as a reader of the page types it
    assert (out.array == 3).all(), out.array
    add, spread = shown["kernels"].add, shown["kernels"].spread
    tensors = [tvm_ffi.from_dlpack(array) for array in (x, y, out)]
    out.array[:] = 0
    assert add(*tensors) is None
    assert (out.array == 3).all()
    _errors(add, x, y, out)
    assert "allocator is nullptr" in refusal(RuntimeError, spread, x, y, out)
    _stream(add, x, y, out)
    _temporaries(spread, x, y, out)
    driver.check()
    print(len(driver.launches), "launches")


def _errors(add: Any, x: Any, y: Any, out: Any) -> None:
    before = len(driver.launches)
    turned = OnDevice(numpy.zeros((64, 4), numpy.float32))
    turned.array = turned.array.T
    for arguments, words in (
        ([x, y], "add: none of 6 variants takes f32[4, 64]"),
        ([x, y, turned], "f32[4, 64] with strides 1, 4"),
        (
            [x, y, 5],
            "add: argument 2 is not a tensor: tvm-ffi gives it type 1.\n  Pass the inputs,",
        ),
        (
            [x, y, filled(0, kind=CPU, adopt=False)],
            "argument 2 is not on a CUDA device: its DLPack device type is 1.",
        ),
        (
            [x, y, filled(0, device=1, adopt=False)],
            "argument 2 is on device 1, and argument 0 on device 0.",
        ),
        ([], "add takes 1 to 4096 arrays, not 0."),
        *(
            ([x, y, filled(0, dtype=dtype)], f"{name}[4, 64]")
            for dtype, name in zip(("f2", bool, "i1", "u4", "c8"), NAMES, strict=True)
        ),
    ):
        assert words in refusal(ValueError, add, *arguments)
    driver.fault("cuLaunchKernelEx", 701)
    assert "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)" in refusal(RuntimeError, add, x, y, out)
    assert len(driver.launches) == before


def _stream(add: Any, x: Any, y: Any, out: Any) -> None:
    stream, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.library.cuCtxSetCurrent(context) == 0
    assert driver.library.cuStreamCreate(ctypes.byref(stream), 1) == 0
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.value):
        add(x, y, out)
    add(x, y, out)
    inside, outside = driver.launches[-2:]
    assert (inside.stream, outside.stream) == (stream.value, 0)


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32)),
        *(("dtype", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_int64))),
        *(("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)),
    )


class Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = (
    *(("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", DELETER)),
    *(("flags", ctypes.c_uint64), ("tensor", Tensor)),
)
ALLOCATOR = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.POINTER(Managed))),
    *(ctypes.c_void_p, ctypes.c_void_p),
)


def _temporaries(spread: Any, x: Any, y: Any, out: Any) -> None:
    """Give the temporaries of a kernel memory, as torch does, and see it come back."""
    room, given, back = OnDevice(numpy.zeros(1280, numpy.uint8)), [], []
    sizes = (ctypes.c_int64 * 1)(1024)
    steps = (ctypes.c_int64 * 1)(1)

    @DELETER
    def delete(managed: Any) -> None:
        back.append(managed.contents.tensor.data)

    made = Managed((1, 1), None, delete, 0, Tensor(room.array.ctypes.data))
    made.tensor.rank, made.tensor.shape, made.tensor.strides = 1, sizes, steps
    made.tensor.byte_offset = 256

    @ALLOCATOR
    def allocate(like: Any, result: Any, _: Any, __: Any) -> int:
        wanted = like.contents
        given.append((wanted.rank, wanted.shape[0], [*wanted.device], wanted.dtype))
        made.tensor.device[:], made.tensor.dtype = [*wanted.device], wanted.dtype
        result[0] = ctypes.pointer(made)
        return 0

    library = ctypes.CDLL(str(tvm_ffi.libinfo.find_libtvm_ffi()))
    assert library.TVMFFIEnvSetDLPackManagedTensorAllocator(allocate, 0, None) == 0
    spread(x, y, out)
    library.TVMFFIEnvSetDLPackManagedTensorAllocator(None, 0, None)
    assert given == [(1, 1024, [CUDA, 0], 0x10801)]
    assert driver.launches[-1].pointer(1) == room.array.ctypes.data + 256
    assert back == [room.array.ctypes.data]


main()
