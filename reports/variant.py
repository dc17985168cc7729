"""The page of a variant: its figures, launches, tensor maps, plan and code.

The code of a kernel is shown as source, PTX and SASS, with the correspondence of their lines. An
attribute of the kernel's element contains JSON, in which `block` is the name of a block (`Blocks`):

    code     = {"kernel": name, "ptx": block, "sass": block, "lines": block, "sources": [source]}
    source   = {"name": file, "block": block of [[number, text]]}
    sass     = {"text": [text], "labels": {number: label}, "live": [registers or null],
                "kinds": [class], "kind": [index of a class], "ptx": [line of the PTX, 0 for none]}
    lines    = {"ptx": [index of a stack, -1 for none], "stacks": [[frame]]}
    frame    = [index of a source, line, function], the innermost first

The name of a missing block is "". The lists of `sass` have an item for each instruction, the lists
of `lines` one for each line of the PTX.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pallasc.analysis.lines import lines_of
from pallasc.analysis.loops import Loop
from pallasc.analysis.metrics import KernelMetrics, Occupancy, work_rows
from pallasc.analysis.sass import CLASSES, Class, Codes, classify
from pallasc.reports.content import COLUMNS, Entry, by, counted, number, percent, size
from pallasc.reports.drawings import draw_maps, draw_plan
from pallasc.specs.artifacts.artifact import (
    Artifact,
    KernelResources,
    blocks_by_limit,
)
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.plan import Launch
from pallasc.specs.artifacts.source_lines import SourceLines, lines_of_code

if TYPE_CHECKING:
    from pallasc.analysis.sass import Code
    from pallasc.specs.artifacts.source_lines import KernelLines

_RESERVED_BYTES = 1024
"""Shared memory that the system reserves in each block, from compute capability 8.0 on."""
_MOST_BLOCKS = 16
"""Maximum number of blocks whose memory is drawn individually."""
_NOT_TILES = {"findings", "status", "limit"}
_MOST_NAMED = 4
"""Maximum number of instruction classes listed for a loop."""
_NAME_DIGITS = 16

Data = dict[str, Any]
"""Values for a template, by the names that the template uses."""


class Blocks:
    """The large texts of one report: compressed, stored once each, and unpacked when displayed.

    A block is an element of the page that a browser does not execute:

        block    = <script type="text/plain" id="NAME"> content </script>
        content  = base64 (RFC 4648, with padding) of raw deflate (RFC 1951) of UTF-8 text

    The Compression Streams standard calls this format `deflate-raw`; `script/blocks.js` reads it.
    Base64 has no `<`, so no text can close its element. The compressed bytes depend on the zlib
    that Python was linked with; everything else in a report depends only on its inputs.
    """

    def __init__(self) -> None:
        self._packed: dict[str, str] = {}

    def add(self, text: str, *, name: str = "") -> str:
        """Add a text and return the name of its block; equal texts without a name share one."""
        data = text.encode("utf-8", "replace")
        name = name or f"b-{hashlib.sha256(data).hexdigest()[:_NAME_DIGITS]}"
        if name not in self._packed:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            packed = deflate.compress(data) + deflate.flush()
            self._packed[name] = base64.b64encode(packed).decode("ascii")
        return name

    def add_json(self, value: object) -> str:
        """Add a value as JSON, and return the name of its block."""
        return self.add(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def items(self) -> list[tuple[str, str]]:
        """Return names and contents, in the order in which they were added."""
        return list(self._packed.items())


def unpacked(content: str) -> str:
    """Return the text of a block."""
    return zlib.decompress(base64.b64decode(content), -zlib.MAX_WBITS).decode()


def variant_data(
    entry: Entry, codes: Codes | None, source: SourceLines | None, blocks: Blocks
) -> Data:
    """Return the data of a variant's page, and add its texts to the blocks.

    Args:
        entry: the variant.
        codes: SASS; None if there is no disassembler.
        source: the source lines of the artifact; None if the store has none.
        blocks: the report's blocks.

    Raises:
        CorruptError: the artifact lacks something, or is damaged.
    """
    params = ", ".join(f"{name}={value}" for name, value in entry.params.items())
    artifact = entry.artifact
    if artifact is None:
        return {"params": params, "tiles": (), "launches": (), "plan": None, "code": ()}
    kernels = sorted(artifact.kernels, key=lambda kernel: kernel.origin != "mosaic")
    return {
        "params": params,
        "tiles": list(_tiles(entry)),
        "launches": [
            _launch(entry.metrics[at], times, artifact, source)
            for at, times in _launches_of(artifact)
        ],
        "plan": draw_plan(artifact.plan),
        "code": [_code(kernel, artifact, codes, source, blocks) for kernel in kernels],
    }


def _tiles(entry: Entry) -> Iterator[Data]:
    """Yield the figures at the top of the page."""
    limit = entry.figures.limited_by and f"limited by {entry.figures.limited_by}"
    for column in COLUMNS:
        if column.key in _NOT_TILES or (column.value(entry) is None and not column.always):
            continue
        yield {
            "name": column.label,
            "value": column.show(entry),
            "note": limit if column.key == "occupancy" else "",
            "kind": "bad" if column.is_bad(entry) else "",
        }


def _launches_of(artifact: Artifact) -> list[tuple[int, int]]:
    """Return the numbers of launches that differ in more than addresses, and how often they occur.

    Mosaic launches come first, otherwise in the order of the plan.
    """
    counts: dict[object, list[int]] = {}
    launches = artifact.plan.launches
    for at, launch in enumerate(launches):
        key = (launch.kernel, launch.cubin, launch.grid, launch.block, launch.cluster)
        counts.setdefault(key, []).append(at)
    found = [(numbers[0], len(numbers)) for numbers in counts.values()]
    return sorted(found, key=lambda each: launches[each[0]].origin != "mosaic")


def _launch(
    metrics: KernelMetrics, times: int, artifact: Artifact, source: SourceLines | None
) -> Data:
    """Return the data of a launch; launches of one kernel with the same shape are shown once."""
    launch = artifact.plan.launches[metrics.launch]
    kernel = artifact.kernel_of(launch)
    blocks = metrics.occupancy.blocks_per_sm
    lines = lines_of(artifact, kernel, source) if source is not None else None
    limits = blocks_by_limit(launch, kernel, artifact.target)
    most = max(1, *limits.values())
    return {
        "kernel": launch.kernel,
        "origin": launch.origin,
        "times": times,
        "shape": _shape(launch),
        "limits": [
            {
                "name": name,
                "blocks": limit,
                "part": math.sqrt(limit / most),
                "is_least": limit <= blocks,
            }
            for name, limit in limits.items()
        ],
        "occupancy_text": _occupancy_text(metrics.occupancy),
        "memory": list(_memory(launch, kernel, blocks, artifact)),
        "memory_text": _memory_text(launch, kernel, blocks, artifact),
        "maps": draw_maps(launch),
        "shared": lines.shared_memory if lines is not None else (),
        "work": list(work_rows(metrics)),
        "mix": _ranked(metrics.mix or {}),
        "loops": [_loop(loop) for loop in metrics.loops or ()],
    }


def _shape(launch: Launch) -> str:
    parts = [
        f"Grid of {by(launch.grid)} blocks",
        f"{by(launch.block)} threads each ({-(-math.prod(launch.block) // 32)} warps)",
    ]
    if launch.cluster is not None and math.prod(launch.cluster) > 1:
        parts.append(f"clusters of {by(launch.cluster)}")
    if launch.pdl:
        parts.append("programmatic dependent launch")
    return ", ".join(parts)


def _occupancy_text(occupancy: Occupancy) -> str:
    waves = number(round(occupancy.waves, 2))
    return (
        f"{occupancy.warps_per_sm} of {occupancy.most_warps_per_sm} warps "
        f"({percent(occupancy.part)}), limited by {', '.join(occupancy.limited_by)}; the grid "
        f"makes {waves} wave{'' if waves == '1' else 's'}."
    )


def _memory(
    launch: Launch, kernel: KernelResources, blocks: int, artifact: Artifact
) -> Iterator[Data]:
    """Yield the parts of the shared memory of a multiprocessor."""
    static, dynamic = kernel.static_smem_bytes, launch.dynamic_smem_bytes
    shown = min(blocks, _MOST_BLOCKS)
    each = blocks / shown if shown else 0
    for block in range(shown):
        for kind, taken in (("dynamic", dynamic), ("static", static), ("system", _RESERVED_BYTES)):
            if taken:
                title = f"block {block}, {kind}: {size(taken)}"
                yield {"kind": kind, "size": round(taken * each), "title": title}
    total = artifact.target.smem_per_sm_bytes
    free = total - blocks * (static + dynamic + _RESERVED_BYTES)
    if free > 0:
        yield {"kind": "free", "size": free, "title": f"free: {size(free)}"}


def _memory_text(launch: Launch, kernel: KernelResources, held: int, artifact: Artifact) -> str:
    total, most = artifact.target.smem_per_sm_bytes, artifact.target.smem_optin_bytes
    taken = kernel.static_smem_bytes + launch.dynamic_smem_bytes
    blocks = counted(held, "block")
    return (
        f"{size(launch.dynamic_smem_bytes)} dynamic and {size(kernel.static_smem_bytes)} static "
        f"of a block, {size(taken)} of at most {size(most)}; {blocks} in {size(total)}."
    )


def _ranked(mix: Mapping[Class, int]) -> list[Data]:
    """Return the instructions of a kernel by class, the most frequent first."""
    ranked = sorted(mix.items(), key=lambda each: -each[1])
    return [
        {"kind": kind, "label": kind.replace("_", " "), "instructions": count}
        for kind, count in ranked
    ]


def _loop(loop: Loop) -> Data:
    named = [f"{each['instructions']} {each['label']}" for each in _ranked(loop.mix)[:_MOST_NAMED]]
    return {
        "address": f"{loop.header:04x}",
        "depth": loop.depth,
        "instructions": sum(loop.mix.values()),
        "note": "waits" if loop.is_wait else ", ".join(named),
    }


def _code(
    kernel: KernelResources,
    artifact: Artifact,
    codes: Codes | None,
    source: SourceLines | None,
    blocks: Blocks,
) -> Data:
    ptx = artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0\n") if kernel.ptx else ""
    code = codes.get(kernel.cubin, {}).get(kernel.name) if codes is not None else None
    lines = lines_of(artifact, kernel, source) if source is not None else None
    value: dict[str, object] = {
        "kernel": kernel.name,
        "ptx": blocks.add(ptx) if ptx else "",
        "sass": blocks.add_json(_sass(code, kernel, artifact)) if code is not None else "",
        "lines": "",
        "sources": [],
    }
    if source is not None and lines is not None:
        value["lines"] = blocks.add_json(_lines(lines, source))
        value["sources"] = [
            {"name": file.name, "block": blocks.add_json(sorted(file.text.items()))}
            for file in source.files
        ]
    notes = list(_notes(kernel, codes, code, has_lines=lines is not None))
    return {"kernel": kernel.name, "json": json.dumps(value, ensure_ascii=False), "notes": notes}


def _notes(
    kernel: KernelResources, codes: Codes | None, code: Code | None, *, has_lines: bool
) -> Iterator[tuple[str, str]]:
    """Yield each missing part of the code, and the command that adds it, if any."""
    if codes is None:
        yield "nvdisasm is not installed: no SASS.", "pip install nvidia-cuda-nvdisasm"
    elif code is None:
        yield "nvdisasm shows no code of this kernel.", ""
    if kernel.ptx is None and kernel.origin == "mosaic":
        yield "The bundle has no PTX.", "pallasc bundle create --keep-ptx"
    elif kernel.ptx is None:
        yield "XLA generated this kernel; it has no PTX and no source lines.", ""
    elif not has_lines:
        yield "The store has no source lines of this variant.", "pallasc inspect SPECS --lines"


def _sass(code: Code, kernel: KernelResources, artifact: Artifact) -> dict[str, object]:
    instructions = code.instructions
    return {
        "text": [each.text for each in instructions],
        "labels": {str(at): each.label for at, each in enumerate(instructions) if each.label},
        "live": [each.live_registers for each in instructions],
        "kinds": CLASSES,
        "kind": [CLASSES.index(classify(each)) for each in instructions],
        "ptx": _ptx_lines(kernel, artifact, len(instructions)),
    }


def _ptx_lines(kernel: KernelResources, artifact: Artifact, count: int) -> list[int]:
    """Return the PTX line of each instruction, from the line table that the assembler wrote."""
    found: list[int] = []
    if kernel.ptx is not None:
        elf = parse_elf(artifact.blob(kernel.cubin))
        code = [section for section in elf.sections if section.name.startswith(".text.")]
        if len(code) == 1:
            found = lines_of_code(elf, code[0].size)
    return [*found[:count], *[0] * (count - len(found))]


def _lines(lines: KernelLines, source: SourceLines) -> dict[str, object]:
    """Return the stack of each PTX line; lines without one use the stack of the line before."""
    numbers = {file.name: number for number, file in enumerate(source.files)}
    held, stacks = 0, []
    for stack in lines.ptx_stacks:
        held = stack or held
        stacks.append(held - 1)
    return {
        "ptx": stacks,
        "stacks": [
            [[numbers[frame.file], frame.line, frame.function] for frame in stack]
            for stack in source.stacks
        ],
    }
