"""Cases: what a launch may ask for: threads, registers, shared memory, clusters."""

from __future__ import annotations

from cases import Answers, case
from ground import Ground, code_of

_KIB = 1024


@case("grids and blocks")
def _shapes(ground: Ground) -> Answers:
    shapes = {
        "1024 threads": {"block": (1024, 1, 1)},
        "1025 threads": {"block": (1025, 1, 1)},
        "2048 threads": {"block": (32, 32, 2)},
        "64 in z": {"block": (1, 1, 64)},
        "65 in z": {"block": (1, 1, 65)},
        "no thread": {"block": (0, 1, 1)},
        "no block": {"grid": (0, 1, 1)},
        "65535 blocks in y": {"grid": (1, 65535, 1)},
        "65536 blocks in y": {"grid": (1, 65536, 1)},
        "65536 blocks in z": {"grid": (1, 1, 65536)},
        "2^31 blocks in x": {"grid": (2**31, 1, 1)},
    }
    for what, shape in shapes.items():
        yield what, ground.launch("none", **shape)
    yield "cuCtxSynchronize", ground.synchronize()


@case("bounds of a kernel on its threads")
def _bounds(ground: Ground) -> Answers:
    memory = ground.memory()
    wide = [memory.to_bytes(8, "little")]
    yield "220 registers, 256 threads", ground.launch("hungry", wide, block=(256, 1, 1))
    yield "220 registers, 1024 threads", ground.launch("hungry", wide, block=(1024, 1, 1))
    yield "maxntid 128x2: 128x2", ground.launch("bounded", block=(128, 2, 1))
    yield "maxntid 128x2: 256x1", ground.launch("bounded", block=(256, 1, 1))
    yield "maxntid 128x2: 257x1", ground.launch("bounded", block=(257, 1, 1))
    yield "reqntid 64: 64", ground.launch("exact", block=(64, 1, 1))
    yield "reqntid 64: 32", ground.launch("exact", block=(32, 1, 1))
    yield "reqntid 64: 128", ground.launch("exact", block=(128, 1, 1))
    yield "reqntid 64: 32x2", ground.launch("exact", block=(32, 2, 1))
    yield "cuCtxSynchronize", ground.synchronize()


@case("dynamic shared memory")
def _shared(ground: Ground) -> Answers:
    most = ground.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    name = "MAX_DYNAMIC_SHARED_SIZE_BYTES"
    yield "48 KiB", ground.launch("none", smem_bytes=48 * _KIB)
    yield "48 KiB + 16", ground.launch("none", smem_bytes=48 * _KIB + 16)
    yield "48 KiB beside 512 static bytes", _beside(ground, 48 * _KIB)
    yield "allow -1", ground.allow("none", name, -1)
    yield "allow one more than there is", ground.allow("none", name, most + 1)
    yield "allow all there is", ground.allow("none", name, most)
    yield "all there is", ground.launch("none", smem_bytes=most)
    yield "one more than there is", ground.launch("none", smem_bytes=most + 1)
    yield "allow all beside 512 static bytes", ground.allow("plain", name, most)
    yield "allow all but 512", ground.allow("plain", name, most - 512)
    yield "all but 512 beside 512", _beside(ground, most - 512)
    yield "allow 60 KiB", ground.allow("four", name, 60 * _KIB)
    yield "61 KiB where 60 are allowed", ground.launch("four", [bytes(8)] * 4, smem_bytes=61 * _KIB)
    yield "cuCtxSynchronize", ground.synchronize()


def _beside(ground: Ground, smem_bytes: int) -> int:
    target = ground.memory().to_bytes(8, "little")
    return ground.launch("plain", [target, bytes(128), bytes(4)], smem_bytes=smem_bytes)


@case("clusters")
def _clusters(ground: Ground) -> Answers:
    def launch(name: str, size: int, **more: object) -> int:
        return ground.launch(name, grid=(size * 2, 1, 1), cluster=(size, 1, 1), **more)

    for size in (1, 2, 3, 8, 9, 16):
        yield f"{size} blocks", launch("none", size)
    yield "a grid of 5 in clusters of 2", ground.launch("none", grid=(5, 1, 1), cluster=(2, 1, 1))
    yield "a cluster of 0", ground.launch("none", cluster=(0, 0, 0))
    yield "allow non-portable sizes", ground.allow("none", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    for size in (9, 12, 16, 17, 32):
        yield f"{size} blocks, allowed", launch("none", size)
    yield "needs 4x2: none", ground.launch("clustered", grid=(8, 2, 1))
    yield "needs 4x2: 4x2", ground.launch("clustered", grid=(8, 2, 1), cluster=(4, 2, 1))
    yield "needs 4x2: 2x2", ground.launch("clustered", grid=(8, 2, 1), cluster=(2, 2, 1))
    yield "needs 4x2: none, grid of 3", ground.launch("clustered", grid=(3, 1, 1))
    yield "at most 4: none", ground.launch("ranked")
    yield "at most 4: 4", launch("ranked", 4)
    yield "at most 4: 8", launch("ranked", 8)
    yield "programmatic launch", ground.launch("none", pdl=True)
    yield "cuCtxSynchronize", ground.synchronize()


@case("clusters that do not fit beside each other")
def _occupancy(ground: Ground) -> Answers:
    most = ground.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    yield "allow memory", ground.allow("none", "MAX_DYNAMIC_SHARED_SIZE_BYTES", most)
    yield "allow sizes", ground.allow("none", "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    function = ground.function("none")
    for size in (1, 2, 4, 8, 16, 32):
        for smem_bytes in (0, 100 * _KIB, most):
            what = f"clusters of {size} with {smem_bytes} bytes"
            config = ground.config(
                grid=(size, 1, 1), block=(384, 1, 1), cluster=(size, 1, 1), smem_bytes=smem_bytes
            )
            counted = ground.driver.cuOccupancyMaxActiveClusters(function, config)
            yield f"active {what}", _value(counted)
    config = ground.config(block=(384, 1, 1), smem_bytes=most)
    largest = ground.driver.cuOccupancyMaxPotentialClusterSize(function, config)
    yield "largest cluster with all shared memory", _value(largest)
    count = ground.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    for threads in (32, 128, 384, 1024):
        yield f"blocks of {threads} threads", _value(count(function, threads, 0))
    yield "blocks with 100 KiB", _value(count(function, 128, 100 * _KIB))


def _value(result: tuple[object, ...]) -> object:
    """Return a value, or the code as a negative number."""
    return -code_of(result) if code_of(result) else result[1]
