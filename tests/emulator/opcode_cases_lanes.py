"""Cases of control flow, moves, addresses, and what lanes of a warp tell each other."""

import functools

import numpy as np
from opcode_cases import FIRST, LANES, MEMORY, SHOW, Case, bits_of, combined, of, register_of
from small_kernels import Run

RANDOM = np.random.default_rng(5).integers(0, 1 << 32, 64, np.uint32)
LOAD = "mad.wide.u32 %rd9, %t, 4, %a0; ld.global.b32 %r9, [%rd9];"
PRINTING = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[32] = {37, 100, 32, 37, 117, 32, 37, 46, 50, 102, 32, 37, 108, 108, 100,
  33, 37, 120, 0};
"""  # "%d %u %.2f %lld!%x"


@of("bra")
def branch(opcode: str) -> Case:
    divides = "uni" not in opcode
    condition = "setp.lt.u32 %p1, %t, 7;" if divides else "setp.eq.u32 %p1, %b, 0;"
    return Case(
        f"{condition} mov.u32 %r1, 1; @%p1 {opcode} L; mov.u32 %r1, 2;\nL:\n {SHOW}",
        np.where(LANES < 7, 1, 2).astype("u4") if divides else np.ones(32, "u4"),
    )


@of("ret", "exit")
def end(opcode: str) -> Case:
    lines = f"setp.lt.u32 %p1, %t, 7; mov.u32 %r1, 5; @%p1 {opcode}; {SHOW} {opcode};"
    return Case(lines, np.where(LANES < 7, 0, 5).astype("u4"))


@of("trap")
def trap(opcode: str) -> Case:
    return Case(f"setp.eq.u32 %p1, %t, 9; @%p1 {opcode};", fault="trap")


@of("call")
def call(opcode: str) -> Case:
    def look(kernel: Run) -> None:
        assert kernel.machine.printed == ["0 0 3.00 -5!0", "-1 4294967295 3.00 -5!1"]

    return Case(
        "setp.lt.u32 %p1, %t, 2; @!%p1 ret; neg.s32 %r1, %t; mov.b64 %rd5, 0x4008000000000000;"
        "mov.b64 %rd6, -5; mov.u64 %rd1, l; cvta.local.u64 %rd2, %rd1; st.local.u32 [%rd1], %r1;"
        "st.local.u32 [%rd1+4], %r1; st.local.b64 [%rd1+8], %rd5; st.local.b64 [%rd1+16], %rd6;"
        "st.local.u32 [%rd1+24], %t; mov.u64 %rd3, text; cvta.global.u64 %rd4, %rd3;"
        "{ .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %rd4;"
        f"st.param.b64 [p1], %rd2; {opcode} (q), vprintf, (p0, p1); ld.param.b32 %r9, [q]; }}",
        options={"module": PRINTING},
        look=look,
    )


@of("setmaxnreg")
def registers(opcode: str) -> Case:
    return Case(f"{opcode} 64; mov.u32 %r1, %t; {SHOW}", LANES)


@of("nanosleep")
def pause(opcode: str) -> Case:
    return Case(f"{opcode} 100; mov.u32 %r1, %t; {SHOW}", LANES)


@of("griddepcontrol")
def dependent_grids(opcode: str) -> Case:
    return Case(f"{opcode}; mov.u32 %r1, %t; {SHOW}", LANES)


@of("prefetch", "prefetchu")
def prefetch(opcode: str) -> Case:
    return Case(f"{opcode} [%a0]; {LOAD} mov.u32 %r1, %r9; {SHOW}", RANDOM[:32], (RANDOM,))


@of("fence", "membar")
def fence(opcode: str) -> Case:
    operands = " [%a0], 128" if "tensormap" in opcode and "acquire" in opcode else ""
    return Case(f"{LOAD} {opcode}{operands}; mov.u32 %r1, %r9; {SHOW}", RANDOM[:32], (RANDOM,))


@of("mov")
def move(opcode: str) -> Case:
    kind = opcode.partition(".")[2]
    if kind == "pred":
        lines = f"setp.lt.u32 %p1, %t, 9; {opcode} %p2, %p1; selp.u32 %r1, 4, 8, %p2; {SHOW}"
        return Case(lines, np.where(LANES < 9, 4, 8).astype("u4"))
    if kind == "b128":
        return Case(
            f"mad.wide.u32 %rd1, %t, 8, %a0; ld.global.b64 %rd2, [%rd1]; not.b64 %rd3, %rd2;"
            f"{opcode} %q1, {{%rd2, %rd3}}; {opcode} {{%rd4, %rd5}}, %q1;"
            "st.global.v2.b64 [%out], {%rd5, %rd4};",
            np.stack([~RANDOM.view("u8"), RANDOM.view("u8")], axis=1),
            (RANDOM,),
            options={"width": 16},
        )
    bits = bits_of(kind)
    a, b = register_of(bits, 1), register_of(bits, 2)
    return Case(
        f"mad.wide.u32 %rd9, %t, {bits // 8}, %a0; ld.global.b{bits} {a}, [%rd9];"
        f"{opcode} {b}, {a}; st.global.b{bits} [%out], {b};",
        RANDOM.view(f"u{bits // 8}")[:32],
        (RANDOM,),
        options={"width": bits // 8},
    )


@of("cvta")
def generic_address(opcode: str) -> Case:
    to_space = ".to." in opcode
    space = opcode.split(".")[2 if to_space else 1]
    plain = space.partition("::")[0]
    local = {"shared": "s", "local": "l", "param": "outs"}.get(plain)
    start = f"mov.u64 %rd1, {local};" if local else "mov.b64 %rd1, %a0;"
    there = f"cvta.{space}.u64 %rd2, %rd1;"
    if to_space:
        return Case(
            f"{start} {there} {opcode} %rd3, %rd2; sub.s64 %rd3, %rd3, %rd1;"
            "cvt.u32.u64 %r1, %rd3; add.u32 %r1, %r1, %t; st.global.b32 [%out], %r1;",
            LANES,
            (RANDOM,),
        )
    if plain == "param":
        lines = f"{start} {opcode} %rd2, %rd1; ld.b64 %rd3, [%rd2]; st.global.b64 [%out], %rd3;"
        return Case(lines, lambda run: np.full(32, run.out.base, "u8"), options={"width": 8})
    lines = f"{start} {opcode} %rd2, %rd1; mul.lo.u32 %r2, %t, 3;"
    if plain in ("global", "const"):
        lines += "mad.wide.u32 %rd2, %t, 4, %rd2; st.b32 [%rd2], %r2;"
        lines += "mad.wide.u32 %rd3, %t, 4, %a0; ld.global.b32 %r1, [%rd3];"
    else:
        each = "mad.wide.u32 %rd{n}, %t, 4, %rd{n};" if plain == "shared" else ""
        lines += each.format(n=1) + each.format(n=2)
        lines += f"st.b32 [%rd2], %r2; ld.{plain}.b32 %r1, [%rd1];"
    return Case(lines + SHOW, LANES * 3, (RANDOM,))


@of("isspacep")
def space_of(opcode: str) -> Case:
    space = opcode.partition(".")[2]
    places = ["%a0", "%rd1", "%rd2", "%rd3", "%rd4"]
    right = {"global": [0], "local": [2], "param": [3], "param::entry": [3]}
    right |= {"shared": [1], "shared::cta": [1], "shared::cluster": [1, 4]}
    tests = "".join(
        f"{opcode} %p1, {place}; selp.u32 %r2, {1 << n}, 0, %p1; or.b32 %r1, %r1, %r2;"
        for n, place in enumerate(places)
    )
    return Case(
        "mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2;"
        "mov.u64 %rd3, outs; cvta.param.u64 %rd3, %rd3; xor.b32 %r3, %b, 1;"
        f"mapa.u64 %rd4, %rd1, %r3; mov.u32 %r1, 0; {tests} {SHOW}",
        np.full(64, sum(1 << n for n in right[space]), "u4"),
        (RANDOM,),
        options={"blocks": 2, "cluster": 2},
    )


TO_GENERIC = "cvta.shared.u64 %rd4, %rd4;"


@of("mapa")
def other_block(opcode: str) -> Case:
    store = "add.u32 %r2, %b, 40; st.shared.b32 [s], %r2; barrier.cluster.arrive;"
    meet = "barrier.cluster.wait; xor.b32 %r3, %b, 1;"
    register = "%r" if "u32" in opcode else "%rd"
    generic, space = ("", "shared::cluster.") if "shared" in opcode else (TO_GENERIC, "")
    read = (
        f"mov.{opcode[-3:]} {register}4, s; {generic} {opcode} {register}5, {register}4, %r3;"
        f"ld.{space}b32 %r1, [{register}5];"
    )
    last = "barrier.cluster.arrive; barrier.cluster.wait;"
    expected = np.repeat([41, 40], 32).astype("u4")
    return Case(store + meet + read + last + SHOW, expected, options={"blocks": 2, "cluster": 2})


@of("getctarank")
def rank_of(opcode: str) -> Case:
    register = "%r" if "u32" in opcode else "%rd"
    generic = "" if "shared" in opcode else TO_GENERIC
    mapa = opcode.replace("getctarank", "mapa")
    return Case(
        f"xor.b32 %r3, %b, 1; mov.{opcode[-3:]} {register}4, s; {generic}"
        f"{mapa} {register}5, {register}4, %r3; {opcode} %r1, {register}5; {SHOW}",
        np.repeat([1, 0], 32).astype("u4"),
        options={"blocks": 2, "cluster": 2},
    )


@of("shfl")
def shuffle(opcode: str) -> Case:
    mode = opcode.split(".")[2]
    clamp = 0 if mode == "up" else 31
    lanes = LANES.astype(int)
    source = {
        "up": np.where(lanes >= 3, lanes - 3, lanes),
        "down": np.where(lanes + 3 <= 31, lanes + 3, lanes),
        "bfly": lanes ^ 3,
        "idx": np.full(32, 3),
    }[mode]
    return Case(f"{LOAD} {opcode} %r1, %r9, 3, {clamp}, -1; {SHOW}", RANDOM[:32][source], (RANDOM,))


@of("vote")
def vote(opcode: str) -> Case:
    mode = opcode.split(".")[2]
    ask = "setp.gt.u32 %p1, %t, 20;"
    if mode == "ballot":
        lines = f"{ask} {opcode} %r1, %p1, -1; {SHOW}"
        return Case(lines, np.full(32, 0xFFE00000, "u4"))
    answer = {"all": 0, "any": 1, "uni": 0}[mode]
    lines = f"{ask} {opcode} %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2; {SHOW}"
    return Case(lines, np.full(32, answer, "u4"))


@of("activemask")
def active(opcode: str) -> Case:
    lines = f"setp.gt.u32 %p1, %t, 27; @%p1 {opcode} %r1; @!%p1 mov.u32 %r1, 6; {SHOW}"
    return Case(lines, np.where(LANES > 27, 0xF0000000, 6).astype("u4"))


@of("elect")
def elect(opcode: str) -> Case:
    lines = f"{opcode} %r1|%p1, -1; @%p1 add.u32 %r1, %r1, 9; {SHOW}"
    return Case(lines, np.where(LANES == 0, 9, 0).astype("u4"))


@of("redux")
def reduction(opcode: str) -> Case:
    _, _, operation, *modifiers, kind = opcode.split(".")
    values = RANDOM[:32]
    if kind == "f32":
        floats = np.random.default_rng(3).normal(size=32).astype(np.float32)
        strange = floats.copy()
        strange[4] = np.nan
        seen = np.abs(floats) if "abs" in modifiers else floats
        known = np.delete(seen, 4)
        best = known.min() if operation == "min" else known.max()
        word = 0x7FFFFFFF if "NaN" in modifiers else int(best.view("u4"))
        lines = f"{LOAD} {opcode} %r1, %r9, -1; {SHOW}"
        return Case(lines, np.full(32, word, "u4"), (strange,))
    total = functools.reduce(functools.partial(combined, operation, kind), values.reshape(32, 1))
    lines = f"{LOAD} {opcode} %r1, %r9, -1; {SHOW}"
    return Case(lines, np.repeat(total, 32), (values,))


@of("bar", "barrier")
def barrier(opcode: str) -> Case:
    if ".arrive" not in opcode:
        lines = "mov.u32 %r2, s; mad.lo.u32 %r3, %t, 4, %r2; st.shared.b32 [%r3], %t;"
        lines += f"{opcode} 0; xor.b32 %r4, %t, 33; mad.lo.u32 %r4, %r4, 4, %r2;"
        expected = np.arange(64, dtype="u4") ^ 33
        return Case(f"{lines} ld.shared.b32 %r1, [%r4]; {SHOW}", expected, options={"threads": 64})
    wait = opcode.replace("arrive", "sync")
    return Case(
        f"setp.lt.u32 %p1, %t, 32; mov.u32 %r1, 8; @%p1 bra WAIT; st.shared.b32 [s], %r1;"
        f"{opcode} 3, 64; bra END;\nWAIT:\n {wait} 3, 64; ld.shared.b32 %r1, [s];"
        f"\nEND:\n {SHOW}",
        np.full(64, 8, "u4"),
        options={"threads": 64},
    )


@of("bar.warp")
def barrier_of_a_warp(opcode: str) -> Case:
    return Case(
        f"mov.u32 %r1, 0; {FIRST} mov.u32 %r2, 6; @!%p8 bra L; st.shared.b32 [s], %r2;\nL:\n"
        f"{opcode} -1; ld.shared.b32 %r1, [s]; {SHOW}",
        np.full(32, 6, "u4"),
        options={"variables": MEMORY},
    )


@of("barrier.cluster")
def barrier_of_a_cluster(opcode: str) -> Case:
    arrive = opcode if ".arrive" in opcode else "barrier.cluster.arrive"
    wait = opcode if ".wait" in opcode else "barrier.cluster.wait"
    both = f"{arrive}; {wait};"
    return Case(
        f"add.u32 %r2, %b, 40; st.shared.b32 [s], %r2; {both} xor.b32 %r3, %b, 1; mov.u32 %r4, s;"
        f"mapa.shared::cluster.u32 %r5, %r4, %r3; ld.shared::cluster.b32 %r1, [%r5]; {both} {SHOW}",
        np.repeat([41, 40], 32).astype("u4"),
        options={"blocks": 2, "cluster": 2},
    )
