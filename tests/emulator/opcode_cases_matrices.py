"""Cases of matrices in registers, of warpgroups, and of the tensor core and its memory.

Where elements lie for warpgroups and the tensor core is tested element by element in `test_wgmma`
and `test_tcgen05`; here their products are of ones, so that each result is the length of a row.
"""

import re
from typing import Any

import blackwell as bw
import numpy as np
from opcode_cases import LANES, READY, SHOW, WAIT, Case, of

WORDS = np.random.default_rng(4).integers(0, 1 << 32, 128, np.uint32)
ONES = {
    "f16": 0x3C003C00, "bf16": 0x3F803F80, "tf32": 0x3F800000, "e4m3": 0x38383838,
    "e5m2": 0x3C3C3C3C, "s8": 0x01010101, "u8": 0x01010101, "s4": 0x11111111, "u4": 0x11111111,
    "e2m1x2": 0x22222222,
}  # fmt: skip
BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4,
        "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}  # fmt: skip
TYPES: dict[str, Any] = {**bw.DTYPES, "f32": np.float32, "f64": np.float64, "s32": np.int32}


def word_of(value: float, kind: str) -> int:
    """Return the register that holds a value, twice for f16."""
    if kind == "f16":
        return int(np.full(2, value, np.float16).view("u4")[0])
    return int(value) if kind == "s32" else int(np.float32(value).view("u4"))


def names(letter: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{first + n}" for n in range(count)) + "}"


@of("ldmatrix")
def load_matrices(opcode: str) -> Case:
    count = int(opcode.split(".x")[1][0])
    elements = WORDS.view("u2").reshape(4, 8, 8)
    if ".trans" in opcode:
        elements = elements.transpose(0, 2, 1)
    pairs = np.ascontiguousarray(elements[:count]).view("u4").reshape(count, 32)
    stores = "".join(f"st.global.b32 [%out+{4 * n}], %r{40 + n};" for n in range(count))
    return Case(
        "mov.u32 %r20, s; xor.b32 %r22, %t, 21; mad.lo.u32 %r21, %r22, 16, %r20;"
        "mad.wide.u32 %rd20, %t, 16, %a0; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd20];"
        "st.shared.v4.b32 [%r21], {%r1, %r2, %r3, %r4}; bar.sync 0;"
        f"{opcode} {names('r', 40, count)}, [%r21]; {stores}",
        pairs.T,
        (WORDS,),
        options={"width": 4 * count},
    )


@of("stmatrix")
def store_matrices(opcode: str) -> Case:
    count = int(opcode.split(".x")[1][0])
    registers = WORDS.reshape(32, 4)[:, :count].T.copy()
    if opcode.endswith("b8"):
        # A lane holds rows L/4 and L/4 + 8, two columns of each; rows are stored as columns.
        octets = registers.view(np.uint8).reshape(count, 8, 4, 2, 2)
        rows = octets.transpose(0, 2, 4, 3, 1).reshape(-1, 16)
    else:
        elements = registers.view("u2").reshape(count, 8, 8)
        if ".trans" in opcode:
            elements = elements.transpose(0, 2, 1)
        rows = np.ascontiguousarray(elements).reshape(-1, 8).view(np.uint8)
    return Case(
        "mov.u32 %r20, s; xor.b32 %r22, %t, 21; mad.lo.u32 %r21, %r22, 16, %r20;"
        "mad.wide.u32 %rd20, %t, 16, %a0;"
        f"ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd20]; {opcode} [%r21],"
        f"{names('r', 1, count)}; bar.sync 0; ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%r21];"
        "st.global.v4.b32 [%out], {%r5, %r6, %r7, %r8};",
        rows,
        (WORDS,),
        options={"width": 16},
    )


def a_place(lane: int, i: int, m: int, k: int, a: str) -> tuple[int, int]:
    """Where element `a_i` of a lane lies, after "Matrix Fragments" of each shape."""
    group, within = lane >> 2, lane % 4
    if m == 8:
        # m8n8k4 of f64, m8n8k16 of 8 bits, m8n8k32 of 4 bits: one register.
        return group, within * (k // 4) + i
    if a == "f64":
        return group + 8 * (i % 2), within + 4 * (i // 2)
    if a == "tf32":
        return group + 8 * (i in (1, 3)), within + (4 if i >= 2 else 0)
    if a in ("f16", "bf16"):
        low = i < 2 or 4 <= i < 6
        return group + (0 if low else 8), within * 2 + (i & 1) + (8 if i >= 4 else 0)
    if BITS[a] == 8:
        low = i < 4 or 8 <= i < 12
        return group + (0 if low else 8), within * 4 + (i & 3) + (16 if i >= 8 else 0)
    low = i < 8 or 16 <= i < 24
    return group + (0 if low else 8), within * 8 + (i & 7) + (32 if i >= 16 else 0)


def b_place(lane: int, i: int, k: int, b: str) -> tuple[int, int]:
    """Row and column of element `b_i` of a lane."""
    group, within = lane >> 2, lane % 4
    if b in ("f64", "tf32"):
        return within + 4 * i, group
    if b in ("f16", "bf16"):
        return within * 2 + (i & 1) + (8 if i >= 2 else 0), group
    if BITS[b] == 8:
        return within * 4 + (i & 3) + (16 if i >= 4 else 0), group
    return within * 8 + (i & 7) + (32 if i >= 8 else 0), group


def c_place(lane: int, i: int) -> tuple[int, int]:
    """Row and column of element `c_i` of a lane."""
    return (lane >> 2) + 8 * (i >> 1), lane % 4 * 2 + (i & 1)


def words_of(matrix: np.ndarray, kind: str, count: int, place: Any) -> np.ndarray:
    """Pack elements into as many registers of 32 lanes, the lowest bits first: [lane, register]."""
    width, bits = 64 if kind == "f64" else 32, BITS[kind]
    dtype = np.dtype(TYPES.get(kind, np.int8))
    encoded = matrix.astype(dtype).view(f"u{dtype.itemsize}")
    words = np.zeros((32, count), f"u{width // 8}")
    for lane, i in np.ndindex(32, count * width // bits):
        register, position = divmod(i * bits, width)
        value = int(encoded[place(lane, i)]) & (1 << bits) - 1
        words[lane, register] |= np.array(value << position, words.dtype)
    return words


@of("mma")
def product_of_a_warp(opcode: str) -> Case:
    m, k = map(int, re.findall(r"\.m(\d+)n8k(\d+)\.", opcode)[0])
    d, a, b, _ = opcode.split(".")[-4:]
    generator = np.random.default_rng(1)
    left, right, before = (
        generator.integers(0 if kind[0] == "u" else -3, 4, shape)
        for kind, shape in ((a, (m, k)), (b, (k, 8)), (d, (m, 8)))
    )
    width = 64 if d == "f64" else 32
    sizes = [m * k * BITS[a], 8 * k * BITS[b], m * 8 * BITS[d]]
    counts = [size // (32 * width) for size in sizes]
    arrays = [
        words_of(left, a, counts[0], lambda lane, i: a_place(lane, i, m, k, a)),
        words_of(right, b, counts[1], lambda lane, i: b_place(lane, i, k, b)),
        words_of(before, d, counts[2], c_place),
    ]
    letter, size = ("rd" if width == 64 else "r"), width // 8
    first = [10, 20, 30]
    loads = "".join(
        f"mad.wide.u32 %rd9, %t, {size * count}, %a{number};"
        + "".join(
            f"ld.global.b{width} %{letter}{start + n}, [%rd9+{size * n}];" for n in range(count)
        )
        for number, (start, count) in enumerate(zip(first, counts, strict=True))
    )
    vectors = [names(letter, s, n) for s, n in zip(first, counts, strict=True)]
    stores = "".join(
        f"st.global.b{width} [%out+{size * n}], %{letter}{40 + n};" for n in range(counts[2])
    )
    return Case(
        f"{loads} {opcode} {names(letter, 40, counts[2])}, {', '.join(vectors)}; {stores}",
        words_of(left @ right + before, d, counts[2], c_place),
        tuple(arrays),
        options={"width": size * counts[2]},
    )


FILL = (
    "mov.u32 %r20, s; mad.lo.u32 %r21, %t, 64, %r20; mov.b64 %rd2, {%r2, %r2};"
    + "".join(f"st.shared.b64 [%r21+{at}], %rd2;" for at in range(0, 64, 8))
    + "fence.proxy.async.shared::cta; bar.sync 0; cvt.u64.u32 %rd1, %r20; shr.u64 %rd1, %rd1, 4;"
)
"""Fills 8 KiB with %r2 by 128 threads; %rd1 becomes their descriptor without its strides."""


@of("wgmma")
def product_of_a_warpgroup(opcode: str) -> Case:
    parts = {name: f"wgmma.{name}.sync.aligned" for name in ("fence", "commit_group", "wait_group")}
    if "mma_async" not in opcode:
        opcode = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    n, k = map(int, re.findall(r"n(\d+)k(\d+)", opcode)[0])
    d, a, b = [part for part in opcode.split(".")[5:] if part != "satfinite"]
    # A's bits are B's too, where they may be another number.
    other = {"e4m3": 1.0, "e5m2": 1.0} if a == b else {"e4m3": 1.5, "e5m2": 0.5}
    length = k * other.get(b, 1.0)
    count = n // 4 if d == "f16" else n // 2
    more = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0"}.get(a, "" if d == "s32" else ", 1, 1")
    result = f"%f{count - 1}"
    return Case(
        f"mov.b32 %r2, {ONES[a]}; {FILL} or.b64 %rd1, %rd1, {128 >> 4 << 16 | 256 >> 4 << 32};"
        f"setp.ne.u32 %p1, %t, %t; {parts['fence']};"
        f"{opcode} {names('f', 0, count)}, %rd1, %rd1, %p1{more};"
        f"{parts['commit_group']}; {parts['wait_group']} 0; st.global.b32 [%out], {result};",
        np.full(128, word_of(length, d), "u4"),
        options={"threads": 128},
    )


TENSOR = ".shared .align 128 .b8 s[8192]; .shared .align 8 .b64 m; .reg .b32 %f<130>;"
ALLOCATE = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s+8128], 512;"
COLUMNS = 256
TABLE = LANES[:, None] * COLUMNS + np.arange(COLUMNS, dtype="u4")
WRITE_TABLE = f"mul.lo.u32 %r9, %t, {COLUMNS};" + "".join(
    "".join(f"add.u32 %f{n}, %r9, {first + n};" for n in range(32))
    + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [{first}], {names('f', 0, 32)};"
    for first in range(0, COLUMNS, 32)
)
STORED = "tcgen05.wait::st.sync.aligned;"
LOADED = "tcgen05.wait::ld.sync.aligned;"


def kept(count: int) -> str:
    return "".join(f"st.global.b32 [%out+{4 * n}], %f{n};" for n in range(count))


def cells_of(shape: str, count: int) -> list[list[tuple[int, int]]]:
    return [[bw.FIGURES[shape](t, r) for r in range(count)] for t in range(32)]


@of("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit")
def allocation(opcode: str) -> Case:
    alloc, free = (f"tcgen05.{n}.cta_group::1.sync.aligned" for n in ("alloc", "dealloc"))
    alloc, free = f"{alloc}.shared::cta.b32", f"{free}.b32"
    if ".alloc." in opcode:
        alloc = opcode
    elif ".dealloc." in opcode:
        free = opcode
    last = f"{opcode};" if "relinquish" in opcode else ""
    return Case(
        f"{alloc} [s], 64; {alloc} [s+4], 32; {free} 0, 64; {alloc} [s+8], 32; {last}"
        "ld.shared.b32 %r1, [s]; ld.shared.b32 %r2, [s+4]; ld.shared.b32 %r3, [s+8];"
        f"mad.lo.u32 %r1, %r2, 1000, %r1; add.u32 %r1, %r1, %r3; {SHOW}",
        np.full(32, 64000, "u4"),
    )


@of("tcgen05.ld", "tcgen05.wait::st")
def load_of_cells(opcode: str) -> Case | None:
    if opcode.startswith("tcgen05.wait"):
        opcode = "tcgen05.ld.sync.aligned.32x32b.x8.b32"
    shape, repeats = opcode.split(".")[4], int(opcode.split(".x")[1].partition(".")[0])
    count = bw.PER_UNIT[shape] * repeats
    split = ", 64" if shape == "16x32bx2" else ""
    cells = np.array(cells_of(shape, count))
    if "pack" in opcode:
        if split:
            return None
        low = TABLE[cells[..., 0], 2 * cells[..., 1]]
        values = low | TABLE[cells[..., 0], 2 * cells[..., 1] + 1] << 16
    else:
        values = TABLE[cells[..., 0], cells[..., 1]]
    return Case(
        f"{ALLOCATE} {WRITE_TABLE} {STORED} {opcode} {names('f', 0, count)}, [0]{split}; {LOADED}"
        + kept(count),
        values.astype("u4"),
        options={"width": 4 * count, "variables": TENSOR},
    )


@of("tcgen05.ld.red")
def load_and_reduce(opcode: str) -> Case:
    repeats = int(opcode.split(".x")[1].partition(".")[0])
    best = TABLE[:, 0] if ".min" in opcode else TABLE[:, repeats - 1]
    return Case(
        f"{ALLOCATE} {WRITE_TABLE} {STORED} {opcode} {names('f', 0, repeats)}, %r1, [0]; {LOADED}"
        + SHOW,
        best.astype("u4"),
        options={"variables": TENSOR},
    )


@of("tcgen05.st", "tcgen05.wait::ld")
def store_of_cells(opcode: str) -> Case | None:
    if opcode.startswith("tcgen05.wait"):
        opcode = "tcgen05.st.sync.aligned.32x32b.x8.b32"
    shape, repeats = opcode.split(".")[4], int(opcode.split(".x")[1].partition(".")[0])
    count = bw.PER_UNIT[shape] * repeats
    split = ", 64" if shape == "16x32bx2" else ""
    expected = TABLE.copy()
    for thread, cells in enumerate(cells_of(shape, count)):
        for register, (lane, column) in enumerate(cells):
            value = 0x50000 + thread * 128 + register
            if "unpack" in opcode:
                expected[lane, 2 * column : 2 * column + 2] = value & 0xFFFF, value >> 16
            else:
                expected[lane, column] = value
    if split and "unpack" in opcode:
        return None
    fill = "mad.lo.u32 %r8, %t, 128, 0x50000;"
    fill += "".join(f"add.u32 %f{n}, %r8, {n};" for n in range(count))
    return Case(
        f"{ALLOCATE} {WRITE_TABLE} {STORED} {fill} {opcode} [0]{split}, {names('f', 0, count)};"
        f"{STORED} tcgen05.ld.sync.aligned.32x32b.x128.b32 {names('f', 0, 128)}, [0]; {LOADED}"
        + kept(128),
        expected[:, :128].astype("u4"),
        options={"width": 512, "variables": TENSOR},
    )


@of("tcgen05.cp", "tcgen05.commit", "tcgen05.fence")
def copy_to_cells(opcode: str) -> Case:
    copy = opcode if ".cp." in opcode else "tcgen05.cp.cta_group::1.128x256b"
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
    commit = opcode if ".commit." in opcode else commit
    mask = ", %h1" if "multicast" in commit else ""
    group = 2 if "cta_group::2" in copy else 1
    expected = TABLE[:, :16].copy()
    lanes = slice(0, 1) if "4x256b" in copy else slice(None)
    expected[lanes, : 8 if "256b" in copy else 4] = 7
    return Case(
        f"mov.b16 %h1, 1; mov.b32 %r2, 7; {READY}"
        + FILL.replace("%t, 64", "%t, 256").replace(
            "fence.proxy",
            "".join(f"st.shared.b64 [%r21+{at}], %rd2;" for at in range(64, 256, 8))
            + "fence.proxy",
        )
        + f"{ALLOCATE.replace('s+8128', 'm2')} {WRITE_TABLE} {STORED}"
        f"or.b64 %rd1, %rd1, {128 >> 4 << 16 | 256 >> 4 << 32};"
        + ("barrier.cluster.arrive; barrier.cluster.wait;" if group == 2 else "")
        + f"setp.eq.u32 %p7, %b, 0; and.pred %p6, %p8, %p7; @%p6 {copy} [0], %rd1;"
        f"@%p6 {commit} [m]{mask}; @!%p7 bra MEET;"
        + WAIT
        + "tcgen05.fence::after_thread_sync;\nMEET:\n"
        + ("barrier.cluster.arrive; barrier.cluster.wait;" if group == 2 else "")
        + f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {names('f', 0, 16)}, [0]; {LOADED}"
        + "tcgen05.fence::before_thread_sync;"
        + kept(16),
        np.tile(expected, (group, 1)).astype("u4"),
        options={
            "width": 64,
            "blocks": group,
            "cluster": group,
            "variables": TENSOR + ".shared .align 8 .b32 m2;",
        },
    )  # fmt: skip


@of("tcgen05.mma")
def product_of_a_tensor_core(opcode: str) -> Case | None:
    kind = re.findall(r"kind::(\w+)", opcode)[0]
    group = 2 if "cta_group::2" in opcode else 1
    sparse, scaled = ".sp." in opcode, "block_scale" in opcode
    a, result = {"f16": ("f16", "f32"), "tf32": ("tf32", "f32"), "i8": ("s8", "s32")}.get(
        kind, ("e2m1x2" if "mxf4" in kind else "e4m3", "f32")
    )
    qualifier = opcode.partition("block_scale")[2].partition(".collector")[0]
    per_kind = {
        "mxf8f6f4": ("", ".scale_vec::1X", ".block32"),
        "mxf4": ("", ".scale_vec::2X", ".block32"),
        "mxf4nvf4": (".scale_vec::2X", ".block32", ".scale_vec::4X", ".block16"),
    }
    if qualifier not in per_kind.get(kind, ("",)):
        return None
    scales = "ue4m3" if qualifier in (".scale_vec::4X", ".block16") else "ue8m0"
    rows, n = 128 * group, 32
    if scaled:
        word = bw.scaled_instruction(rows, n, a, a, scales, 0, sparse=sparse)
    else:
        selector = 0 if sparse else None
        columns = 64 if ".ws." in opcode else n
        word = bw.instruction(rows, columns, a, a, result, sparse=selector)
    length = 256 // {"e2m1x2": 4}.get(a, BITS.get(a, 8))
    one = 0x38383838 if scales == "ue4m3" else 0x7F7F7F7F
    operands = ["[0]", "%rd1", "%rd1", *(["[64]"] if sparse else []), str(word)]
    operands += ["[96]", "[160]"] if scaled else []
    meet = "barrier.cluster.arrive; barrier.cluster.wait;" if group == 2 else "bar.sync 0;"
    mask = ", %h1" if group == 2 else ""
    commit = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    commit += ".multicast::cluster.b64" if group == 2 else ".b64"
    words = [0x44444444] * 32 + [one] * 96
    registers = names("f", 0, 128)
    fill = "".join(f"mov.b32 %f{n}, {value};" for n, value in enumerate(words))
    allocate = ALLOCATE.replace("cta_group::1", f"cta_group::{group}").replace("s+8128", "m2")
    return Case(
        f"mov.b16 %h1, 3; mov.b32 %r2, {ONES[a]}; {READY} {FILL}"
        "or.b64 %rd1, %rd1, "
        f"{128 >> 4 << 16 | 256 >> 4 << 32}; shr.u32 %r30, %t, 5; setp.eq.u32 %p5, %r30, 0;"
        f"@!%p5 bra GO; {allocate}\nGO:\n bar.sync 0; shl.b32 %r31, %r30, 21; {fill}"
        f"add.u32 %r32, %r31, 64; tcgen05.st.sync.aligned.32x32b.x128.b32 [%r32], {registers};"
        f"{STORED} {meet} setp.ne.u32 %p1, %t, %t; setp.eq.u32 %p7, %b, 0;"
        f"and.pred %p6, %p8, %p7; @%p6 {opcode} {', '.join(operands)}, %p1;"
        f"@%p6 {commit} [m]{mask}; {WAIT} tcgen05.fence::after_thread_sync;"
        f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {names('f', 0, n)}, [%r31]; {LOADED} {meet}"
        + kept(n),
        np.full(128 * group * n, word_of(length, result), "u4"),
        options={
            "threads": 128,
            "blocks": group,
            "cluster": group,
            "width": 4 * n,
            "variables": TENSOR + ".shared .align 8 .b32 m2;",
        },
    )  # fmt: skip
