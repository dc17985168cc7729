"""Cases of asynchronous copies, mbarriers, and what blocks of a cluster do together."""

from typing import Any

import numpy as np
from opcode_cases import (
    FIRST,
    LANES,
    READY,
    SHOW,
    WAIT,
    Case,
    bits_of,
    combined,
    element_of,
    numbers,
    of,
    vector_of,
)
from small_kernels import Run

from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap

WORDS = np.random.default_rng(7).integers(0, 1 << 32, 2048, np.uint32)
OWN = "mov.u32 %r20, s; mad.lo.u32 %r22, %t, 4, %r20;"
READ = OWN + "ld.shared.b32 %r1, [%r22];" + SHOW
EXPECT = "@%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 128;"
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
POLICY = "mov.b64 %rd30, 0;"
TRIPLE = OWN + "mul.lo.u32 %r1, %t, 3; st.shared.b32 [%r22], %r1; fence.proxy.async; bar.sync 0;"
DONE = "@%p8 cp.async.bulk.commit_group; @%p8 cp.async.bulk.wait_group 0;"


def hinted(opcode: str, operands: str) -> str:
    """Return an instruction of the first thread, with a cache policy where it asks for one."""
    policy = ", %rd30" if "cache_hint" in opcode else ""
    return f"{POLICY} @%p8 {opcode} {operands}{policy};"


@of("cp.async")
def copy_of_lanes(opcode: str) -> Case:
    copy = "cp.async.cg.shared.global" if opcode.count(".") < 4 else opcode
    group = "cp.async.commit_group; cp.async.wait_group 0;"
    if opcode.endswith("wait_all"):
        group = "cp.async.wait_all;"
    return Case(
        "mov.u32 %r20, s; mad.lo.u32 %r21, %t, 16, %r20; mad.wide.u32 %rd20, %t, 16, %a0;"
        f"{copy} [%r21], [%rd20], 16; {group} ld.shared.b32 %r1, [%r21+12]; {SHOW}",
        WORDS[3:128:4],
        (WORDS,),
    )


@of("cp.async.bulk")
def bulk_copy(opcode: str) -> Case:
    if ".global.shared" in opcode or "group" in opcode.split(".")[3]:
        return _bulk_store(opcode)
    if "shared::cta.mbarrier" in opcode:
        lines = f"{READY}{TRIPLE}{EXPECT}" + hinted(opcode, "[s+1024], [s], 128, [m]")
        lines += f"{WAIT} ld.shared.b32 %r1, [%r22+1024]; {SHOW}"
        return Case(lines, LANES * 3)
    return Case(
        f"{READY}{EXPECT}" + hinted(opcode, "[s], [%a0+256], 128, [m]") + WAIT + READ,
        WORDS[64:96],
        (WORDS,),
    )


def _bulk_store(opcode: str) -> Case:
    copy = "cp.async.bulk.global.shared::cta.bulk_group"
    copy = opcode if ".global.shared" in opcode else copy
    wait = "cp.async.bulk.wait_group.read 0" if opcode.endswith(".read") else ""
    done = DONE if not wait else f"@%p8 cp.async.bulk.commit_group; @%p8 {wait};"
    lines = FIRST + TRIPLE + hinted(copy, "[%outs], [s], 128") + done
    return Case(f"{lines} bar.sync 0; st.shared.b32 [%r22], %t;", LANES * 3)


@of("cp.async.bulk.prefetch")
def prefetch_of_bytes(opcode: str) -> Case:
    def look(kernel: Run) -> None:
        assert kernel.machine.fetched == {(0, (0, 0, 0)): 256}

    return Case(FIRST + hinted(opcode, "[%a0], 256"), None, (WORDS,), {0: WORDS}, look=look)


@of("cp.reduce.async.bulk")
def bulk_reduction(opcode: str) -> Case:
    operation, kind = [p for p in opcode.split(".") if p != "noftz"][-2:]
    held, given = (numbers(operation, kind, 256 // element_of(kind).itemsize, n) for n in (3, 4))
    return Case(
        f"{FIRST} mov.u32 %r20, s; mad.lo.u32 %r21, %t, 8, %r20; mad.wide.u32 %rd20, %t, 8, %a1;"
        "ld.global.b64 %rd21, [%rd20]; st.shared.b64 [%r21], %rd21; fence.proxy.async; bar.sync 0;"
        + hinted(opcode, "[%a0], [s], 256") + DONE,
        None,
        (held, given),
        {0: combined(operation, kind, held, given)},
    )  # fmt: skip


# Sizes and boxes of maps, and where the box begins: minor dimension first, 32 words in a box.
SHAPES: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    1: ((64,), (32,), (16,)),
    2: ((16, 8), (8, 4), (8, 3)),
    3: ((16, 8, 2), (8, 2, 2), (8, 3, 0)),
    4: ((16, 8, 2, 2), (8, 2, 2, 1), (8, 3, 0, 1)),
    5: ((16, 8, 2, 2, 2), (8, 2, 1, 2, 1), (8, 3, 1, 0, 1)),
}


class Tensor:
    """A tensor map, the coordinates of a copy, and the elements that it means."""

    def __init__(self, opcode: str) -> None:
        self.rank = next(int(part[0]) for part in opcode.split(".") if part[1:] == "d")
        dims, box, start = SHAPES[self.rank]
        self.array = WORDS[: int(np.prod(dims))].reshape(dims[::-1])
        self.numbers = np.arange(self.array.size).reshape(self.array.shape)
        im2col: Any = None
        self.offsets = ""
        if "im2col" in opcode:
            box = (8, 1)
            zeros = (0,) * (self.rank - 2)
            im2col = {"lower": zeros, "upper": zeros, "channels_per_pixel": 8,
                      "pixels_per_column": 4}  # fmt: skip
            pixels = self.numbers.reshape(-1, dims[0])
            start = (8, 3, *(0,) * (self.rank - 2))
            self.chosen = pixels[3:7, 8:16]
            self.offsets = ", {" + ", ".join(["%h1"] * (self.rank - 2)) + "}"
        elif "4" in opcode.partition("tile::")[2][:8]:
            box, rows = (8, 1), (6, 0, 3, 3 if "gather" in opcode else 7)
            start = (8, *rows)
            self.chosen = self.numbers[list(rows), 8:16]
        else:
            slices = [slice(at, at + size) for at, size in zip(start, box, strict=True)]
            self.chosen = self.numbers[tuple(slices[::-1])]
        strides = tuple(4 * int(np.prod(dims[:n])) for n in range(1, self.rank))
        self.map = TensorMap(
            buffer=0, offset=0, dtype="uint32", dims=dims, strides=strides, box=box,
            element_strides=(1,) * self.rank, im2col=im2col,
        )  # fmt: skip
        if im2col is None and len(box) != self.rank:
            self.map = TensorMap(
                buffer=0, offset=0, dtype="uint32", dims=dims, strides=strides, box=(8, 1),
                element_strides=(1,) * self.rank,
            )  # fmt: skip
        self.where = "[%a1, {" + ", ".join(str(at) for at in start) + "}]"
        self.arrays = (self.array, np.zeros(MAP_BYTES, np.uint8))

    def prepare(self, kernel: Run) -> None:
        """Put the map where the kernel looks for it."""
        data = kernel.machine.tensor_maps.encode(self.map, kernel.inputs[0].base)
        kernel.inputs[1].data[:MAP_BYTES] = np.frombuffer(data, np.uint8)

    @property
    def values(self) -> np.ndarray:
        """The elements that the copy means, in the order of shared memory."""
        return self.array.ravel()[self.chosen.ravel()]

    def with_values(self, values: np.ndarray) -> np.ndarray:
        """Return the array with other values there."""
        result = self.array.ravel().copy()
        result[self.chosen.ravel()] = values
        return result


def tensor_of(opcode: str) -> Tensor | None:
    rank = next(int(part[0]) for part in opcode.split(".") if part[1:] == "d")
    if ("im2col" in opcode and rank < 3) or ("tile::" in opcode and rank != 2):
        return None
    return Tensor(opcode)


@of("cp.async.bulk.tensor")
def tensor_copy(opcode: str) -> Case | None:
    tensor = tensor_of(opcode)
    if tensor is None:
        return None
    if ".global.shared" in opcode:
        lines = FIRST + TRIPLE + hinted(opcode, f"{tensor.where}, [s]") + DONE
        changed = {0: tensor.with_values(LANES * 3)}
        return Case(lines, None, tensor.arrays, changed, prepare=tensor.prepare)
    more = tensor.offsets + (", %h2" if "multicast" in opcode else "")
    return Case(
        f"mov.b16 %h1, 0; mov.b16 %h2, 1; {READY}{EXPECT}"
        + hinted(opcode, f"[s], {tensor.where}, [m]{more}") + WAIT + READ,
        tensor.values,
        tensor.arrays,
        prepare=tensor.prepare,
    )  # fmt: skip


@of("cp.async.bulk.prefetch.tensor")
def prefetch_of_a_box(opcode: str) -> Case | None:
    tensor = tensor_of(opcode)
    if tensor is None:
        return None

    def look(kernel: Run) -> None:
        assert kernel.machine.fetched == {(0, (0, 0, 0)): 128}

    lines = f"mov.b16 %h1, 0; {FIRST}" + hinted(opcode, f"{tensor.where}{tensor.offsets}")
    return Case(lines, None, tensor.arrays, prepare=tensor.prepare, look=look)


@of("cp.reduce.async.bulk.tensor")
def tensor_reduction(opcode: str) -> Case | None:
    tensor = tensor_of(opcode)
    if tensor is None:
        return None
    operations = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
    operation = next(part for part in opcode.split(".") if part in operations)
    result = combined(operation, "u32", tensor.values, LANES * 3)
    lines = FIRST + TRIPLE + hinted(opcode, f"{tensor.where}, [s]") + DONE
    changed = {0: tensor.with_values(result)}
    return Case(lines, None, tensor.arrays, changed, prepare=tensor.prepare)


@of("st.async", "red.async")
def store_to_another_block(opcode: str) -> Case:
    *_, operation, kind = opcode.split(".")
    size, reduces = bits_of(kind) // 8, opcode.startswith("red")
    count = int(operation[1]) if operation in ("v2", "v4") else 1
    width = size * count
    letter = "rd" if size == 8 else "r"
    names, source = vector_of(8 * size, count)
    as_number = kind if reduces else f"u{8 * size}"
    operation = operation if reduces else "add"
    held, given = (numbers(operation, as_number, 32, n) for n in (3, 4))
    fill = "".join(f"ld.global.b{8 * size} {n}, [%rd20+{at * size}];" for at, n in enumerate(names))
    back = "".join(
        f"ld.shared.b{8 * size} {n}, [%r22+{at * size}]; st.global.b{8 * size} [%out+{at * size}],"
        f" {n};"
        for at, n in enumerate(names)
    )
    sent = np.resize(given, 32 * count)
    return Case(
        f"{READY} @%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {32 * width};"
        f"mov.u32 %r20, s; mad.lo.u32 %r22, %t, {width}, %r20; mov.u32 %r24, m;"
        f"mad.wide.u32 %rd22, %t, {size}, %a1; ld.global.b{8 * size} %{letter}30, [%rd22];"
        f"st.shared.b{8 * size} [%r22], %{letter}30; mad.wide.u32 %rd20, %t, {width}, %a0; {fill}"
        "barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r30, %b, 1;"
        "mapa.shared::cluster.u32 %r31, %r22, %r30; mapa.shared::cluster.u32 %r32, %r24, %r30;"
        f"{opcode} [%r31], {source}, [%r32]; {WAIT} {back} barrier.cluster.arrive;"
        "barrier.cluster.wait;",
        np.tile(combined(operation, kind, held, given) if reduces else sent, 2),
        (sent, held),
        options={"blocks": 2, "cluster": 2, "width": width},
    )


SHOW_LANE = "mov.u32 %r1, %t;" + SHOW


@of("mbarrier.init", "mbarrier.inval")
def begin(opcode: str) -> Case:
    init = "mbarrier.init.shared::cta.b64" if "inval" in opcode else opcode
    ends = f"@%p8 {opcode} [m]; @%p8 {init} [m], 32;" if "inval" in opcode else ""
    lines = f"{FIRST} @%p8 {init} [m], 32; {ends} bar.sync 0; mbarrier.arrive.shared.b64 _, [m];"
    return Case(lines + WAIT + SHOW_LANE, LANES)


@of("mbarrier.arrive")
def arrive(opcode: str) -> Case:
    # The last operand is the number of bytes to announce, or of arrivals.
    count, more = (32, 0) if "expect_tx" in opcode else (96, 3)
    lines = f"{FIRST} @%p8 mbarrier.init.shared.b64 [m], {count}; bar.sync 0;"
    lines += f"{opcode} _, [m], {more};"
    return Case(lines + WAIT + SHOW_LANE, LANES)


@of("mbarrier.arrive.noComplete")
def arrive_before_others(opcode: str) -> Case:
    lines = f"{FIRST} @%p8 mbarrier.init.shared.b64 [m], 33; bar.sync 0; {opcode} %rd1, [m], 1;"
    return Case(lines + "@%p8 mbarrier.arrive.shared.b64 _, [m];" + WAIT + SHOW_LANE, LANES)


@of("mbarrier.expect_tx")
def announce(opcode: str) -> Case:
    lines = f"{READY} @%p8 {opcode} [m], 128; @%p8 {LOAD} [s], [%a0], 128, [m];"
    return Case(
        lines + "@%p8 mbarrier.arrive.shared.b64 _, [m];" + WAIT + READ, WORDS[:32], (WORDS,)
    )


@of("mbarrier.complete_tx")
def complete(opcode: str) -> Case:
    lines = f"{READY}{EXPECT} @%p8 {opcode} [m], 128;"
    return Case(lines + WAIT + SHOW_LANE, LANES)


@of("mbarrier.try_wait", "mbarrier.test_wait")
def wait(opcode: str) -> Case:
    lines = f"{READY}{EXPECT} @%p8 {LOAD} [s], [%a0], 128, [m];"
    again = f"TRY: {opcode} %p9, [m], 0; @!%p9 bra TRY;"
    return Case(lines + again + READ, WORDS[:32], (WORDS,))


@of("clusterlaunchcontrol")
def taken_over(opcode: str) -> Case:
    answer = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    asked, index = (opcode, "") if "try_cancel" in opcode else (answer, opcode)
    if "first_ctaid" not in index:
        index = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128"
    target = "{%r1, %r2, %r3, _}" if ".v4." in index else "%r1"
    blocks = 150  # with so much shared memory one fits on each of 148 multiprocessors
    axis = index.partition("::")[2][:1]

    def look(kernel: Run) -> None:
        found = kernel.out.data[: kernel.out.size].view("u4").reshape(blocks, 32)[:, 0]
        last = [0, 0] if axis in ("y", "z") else [blocks - 1, blocks - 2]
        assert found[:3].tolist() == [*last, 5]

    return Case(
        f"{READY} @%p8 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 16; bar.sync 0;"
        f"@%p8 {asked} [s], [m]; {WAIT} ld.shared.b128 %q1, [s]; mov.u32 %r1, 5;"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;"
        f"@%p1 {index} {target}, %q1; {SHOW}",
        options={
            "blocks": blocks,
            "variables": ".shared .align 128 .b8 s[200000]; .shared .align 8 .b64 m;",
        },
        look=look,
    )
