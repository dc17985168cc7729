"""Host functions against recorders: every argument of a launch, and what is refused.

The functions are written in LLVM's language here, as Mosaic compiles them: straight-line code that
fills tensor maps and calls a launcher.
"""

from typing import Any

import pytest

from pallasc.compiler.lowering.mosaic_kernel import HostObject, Sentinels, locate, sentinel
from pallasc.errors import CompileError, CorruptError
from pallasc.specs.artifacts.plan import Bytes, Pointer

_DECLARATIONS = """
declare void @mosaic_gpu_init_tma_desc(ptr, ptr, i64, i64, ptr, ptr, i64, ptr)
declare void @mosaic_gpu_init_tma_im2col_desc(
  ptr, ptr, i64, i64, ptr, ptr, i64, ptr, ptr, i64, i64, ptr)
declare void @mosaic_gpu_build_kernel_spec(
  ptr, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr)
declare ptr @mosaic_gpu_module_load(ptr)
declare ptr @mosaic_gpu_get_function(ptr, ptr, i32, i32)
declare void @mosaic_gpu_frobnicate(ptr)
"""

_SHAPE = "i32 132, i32 2, i32 1, i32 2, i32 1, i32 1, i32 128, i32 3, i32 1"


def compile_object(text: str) -> bytes:
    """Return the object file of LLVM assembly for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        reloc="static", codemodel="large"
    )
    data: bytes = machine.emit_object(llvm.parse_assembly(text))
    return data


def _spec(body: str, arguments: int, *, calls: int = 1) -> bytes:
    """Return an object whose `k` runs `body` and launches with `%arguments` and `%sizes`."""
    call = (
        f"call void @mosaic_gpu_build_kernel_spec(ptr %spec, {_SHAPE}, i32 4096, i32 1, "
        f"i32 {arguments}, ptr %arguments, ptr %sizes)\n"
    )
    return compile_object(
        f"{_DECLARATIONS}\ndefine void @k(ptr %spec, ptr %buffers) {{\n"
        f"%arguments = alloca [4 x ptr]\n%sizes = alloca [4 x i32]\n{body}\n{call * calls}"
        "ret void\n}\n"
    )


def _argument(index: int, pointer: str, size: int) -> str:
    return (
        f"%a{index} = getelementptr ptr, ptr %arguments, i32 {index}\n"
        f"store ptr {pointer}, ptr %a{index}\n"
        f"%s{index} = getelementptr i32, ptr %sizes, i32 {index}\n"
        f"store i32 {size}, ptr %s{index}\n"
    )


def _buffer(name: str, index: int, offset: int = 0) -> str:
    """Load the address of a buffer, add an offset, and put it into `%name`."""
    return (
        f"%{name}.p = getelementptr ptr, ptr %buffers, i32 {index}\n"
        f"%{name}.b = load ptr, ptr %{name}.p\n"
        f"%{name}.o = getelementptr i8, ptr %{name}.b, i64 {offset}\n"
        f"%{name} = alloca ptr\nstore ptr %{name}.o, ptr %{name}\n"
    )


def _array(name: str, kind: str, values: tuple[int, ...]) -> str:
    text = f"%{name} = alloca [{len(values)} x {kind}]\n"
    for at, value in enumerate(values):
        text += f"%{name}.{at} = getelementptr {kind}, ptr %{name}, i32 {at}\n"
        text += f"store {kind} {value}, ptr %{name}.{at}\n"
    return text


def _launch(data: bytes, *sizes: int, buffers: int = 2) -> Any:
    with HostObject(data, 4) as host:
        return host.launch("k", parameter_sizes=sizes, sentinels=Sentinels(buffers))


def test_addresses_say_their_buffer_and_offset() -> None:
    assert locate(sentinel(3) + 68) == (3, 68)
    with pytest.raises(CompileError, match="passes 0x44, which is outside all buffers"):
        locate(68)


_TILED = (
    "%maps = alloca [3 x [128 x i8]], align 64\n"
    + _array("shape", "i64", (64, 256))
    + _array("strides", "i64", (256, 1))
    + _array("window", "i64", (8, 64))
    + _buffer("x", 1, 1024)
    + "%second = getelementptr i8, ptr %maps, i64 128\n"
    + "store i8 7, ptr %maps\n"
    + "call void @mosaic_gpu_init_tma_desc(ptr %second, ptr %x.o, i64 5, i64 2, ptr %shape, "
    "ptr %strides, i64 128, ptr %window)\n"
)


def test_windows_come_with_their_bounds() -> None:
    body = (
        "%map = alloca [128 x i8], align 64\n"
        + _array("shape", "i64", (2, 16, 8, 64))
        + _array("strides", "i64", (8192, 512, 64, 1))
        + _array("low", "i32", (-1, -2)) + _array("high", "i32", (-3, 4))
        + _array("steps", "i32", (1, 2)) + _buffer("x", 0)
        + "call void @mosaic_gpu_init_tma_im2col_desc(ptr %map, ptr %x.o, i64 5, i64 4, "
        "ptr %shape, ptr %strides, i64 64, ptr %low, ptr %high, i64 32, i64 48, ptr %steps)\n"
        + _argument(0, "%map", 128)
    )  # fmt: skip
    ((_, found),) = _launch(_spec(body, 1), 128).parameters[0].tensor_maps
    assert found.im2col == {
        "lower": [-2, -1], "upper": [4, -3], "channels_per_pixel": 32, "pixels_per_column": 48,
    }  # fmt: skip
    assert (found.dims, found.box) == ((64, 8, 16, 2), ())
    assert found.element_strides == (1, 2, 1, 1)


@pytest.mark.parametrize(
    ("body", "arguments", "sizes", "calls", "words"),
    [
        (_buffer("x", 0) + _argument(0, "%x", 8), 1, (8,), 1, "by value contains an address"),
        ("", 0, (), 2, "k launches 2 kernels instead of one"),
        ("", 0, (), 0, "k launches 0 kernels instead of one"),
        (_TILED.replace("i64 128\nstore", "i64 136\nstore") + _argument(0, "%maps", 256), 1, (256,),
         1, "is built at 0x[0-9a-f]+, not aligned to 64 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(
    body: str, arguments: int, sizes: tuple[int, ...], calls: int, words: str
) -> None:
    with pytest.raises(CompileError, match=words):
        _launch(_spec(body, arguments, calls=calls), *sizes)
    assert _launch(_spec("", 0)).parameters == ()  # the next one is not affected


def test_names_that_are_not_there_are_refused() -> None:
    data = _spec("call void @mosaic_gpu_frobnicate(ptr %spec)", 0)
    with pytest.raises(CompileError, match="calls unknown functions: mosaic_gpu_frobnicate"):
        HostObject(data, 4)
    with (
        HostObject(_spec("", 0), 4) as host,
        pytest.raises(CompileError, match="does not define other"),
    ):
        host.launch("other", parameter_sizes=(), sentinels=Sentinels(0))


def test_what_is_no_object_or_truncated_is_refused() -> None:
    data = _spec("", 0)
    cut = [data[:size] for size in range(0, len(data) - 1, 37)]
    for wrong in (b"", b"\x7fELF", b"not an object at all, but long" * 9, *cut):
        with pytest.raises((CompileError, CorruptError)):
            HostObject(wrong, 4)


def _stream_object(pdl: bool) -> bytes:
    """Return an object that launches on a stream, with a pointer and a by-value parameter."""
    flag, argument = ("i32, ", "i32 1, ") if pdl else ("", "")
    body = _buffer("x", 1, 64) + _array("n", "i32", (5,))
    return compile_object(
        f"declare void @mosaic_gpu_launch_kernel(ptr, {'i32, ' * 10}{flag}ptr, ptr)\n"
        f"define void @k(ptr %function, ptr %stream, ptr %buffers) {{\n"
        f"%arguments = alloca [2 x ptr]\n{body}"
        "store ptr %x, ptr %arguments\n"
        "%a1 = getelementptr ptr, ptr %arguments, i32 1\nstore ptr %n, ptr %a1\n"
        f"call void @mosaic_gpu_launch_kernel(ptr %function, {_SHAPE}, i32 64, {argument}"
        "ptr %stream, ptr %arguments)\nret void\n}\n"
    )


@pytest.mark.parametrize(("version", "pdl"), [(1, False), (3, True)])
def test_launches_on_a_stream_take_the_sizes_of_the_signature(version: int, pdl: bool) -> None:
    with HostObject(_stream_object(pdl), version) as host:
        launch = host.launch("k", parameter_sizes=[8, 4], sentinels=Sentinels(2))
    assert (launch.grid, launch.block, launch.pdl) == ((132, 2, 1), (128, 3, 1), pdl)
    assert launch.dynamic_smem_bytes == 64
    assert launch.parameters == (Pointer(1, 64), Bytes(4, "05000000", ()))
