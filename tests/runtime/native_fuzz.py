"""Build the program that fuzzes the reader of flat plans, and the plans that it begins with."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import native_build

from pallasc.cache.store import Store
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan

PROGRAM = Path(__file__).parent / "native" / "fuzz"
SANITIZERS = "address,undefined"
STATUS = ("opened", "argument", "corrupt", "device", "driver", "out of memory", "not found")
"""What `pallasc_open` and others return, in the order of their codes."""

_OUTSIDE = {"host.c", "xla.c", *native_build.OF_PYTHON}
_FLAGS = (
    "-std=gnu11", "-g", "-O2", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread",
    "-Wall", "-Wextra", "-Ddlopen=watching_dlopen", "-Ddlsym=watching_dlsym",
)  # fmt: skip
_OPTIONS = {
    "ASAN_OPTIONS": "max_allocation_size_mb=1024:quarantine_size_mb=32",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def why_not(compiler: str = "cc", *, fuzzer: bool = False) -> str | None:
    """Return what is missing to build it; None where nothing is."""
    if shutil.which(compiler) is None:
        return f"no C compiler {compiler}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        body = "int LLVMFuzzerTestOneInput(const char *data, long size)" if fuzzer else "int main()"
        arguments = "{ return data && size < 0; }" if fuzzer else "{ return 0; }"
        source.write_text(f"{body} {arguments}\n")
        flags = [f"-fsanitize={_sanitizers(fuzzer)}"]
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(source.with_suffix(""))],
            capture_output=True,
            check=False,
        )
    if done.returncode:
        return f"{compiler} cannot build with {flags[0]}"
    return None


def _sanitizers(fuzzer: bool) -> str:
    return f"fuzzer,{SANITIZERS}" if fuzzer else SANITIZERS


@functools.cache
def build(compiler: str = "cc", *, fuzzer: bool = False) -> Path:
    """Return the program, compiled where these sources were not compiled before."""
    own = sorted(path for path in native_build.SOURCES.glob("*.c") if path.name not in _OUTSIDE)
    names = [path.name for path in own]
    files = [*own, *sorted(PROGRAM.glob("*.c"))]
    flags = [*_FLAGS, f"-fsanitize={_sanitizers(fuzzer)}", *(["-DLIBFUZZER"] if fuzzer else [])]
    digest = hashlib.sha256(repr((compiler, flags)).encode())
    for path in (*files, *sorted(native_build.SOURCES.rglob("*.h")), PROGRAM / "mutate.h"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    program = native_build.ROOT / "build" / "native" / digest.hexdigest()[:16] / "fuzz"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_suffix(f".{os.getpid()}")
        include = ["-I", native_build.SOURCES, "-I", PROGRAM]
        digests = made.with_suffix(".o")
        fast = ["-std=c11", "-O3", "-Dsha256=plain_sha256", "-c", own[names.index("sha256.c")]]
        subprocess.run([compiler, *fast, "-o", digests], check=True)
        checked = [path for path in files if path.name != "sha256.c"]
        subprocess.run([compiler, *flags, *include, *checked, digests, "-o", made], check=True)
        digests.unlink()
        os.replace(made, program)
    return program


def write_files(artifacts: Iterable[tuple[str, Artifact]], folder: Path) -> list[Path]:
    """Write plans, with their cubins inside and by digest, and the cubins; return the files.

    Most plans name their cubins by digest: they are small, so that much can be tried.
    """
    files = set()
    for name, artifact in artifacts:
        if artifact.plan.device_count != 1:
            continue
        for inside in (True, False):
            data = flat_plan(artifact, name=name, inside=inside)
            copies = 1 if inside else 3
            for copy in range(copies):
                file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}-{copy}.plan"
                file.write_bytes(data)
                files.add(file)
        for key in artifact.record["blobs"]:
            file = folder / key
            file.write_bytes(artifact.blob(key))
            files.add(file)
    return sorted(files)


def stored(store: Store) -> Iterable[tuple[str, Artifact]]:
    """Give the artifacts of a store, with a name each."""
    for file in sorted(store.root.glob("v*/ac/*/*")):
        found = store.get_artifact(file.name)
        if found is None:
            continue

        def blob(key: str, found: Any = found) -> bytes:
            data = found.blob(key) or store.get_blob(key)
            assert data is not None, key
            return data

        yield file.name[:12], Artifact(found.artifact, blob)


def environment(**changes: str) -> dict[str, str]:
    """Return the environment in which sanitizers report."""
    return {**os.environ, **_OPTIONS, **changes}


def run(
    files: Sequence[Path],
    count: int,
    *,
    seed: int,
    findings: Path,
    through: Sequence[str] = (),
    keep: Path | None = None,
    compiler: str = "cc",
) -> Mapping[str, Any]:
    """Try that many changed plans; return what the program counted.

    Raises:
        AssertionError: it ended with a finding, which the text tells.
    """
    program = build(compiler)
    command = [*through, program, str(count), str(seed), findings, *files]
    changes = {} if keep is None else {"KEEP": str(keep)}
    done = subprocess.run(
        command, env=environment(**changes), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{findings / 'finding.plan'}, seed {seed}: {done.stderr[-6000:]}")
    counted: Mapping[str, Any] = json.loads(done.stdout)
    return counted
