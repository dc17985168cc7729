"""What can go wrong, each with its exact message: one table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import foreign
import made
import numpy as np
import pytest
import standin as control

from pallasc.errors import PallascError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.opening import Kernels
from pallasc.specs.artifacts.plan import Bytes, Copy

EXPECTED = Path(__file__).parent / "faults.json"


@dataclass
class World:
    """What a fault is made in: the stand-in, a framework, and a kernel `made` over a, b and out."""

    driver: Any
    framework: Any

    def kernel(self, **changes: Any) -> Any:
        return made.kernel(made.add(**changes))

    def tensor(self, text: str = "f32[4, 64]", device: int = 0) -> Any:
        return self.framework.tensor(text, device=device)

    def call(self, kernel: Any = None, **changes: Any) -> Any:
        """Call with two right arrays, the first one changed in these attributes."""
        kernel = kernel or self.kernel()
        one, other = self.tensor(), self.tensor()
        for name, value in changes.items():
            setattr(one, name, value)
        return kernel(one, other)

    def again(self, function: str, code: int, **options: Any) -> Any:
        """Call once, then let a function of the driver fail, and call again."""
        kernel = self.kernel()
        one, other, out = self.tensor(), self.tensor(), self.tensor()
        kernel.into(one, other, out=out)
        self.driver.fault(function, code, **options)
        return kernel.into(one, other, out=out)

    def first(self, function: str, code: int, kernel: Any = None) -> Any:
        """Let a function of the driver fail at the first call of a kernel."""
        kernel = kernel or self.kernel()
        one, other = self.tensor(), self.tensor()
        self.driver.fault(function, code)
        return kernel(one, other)


FAULTS: dict[str, Callable[[World], Any]] = {}


def fault(function: Callable[[World], Any]) -> Callable[[World], Any]:
    FAULTS[function.__name__] = function
    return function


def _foreign(**changes: Any) -> Any:
    """Return an array with nothing but `__cuda_array_interface__`."""
    told = {"data": (0, False), "typestr": "<f4", "shape": (4, 64), "version": 3, **changes}
    return type("Foreign", (), {"__cuda_array_interface__": told})()


# ---- the driver and the GPUs


@fault
def driver_too_old_for_anything(w: World) -> Any:
    w.driver.configure(driver_version=11080)
    return get_device(0)


@fault
def no_gpu(w: World) -> Any:
    w.driver.configure(init_code=100)
    return get_device(0)


@fault
def wrong_visible_devices(w: World) -> Any:
    w.driver.configure(init_code=101)
    return get_device(0)


@fault
def fabric_not_ready(w: World) -> Any:
    w.driver.configure(init_code=802)
    return get_device(0)


@fault
def library_and_module_differ(w: World) -> Any:
    w.driver.configure(init_code=803)
    return get_device(0)


@fault
def compatibility_library_on_this_gpu(w: World) -> Any:
    w.driver.configure(init_code=804)
    return get_device(0)


@fault
def driver_shutting_down(w: World) -> Any:
    w.driver.configure(init_code=3)
    return get_device(0)


@fault
def driver_with_unknown_error(w: World) -> Any:
    w.driver.configure(init_code=999)
    return get_device(0)


@fault
def gpu_of_that_number(w: World) -> Any:
    return get_device(3)


@fault
def context_not_created(w: World) -> Any:
    w.driver.fault("cuDevicePrimaryCtxRetain", 2)
    return get_device(0)


@fault
def gpu_count_fails(w: World) -> Any:
    w.driver.fault("cuDeviceGetCount", 999)
    return get_device(0)


# ---- no variant


@fault
def driver_older_than_the_cubin(w: World) -> Any:
    w.driver.configure(driver_version=12080)
    return w.call()


@fault
def toolkit_newer_than_the_driver(w: World) -> Any:
    w.driver.configure(driver_version=12080)
    needs = {"cuda": "12.0", "linux": "525.60.13"}
    return w.call(w.kernel(minimum_driver=needs))


@fault
def damaged_minimum_driver(w: World) -> Any:
    return w.call(w.kernel(minimum_driver={"cuda": "soon"}))


@fault
def accelerated_code_on_another_gpu(w: World) -> Any:
    w.driver.devices("10.0")
    return w.call()


@fault
def plain_code_on_an_older_gpu(w: World) -> Any:
    w.driver.devices("8.0")
    return w.call(w.kernel(target="a6000"))


@fault
def code_of_another_family(w: World) -> Any:
    w.driver.devices("12.0")
    return w.call(w.kernel(target="b200", arch="sm_100f"))


@fault
def desktop_code_on_an_embedded_gpu(w: World) -> Any:
    w.driver.devices("8.7")
    return w.call(w.kernel(target="a100-sxm"))


@fault
def several_candidates_each_with_its_reason(w: World) -> Any:
    entries = [
        ("sum", {"m": 4}, made.add(target="b200")),
        ("sum", {"m": 8}, made.add(inputs={"a": "f32[8, 64]", "b": "f32[4, 64]"})),
        ("sum", {"m": 2}, made.add(inputs={"a": "bf16[4, 64]", "b": "f32[4, 64]"})),
        ("sum", {"m": 1}, made.add(minimum_driver={"cuda": "13.9", "linux": "999.1"})),
    ]
    return Kernels(entries)["sum"](w.tensor(), w.tensor())


@fault
def arrays_that_no_variant_takes(w: World) -> Any:
    entries = [
        ("sum", {"m": 4}, made.add(target="b200")),
        ("sum", {"m": 8}, made.add(inputs={"a": "f32[8, 64]", "b": "f32[4, 64]"})),
        ("sum", {"m": 2}, made.add(inputs={"a": "bf16[4, 64]", "b": "f32[4, 64]"})),
    ]
    return Kernels(entries)["sum"](w.tensor("f32[4, 32]"), w.tensor())


@fault
def several_variants_fit(w: World) -> Any:
    entries = [("sum", {"tile": tile, "act": act}, made.add()) for tile in (64, 128)
               for act in ("relu", "gelu")]  # fmt: skip
    return Kernels(entries)["sum"].variant(tile=64)(w.tensor(), w.tensor())


@fault
def more_shared_memory_than_the_gpu_has(w: World) -> Any:
    w.driver.devices(control.Device("9.0", smem_optin_bytes=100_000))
    step = made.launch("three", 0, 1, 2, dynamic_smem_bytes=120_000)
    return w.call(made.kernel(made.artifact(step)))


@fault
def fewer_multiprocessors_than_blocks_at_a_time(w: World) -> Any:
    w.driver.devices(control.Device("9.0", sms=114))
    step = made.launch("three", 0, 1, 2, grid=(132, 1, 1), dynamic_smem_bytes=200_000)
    return w.call(made.kernel(made.artifact(step)))


@fault
def no_such_parameter_value(w: World) -> Any:
    kernel = Kernels([("sum", {"tile": 64}, made.add())])["sum"]
    return kernel(w.tensor(), w.tensor(), tile=32)


# ---- the artifact


@fault
def cubin_for_another_architecture(w: World) -> Any:
    return w.call(w.kernel(code=made.cubin("sm_80")))


@fault
def cubin_that_is_none(w: World) -> Any:
    return w.call(w.kernel(code=b"not a cubin"))


@fault
def cubin_with_other_bytes(w: World) -> Any:
    whole = made.add()
    try:
        return w.call(made.kernel(made.Artifact(whole.record, lambda _: b"something else")))
    except PallascError as error:
        error.message = re.sub(r"[0-9a-f]{64}", "…", error.message)
        raise


@fault
def kernel_not_in_the_cubin(w: World) -> Any:
    return w.call(made.kernel(made.artifact(made.launch("six", 0, 1, 2))))


@fault
def too_few_parameters(w: World) -> Any:
    return w.call(made.kernel(made.artifact(made.launch("three", 0, 1))))


@fault
def parameter_of_another_size(w: World) -> Any:
    value = Bytes(16, "00" * 16, ())
    return w.call(made.kernel(made.artifact(made.launch("three", 0, 1, value))))


@fault
def driver_reads_other_parameters(w: World) -> Any:
    return w.first("cuKernelGetParamInfo", 1)


@fault
def grid_without_whole_clusters(w: World) -> Any:
    step = made.launch("three", 0, 1, 2, grid=(3, 1, 1), cluster=(2, 1, 1))
    return w.call(made.kernel(made.artifact(step)))


@fault
def cluster_too_large(w: World) -> Any:
    w.driver.devices(control.Device("9.0", max_cluster=8, sms=132))
    step = made.launch(
        "three", 0, 1, 2, grid=(16, 1, 1), cluster=(16, 1, 1), dynamic_smem_bytes=200_000
    )
    return w.call(made.kernel(made.artifact(step)))


@fault
def tensor_map_of_unknown_type(w: World) -> Any:
    wrong = replace(made.tensor_map(1), dtype="float17")
    step = made.launch("mapped", 0, made.maps(*[wrong] * 4))
    return w.call(made.kernel(made.artifact(step)))


@fault
def tensor_map_that_breaks_a_rule(w: World) -> Any:
    wrong = replace(made.tensor_map(1), box=(512, 8))
    step = made.launch("mapped", 0, made.maps(*[wrong] * 4))
    return w.call(made.kernel(made.artifact(step)))


@fault
def tensor_map_with_a_damaged_window(w: World) -> Any:
    wrong = replace(made.tensor_map(1, dims=(8, 4, 2)), im2col={"lower": [0]})
    step = made.launch("mapped", 0, made.maps(*[wrong] * 4))
    return w.call(made.kernel(made.artifact(step)))


@fault
def tensor_map_that_the_driver_refuses(w: World) -> Any:
    step = made.launch("mapped", 0, made.maps(*[made.tensor_map(1)] * 4))
    return w.first("cuTensorMapEncodeTiled", 1, made.kernel(made.artifact(step)))


@fault
def array_smaller_than_its_buffer(w: World) -> Any:
    whole = made.add()
    plan = json.loads(json.dumps(whole.record["plan"]))
    plan["buffers"][1]["size"] += 4
    return w.call(made.kernel(made.Artifact({**whole.record, "plan": plan}, whole.blob)))


@fault
def kernel_that_the_artifact_does_not_describe(w: World) -> Any:
    whole = made.add()
    return w.call(made.kernel(made.Artifact({**whole.record, "kernels": []}, whole.blob)))


# ---- arrays


@fault
def wrong_dtype(w: World) -> Any:
    return w.call(dtype="bf16")


@fault
def wrong_shape(w: World) -> Any:
    return w.call(shape=(2, 128))


@fault
def wrong_rank(w: World) -> Any:
    return w.call(shape=(256,))


@fault
def not_contiguous(w: World) -> Any:
    return w.call(contiguous=False)


@fault
def misaligned_view(w: World) -> Any:
    one = w.tensor("f32[1024]")
    view = made.Tensor(one.pointer + 16, "f32", (4, 64))
    try:
        return w.kernel()(view, w.tensor())
    except PallascError as error:
        error.message = error.message.replace(f"{view.pointer:#x}", "0x…10")
        raise


@fault
def array_on_another_gpu(w: World) -> Any:
    w.driver.devices("9.0", "9.0")
    return w.kernel()(w.tensor(), w.tensor(device=1))


@fault
def array_on_the_host(w: World) -> Any:
    return w.kernel()(w.tensor(), np.zeros((4, 64), np.float32))


@fault
def tensors_on_the_host(w: World) -> Any:
    return w.kernel()(*(made.Tensor(4096, "f32", (4, 64), device_number=-1) for _ in range(2)))


@fault
def numpy_scalar(w: World) -> Any:
    return w.kernel()(np.float32(3), w.tensor())


@fault
def big_endian_array(w: World) -> Any:
    one = np.zeros((4, 64), ">f4")
    return w.kernel()(one, one)


@fault
def none_for_an_array(w: World) -> Any:
    return w.kernel()(w.tensor(), None)


@fault
def number_for_an_array(w: World) -> Any:
    return w.kernel()(w.tensor(), 3.0)


@fault
def list_for_an_array(w: World) -> Any:
    return w.kernel()(w.tensor(), [1.0, 2.0])


@fault
def too_few_arrays(w: World) -> Any:
    return w.kernel()(w.tensor())


@fault
def too_many_arrays(w: World) -> Any:
    return w.kernel()(w.tensor(), w.tensor(), w.tensor())


@fault
def unknown_keyword(w: World) -> Any:
    return w.kernel()(w.tensor(), w.tensor(), steam=3)


@fault
def array_given_twice(w: World) -> Any:
    return w.kernel()(w.tensor(), w.tensor(), a=w.tensor())


@fault
def something_where_none_was_compiled(w: World) -> Any:
    tree = {"a": 0, "b": 1, "mask": None}
    return w.kernel(input_tree=tree)(w.tensor(), w.tensor(), w.tensor())


@fault
def out_missing(w: World) -> Any:
    return w.kernel().into(w.tensor(), w.tensor())


@fault
def out_of_another_dtype(w: World) -> Any:
    return w.kernel().into(w.tensor(), w.tensor(), out=w.tensor("f16[4, 64]"))


@fault
def out_of_another_shape(w: World) -> Any:
    return w.kernel().into(w.tensor(), w.tensor(), out=w.tensor("f32[4, 32]"))


@fault
def out_on_another_gpu(w: World) -> Any:
    w.driver.devices("9.0", "9.0")
    return w.kernel().into(w.tensor(), w.tensor(), out=w.tensor(device=1))


@fault
def out_not_contiguous(w: World) -> Any:
    out = w.tensor()
    out.contiguous = False
    return w.kernel().into(w.tensor(), w.tensor(), out=out)


@fault
def out_of_another_structure(w: World) -> Any:
    out = w.tensor()
    kernel = made.kernel(
        made.artifact(made.launch("four", 0, 1, 2, 3), outputs=["f32[4, 64]", "f32[4, 64]"])
    )
    return kernel.into(w.tensor(), w.tensor(), out=(out, out, out))


@fault
def out_read_only(w: World) -> Any:
    out = np.zeros((4, 64), np.float32)
    out.flags.writeable = False
    one = np.zeros((4, 64), np.float32)
    return w.kernel().into(one, one, out=out)


@fault
def out_overlaps_an_input(w: World) -> Any:
    one = w.tensor("f32[8, 64]")
    half = made.Tensor(one.pointer + 512, "f32", (4, 64))
    return w.kernel().into(made.Tensor(one.pointer, "f32", (4, 64)), w.tensor(), out=half)


@fault
def out_is_not_the_updated_input(w: World) -> Any:
    kernel = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]))
    return kernel.into(w.tensor(), w.tensor(), out=w.tensor())


@fault
def masked_array(w: World) -> Any:
    return w.kernel()(_foreign(mask=object()), w.tensor())


@fault
def interface_without_a_dtype(w: World) -> Any:
    return w.kernel()(_foreign(typestr="<V2"), w.tensor())


@fault
def memory_of_no_gpu(w: World) -> Any:
    return w.kernel()(_foreign(data=(4096, False)), w.tensor())


@fault
def dlpack_elsewhere(w: World) -> Any:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

        def __dlpack__(self, stream: Any = None) -> Any:
            return None

    return w.kernel()(Elsewhere(), w.tensor())


@fault
def dlpack_without_a_capsule(w: World) -> Any:
    class Empty:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, stream: Any = None) -> Any:
            return 7

    return w.kernel()(Empty(), w.tensor())


@fault
def interface_without_an_address(w: World) -> Any:
    return w.kernel()(_foreign(), w.tensor())


@fault
def interface_that_is_no_mapping(w: World) -> Any:
    return w.kernel()(type("Odd", (), {"__cuda_array_interface__": 7})(), w.tensor())


@fault
def interface_with_a_wrong_field(w: World) -> Any:
    return w.kernel()(_foreign(data=4096), w.tensor())


@fault
def interface_without_a_shape(w: World) -> Any:
    return w.kernel()(_foreign(shape=None), w.tensor())


@fault
def interface_with_stream_zero(w: World) -> Any:
    return w.kernel()(_foreign(data=(w.tensor().pointer, False), stream=0), w.tensor())


@fault
def dlpack_of_a_later_version(w: World) -> Any:
    return w.kernel()(foreign.DlpackArray(w.tensor(), version=(2, 0)), w.tensor())


@fault
def dlpack_of_a_copy(w: World) -> Any:
    return w.kernel()(foreign.DlpackArray(w.tensor(), version=(1, 0), flags=2), w.tensor())


@fault
def dlpack_on_another_device_than_it_says(w: World) -> Any:
    return w.kernel()(foreign.DlpackArray(w.tensor(), kind=1), w.tensor())


@fault
def dlpack_read_only_as_out(w: World) -> Any:
    locked = foreign.DlpackArray(w.tensor(), version=(1, 0), flags=1)
    return w.kernel().into(w.tensor(), w.tensor(), out=locked)


@fault
def dlpack_that_cannot_be_exported(w: World) -> Any:
    class Unready:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("cannot be shared")

    return w.kernel()(Unready(), w.tensor())


@fault
def dlpack_without_a_device(w: World) -> Any:
    class Nowhere:
        def __dlpack_device__(self) -> None: ...

        def __dlpack__(self, **_: Any) -> Any: ...

    return w.kernel()(Nowhere(), w.tensor())


@fault
def masked_array_of_numpy(w: World) -> Any:
    one = np.zeros((4, 64), np.float32)
    return w.kernel()(np.ma.masked_array(one, mask=one == 0), one)


@fault
def structured_array_of_numpy(w: World) -> Any:
    one = np.zeros((4, 64), [("x", np.float32)])
    return w.kernel()(one, one)


@fault
def objects_in_an_array_of_numpy(w: World) -> Any:
    one = np.zeros((4, 64), object)
    return w.kernel()(one, one)


@fault
def text_for_an_array(w: World) -> Any:
    return w.kernel()("a", w.tensor())


@fault
def type_for_an_array(w: World) -> Any:
    return w.kernel()(np.ndarray, w.tensor())


@fault
def objects_copied_to_a_device_array(w: World) -> Any:
    return DeviceArray((4, 64), "f32").copy_from(3)


# ---- streams


@fault
def stream_that_is_none(w: World) -> Any:
    return w.kernel()(w.tensor(), w.tensor(), stream="fast")


@fault
def stream_of_another_gpu(w: World) -> Any:
    w.driver.devices("9.0", "9.0")
    from pallasc.runtime.device.devices import active

    with active(get_device(1)) as driver:
        stream = int(driver.call("cuStreamCreate", 1, what="a stream"))
    try:
        return w.kernel()(w.tensor(), w.tensor(), stream=stream)
    except PallascError as error:
        error.message = error.message.replace(f"{stream:#x}", "0x…")
        raise


@fault
def stream_that_does_not_exist(w: World) -> Any:
    return w.kernel()(w.tensor(), w.tensor(), stream=12345)


@fault
def not_loaded_before_a_capture(w: World) -> Any:
    from pallasc.runtime.device.devices import active

    with active(get_device(0)) as driver:
        stream = int(driver.call("cuStreamCreate", 1, what="a stream"))
        mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        one, other, out = w.tensor(), w.tensor(), w.tensor()
        driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
        return w.kernel().into(one, other, out=out, stream=stream)


# ---- what the driver answers


@fault
def out_of_memory_for_the_cubin(w: World) -> Any:
    try:
        return w.first("cuLibraryLoadData", 2)
    except PallascError as error:
        error.message = re.sub(r"cubin [0-9a-f]{12}", "cubin …", error.message)
        raise


@fault
def out_of_memory_for_constants(w: World) -> Any:
    kernel = made.kernel(made.artifact(made.launch("four", 0, 1, 2, 3), constants=[bytes(64)]))
    return w.first("cuMemAlloc_v2", 2, kernel)


@fault
def out_of_memory_for_temporaries(w: World) -> Any:
    w.framework.has_pool = False
    kernel = made.kernel(made.artifact(made.launch("four", 0, 1, 2, 3), temporaries=[1 << 20]))
    return w.first("cuMemAllocAsync", 2, kernel)


@fault
def out_of_memory_for_a_device_array(w: World) -> Any:
    w.driver.fault("cuMemAlloc_v2", 2)
    return DeviceArray((4, 64), "f32")


@fault
def out_of_memory_for_copies_of_host_arrays(w: World) -> Any:
    one = np.zeros((4, 64), np.float32)
    w.driver.fault("cuMemAllocAsync", 2)
    return w.kernel()(one, one)


@fault
def illegal_address_in_an_earlier_kernel(w: World) -> Any:
    return w.again("cuLaunchKernelEx", 700)


@fault
def launch_failure_in_an_earlier_kernel(w: World) -> Any:
    return w.again("cuLaunchKernelEx", 719)


@fault
def failure_found_while_copying_back(w: World) -> Any:
    one = np.zeros((4, 64), np.float32)
    w.driver.fault("cuStreamSynchronize", 700)
    return w.kernel()(one, one)


@fault
def too_many_resources(w: World) -> Any:
    return w.again("cuLaunchKernelEx", 701)


@fault
def cluster_refused_at_the_launch(w: World) -> Any:
    return w.again("cuLaunchKernelEx", 912)


@fault
def failing_step(w: World) -> Any:
    steps = (Copy(0, 0, 2, 0, 1024), made.launch("three", 0, 1, 2))
    kernel = made.kernel(made.artifact(*steps))
    one, other, out = w.tensor(), w.tensor(), w.tensor()
    w.driver.fault("cuMemcpyDtoDAsync_v2", 1)
    return kernel.into(one, other, out=out)


@fault
def no_room_for_the_code(w: World) -> Any:
    return w.first("cuFuncLoad", 2)


@fault
def attribute_refused(w: World) -> Any:
    step = made.launch("three", 0, 1, 2, dynamic_smem_bytes=100_000)
    return w.first("cuKernelSetAttribute", 1, made.kernel(made.artifact(step)))


@fault
def kernel_without_variants(w: World) -> Any:
    from pallasc.runtime.kernel import Kernel

    return Kernel("sum", [])


@fault
def unknown_kernel(w: World) -> Any:
    return Kernels([("sum", {}, made.add())])["sun"]


def message(name: str, world: World) -> list[str]:
    """Return what a fault says: class, exit code, and text in lines."""
    with pytest.raises(PallascError) as caught:
        FAULTS[name](world)
    error = caught.value
    return [f"{type(error).__name__} {error.exit_code}", *str(error).splitlines()]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_message(name: str, runtime: Any, framework: Any) -> None:
    expected = json.loads(EXPECTED.read_text())
    assert message(name, World(runtime, framework)) == expected[name]


def test_the_table_has_no_faults_that_are_gone() -> None:
    assert list(json.loads(EXPECTED.read_text())) == list(FAULTS)
