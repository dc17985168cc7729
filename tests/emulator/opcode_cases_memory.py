"""Cases of loads, stores, atomic operations, and memory of several devices."""

import functools

import numpy as np
from opcode_cases import (
    Case,
    bits_of,
    combined,
    dtype_of,
    element_of,
    numbers,
    of,
    register_of,
    vector_of,
)
from small_kernels import Run

BYTES = np.random.default_rng(6).integers(0, 256, 2048, np.uint8)
_COPY_IN = "".join(
    f"mad.wide.u32 %rd20, %t, 64, %a0; ld.global.b64 %rd21, [%rd20+{at}];"
    f"st.shared.b64 [%r21+{at}], %rd21; st.local.b64 [l+{at}], %rd21;"
    for at in range(0, 64, 8)
)


def space_in(opcode: str) -> str:
    parts = [part.partition("::")[0] for part in opcode.split(".")]
    return next((p for p in parts if p in ("global", "shared", "local", "param", "const")), "")


def vector_in(opcode: str) -> int:
    return next((int(p[1:]) for p in opcode.split(".") if p in ("v2", "v4", "v8")), 1)


def at_lane(space: str) -> str:
    """Return lines that put the address of 64 bytes of a lane into %r1 or %rd1, and its name."""
    if space == "shared":
        return "%r21"
    return {"local": "l", "": "%rd20"}.get(space, "%rd20")


@of("ld", "ldu")
def load(opcode: str) -> Case | None:
    space, count, kind = space_in(opcode), vector_in(opcode), opcode.rpartition(".")[2]
    if kind == "b128":
        return _load_wide(opcode, space)
    size = bits_of(kind) // 8
    if "param" in opcode:
        if count > 1:
            return None
        return (_load_argument if "func" in opcode else _load_parameter)(opcode, kind)
    wide = 8 if size == 8 else 4
    registers, target = vector_of(8 * wide, count)
    values = BYTES.reshape(32, 64)[:, : size * count].copy().view(dtype_of(kind))[:, -1]
    return Case(
        f"mov.u32 %r20, s; mad.lo.u32 %r21, %t, 64, %r20; {_COPY_IN}"
        f"{opcode} {target}, [{at_lane(space)}]; st.global.b{8 * wide} [%out], {registers[-1]};",
        values.astype(np.dtype(f"i{wide}") if kind[0] == "s" else np.dtype(f"u{wide}")),
        (BYTES,),
        options={"width": wide},
    )


def _load_parameter(opcode: str, kind: str) -> Case:
    wide = 8 if bits_of(kind) == 64 else 4
    register = register_of(8 * wide, 40)

    def expected(run: Run) -> np.ndarray:
        word = np.array([run.out.base], "u8").view(dtype_of(kind))[:1]
        return np.repeat(word.astype(f"i{wide}" if kind[0] == "s" else f"u{wide}"), 32)

    lines = f"{opcode} {register}, [outs]; st.global.b{8 * wide} [%out], {register};"
    return Case(lines, expected, options={"width": wide})


def _load_argument(opcode: str, kind: str) -> Case:
    wide = 8 if bits_of(kind) == 64 else 4
    register = register_of(8 * wide, 40)
    values = BYTES.reshape(32, 64)[:, : bits_of(kind) // 8].copy().view(dtype_of(kind))
    return Case(
        "mad.wide.u32 %rd20, %t, 64, %a0; ld.global.b64 %rd41, [%rd20];"
        f"{{ .param .align 8 .b8 p[16]; st.param::func.b64 [p], %rd41; {opcode} {register}, [p]; }}"
        f"st.global.b{8 * wide} [%out], {register};",
        values.astype(f"i{wide}" if kind[0] == "s" else f"u{wide}"),
        (BYTES,),
        options={"width": wide},
    )


def _load_wide(opcode: str, space: str) -> Case:
    return Case(
        f"mov.u32 %r20, s; mad.lo.u32 %r21, %t, 64, %r20; {_COPY_IN}"
        f"{opcode} %q1, [{at_lane(space)}]; mov.b128 {{%rd2, %rd3}}, %q1;"
        "st.global.v2.b64 [%out], {%rd2, %rd3};",
        BYTES.reshape(32, 64)[:, :16],
        (BYTES,),
        options={"width": 16},
    )


@of("st")
def store(opcode: str) -> Case | None:
    space, count, kind = space_in(opcode), vector_in(opcode), opcode.rpartition(".")[2]
    if space == "param":
        return _store_argument(opcode, kind) if count == 1 else None
    size = bits_of(kind) // 8
    wide = 8 if size == 8 else 4
    registers, source = vector_of(8 * wide, count)
    fill = "".join(
        f"ld.global.b{8 * wide} {register}, [%rd20+{n * wide}];"
        for n, register in enumerate(registers)
    )
    target = "%out" if space in ("", "global") else at_lane(space)
    back = "".join(
        f"ld.{space}.b8 %h1, [{target}+{n}]; st.global.b8 [%out+{n}], %h1;"
        for n in range(size * count if target != "%out" else 0)
    )
    words = BYTES.reshape(32, 64)[:, : wide * count].copy().view(f"u{wide}")
    return Case(
        "mov.u32 %r20, s; mad.lo.u32 %r21, %t, 64, %r20; mad.wide.u32 %rd20, %t, 64, %a0;"
        f"{fill} {opcode} [{target}], {source}; {back}",
        words.astype(f"u{size}"),
        (BYTES,),
        options={"width": size * count},
    )  # fmt: skip


def _store_argument(opcode: str, kind: str) -> Case:
    bits = bits_of(kind)
    wide = 8 if bits == 64 else 4
    register = register_of(8 * wide, 40)
    return Case(
        f"mad.wide.u32 %rd20, %t, 64, %a0; ld.global.b{8 * wide} {register}, [%rd20];"
        f"{{ .param .align 8 .b8 p[16]; {opcode} [p], {register};"
        f"ld.param.b{bits} %rd41, [p]; }} st.global.b{bits} [%out], %rd41;",
        BYTES.reshape(32, 64)[:, : bits // 8],
        (BYTES,),
        options={"width": bits // 8},
    )


@of("atom", "red")
def atomic(opcode: str) -> Case:
    parts = [part for part in opcode.split(".") if part != "noftz"]
    operation, kind = parts[-2:]
    shared, returns = space_in(opcode) == "shared", parts[0] == "atom"
    bits, size = bits_of(kind), bits_of(kind) // 8
    per_lane = size // element_of(kind).itemsize
    first, given = (numbers(operation, kind, n * per_lane, n) for n in (1, 32))
    old, last = _folded(operation, kind, first, given)
    value, result, other = (register_of(bits, n) for n in (1, 2, 3))
    at = "[s]" if shared else "[%a1]"
    space = "shared" if shared else "global"
    expected = register_of(bits, 4)
    swap = f"{expected}, {value}" if operation == "cas" else value
    return Case(
        f"mad.wide.u32 %rd9, %t, {size}, %a0; ld.global.b{bits} {value}, [%rd9];"
        f"ld.global.b{bits} {expected}, [%a1]; st.shared.b{bits} [s], {expected};"
        f"bar.warp.sync -1; {opcode} {result + ', ' if returns else ''}{at}, {swap};"
        + (f"st.global.b{bits} [%out], {result};" if returns else "")
        + f"ld.{space}.b{bits} {other}, {at}; st.global.b{bits} [%a1], {other};",
        old if returns else None,
        (given, first),
        {1: last},
        options={"width": size},
    )


def _folded(
    operation: str, kind: str, first: np.ndarray, given: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each lane finds, lane after lane, and what is there in the end."""
    now, seen = first, []
    for value in given.reshape(32, -1):
        seen.append(now)
        if operation != "cas":
            now = combined(operation, kind, now, value)
        elif (now == first).all():
            now = value
    return np.concatenate(seen), now


MEMBERS = 3


def _together(kernel: Run) -> None:
    """Let %a0 be an address that stands for the first arrays."""
    members = kernel.inputs[:MEMBERS]
    both = kernel.machine.memory.map_multicast(
        tuple(region.base for region in members), members[0].size
    )
    kernel.inputs.append(type(members[0])(both, members[0].size))


def _members(kind: str) -> tuple[np.ndarray, ...]:
    """Return arrays of 64 bytes a lane."""
    return tuple(numbers("add", kind, 2048 // element_of(kind).itemsize, n) for n in range(MEMBERS))


@of("multimem.ld_reduce")
def load_of_all(opcode: str) -> Case | None:
    count, kind = vector_in(opcode), opcode.rpartition(".")[2]
    operation = opcode.split("global.")[-1].split(".")
    named = next(p for p in operation if p in ("add", "min", "max", "and", "or", "xor"))
    if (kind[0] == "f" or (kind[0] == "b" and "f" in kind)) and named in ("and", "or", "xor"):
        return None
    if kind in ("b32", "b64") and named not in ("and", "or", "xor"):
        return None
    bits = bits_of(kind)
    registers, target = vector_of(bits, count)
    arrays = _members(kind)
    lanes = [_begins(a, bits // 8 * count) for a in arrays]
    stores = "".join(
        f"st.global.b{bits} [%out+{n * bits // 8}], {r};" for n, r in enumerate(registers)
    )
    return Case(
        f"mad.wide.u32 %rd1, %t, 64, %a3; {opcode} {target}, [%rd1]; {stores}",
        functools.reduce(functools.partial(combined, named, kind), lanes),
        (*arrays, np.zeros(1, "u4")),
        options={"width": bits // 8 * count},
        prepare=_move_last,
    )


def _begins(array: np.ndarray, size: int) -> np.ndarray:
    """Return the first bytes of each lane's 64."""
    return array.view(np.uint8).reshape(32, 64)[:, :size].copy().view(array.dtype).ravel()


def _move_last(kernel: Run) -> None:
    """Let the last array be an address that stands for the others."""
    del kernel.inputs[MEMBERS:]
    _together(kernel)


def _move_last_but_one(kernel: Run) -> None:
    """Do the same where an operand comes last."""
    operand = kernel.inputs[4]
    _move_last(kernel)
    kernel.inputs.append(operand)


@of("multimem.st")
def store_to_all(opcode: str) -> Case:
    count, kind = vector_in(opcode), opcode.rpartition(".")[2]
    bits = bits_of(kind)
    size = bits // 8
    registers, source = vector_of(bits, count)
    fill = "".join(f"ld.global.b{bits} {r}, [%rd2+{n * size}];" for n, r in enumerate(registers))
    arrays = (*(np.zeros(32 * size * count, np.uint8) for _ in range(MEMBERS)), BYTES[:4], BYTES)
    stored = BYTES.reshape(32, 64)[:, : size * count].copy()
    return Case(
        f"mad.wide.u32 %rd1, %t, {size * count}, %a3; mad.wide.u32 %rd2, %t, 64, %a4; {fill}"
        f"{opcode} [%rd1], {source};",
        None,
        arrays,
        dict.fromkeys(range(MEMBERS), stored),
        prepare=_move_last_but_one,
    )


@of("multimem.red")
def reduce_all(opcode: str) -> Case:
    operation, kind = opcode.split(".")[-2:]
    bits = bits_of(kind)
    arrays = _members(kind)
    operand = arrays[0]
    lanes = [_begins(a, bits // 8) for a in arrays]
    changed = {}
    for number, array in enumerate(arrays):
        rows = array.view(np.uint8).reshape(32, 64).copy()
        result = combined(operation, kind, lanes[number], lanes[0])
        rows[:, : bits // 8] = result.view(np.uint8).reshape(32, -1)
        changed[number] = rows
    value = register_of(bits, 40)
    return Case(
        f"mad.wide.u32 %rd1, %t, 64, %a3; mad.wide.u32 %rd2, %t, 64, %a4;"
        f"ld.global.b{bits} {value}, [%rd2]; {opcode} [%rd1], {value};",
        None,
        (*arrays, np.zeros(1, "u4"), operand),
        changed,
        prepare=_move_last_but_one,
    )
