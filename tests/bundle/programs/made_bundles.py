"""Made-up artifacts and cubins: valid in every respect that a bundle looks at, and small."""

import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import resolve_target

_ROW = struct.Struct("<IIQQQQIIQQ")
DEBUG = (".debug_frame", ".nv_debug_ptx_txt")


def make_elf(
    sections: Sequence[tuple[str, int, bytes]], *, sm: int = 90, alignment: int = 4
) -> bytes:
    """Return a cubin with these sections: name, type, content; names come first, the table last."""
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name, _, _ in sections)
    rows, body = [bytes(64)], bytearray(64)
    for name, kind, content in [(".shstrtab", 3, names), *sections]:
        body += bytes(-len(body) % alignment)
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(_ROW.pack(at, kind, 0, 0, len(body), len(content), 0, 0, alignment, 0))
        body += content
    header = struct.pack(
        "<4s12BHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0x41, 8, *bytes(7), 2, 190, 1, 0, 0, len(body),
        sm << 8, 64, 56, 0, 64, len(rows), 1,
    )  # fmt: skip
    return header + bytes(body[64:]) + b"".join(rows)


def make_cubin(seed: int = 0, *, sm: int = 90, debug: bool = True, rows: int = 24) -> bytes:
    """Return a cubin of kernel `k`; those of near seeds share most of their instructions."""
    common = random.Random(sm)
    code = bytearray(common.randbytes(16 * rows))
    own = random.Random(seed)
    for _ in range(2):
        at = 16 * own.randrange(rows)
        code[at : at + 16] = own.randbytes(16)
    attributes = struct.pack("<BBHI", 4, 0x2F, 4, seed % 256)
    sections = [
        (".nv.info", 0x70000000, b""),
        (".nv.info.k", 0x70000000, attributes),
        (".text.k", 1, bytes(code)),
    ]
    if debug:
        sections[1:1] = [(name, 1, name.encode() * 20) for name in DEBUG]
    return make_elf(sections, sm=sm)


def make_artifact(
    seed: int = 0,
    *,
    target: str = "h100-sxm",
    shape: Sequence[int] = (16, 32),
    spills: int = 0,
    constant: bytes = b"",
    sm: int | None = None,
) -> Artifact:
    """Return an artifact of one kernel, with PTX, and with a constant where one is given."""
    model = resolve_target(target)
    cubin = make_cubin(seed, sm=model.major * 10 + model.minor if sm is None else sm)
    ptx = f".version 9.0\n.target {model.arch}\n// {seed}\n".encode()
    blobs = {digest(data): data for data in (cubin, ptx, constant) if data}
    record = _record(asdict(model), digest(cubin), digest(ptx), shape, spills, constant)
    record["blobs"] = {key: len(data) for key, data in blobs.items()}
    return Artifact(record, blobs.__getitem__)


def _record(
    target: Mapping[str, Any],
    cubin: str,
    ptx: str,
    shape: Sequence[int],
    spills: int,
    constant: bytes,
) -> dict[str, Any]:
    size = 2
    for length in shape:
        size *= length
    buffers: list[dict[str, Any]] = [
        {"role": role, "size": size, "alignment": 256, "digest": None}
        for role in ("input", "output")
    ]
    if constant:
        buffers.append(
            {"role": "constant", "size": len(constant), "alignment": 256,
             "digest": digest(constant)}
        )  # fmt: skip
    binding = {"dtype": "bf16", "shape": list(shape)}
    return {
        "schema": 1,
        "target": dict(target),
        "toolchain": {"ptxas": "13.5.37", "versions": {"jax": "0.12.0.1"}, "digests": {}},
        "minimum_driver": {"cuda": "13.0", "linux": "580.65.06"},
        "kernels": [
            {"name": "k", "cubin": cubin, "ptx": ptx, "origin": "mosaic", "registers": 40,
             "stack_bytes": spills, "spill_store_bytes": spills, "spill_load_bytes": 0,
             "static_smem_bytes": 0, "dynamic_smem_bytes": 1024, "barriers": 1}
        ],
        "plan": {
            "buffers": buffers,
            "inputs": [{"path": "x", "buffer": 0, **binding}],
            "outputs": [{"path": "out", "buffer": 1, **binding}],
            "steps": [
                {"kind": "launch", "kernel": "k", "cubin": cubin, "grid": [4, 1, 1],
                 "cluster": None, "block": [128, 1, 1], "dynamic_smem_bytes": 1024, "pdl": False,
                 "parameters": [{"kind": "pointer", "buffer": 0, "offset": 0},
                                {"kind": "pointer", "buffer": 1, "offset": 0}],
                 "origin": "mosaic", "label": "k.1"}
            ],
            "input_tree": {"x": 0},
            "output_tree": 0,
        },
    }  # fmt: skip


def make_items(
    count: int, *, names: Sequence[str] = ("scale",), targets: Sequence[str] = ("h100-sxm",)
) -> list[Item]:
    """Return so many different variants of each kernel on each target."""
    return [
        Item(
            name,
            {"m": 16 * (number + 1), "dtype": "bf16"},
            make_artifact(1000 * index + number, target=target, shape=(16 * (number + 1), 32)),
        )
        for index, name in enumerate(names)
        for number in range(count)
        for target in targets
    ]
