"""Arrays of each framework, recognised by their type; real ones where a framework is installed."""

from typing import Any

import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray, _exported, read_capsule
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype, short_dtype
from pallasc.specs.arrays import DTYPES


@pytest.mark.parametrize("name", sorted(name for name in DTYPES if DTYPES[name].bits >= 8))
def test_dtypes_of_numpy_go_there_and_back(name: str) -> None:
    if name.startswith("f8"):
        pytest.importorskip("ml_dtypes")
    assert short_dtype(numpy_dtype(name)) == name


def test_arrays_of_numpy_are_copied_there_and_back(runtime: Any) -> None:
    kernel = made.adder(runtime)
    a, b = np.full((4, 64), 1, np.float32), np.full((4, 64), 2, np.float32)
    out = kernel(a, b)
    assert isinstance(out, np.ndarray)
    assert (out == 3).all()
    into = np.zeros_like(a)
    assert kernel.into(a, b, out=into) is into
    assert (into == 3).all()
    assert runtime.live()[0] == 0


def test_a_read_only_array_cannot_be_updated(runtime: Any) -> None:
    kernel = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]))
    a = np.zeros((4, 64), np.float32)
    b = np.zeros((4, 64), np.float32)
    b.flags.writeable = False
    with pytest.raises(ArgumentError, match="b may not be written, it is read-only"):
        kernel(a, b)


def test_a_dtype_that_numpy_does_not_pack_is_refused(runtime: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = "i4[4, 64]"
    kernel = made.kernel(made.artifact(made.launch("one", 0), inputs={"a": text}, outputs=["a"]))
    with pytest.raises(ArgumentError, match="made: a: numpy stores one i4 per byte"):
        kernel(np.zeros((4, 64), ml_dtypes.int4))


def test_device_arrays_hold_bytes(runtime: Any) -> None:
    kernel = made.adder(runtime)
    a, b = DeviceArray((4, 64), "f32"), DeviceArray((4, 64), "f32")
    a.copy_from(np.full((4, 64), 1, np.float32))
    b.copy_from(np.full((4, 64), 2, np.float32))
    out = kernel(a, b)
    assert np.frombuffer(out.to_bytes(), np.float32).tolist() == [3] * 256
    assert repr(out) == "<DeviceArray f32[4, 64] on GPU 0>"
    with pytest.raises(ArgumentError, match="1024 bytes cannot be copied"):
        DeviceArray((2,), "bf16").copy_from(np.zeros(256, np.float32))
    count = runtime.live()[0]
    del a, b, out
    assert runtime.live()[0] == count - 3


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn"])
def test_the_interface_has_no_name_for_newer_dtypes(dtype: str, runtime: Any) -> None:
    assert not hasattr(DeviceArray((3,), dtype), "__cuda_array_interface__")


def test_a_capsule_is_read_with_offset_and_strides() -> None:
    whole = np.arange(24, dtype=np.int16).reshape(4, 6)
    view = read_capsule(whole[1:, ::2].__dlpack__(), None)
    assert (view.dtype, view.shape, view.is_contiguous) == ("i16", (3, 3), False)
    assert view.pointer == whole[1:, ::2].ctypes.data
    assert read_capsule(whole.__dlpack__(), None).is_contiguous


@pytest.mark.parametrize("name", sorted(name for name in DTYPES if not name.startswith("c128")))
def test_capsules_of_device_arrays_say_what_they_hold(name: str, runtime: Any) -> None:
    array = DeviceArray((3, 8), name)
    capsule = array.__dlpack__()
    view = read_capsule(capsule, 0)
    assert (view.pointer, view.dtype, view.shape) == (array.pointer, name, (3, 8))
    assert view.is_contiguous
    assert array.__dlpack_device__() == (2, 0)


def test_a_capsule_keeps_its_array_until_it_goes(runtime: Any) -> None:
    array = DeviceArray((3, 8), "bf16")
    held, others = runtime.live()[0], {*_exported}  # what earlier tests exported may live on
    capsule = array.__dlpack__()
    del array
    assert len(_exported) == len(others) + 1
    assert runtime.live()[0] == held
    del capsule
    assert runtime.live()[0] == held - 1
    assert {*_exported} == others
