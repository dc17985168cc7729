"""Cases: processes, contexts, memory, streams, captures, and errors that stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Thread
from typing import Any

from cases import Answers, case
from ground import Ground, code_of, pointer, value_of, write

_NOWHERE = 1 << 46
"""An address at which nothing is."""


def _ordinal_of(ground: Ground, address: int) -> Any:
    """Ask on which device an address lies."""
    attribute = ground.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return ground.driver.cuPointerGetAttribute(attribute, address)


@case("names and texts of codes", starts=False)
def _texts(ground: Ground) -> Answers:
    for code in ground.driver.CUresult:
        name = ground.driver.cuGetErrorName(code)
        text = ground.driver.cuGetErrorString(code)
        known = code_of(name) == 0 and code_of(text) == 0
        yield str(int(code)), [name[1].decode(), text[1].decode()] if known else code_of(name)


@case("before cuInit", starts=False)
def _before(ground: Ground) -> Answers:
    driver = ground.driver
    yield "cuDriverGetVersion", code_of(driver.cuDriverGetVersion())
    yield "cuDeviceGetCount", code_of(driver.cuDeviceGetCount())
    yield "cuCtxGetCurrent", code_of(driver.cuCtxGetCurrent())
    yield "cuLibraryLoadData", code_of(ground.load(ground.image("sm_90a")))
    yield "cuMemAlloc", code_of(driver.cuMemAlloc(1024))


@case("no device is visible", starts=False, CUDA_VISIBLE_DEVICES="")
def _none(ground: Ground) -> Answers:
    yield "cuInit", code_of(ground.driver.cuInit(0))
    yield "cuDeviceGetCount", code_of(ground.driver.cuDeviceGetCount())


@case("a device is visible that does not exist", starts=False, CUDA_VISIBLE_DEVICES="99")
def _wrong(ground: Ground) -> Answers:
    yield "cuInit", code_of(ground.driver.cuInit(0))


@case("no context is current", starts=False)
def _no_context(ground: Ground) -> Answers:
    driver = ground.driver
    yield "cuInit", code_of(driver.cuInit(0))
    yield "cuCtxGetDevice", code_of(driver.cuCtxGetDevice())
    yield "cuMemAlloc", code_of(driver.cuMemAlloc(1024))
    yield "cuStreamCreate", code_of(driver.cuStreamCreate(1))
    yield "cuCtxSynchronize", code_of(driver.cuCtxSynchronize())
    library = value_of(ground.load(ground.image()))
    kernel = value_of(driver.cuLibraryGetKernel(library, b"none"))
    yield "cuLibraryGetKernel", 0
    yield "cuKernelGetFunction", code_of(driver.cuKernelGetFunction(kernel))
    yield "cuModuleLoadData", code_of(driver.cuModuleLoadData(ground.image()))
    yield "launch of a kernel", ground.launch(kernel)
    yield "cuPointerGetAttribute", code_of(_ordinal_of(ground, _NOWHERE))


@case("a stream and no context current")
def _only_stream(ground: Ground) -> Answers:
    driver = ground.driver
    stream, memory = ground.stream(), ground.memory()
    kernel, function = ground.kernel("none"), ground.function("none")
    yield "pop", code_of(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    yield "launch of a kernel", ground.launch(kernel, stream=stream)
    yield "launch of a function", ground.launch(function, stream=stream)
    yield "launch of a kernel, default stream", ground.launch(kernel)
    yield "launch of a function, default stream", ground.launch(function)
    copied = driver.cuMemcpyDtoDAsync(memory, memory + 1024, 16, stream)
    yield "cuMemcpyDtoDAsync", code_of(copied)
    yield "cuMemsetD8Async", code_of(driver.cuMemsetD8Async(memory, 0, 16, stream))
    yield "cuMemAllocAsync", code_of(driver.cuMemAllocAsync(1024, stream))
    yield "cuStreamGetCtx", code_of(driver.cuStreamGetCtx(stream))
    yield "cuStreamSynchronize", code_of(driver.cuStreamSynchronize(stream))
    yield "cuMemFree", code_of(driver.cuMemFree(memory))


@case("the primary context is reset")
def _reset(ground: Ground) -> Answers:
    driver = ground.driver
    kernel, function, memory = ground.kernel("none"), ground.function("none"), ground.memory()
    yield "cuDevicePrimaryCtxReset", code_of(driver.cuDevicePrimaryCtxReset(0))
    yield "cuMemFree", code_of(driver.cuMemFree(memory))
    yield "launch of a kernel", ground.launch(kernel)
    yield "launch of a function", ground.launch(function)
    yield "cuCtxSynchronize", ground.synchronize()


@case("a child of fork")
def _fork(ground: Ground) -> Answers:
    driver, memory = ground.driver, ground.memory()
    calls = {
        "cuInit": lambda: driver.cuInit(0),
        "cuCtxGetCurrent": driver.cuCtxGetCurrent,
        "cuDeviceGetCount": driver.cuDeviceGetCount,
        "cuMemFree": lambda: driver.cuMemFree(memory),
        "cuCtxSynchronize": driver.cuCtxSynchronize,
    }
    for name, call in calls.items():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(code_of(call())).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        yield name, int(os.read(reader, 16) or -1)
        os.close(reader)


@case("sizes of memory")
def _sizes(ground: Ground) -> Answers:
    driver, stream = ground.driver, ground.stream()
    yield "cuMemAlloc of 0", code_of(driver.cuMemAlloc(0))
    yield "cuMemAlloc of 2^44", code_of(driver.cuMemAlloc(1 << 44))
    yield "cuMemAllocAsync of 0", code_of(driver.cuMemAllocAsync(0, stream))
    yield "cuMemAllocAsync of 2^44", code_of(driver.cuMemAllocAsync(1 << 44, stream))
    alignments = [ground.memory(n) % 512 for n in (1, 3, 1000, 1 << 20)]
    yield "all are at multiples of 512", not any(alignments)
    yield "cuCtxSynchronize", ground.synchronize()


@case("memory that is not there")
def _nowhere(ground: Ground) -> Answers:
    driver, stream, memory = ground.driver, ground.stream(), ground.memory(1 << 20)
    host = bytearray(4096)
    yield "cuMemsetD8", code_of(driver.cuMemsetD8(_NOWHERE, 0, 16))
    yield "cuMemsetD8Async", code_of(driver.cuMemsetD8Async(_NOWHERE, 0, 16, stream))
    yield "cuMemcpyDtoH", code_of(driver.cuMemcpyDtoH(host, _NOWHERE, 16))
    yield "cuMemcpyHtoD", code_of(driver.cuMemcpyHtoD(_NOWHERE, bytes(host), 16))
    copied = driver.cuMemcpyDtoDAsync(_NOWHERE, memory, 16, stream)
    yield "cuMemcpyDtoDAsync to it", code_of(copied)
    copied = driver.cuMemcpyDtoDAsync(memory, _NOWHERE, 16, stream)
    yield "cuMemcpyDtoDAsync from it", code_of(copied)
    yield "cuMemsetD8 past an end", code_of(driver.cuMemsetD8(memory, 0, (1 << 20) + 1))
    yield "cuMemsetD8 64 MiB past an end", code_of(driver.cuMemsetD8(memory, 0, 65 << 20))
    yield "cuMemsetD32 at an odd address", code_of(driver.cuMemsetD32(memory + 2, 0, 4))
    yield "cuMemFree of nothing", code_of(driver.cuMemFree(_NOWHERE))
    yield "cuMemFree inside", code_of(driver.cuMemFree(memory + 256))
    yield "cuMemFree", code_of(driver.cuMemFree(memory))
    yield "cuMemFree again", code_of(driver.cuMemFree(memory))
    yield "cuMemFree of 0", code_of(driver.cuMemFree(0))
    yield "cuPointerGetAttribute", code_of(_ordinal_of(ground, _NOWHERE))
    yield "cuCtxSynchronize", ground.synchronize()


@case("a kernel writes to nowhere")
def _illegal(ground: Ground) -> Answers:
    yield from _broken(ground, _NOWHERE)


@case("a kernel writes to an odd address")
def _misaligned(ground: Ground) -> Answers:
    yield from _broken(ground, ground.memory() + 2)


def _broken(ground: Ground, address: int) -> Answers:
    """Break the context, and ask what works in it afterwards."""
    driver, memory, stream = ground.driver, ground.memory(), ground.stream()
    library = value_of(ground.load(ground.image()))
    event = value_of(driver.cuEventCreate(0))
    yield "launch", write(ground, address, stream=stream)
    yield "cuStreamSynchronize", code_of(driver.cuStreamSynchronize(stream))
    yield "cuStreamSynchronize again", code_of(driver.cuStreamSynchronize(stream))
    yield "cuCtxSynchronize", ground.synchronize()
    yield "launch afterwards", ground.launch("none")
    calls = {
        "cuMemAlloc": lambda: driver.cuMemAlloc(1024),
        "cuMemFree": lambda: driver.cuMemFree(memory),
        "cuMemAllocAsync": lambda: driver.cuMemAllocAsync(1024, stream),
        "cuMemsetD8Async": lambda: driver.cuMemsetD8Async(memory, 0, 16, stream),
        "cuStreamCreate": lambda: driver.cuStreamCreate(1),
        "cuStreamQuery": lambda: driver.cuStreamQuery(stream),
        "cuStreamGetCtx": lambda: driver.cuStreamGetCtx(stream),
        "cuStreamIsCapturing": lambda: driver.cuStreamIsCapturing(stream),
        "cuEventRecord": lambda: driver.cuEventRecord(event, stream),
        "cuEventQuery": lambda: driver.cuEventQuery(event),
        "cuLibraryLoadData": lambda: ground.load(ground.image()),
        "cuLibraryGetKernel": lambda: driver.cuLibraryGetKernel(library, b"four"),
        "cuKernelGetFunction": lambda: driver.cuKernelGetFunction(ground.kernel("four")),
        "cuPointerGetAttribute": lambda: _ordinal_of(ground, memory),
        "cuCtxGetCurrent": driver.cuCtxGetCurrent,
        "cuCtxGetDevice": driver.cuCtxGetDevice,
        "cuCtxSetCurrent": lambda: driver.cuCtxSetCurrent(ground.context),
        "cuDeviceGetCount": driver.cuDeviceGetCount,
        "cuDeviceGetAttribute": lambda: driver.cuDeviceGetAttribute(_names(ground), 0),
        "cuDevicePrimaryCtxRetain": lambda: driver.cuDevicePrimaryCtxRetain(0),
        "cuInit": lambda: driver.cuInit(0),
    }
    for name, call in calls.items():
        yield name, code_of(call())
    yield "cuDevicePrimaryCtxReset", code_of(driver.cuDevicePrimaryCtxReset(0))
    yield "cuMemAlloc after the reset", code_of(driver.cuMemAlloc(1024))


def _names(ground: Ground) -> object:
    return ground.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


@case("an error that nobody waited for")
def _unnoticed(ground: Ground) -> Answers:
    yield "launch", write(ground, _NOWHERE)
    later = (ground.launch("none") for _ in range(2000))
    yield "a later launch", next((code for code in later if code), 0)
    yield "cuMemFree of 0", code_of(ground.driver.cuMemFree(0))


@case("streams that are gone")
def _gone(ground: Ground) -> Answers:
    driver, stream = ground.driver, ground.stream()
    yield "cuStreamDestroy", code_of(driver.cuStreamDestroy(stream))
    yield "cuStreamSynchronize", code_of(driver.cuStreamSynchronize(stream))
    yield "cuStreamGetCtx", code_of(driver.cuStreamGetCtx(stream))
    yield "launch", ground.launch("none", stream=stream)
    yield "cuStreamDestroy again", code_of(driver.cuStreamDestroy(stream))


@case("a number that is no stream")
def _no_stream(ground: Ground) -> Answers:
    driver = ground.driver
    for number in (0, 1, 2):
        yield f"cuStreamGetCtx of {number}", code_of(driver.cuStreamGetCtx(number))
        yield f"launch in {number}", ground.launch("none", stream=number)
    ground.kernel("none")
    yield "launch in 4660", ground.launch("none", stream=4660)


@case("a library that is gone")
def _unloaded(ground: Ground) -> Answers:
    driver = ground.driver
    library = value_of(ground.load(ground.image()))
    kernel = value_of(driver.cuLibraryGetKernel(library, b"none"))
    yield "launch", ground.launch(kernel)
    yield "cuLibraryUnload", code_of(driver.cuLibraryUnload(library))
    yield "cuLibraryGetKernel", code_of(driver.cuLibraryGetKernel(library, b"none"))


def _capture(ground: Ground, mode: int) -> object:
    """Begin a capture; return its stream."""
    stream = ground.stream()
    kind = ground.driver.CUstreamCaptureMode(mode)
    value_of((*ground.driver.cuStreamBeginCapture(stream, kind), None))
    return stream


@case("calls during a capture")
def _captured(ground: Ground) -> Answers:
    driver = ground.driver
    known = ground.function("none")
    calls = {
        "launch of a loaded kernel": lambda s: (ground.launch(known, stream=s),),
        "launch of a kernel that is not loaded": lambda s: (
            ground.launch("four", [bytes(8)] * 4, stream=s),
        ),
        "cuMemAlloc": lambda _: driver.cuMemAlloc(1024),
        "cuMemAllocAsync": lambda s: driver.cuMemAllocAsync(1024, s),
        "cuCtxSynchronize": lambda _: driver.cuCtxSynchronize(),
        "cuStreamSynchronize": lambda s: driver.cuStreamSynchronize(s),
        "cuStreamQuery": lambda s: driver.cuStreamQuery(s),
        "cuMemcpyHtoD": lambda _: driver.cuMemcpyHtoD(memory, bytes(16), 16),
        "cuLibraryLoadData": lambda _: ground.load(ground.image()),
        "cuModuleLoadData": lambda _: driver.cuModuleLoadData(ground.image()),
        "cuKernelGetFunction": lambda _: driver.cuKernelGetFunction(ground.kernel("maps")),
        "cuEventCreate": lambda _: driver.cuEventCreate(0),
        "launch in the default stream": lambda _: (ground.launch(known),),
    }
    memory = ground.memory()
    for mode in (0, 2):  # global, relaxed
        for name, call in calls.items():
            stream = _capture(ground, mode)
            code = code_of(call(stream))
            ended = driver.cuStreamEndCapture(stream)
            yield f"mode {mode}: {name}", [code, code_of(ended)]


@case("a capture, and calls outside it")
def _beside(ground: Ground) -> Answers:
    """What the runtime does with memory while any thread captures, and what it must not do."""
    driver = ground.driver
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

    def allocate() -> list[int]:
        made = driver.cuMemAlloc(1024)
        return [code_of(made), code_of(driver.cuMemFree(made[1])) if code_of(made) == 0 else -1]

    def aside() -> list[int]:
        before = value_of(driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            return allocate()
        finally:
            driver.cuThreadExchangeStreamCaptureMode(before)

    def elsewhere(work: Callable[[], list[int]]) -> list[int]:
        found: list[int] = []

        def run() -> None:
            driver.cuCtxSetCurrent(ground.context)
            found.extend(work())

        thread = Thread(target=run)
        thread.start()
        thread.join()
        return found

    ways = {"this thread": lambda work: work(), "another thread": elsewhere}
    for where, run in ways.items():
        for how, work in {"as it is": allocate, "in the relaxed mode": aside}.items():
            stream = _capture(ground, 0)
            codes = run(work)
            yield f"{where}, {how}", [*codes, code_of(driver.cuStreamEndCapture(stream))]


@case("memory allocated in a capture")
def _allocated(ground: Ground) -> Answers:
    driver = ground.driver
    stream = _capture(ground, 0)
    address = int(value_of(driver.cuMemAllocAsync(4096, stream)))
    yield "cuMemsetD8Async in it", code_of(driver.cuMemsetD8Async(address, 1, 16, stream))
    graph = value_of(driver.cuStreamEndCapture(stream))
    yield "cuMemsetD8 before the graph runs", code_of(driver.cuMemsetD8(address, 0, 16))
    made = driver.cuGraphInstantiate(graph, 0)
    yield "cuGraphInstantiate", code_of(made)
    if code_of(made) == 0:
        yield "cuGraphLaunch", code_of(driver.cuGraphLaunch(made[1], stream))
        yield "cuStreamSynchronize", code_of(driver.cuStreamSynchronize(stream))
        yield "cuMemsetD8 afterwards", code_of(driver.cuMemsetD8(address, 0, 16))


@case("figures of the device")
def _figures(ground: Ground) -> Answers:
    yield "name", value_of(ground.driver.cuDeviceGetName(256, 0)).partition(b"\0")[0].decode()
    for number in ground.driver.CUdevice_attribute:
        answer = ground.driver.cuDeviceGetAttribute(number, 0)
        name = str(number.name).removeprefix("CU_DEVICE_ATTRIBUTE_")
        yield name, -code_of(answer) if code_of(answer) else int(answer[1])


@case("parameters of all sizes")
def _parameters(ground: Ground) -> Answers:
    memory = ground.memory()
    yield "right", write(ground, memory)
    yield "null", ground.launch("four", [pointer(0)] * 4)
    yield "maps", ground.launch("maps", [bytes(256), bytes(8)])
    yield "cuCtxSynchronize", ground.synchronize()
