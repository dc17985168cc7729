"""Action keys and artifacts of real compilations, in two processes with nothing in common."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import output_of

from pallasc.compiler.toolchain.setup import (
    compiler_variables,
    compiling_environment,
    prepare,
    settled,
)

PROGRAMS = Path(__file__).parent / "programs"

KERNEL = """
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

import scales

OUT = "out_type" if "out_type" in inspect.signature(plgpu.kernel).parameters else "out_shape"
NAMES = {"one", "two", "three", "four", "five", "six", "seven"}


def run(x, factor):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * scales.SCALE * factor

    y = plgpu.kernel(body, **{OUT: out})(x)
    for name in NAMES:  # in the order of the hash seed
        y = y + len(name) * ord(name[0])
    rows = np.linspace(0, 1, 64 * 64, dtype="float32").reshape(64, 64)
    return jnp.sin(y).T, jnp.cumsum(y, axis=0), y + float((rows @ rows).sum())


def other(x, factor):
    return jnp.cos(x) * factor
"""
SCALES = "SCALE = 2.0\n"
BASE = 'base/kernel.py:run|f32[128, 128]|{"factor": 3}|h100-sxm'

SAME = {
    "another folder": 'deep/er/kernel.py:run|f32[128, 128]|{"factor": 3}|h100-sxm',
    "a comment above the kernel": 'commented/kernel.py:run|f32[128, 128]|{"factor": 3}|h100-sxm',
    "another file and function": 'named/renamed.py:walk|f32[128, 128]|{"factor": 3}|h100-sxm',
}
OTHER = {
    "a dimension": 'base/kernel.py:run|f32[128, 256]|{"factor": 3}|h100-sxm',
    "a dtype": 'base/kernel.py:run|bf16[128, 128]|{"factor": 3}|h100-sxm',
    "a static number": 'base/kernel.py:run|f32[128, 128]|{"factor": 4}|h100-sxm',
    "a model with more memory": 'base/kernel.py:run|f32[128, 128]|{"factor": 3}|h200',
    "a line of the kernel": 'edited/kernel.py:run|f32[128, 128]|{"factor": 3}|h100-sxm',
    "a line of a helper": 'helped/kernel.py:run|f32[128, 128]|{"factor": 3}|h100-sxm',
    "the function": 'base/kernel.py:other|f32[128, 128]|{"factor": 3}|h100-sxm',
}
COMPILED = f"{BASE}|compile"
COMMENTED = f"{SAME['a comment above the kernel']}|compile"

HOSTILE = {
    "PYTHONHASHSEED": "4242", "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error",
    "TZ": "Pacific/Auckland", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8",
    "HOME": "/nonexistent", "USER": "nobody-else", "LOGNAME": "nobody-else", "TERM": "dumb",
    "COLUMNS": "17", "CUDA_ROOT": "/nonexistent/cuda", "CUDA_HOME": "/nonexistent/cuda",
    "MOSAIC_GPU_CUDA_ROOT": "/nonexistent/cuda", "OMP_NUM_THREADS": "3",
    "MAKEFLAGS": " -j7 --jobserver-auth=77,78", "NPROC": "1", "UNRELATED": "1",
}  # fmt: skip

HARMLESS = {
    r"PATH": "the tools come first",
    r"(TEST_|SQLITE_)?TMP(DIR)?": "names of temporary files are in no output",
    r"LD_LIBRARY_PATH": "the libraries that matter count by content",
    r"PYTHON(HOME|NOUSERSITE|PATH|PLATLIBDIR|USERBASE)": "where modules lie; their contents count",
    r"PYTHON(DONTWRITEBYTECODE|PYCACHEPREFIX)": "where bytecode lies",
    r"GCS_\w+|GRPC_\w+|OPENSSL_\w+": "files and connections that compiling does not open",
    r"MPITRAMPOLINE_\w+": "processes that talk to each other",
    r"NUMPY_WARN_IF_NO_MEM_POLICY": "a warning",
    r"GFORTRAN_\w+": "files that Fortran code opens",
    r"HOME": "a file of settings that is found there is read, and so recorded, by name",
}
"""What native code asks for and gets, as patterns, and why it may."""


@dataclass(frozen=True)
class Runs:
    """What the two processes answered, and which variables the second one's code asked for."""

    plain: dict[str, Any]
    hostile: dict[str, Any]
    asked: list[tuple[str, str]] | None


def write_all(root: Path) -> None:
    for folder, name, kernel, scales in (
        ("base", "kernel.py", KERNEL, SCALES),
        ("deep/er", "kernel.py", KERNEL, SCALES),
        ("commented", "kernel.py", KERNEL.replace("def run", "# Fast.\n\n\ndef run"), SCALES),
        ("named", "renamed.py", f"{KERNEL}\n\nwalk = run\n", SCALES),
        ("edited", "kernel.py", KERNEL.replace("jnp.sin", "jnp.tanh"), SCALES),
        ("helped", "kernel.py", KERNEL, "SCALE = 2.5\n"),
    ):
        (root / folder).mkdir(parents=True)
        (root / folder / name).write_text(kernel)
        (root / folder / "scales.py").write_text(scales)


def recorder(folder: Path) -> Path | None:
    """Return a library that records which variables are asked for, None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "getenv.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, PROGRAMS / "getenv.c", "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def run(place: Path, environment: dict[str, str], cases: list[str], **options: Any) -> Any:
    result = place / "result.json"
    write_all(place / "specs")
    command = [sys.executable, "-P", PROGRAMS / "compile.py", result, place / "specs", *cases]
    output_of(command, env=environment, **options)
    return json.loads(result.read_text())


def restrict() -> None:
    os.umask(0o077)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Compile in a usual process and in a hostile one, in folders of their own."""
    cases = [COMPILED, COMMENTED, *SAME.values(), *OTHER.values()]
    with prepare() as setup:
        tools = Path(setup.environment["PATH"].split(os.pathsep)[0])
    place = tmp_path_factory.mktemp("plain")
    plain = run(place, compiling_environment(os.environ, tools), cases)
    place = tmp_path_factory.mktemp("hostile one") / "ü"
    place.mkdir()
    environment = compiling_environment({**os.environ, **HOSTILE, "TMPDIR": str(place)}, tools)
    library, asked = recorder(tmp_path_factory.mktemp("recorder")), place / "asked"  # no space
    if library is not None:
        environment |= {"LD_PRELOAD": str(library), "ASKED_FOR": str(asked)}
    hostile = run(place, environment, [COMPILED], cwd=place, preexec_fn=restrict)
    lines = asked.read_text().splitlines() if library else None
    names = None if lines is None else sorted({tuple(line.split(" ", 1)) for line in lines})
    return Runs(plain, hostile, names)  # type: ignore[arg-type]


def test_the_action_key_is_of_what_was_lowered(runs: Runs) -> None:
    keys = {case: answer["action"] for case, answer in runs.plain.items()}
    same = {name for name, case in {**SAME, **OTHER}.items() if keys[case] == keys[COMPILED]}
    assert same == {*SAME}


def test_a_comment_above_the_kernel_changes_no_byte_of_the_artifact(runs: Runs) -> None:
    assert runs.plain[COMMENTED] == runs.plain[COMPILED]


def test_another_user_folder_and_machine_load_give_the_same_key_and_the_same_bytes(
    runs: Runs,
) -> None:
    assert runs.hostile == {COMPILED: runs.plain[COMPILED]}


def fate(name: str) -> str:
    """Say what becomes of a variable."""
    unset = object()
    value = settled({name: "value"}).get(name, unset)
    if value is unset:
        return "dropped"
    if value != "value":
        return "fixed"
    return "counted" if name in compiler_variables({name: "value"}) else "passed on"


def test_every_variable_that_native_code_asks_for_is_counted_fixed_dropped_or_known(
    runs: Runs,
) -> None:
    if runs.asked is None:
        pytest.skip("no C compiler here to build what records the questions")
    assert {"XLA_FLAGS", "MOSAIC_GPU_DUMP_PTX"} <= {name for _, name in runs.asked}
    assert "ptxas" in {program for program, _ in runs.asked}
    unknown = [
        (program, name)
        for program, name in runs.asked
        if fate(name) == "passed on" and not any(re.fullmatch(p, name) for p in HARMLESS)
    ]
    assert unknown == []
