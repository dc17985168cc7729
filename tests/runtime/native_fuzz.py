"""Build and run the programs that fuzz the C library and the extension, with sanitizers.

One fuzzes the reader of flat plans, one the handlers that XLA calls; the extension is called by a
program in Python.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import native_build
from compiled import compiled, compiler
from processes import captured

from pallasc.cache.store import Store
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan

HERE = Path(__file__).parent
PROGRAM = HERE / "native" / "fuzz"
STATUS = ("opened", "argument", "corrupt", "device", "driver", "out of memory", "not found")
"""What `pallasc_open` and others return, in the order of their codes."""

_CHECKED = (
    *("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-Wall", "-Wextra"),
    "-fno-sanitize-recover=all",
)
_FLAGS = (
    *("-std=gnu11", "-O2", *_CHECKED, "-pthread", "-Ddlopen=watching_dlopen"),
    *("-Ddlsym=watching_dlsym", f"-I{native_build.SOURCES}", f"-I{PROGRAM}"),
)
_OF_EXTENSION = (
    *("-std=gnu11", "-O1", *_CHECKED, "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    *(f"-I{sysconfig.get_path('include')}", f"-I{native_build.SOURCES}"),
)


def why_not() -> str | None:
    """Return what is missing to build them; None where nothing is."""
    if (cc := compiler()) is None:
        return "no C compiler (cc or gcc)"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int main() { return 0; }\n")
        command = [cc, *_CHECKED, source, "-o", source.with_suffix("")]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return f"{cc} cannot build with sanitizers"
    return None


def why_not_extension() -> str | None:
    """Return what is missing to fuzz the extension; None where nothing is."""
    if (missing := why_not()) is not None:
        return missing
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "this Python is here without its headers"
    if not all(map(os.path.isfile, _sanitizer_libraries())):
        return "cc has no sanitizers as libraries, and Python has to load them first"
    return None


def _sanitizer_libraries() -> list[str]:
    asked = [["cc", f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan")]
    return [subprocess.check_output(command, text=True).strip() for command in asked]


@functools.cache
def _build(main: str, *without: str) -> Path:
    """Return a program of the library's sources, without some."""
    own = native_build.sources("sha256.c", *without)
    headers = [*native_build.SOURCES.rglob("*.h"), PROGRAM / "mutate.h"]
    headers.append(PROGRAM.parent / "fake_xla.c")
    fast = ("-std=c11", "-O3", "-Dsha256=plain_sha256", "-c")  # most of the time goes there
    digests = compiled("digests.o", fast, [native_build.SOURCES / "sha256.c"], watched=headers)
    files = [*own, *(PROGRAM / name for name in ("driver.c", "mutate.c", main))]
    return compiled("fuzz", _FLAGS, files, link=[digests], watched=headers)


def write_files(artifacts: Iterable[tuple[str, Artifact]], folder: Path) -> list[Path]:
    """Write plans, with their cubins inside and by digest, and the cubins; return the files.

    Most plans name their cubins by digest: they are small, so that much can be tried.
    """
    files = {}
    for name, artifact in artifacts:
        if artifact.plan.device_count == 1:
            for inside in (True, False):
                data = flat_plan(artifact, name=name, inside=inside)
                for copy in range(1 if inside else 3):
                    files[f"{hashlib.sha256(data).hexdigest()[:16]}-{copy}.plan"] = data
            files |= {key: artifact.blob(key) for key in artifact.record["blobs"]}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return sorted(folder / name for name in files)


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


def _run(*command: Any, seed: int, **changes: str) -> Mapping[str, Any]:
    """Run a program where sanitizers report; return what it counted.

    Raises:
        AssertionError: it ended with a finding, which the text tells.
    """
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "max_allocation_size_mb=1024:quarantine_size_mb=32",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        **changes,
    }
    done = captured([*map(str, command)], env=environment)
    if done.returncode:
        raise AssertionError(f"seed {seed}: {done.stderr[-6000:]}")
    counted: Mapping[str, Any] = json.loads(done.stdout)
    return counted


def run(files: Sequence[Path], count: int, *, seed: int, findings: Path) -> Mapping[str, Any]:
    """Try that many changed plans; one with a finding is kept as `findings/finding.plan`."""
    return _run(_build("main.c", "xla.c"), count, seed, findings, *files, seed=seed)


def run_handlers(files: Sequence[Path], count: int, *, seed: int) -> Mapping[str, int]:
    """Make that many odd call sites of XLA."""
    return _run(_build("handlers.c"), count, seed, 0, *files, seed=seed)


def run_extension(count: int, *, seed: int) -> Mapping[str, int]:
    """Call the extension oddly, for that many kernels."""
    headers, python = [*native_build.SOURCES.glob("*.h")], native_build.SOURCES / "python.c"
    extension = compiled("_native.abi3.so", _OF_EXTENSION, [python], watched=headers)
    watcher = compiled("watcher.so", _OF_EXTENSION, [PROGRAM / "extension.c"], watched=headers)
    program = HERE / "programs" / "native_odd_calls.py"
    return _run(
        *(sys.executable, "-I", program, extension, watcher, count, seed),
        seed=seed,
        LD_PRELOAD=os.pathsep.join(_sanitizer_libraries()),
        PYTHONMALLOC="malloc",
        ASAN_OPTIONS="detect_leaks=0",  # Python itself leaves much behind
    )
