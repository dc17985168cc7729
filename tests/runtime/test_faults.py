"""What can go wrong, each with its exact message: one table."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foreign
import made
import numpy as np
import pytest
import standin as control
from msgspec.structs import replace

from pallasc.errors import PallascError
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.kernel import Kernel
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

    def driver_with(self, **options: Any) -> "World":
        self.driver.configure(**options)
        return self

    def on(self, *devices: Any) -> "World":
        self.driver.devices(*devices)
        return self

    def failing(self, function: str, code: int) -> "World":
        self.driver.fault(function, code)
        return self

    def opened(self) -> Any:
        return get_device(0)

    def call(self, kernel: Any = None, **changes: Any) -> Any:
        """Call with two right arrays, the first of them changed in these attributes."""
        return (kernel or self.kernel())(_changed(self.tensor(), **changes), self.tensor())

    def into(self, out: Any, kernel: Any = None) -> Any:
        """Call with two right arrays and this `out`."""
        return (kernel or self.kernel()).into(self.tensor(), self.tensor(), out=out)

    def again(self, function: str, code: int) -> Any:
        """Call, then let a function of the driver fail, and call again."""
        kernel = self.kernel()
        first, second, out = self.tensor(), self.tensor(), self.tensor()
        kernel.into(first, second, out=out)
        self.driver.fault(function, code)
        return kernel.into(first, second, out=out)

    def first(self, function: str, code: int, kernel: Any = None) -> Any:
        """Let a function of the driver fail at the first call of a kernel."""
        kernel = kernel or self.kernel()
        first, second = self.tensor(), self.tensor()
        self.driver.fault(function, code)
        return kernel(first, second)


def _changed(tensor: Any, **changes: Any) -> Any:
    for name, value in changes.items():
        setattr(tensor, name, value)
    return tensor


def _launching(*launch: Any, **options: Any) -> Any:
    """Return a kernel of one launch; `outputs` and `constants` are options of the artifact."""
    whole = {name: options.pop(name) for name in ("outputs", "constants") if name in options}
    return made.kernel(made.artifact(made.launch(*launch, **options), **whole))


def _mapped(dims: Any = None, **changes: Any) -> Any:
    """Return a kernel that takes four tensor maps, changed in these fields."""
    tensor_map = made.tensor_map(1, dims=dims) if dims else made.tensor_map(1)
    return _launching("mapped", 0, made.maps(*[replace(tensor_map, **changes)] * 4))


def _recorded(**changes: Any) -> Any:
    """Return a kernel whose artifact's record is changed in these fields."""
    artifact = made.add()
    return made.kernel(made.Artifact({**artifact.record, **changes}, artifact.blob))


def _host(dtype: Any = np.float32, *, read_only: bool = False) -> Any:
    array = np.zeros((4, 64), dtype)
    array.flags.writeable = not read_only
    return array


def _foreign(**changes: Any) -> Any:
    """Return an array with nothing but `__cuda_array_interface__`."""
    fields = {"data": (0, False), "typestr": "<f4", "shape": (4, 64), "version": 3, **changes}
    return type("Foreign", (), {"__cuda_array_interface__": fields})()


def _dlpack(device: Any, capsule: Any) -> Any:
    """Return an array with nothing but DLPack; an exception for a capsule is raised."""

    def export(_: Any, **__: Any) -> Any:
        if isinstance(capsule, Exception):
            raise capsule
        return capsule

    methods = {"__dlpack_device__": lambda _: device, "__dlpack__": export}
    return type("Exporter", (), methods)()


NEW_DRIVER = {"cuda": "13.9", "linux": "999.1"}


def _candidates() -> list[Any]:
    return [
        ("sum", {"m": 4}, made.add(target="b200")),
        ("sum", {"m": 8}, made.add(inputs={"a": "f32[8, 64]", "b": "f32[4, 64]"})),
        ("sum", {"m": 2}, made.add(inputs={"a": "bf16[4, 64]", "b": "f32[4, 64]"})),
    ]


FAULTS: dict[str, Callable[[World], Any]] = {
    # the driver and the GPUs
    "driver_too_old_for_anything": lambda w: w.driver_with(driver_version=11080).opened(),
    "no_gpu": lambda w: w.driver_with(init_code=100).opened(),
    "wrong_visible_devices": lambda w: w.driver_with(init_code=101).opened(),
    "fabric_not_ready": lambda w: w.driver_with(init_code=802).opened(),
    "library_and_module_differ": lambda w: w.driver_with(init_code=803).opened(),
    "compatibility_library_on_this_gpu": lambda w: w.driver_with(init_code=804).opened(),
    "driver_shutting_down": lambda w: w.driver_with(init_code=3).opened(),
    "driver_with_unknown_error": lambda w: w.driver_with(init_code=999).opened(),
    "gpu_of_that_number": lambda w: get_device(3),
    "context_not_created": lambda w: w.failing("cuDevicePrimaryCtxRetain", 2).opened(),
    "gpu_count_fails": lambda w: w.failing("cuDeviceGetCount", 999).opened(),
    # no variant
    "driver_older_than_the_cubin": lambda w: w.driver_with(driver_version=12080).call(),
    "damaged_minimum_driver": lambda w: w.call(w.kernel(minimum_driver={"cuda": "soon"})),
    "accelerated_code_on_another_gpu": lambda w: w.on("10.0").call(),
    "plain_code_on_an_older_gpu": lambda w: w.on("8.0").call(w.kernel(target="a6000")),
    "code_of_another_family": lambda w: w.on("12.0").call(w.kernel(target="b200", arch="sm_100f")),
    "desktop_code_on_an_embedded_gpu": lambda w: w.on("8.7").call(w.kernel(target="a100-sxm")),
    "several_candidates_each_with_its_reason": lambda w: Kernels(
        [*_candidates(), ("sum", {"m": 1}, made.add(minimum_driver=NEW_DRIVER))]
    )["sum"](w.tensor(), w.tensor()),
    "arrays_that_no_variant_takes": lambda w: Kernels(_candidates())["sum"](
        w.tensor("f32[4, 32]"), w.tensor()
    ),
    "several_variants_fit": lambda w: Kernels(
        [
            ("sum", {"tile": t, "act": act}, made.add())
            for t in (64, 128)
            for act in ("relu", "gelu")
        ]
    )["sum"].variant(tile=64)(w.tensor(), w.tensor()),
    "more_shared_memory_than_the_gpu_has": lambda w: w.on(
        control.Device("9.0", smem_optin_bytes=100_000)
    ).call(_launching("three", 0, 1, 2, dynamic_smem_bytes=120_000)),
    "fewer_multiprocessors_than_blocks_at_a_time": lambda w: w.on(
        control.Device("9.0", sms=114)
    ).call(_launching("three", 0, 1, 2, grid=(132, 1, 1), dynamic_smem_bytes=200_000)),
    "no_such_parameter_value": lambda w: Kernels([("sum", {"tile": 64}, made.add())])["sum"](
        w.tensor(), w.tensor(), tile=32
    ),
    # the artifact
    "cubin_for_another_architecture": lambda w: w.call(w.kernel(code=made.cubin("sm_80"))),
    "cubin_that_is_none": lambda w: w.call(w.kernel(code=b"not a cubin")),
    "cubin_with_other_bytes": lambda w: w.call(
        made.kernel(made.Artifact(made.add().record, lambda _: b"something else"))
    ),
    "kernel_not_in_the_cubin": lambda w: w.call(_launching("six", 0, 1, 2)),
    "too_few_parameters": lambda w: w.call(_launching("three", 0, 1)),
    "parameter_of_another_size": lambda w: w.call(
        _launching("three", 0, 1, Bytes(16, "00" * 16, ()))
    ),
    "driver_reads_other_parameters": lambda w: w.first("cuKernelGetParamInfo", 1),
    "grid_without_whole_clusters": lambda w: w.call(
        _launching("three", 0, 1, 2, grid=(3, 1, 1), cluster=(2, 1, 1))
    ),
    "cluster_too_large": lambda w: w.on(control.Device("9.0", max_cluster=8, sms=132)).call(
        _launching(
            "three", 0, 1, 2, grid=(16, 1, 1), cluster=(16, 1, 1), dynamic_smem_bytes=200_000
        )
    ),
    "tensor_map_of_unknown_type": lambda w: w.call(_mapped(dtype="float17")),
    "tensor_map_that_breaks_a_rule": lambda w: w.call(_mapped(box=(512, 8))),
    "tensor_map_with_a_damaged_window": lambda w: w.call(
        _mapped(dims=(8, 4, 2), im2col={"lower": [0]})
    ),
    "tensor_map_that_the_driver_refuses": lambda w: w.first("cuTensorMapEncodeTiled", 1, _mapped()),
    "kernel_that_the_artifact_does_not_describe": lambda w: w.call(_recorded(kernels=[])),
    "array_smaller_than_its_buffer": lambda w: w.call(
        made.kernel(made.changed(made.add(), lambda plan: plan["buffers"][1].update(size=1028)))
    ),
    # arrays
    "wrong_dtype": lambda w: w.call(dtype="bf16"),
    "wrong_shape": lambda w: w.call(shape=(2, 128)),
    "wrong_rank": lambda w: w.call(shape=(256,)),
    "not_contiguous": lambda w: w.call(contiguous=False),
    "array_on_another_gpu": lambda w: w.on("9.0", "9.0").kernel()(w.tensor(), w.tensor(device=1)),
    "array_on_the_host": lambda w: w.kernel()(w.tensor(), np.zeros((4, 64), np.float32)),
    "tensors_on_the_host": lambda w: w.kernel()(
        *(made.Tensor(4096, "f32", (4, 64), device_number=-1) for _ in range(2))
    ),
    "numpy_scalar": lambda w: w.kernel()(np.float32(3), w.tensor()),
    "big_endian_array": lambda w: w.kernel()(*[_host(">f4")] * 2),
    "none_for_an_array": lambda w: w.kernel()(w.tensor(), None),
    "number_for_an_array": lambda w: w.kernel()(w.tensor(), 3.0),
    "list_for_an_array": lambda w: w.kernel()(w.tensor(), [1.0, 2.0]),
    "too_few_arrays": lambda w: w.kernel()(w.tensor()),
    "too_many_arrays": lambda w: w.kernel()(w.tensor(), w.tensor(), w.tensor()),
    "unknown_keyword": lambda w: w.kernel()(w.tensor(), w.tensor(), steam=3),
    "array_given_twice": lambda w: w.kernel()(w.tensor(), w.tensor(), a=w.tensor()),
    "something_where_none_was_compiled": lambda w: w.kernel(
        input_tree={"a": 0, "b": 1, "mask": None}
    )(w.tensor(), w.tensor(), w.tensor()),
    "out_missing": lambda w: w.kernel().into(w.tensor(), w.tensor()),
    "out_of_another_dtype": lambda w: w.into(w.tensor("f16[4, 64]")),
    "out_of_another_shape": lambda w: w.into(w.tensor("f32[4, 32]")),
    "out_on_another_gpu": lambda w: w.on("9.0", "9.0").into(w.tensor(device=1)),
    "out_not_contiguous": lambda w: w.into(_changed(w.tensor(), contiguous=False)),
    "out_of_another_structure": lambda w: w.into(
        (w.tensor(),) * 3, _launching("four", 0, 1, 2, 3, outputs=["f32[4, 64]"] * 2)
    ),
    "out_read_only": lambda w: w.kernel().into(_host(), _host(), out=_host(read_only=True)),
    "out_is_not_the_updated_input": lambda w: w.into(
        w.tensor(), _launching("two", 0, 1, outputs=["b"])
    ),
    "masked_array": lambda w: w.kernel()(_foreign(mask=object()), w.tensor()),
    "interface_without_a_dtype": lambda w: w.kernel()(_foreign(typestr="<V2"), w.tensor()),
    "memory_of_no_gpu": lambda w: w.kernel()(_foreign(data=(4096, False)), w.tensor()),
    "interface_without_an_address": lambda w: w.kernel()(_foreign(), w.tensor()),
    "interface_that_is_no_mapping": lambda w: w.kernel()(
        type("Odd", (), {"__cuda_array_interface__": 7})(), w.tensor()
    ),
    "interface_with_a_wrong_field": lambda w: w.kernel()(_foreign(data=4096), w.tensor()),
    "interface_without_a_shape": lambda w: w.kernel()(_foreign(shape=None), w.tensor()),
    "dlpack_of_a_later_version": lambda w: w.kernel()(
        foreign.DlpackArray(w.tensor(), version=(2, 0)), w.tensor()
    ),
    "dlpack_of_a_copy": lambda w: w.kernel()(
        foreign.DlpackArray(w.tensor(), version=(1, 0), flags=2), w.tensor()
    ),
    "dlpack_on_another_device_than_it_says": lambda w: w.kernel()(
        foreign.DlpackArray(w.tensor(), kind=1), w.tensor()
    ),
    "dlpack_elsewhere": lambda w: w.kernel()(_dlpack((10, 0), None), w.tensor()),
    "dlpack_without_a_capsule": lambda w: w.kernel()(_dlpack((2, 0), 7), w.tensor()),
    "dlpack_that_cannot_be_exported": lambda w: w.kernel()(
        _dlpack((2, 0), BufferError("cannot be shared")), w.tensor()
    ),
    "dlpack_without_a_device": lambda w: w.kernel()(_dlpack(None, None), w.tensor()),
    "dlpack_read_only_as_out": lambda w: w.into(
        foreign.DlpackArray(w.tensor(), version=(1, 0), flags=1)
    ),
    "masked_array_of_numpy": lambda w: w.kernel()(
        np.ma.masked_array(_host(), mask=True), w.tensor()
    ),
    "structured_array_of_numpy": lambda w: w.kernel()(*[_host([("x", np.float32)])] * 2),
    "objects_in_an_array_of_numpy": lambda w: w.kernel()(*[_host(object)] * 2),
    "text_for_an_array": lambda w: w.kernel()("a", w.tensor()),
    "type_for_an_array": lambda w: w.kernel()(np.ndarray, w.tensor()),
    "objects_copied_to_a_device_array": lambda w: DeviceArray((4, 64), "f32").copy_from(3),
    # streams
    "stream_that_is_none": lambda w: w.kernel()(w.tensor(), w.tensor(), stream="fast"),
    "stream_that_does_not_exist": lambda w: w.kernel()(w.tensor(), w.tensor(), stream=12345),
    # what the driver answers
    "illegal_address_in_an_earlier_kernel": lambda w: w.again("cuLaunchKernelEx", 700),
    "launch_failure_in_an_earlier_kernel": lambda w: w.again("cuLaunchKernelEx", 719),
    "too_many_resources": lambda w: w.again("cuLaunchKernelEx", 701),
    "cluster_refused_at_the_launch": lambda w: w.again("cuLaunchKernelEx", 912),
    "no_room_for_the_code": lambda w: w.first("cuFuncLoad", 2),
    "attribute_refused": lambda w: w.first(
        "cuKernelSetAttribute", 1, _launching("three", 0, 1, 2, dynamic_smem_bytes=100_000)
    ),
    "out_of_memory_for_the_cubin": lambda w: w.first("cuLibraryLoadData", 2),
    "out_of_memory_for_constants": lambda w: w.first(
        "cuMemAlloc_v2", 2, _launching("four", 0, 1, 2, 3, constants=[bytes(64)])
    ),
    "out_of_memory_for_copies_of_host_arrays": lambda w: w.failing("cuMemAllocAsync", 2).kernel()(
        _host(), _host()
    ),
    "failure_found_while_copying_back": lambda w: w.failing("cuStreamSynchronize", 700).kernel()(
        _host(), _host()
    ),
    "kernel_without_variants": lambda w: Kernel("sum", []),
    "unknown_kernel": lambda w: Kernels([("sum", {}, made.add())])["sun"],
}


def fault(function: Callable[[World], Any]) -> Callable[[World], Any]:
    FAULTS[function.__name__] = function
    return function


@fault
def stream_of_another_gpu(w: World) -> Any:
    w.driver.devices("9.0", "9.0")
    stream = made.stream(1)
    try:
        return w.kernel()(w.tensor(), w.tensor(), stream=stream)
    except PallascError as error:
        error.message = error.message.replace(f"{stream:#x}", "0x…")
        raise


@fault
def not_loaded_before_a_capture(w: World) -> Any:
    stream, first, second, out = made.stream(), w.tensor(), w.tensor(), w.tensor()
    with made.capture(stream):
        return w.kernel().into(first, second, out=out, stream=stream)


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
def failing_step(w: World) -> Any:
    steps = (Copy(0, 0, 2, 0, 1024), made.launch("three", 0, 1, 2))
    kernel = made.kernel(made.artifact(*steps))
    first, second, out = w.tensor(), w.tensor(), w.tensor()
    w.driver.fault("cuMemcpyDtoDAsync_v2", 1)
    return kernel.into(first, second, out=out)


def message(name: str, world: World) -> list[str]:
    """Return what a fault says: class, exit code, and text in lines."""
    with pytest.raises(PallascError) as caught:
        FAULTS[name](world)
    error = caught.value
    text = re.sub(r"[0-9a-f]{64}|(?<=cubin )[0-9a-f]{12}", "…", str(error))
    return [f"{type(error).__name__} {error.exit_code}", *text.splitlines()]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_message(name: str, runtime: Any, framework: Any) -> None:
    expected = json.loads(EXPECTED.read_text())
    assert message(name, World(runtime, framework)) == expected[name]


def test_the_table_has_no_faults_that_are_gone() -> None:
    assert set(json.loads(EXPECTED.read_text())) == set(FAULTS)
