"""Source lines: kept in a store, read, and joined with machine code to show the cost of each line.

In a store, the lines are in a manifest under a separate key for each artifact. The manifest's
`action` is the action key of the artifact, so that both are removed together. The manifest is
verified, signed and counted like all others. Its `lines` is the compressed record
(`specs/artifacts/source_lines.py`). Each action key has one manifest, for the most recently used
source; the manifest's digests show if the source has changed since.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import Code, Codes, Instruction, classify
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.modules import site_folders
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.source_lines import (
    INSTRUCTION_BYTES,
    MAX_BYTES,
    SCHEMA,
    Frame,
    KernelLines,
    SharedMemory,
    SourceFile,
    SourceLines,
    Stack,
    from_json,
    to_json,
)
from pallasc.specs.canonical import digest, labelled_key

OWN = Path(__file__).resolve().parents[1]
"""The folder of pallasc; in records, the names of its files begin with `pallasc/`."""

COUNTED = ("instructions", "tensor", "shared", "local", "waits", "registers")
"""Costs of each line: all instructions; those that multiply matrices, access shared memory, access
local memory, or wait; and the maximum number of live registers."""

# Instructions that wait at a barrier, or for copies or matrix products.
_WAITS = re.compile(r"BAR\.(?:SYNC|RED)|(?:WARPGROUP\.)?DEPBAR|SYNCS\.PHASECHK|UCGABAR_WAIT")


def key_of(action_key: str) -> str:
    """Return the key under which the source lines of an artifact are stored."""
    return labelled_key({"source lines": str(SCHEMA), "action": action_key})


def put_source_lines(store: Store, action_key: str, lines: SourceLines) -> None:
    """Store the source lines of an artifact, replacing lines of an earlier source."""
    packed = base64.b64encode(zlib.compress(to_json(lines), 9)).decode()
    store.put_manifest(key_of(action_key), Manifest(action=action_key, lines=packed))


def read_source_lines(
    store: Store, action_key: str, *, base_dir: str | None = None
) -> SourceLines | None:
    """Return the source lines of an artifact, None if the store has none that match.

    Args:
        store: the store.
        action_key: the artifact's action key.
        base_dir: the spec's folder; if given, lines of a source that has changed since are not
            returned. If None, lines are returned as they were when found.
    """
    manifest = store.get_manifest(key_of(action_key))
    if manifest is None or not manifest.lines or manifest.action != action_key:
        return None
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(base64.b64decode(manifest.lines, validate=True), MAX_BYTES)
        lines = from_json(data if inflate.eof else b"")
    except (ValueError, zlib.error, CorruptError):
        return None  # damaged, too large, or of a later version; compile again
    if base_dir is not None and not all(_is_same(file, base_dir) for file in lines.files):
        return None
    return lines


def _is_same(file: SourceFile, base_dir: str) -> bool:
    for path in _candidates(file, base_dir):
        try:
            return digest(path.read_bytes()) == file.digest
        except OSError:
            continue
    return False


def _candidates(file: SourceFile, base_dir: str) -> Iterator[Path]:
    if file.place == "spec":
        yield Path(base_dir, file.name)
        return
    if file.name.startswith("pallasc/"):
        yield OWN / file.name.removeprefix("pallasc/")
    yield from (Path(folder, file.name) for folder in site_folders())


def code_of(artifact: Artifact, kernel: KernelResources) -> bytes:
    """Return the machine code of a kernel, b"" if its cubin does not contain it."""
    section = parse_elf(artifact.blob(kernel.cubin)).section(f".text.{kernel.name}")
    return section.content if section else b""


def lines_of(artifact: Artifact, kernel: KernelResources, lines: SourceLines) -> KernelLines | None:
    """Return the lines of a kernel, None if the record has none for its machine code."""
    return lines.of(kernel.name, digest(code_of(artifact, kernel)))


Placed = tuple[Instruction, Stack]
"""An instruction and the user's frames it comes from, innermost first; () if there are none."""

LineCosts = Counter[str]
"""The cost of a source line; see `COUNTED`."""


def add_cost(costs: LineCosts, instruction: Instruction) -> None:
    """Count an instruction of a line."""
    costs["instructions"] += 1
    kind = classify(instruction)
    if kind in ("tensor", "shared", "local"):
        costs[kind] += 1
    costs["waits"] += _WAITS.match(instruction.opcode) is not None
    costs["registers"] = max(costs["registers"], instruction.live_registers or 0)


@dataclass(frozen=True, slots=True)
class LocatedKernel:
    """A kernel of an artifact with its lines.

    Attributes:
        name: the kernel's name.
        origin: "mosaic" or "xla"; XLA's kernels have no user lines.
        instructions: the machine code in order; () if nvdisasm is missing.
        lines: the lines, None if there are none.
        shared_memory: the users of shared memory with their bytes, each with its stack.
    """

    name: str
    origin: str
    instructions: tuple[Placed, ...]
    lines: KernelLines | None
    shared_memory: tuple[tuple[SharedMemory, Stack], ...] = ()

    @property
    def located(self) -> int:
        """The number of instructions that have a line."""
        return sum(1 for _, stack in self.instructions if stack)

    def costs(self) -> dict[Frame, LineCosts]:
        """Return the cost of each line, by the innermost frame."""
        found: dict[Frame, LineCosts] = {}
        for instruction, stack in self.instructions:
            if stack:
                add_cost(found.setdefault(stack[0], Counter()), instruction)
        return found


def located_kernels(
    artifact: Artifact, lines: SourceLines, *, codes: Codes | None = None
) -> list[LocatedKernel]:
    """Return the kernels of an artifact with their lines; lines of other code are ignored.

    Args:
        artifact: the artifact.
        lines: its source lines.
        codes: the code of its kernels, as returned by `disassemble_all`, which is faster for many
            artifacts at once. By default, the kernels are disassembled here.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: a cubin is damaged.
    """
    kernels = {(kernel.cubin, kernel.name): kernel for kernel in artifact.kernels}
    if codes is None:
        codes = disassemble_all({cubin: artifact.blob(cubin) for cubin, _ in kernels})
    found = []
    for kernel in kernels.values():
        known = lines_of(artifact, kernel, lines)
        code = codes[kernel.cubin].get(kernel.name)
        placed = () if code is None else tuple(_placed(code, known, lines))
        memory = known.shared_memory if known else ()
        parts = tuple((part, lines.stack(part.stack)) for part in memory)
        found.append(LocatedKernel(kernel.name, kernel.origin, placed, known, parts))
    return found


def _placed(code: Code, known: KernelLines | None, lines: SourceLines) -> Iterator[Placed]:
    numbers = known.stacks if known else ()
    for instruction in code.instructions:
        index = instruction.address // INSTRUCTION_BYTES
        yield instruction, lines.stack(numbers[index] if index < len(numbers) else 0)
