"""Build the programs that fuzz the C library, and the plans that they begin with.

One fuzzes the reader of flat plans, one the handlers that XLA calls; the extension is compiled with
sanitizers and called by a program in Python.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
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

MAINS = {"reader": "main.c", "handlers": "handlers.c"}
"""What is fuzzed, and the source of the program for it."""
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
def build(compiler: str = "cc", *, fuzzer: bool = False, what: str = "reader") -> Path:
    """Return the program, compiled where these sources were not compiled before."""
    outside = {*native_build.OF_PYTHON, *({"host.c", "xla.c"} if what == "reader" else ())}
    own = sorted(path for path in native_build.SOURCES.glob("*.c") if path.name not in outside)
    names = [path.name for path in own]
    files = [*own, *(PROGRAM / name for name in ("driver.c", "mutate.c", MAINS[what]))]
    flags = [*_FLAGS, f"-fsanitize={_sanitizers(fuzzer)}", *(["-DLIBFUZZER"] if fuzzer else [])]
    digest = hashlib.sha256(repr((compiler, flags)).encode())
    included = [PROGRAM / "mutate.h", PROGRAM.parent / "fake_xla.c"]
    for path in (*files, *sorted(native_build.SOURCES.rglob("*.h")), *included):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    program = native_build.ROOT / "build" / "native" / digest.hexdigest()[:16] / "fuzz"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_suffix(f".{os.getpid()}")
        include = ["-I", native_build.SOURCES, "-I", PROGRAM]
        digests = program.with_suffix(f".{os.getpid()}.o")
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


def run_handlers(
    files: Sequence[Path], count: int, *, seed: int, first: int = 0, through: Sequence[str] = ()
) -> Mapping[str, int]:
    """Make that many odd call sites of XLA; return what the program counted.

    Raises:
        AssertionError: it ended with a finding, which the text tells.
    """
    command = [*through, build(what="handlers"), str(count), str(seed), str(first), *files]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"seed {seed}: {done.stderr[-6000:]}")
    counted: Mapping[str, int] = json.loads(done.stdout)
    return counted


_EXTENSION_FLAGS = (
    "-g", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all",
    "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
)  # fmt: skip


def why_not_extension() -> str | None:
    """Return what is missing to fuzz the extension; None where nothing is."""
    if (missing := why_not()) is not None:
        return missing
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "this Python is here without its headers"
    if not all(map(Path.is_file, _sanitizer_libraries())):
        return "cc has no sanitizers as libraries, and Python has to load them first"
    return None


def _sanitizer_libraries() -> list[Path]:
    asked = [["cc", f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan")]
    found = [subprocess.check_output(command, text=True) for command in asked]
    return [Path(line.strip()) for line in found]


@functools.cache
def _build_extension() -> list[Path]:
    """Return the extension and what it calls, compiled where these sources were not before."""
    watcher, headers = PROGRAM / "extension.c", sysconfig.get_path("include")
    own = [native_build.SOURCES / name for name in sorted(native_build.OF_PYTHON)]
    digest = hashlib.sha256(repr((_EXTENSION_FLAGS, headers)).encode())
    for path in (*own, *sorted(native_build.SOURCES.glob("*.h")), watcher):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder = native_build.ROOT / "build" / "native" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, sources in (("_native.abi3.so", own), ("watcher.so", [watcher])):
        if not (folder / name).exists():
            scratch = folder / f"{name}.{os.getpid()}"
            include = [f"-I{headers}", f"-I{native_build.SOURCES}"]
            command = ["cc", "-std=gnu11", *_EXTENSION_FLAGS, *include, *sources, "-o", scratch]
            subprocess.run(command, check=True)
            os.replace(scratch, folder / name)
        made.append(folder / name)
    return made


def run_extension(
    count: int, *, seed: int, first: int = 0, through: Sequence[str] = ()
) -> Mapping[str, int]:
    """Call the extension oddly, for that many kernels; return what the program counted.

    Raises:
        AssertionError: it ended with a finding, which the text tells.
    """
    program = Path(__file__).parent / "programs" / "native_odd_calls.py"
    numbers = [str(count), str(seed), str(first)]
    changes = {
        "LD_PRELOAD": os.pathsep.join(map(str, _sanitizer_libraries())),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves much behind
    }
    done = subprocess.run(
        [*through, sys.executable, "-I", program, *_build_extension(), *numbers],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"seed {seed}: {done.stderr[-6000:]}")
    counted: Mapping[str, int] = json.loads(done.stdout)
    return counted
