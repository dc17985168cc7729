"""Cases: images, and what becomes of them on a device that they are not for."""

from __future__ import annotations

import re

from cases import Answers, case
from ground import ARCHITECTURES, Ground, code_of, value_of

PTX = """.version {version}
.target {target}
.address_size 64
.visible .entry none() {{ {body} }}
"""


def _all_the_way(ground: Ground, what: str, image: bytes) -> Answers:
    """Load an image and go on as far as it goes, to a launch."""
    driver = ground.driver
    loaded = ground.load(image)
    yield f"{what}: cuLibraryLoadData", code_of(loaded)
    if code_of(loaded):
        return
    found = driver.cuLibraryGetKernel(loaded[1], b"none")
    yield f"{what}: cuLibraryGetKernel", code_of(found)
    if code_of(found):
        return
    function = driver.cuKernelGetFunction(found[1])
    yield f"{what}: cuKernelGetFunction", code_of(function)
    yield f"{what}: launch of the kernel", ground.launch(found[1])
    if code_of(function) == 0:
        yield f"{what}: cuFuncLoad", code_of(driver.cuFuncLoad(function[1]))
    yield f"{what}: cuCtxSynchronize", ground.synchronize()


@case("cubins for each architecture")
def _architectures(ground: Ground) -> Answers:
    for arch in ARCHITECTURES:
        yield from _all_the_way(ground, arch, ground.image(arch))


@case("cubins for each architecture loaded eagerly", CUDA_MODULE_LOADING="EAGER")
def _eagerly(ground: Ground) -> Answers:
    for arch in ARCHITECTURES:
        yield from _all_the_way(ground, arch, ground.image(arch))


@case("cubins as modules")
def _modules(ground: Ground) -> Answers:
    for arch in ARCHITECTURES:
        yield arch, code_of(ground.driver.cuModuleLoadData(ground.image(arch)))


@case("a cubin of a toolkit that is newer than the driver")
def _toolkit(ground: Ground) -> Answers:
    newer = re.sub(rb"release \d\d\.", b"release 99.", ground.image())
    yield "the note was changed", newer != ground.image()
    yield from _all_the_way(ground, "99", newer)


@case("images that are none")
def _garbage(ground: Ground) -> Answers:
    image = ground.image()
    wrong = {
        "text": b"this is no image" * 8,
        "zeros": bytes(256),
        "the first 64 bytes": image[:64] + bytes(4096),
        "another machine": image[:18] + b"\x3e\0" + image[20:],
    }
    for what, data in wrong.items():
        yield f"{what}: cuLibraryLoadData", code_of(ground.load(data))
        yield f"{what}: cuModuleLoadData", code_of(ground.driver.cuModuleLoadData(data))


@case("PTX")
def _ptx(ground: Ground) -> Answers:
    texts = {
        "PTX 8.0": PTX.format(version="8.0", target="sm_80", body="ret;"),
        "PTX 99.9": PTX.format(version="99.9", target="sm_80", body="ret;"),
        "PTX with a mistake": PTX.format(version="8.0", target="sm_80", body="frobnicate;"),
        "PTX for sm_121": PTX.format(version="9.0", target="sm_121", body="ret;"),
    }
    for what, text in texts.items():
        yield from _all_the_way(ground, what, text.encode() + b"\0")


@case("names and numbers that do not exist")
def _names(ground: Ground) -> Answers:
    driver = ground.driver
    library = value_of(ground.load(ground.image()))
    yield "a kernel", code_of(driver.cuLibraryGetKernel(library, b"no_such_kernel"))
    yield "a global", code_of(driver.cuLibraryGetGlobal(library, b"no_such_global"))
    module = value_of(driver.cuModuleLoadData(ground.image()))
    yield "a function", code_of(driver.cuModuleGetFunction(module, b"no_such_kernel"))
    plain = ground.kernel("plain")
    for index in range(4):
        answer = driver.cuKernelGetParamInfo(plain, index)
        yield f"parameter {index}", [code_of(answer), *map(int, answer[1:] if answer[1] else ())]
    yield "device 99", code_of(driver.cuDeviceGet(99))
    yield "attribute 9999 of the device", _attribute_9999(ground)


def _attribute_9999(ground: Ground) -> object:
    try:
        return code_of(ground.driver.cuDeviceGetAttribute(9999, 0))
    except (TypeError, ValueError, AttributeError):
        return "the binding refuses it"


@case("attributes of kernels")
def _attributes(ground: Ground) -> Answers:
    names = (
        *("MAX_THREADS_PER_BLOCK", "SHARED_SIZE_BYTES", "CONST_SIZE_BYTES", "LOCAL_SIZE_BYTES"),
        *("NUM_REGS", "PTX_VERSION", "BINARY_VERSION", "MAX_DYNAMIC_SHARED_SIZE_BYTES"),
        *("CLUSTER_SIZE_MUST_BE_SET", "REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT"),
        "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    )
    kinds = ground.driver.CUfunction_attribute
    for kernel in ("plain", "hungry", "bounded", "exact", "clustered", "ranked"):
        for name in names:
            number = getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}")
            answer = ground.driver.cuKernelGetAttribute(number, ground.kernel(kernel), 0)
            yield f"{kernel}: {name}", answer[1] if code_of(answer) == 0 else -code_of(answer)
