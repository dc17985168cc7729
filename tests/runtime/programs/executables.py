"""Compile variants of one architecture; keep artifact and serialised executable of each.

Usage: executables.py FOLDER PTXAS <VARIANTS. Standard input has a JSON list of variants. Each gets
a folder named after the digest of its id, with `record.json`, `blobs/` and `executable`, the bytes
that the plan was made from. What already exists is not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot
from pallasc.compiler.lowering import compile as compiling
from pallasc.compiler.lowering.entry import import_function, static_value
from pallasc.compiler.lowering.lower import Job
from pallasc.compiler.lowering.serialized import parse_executable
from pallasc.specs.spec import Variant, variant_from_json


def place(folder: Path, variant: Variant) -> Path:
    """Return where a variant's files lie."""
    return folder / hashlib.sha256(variant.id.encode()).hexdigest()[:16]


def compile_variant(
    variant: Variant, ptxas: Path
) -> tuple[dict[str, Any], dict[str, bytes], bytes]:
    """Compile as a worker does; return record, blobs and the serialised executable."""
    seen: list[bytes] = []

    def spy(data: bytes) -> Any:
        seen.append(data)
        return parse_executable(data)

    compiling.parse_executable = spy
    job = Job(
        function=import_function(variant.entry, variant.base_dir),
        args=variant.args,
        static={name: static_value(v, variant.base_dir) for name, v in variant.static.items()},
        target=variant.target,
    )
    tools = compiling.Tools(record={}, ptxas=ptxas, identity={}, variables={})
    record, blobs = compiling.compile_job(job, compiling.lower_job(job), tools)
    (executable,) = seen
    return record, blobs, executable


def keep(own: Path, record: dict[str, Any], blobs: dict[str, bytes], executable: bytes) -> None:
    """Write what came out; the record last, since it says that all is there."""
    (own / "blobs").mkdir(parents=True, exist_ok=True)
    for key, data in blobs.items():
        (own / "blobs" / key).write_bytes(data)
    (own / "executable").write_bytes(executable)
    written = own / "record.new"
    written.write_text(json.dumps(record))
    written.rename(own / "record.json")


def main() -> None:
    """Compile what standard input lists."""
    folder, ptxas = Path(sys.argv[1]), Path(sys.argv[2])
    before = ProcessSnapshot()
    for data in json.load(sys.stdin):
        variant = variant_from_json(data)
        own = place(folder, variant)
        if not (own / "record.json").exists():
            before.restore_variables()
            keep(own, *compile_variant(variant, ptxas))
            before.restore_functions()


if __name__ == "__main__":
    main()
