"""Serialised executables: read whole, and refused where a part does not fit."""

import random
from typing import Any

import pytest

from pallasc.compiler.lowering import serialized as container
from pallasc.compiler.lowering import translate as translating
from pallasc.compiler.lowering.mosaic_kernel import read_mosaic_kernel
from pallasc.compiler.lowering.serialized import message_type, parse_executable
from pallasc.compiler.lowering.translate import translate
from pallasc.errors import CompileError, CorruptError


@pytest.fixture(scope="module")
def serialized(build: Any) -> bytes:
    data: bytes = build("functions")["around"].executable
    return data


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)


def _file(manifest: Any, *parts: bytes) -> bytes:
    """Return a serialised executable whose split protobuf has these parts."""
    values = [manifest.SerializeToString(), *parts]
    sizes = b"".join(_varint(len(value)) for value in values)
    body = b"\0" + _varint(len(sizes)) + sizes + b"".join(values)
    header = bytes(8) + len(body).to_bytes(8, "little") + bytes(8) + b"r"
    chunk = header + len(values).to_bytes(7, "little") + bytes(8) + body
    split = container.SIGNATURE + bytes(16) + chunk
    outer = message_type("ExecutableAndOptionsProto")(serialized_executable=split)
    return b"\0" + bytes(outer.SerializeToString())


def _manifest(*records: Any, name: str = "xla.gpu.GpuExecutableProto") -> Any:
    return message_type("SplitProtoManifest")(result_proto_type=name, records=records)


def _field(*path: int) -> dict[str, Any]:
    return {"field_override_record": {"field_path": [{"field_number": n} for n in path]}}


FAR: dict[str, Any] = _field(12, 1)
FAR["field_override_record"]["field_path"][0]["repeated_field_index"] = 1 << 60


def test_an_executable_of_this_jax_is_read_and_refused_if_it_is_truncated(
    serialized: bytes,
) -> None:
    dice = random.Random(5)
    for size in sorted(dice.randrange(len(serialized)) for _ in range(100)):
        with pytest.raises(CompileError):
            translate(parse_executable(serialized[:size]))
    executable = parse_executable(serialized)
    assert len(executable.thunks) == 5


def test_parts_are_put_together() -> None:
    message = message_type("GpuExecutableProto")
    merged = message(buffer_allocations={"values": [{"size": 5}]}).SerializeToString()
    manifest = _manifest(_field(3), _field(4), {})
    executable = parse_executable(_file(manifest, b"ptx", b"cubin", merged))
    assert (executable.asm_text, executable.binary) == (b"ptx", b"cubin")
    assert executable.buffer_allocations.values[0].size == 5
    path = [{"field_number": 12, "repeated_field_index": 0}, {"field_number": 1}]
    manifest = _manifest({"field_override_record": {"field_path": path}})
    assert parse_executable(_file(manifest, b"c")).constants[0].symbol_name == "c"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends inside a varint"),
        (b"\0\xff", "not readable"),
        (b"\0", "not readable"),
        (_file(_manifest(name="xla.Other")), "holds a xla.Other, not a GpuExecutableProto"),
        (_file(_manifest({}, {}), b""), "names 2 records, the file has 1"),
        (_file(_manifest(_field(99)), b""), "not readable"),
        (_file(_manifest(_field()), b""), "not readable"),
        (_file(_manifest(_field(8, 1)), b"x"), "not readable"),
        (_file(_manifest(_field(13, 7)), b"x"), "not readable"),
        (_file(_manifest({}), b"\xff\xff"), "not readable"),
        (_file(_manifest(FAR), b"x"), "not readable"),
    ],
)
def test_what_does_not_fit_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        parse_executable(data)


def test_a_damaged_message_gives_an_answer_or_an_error_of_ours(
    serialized: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage the thunks and allocations themselves, where most bytes decide something."""
    executable = parse_executable(serialized)
    kernel = read_mosaic_kernel(
        executable.thunks[0].custom_call_thunk.execution_state.state, buffers=2
    )
    monkeypatch.setattr(translating, "read_mosaic_kernel", lambda state, **_: kernel)
    for thunk in executable.thunks:
        thunk.custom_call_thunk.attributes.Clear() if thunk.HasField("custom_call_thunk") else None
        if thunk.HasField("custom_call_thunk"):
            thunk.custom_call_thunk.execution_state.Clear()
    executable.ClearField("hlo_module_with_config")
    executable.ClearField("asm_text")
    data, dice = executable.SerializeToString(), random.Random(7)
    from google.protobuf.message import DecodeError

    steps = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(dice.randrange(1, 6)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 0xFF, dice.randrange(256)))
        try:
            message = message_type("GpuExecutableProto").FromString(bytes(damaged))
        except DecodeError:
            continue
        try:
            steps += len(translate(message).steps)
        except (CompileError, CorruptError):
            continue
    assert steps > 0
