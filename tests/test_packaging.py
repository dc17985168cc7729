"""The wheel has all files, and works when installed; unsuitable environments are rejected."""

import ast
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest
from commands import captured, output_of
from sources import copy_sources

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {".py", ".yaml", ".json"}
NATIVE = "pallasc/runtime/native"


def _project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _build(sources: Path, out: Path, *arguments: str, **variables: str) -> tuple[Path, str]:
    """Return a wheel, and the output of building it."""
    command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out)]
    result = captured([*command, *arguments, str(sources)], env={**os.environ, **variables})
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("*.whl")
    return wheel, result.stdout + result.stderr


def _has_compiler() -> bool:
    """Return True if the C library is built here."""
    names = (os.environ.get("CC", "").split()[:1] or ["cc"])[0], "gcc"
    return any(map(shutil.which, names)) and os.environ.get("PALLASC_NATIVE") != "0"


needs_compiler = pytest.mark.skipif(
    not _has_compiler(), reason="no C compiler (cc or gcc), so the C library is not built"
)


def _compiled() -> set[str]:
    """Return the files that are compiled here; the extension only if Python's headers are here."""
    if not _has_compiler():
        return set()
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return {f"{NATIVE}/libpallasc.so", *[f"{NATIVE}/_native.abi3.so"] * has_headers}


def _shipped_files(wheel: Path) -> set[str]:
    """Return the files of the package in a wheel, without the wheel's own records."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


PARTS = (
    *("specs", "cache", "compiler", "analysis", "emulator", "checks", "reports", "runtime"),
    *("tuning", "cli", "hooks"),
)


def _files_in_folders() -> set[str]:
    """Return every file that must ship, by its installed name."""
    top_folders = {"": "pallasc"} | {f"{name}/": name for name in PARTS}
    return _compiled() | {
        f"pallasc/{prefix}{path.relative_to(ROOT / folder).as_posix()}"
        for prefix, folder in top_folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED
        or path.name in ("py.typed", "pallasc.pc")
        or (path.suffix in (".c", ".h", ".in") and "native" in path.parts)
        or path.suffix in (".j2", ".css", ".js")
    }


def test_the_wheel_holds_exactly_the_files_of_the_folders(wheel: Path) -> None:
    assert sorted(_shipped_files(wheel)) == sorted(_files_in_folders())


@needs_compiler
def test_the_wheel_with_the_c_library_is_for_this_platform_and_every_python(wheel: Path) -> None:
    assert wheel.name.startswith("pallasc-0.1.0-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        compiled = [archive.read(name) for name in sorted(_compiled())]
    for library in compiled:
        assert len(library) <= 200_000
        assert b"libpython" not in library
        assert str(ROOT).encode() not in library
        assert sys.prefix.encode() not in library
        assert sys.base_prefix.encode() not in library


def test_the_wheel_that_make_builds_runs_with_an_old_glibc(wheel: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang, the compiler for old glibc, is not installed")
    machine = platform.machine()
    compiler = f"-m ziglang cc -target {machine}-linux-gnu.2.17"
    option = f"-C--build-option=--plat-name=manylinux_2_17_{machine}"
    shown = _make("-n", "wheel", folder=ROOT).stdout
    assert compiler in shown
    assert option in shown
    sources, compiler = copy_sources(tmp_path / "sources"), f"{sys.executable} {compiler}"
    stale = sources / "build" / "lib" / "pallasc" / "cache" / "deleted.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("raise SystemExit('a file that was deleted still ships')\n")
    variables = {"CC": compiler, **_zigs_cache()}
    made, _ = _build(sources, tmp_path / "dist", "--wheel", option, **variables)
    assert made.name == f"pallasc-0.1.0-py3-none-manylinux_2_17_{machine}.whl"
    assert sorted(_shipped_files(made)) == sorted(_shipped_files(wheel))
    with zipfile.ZipFile(made) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        files = {name: archive.read(name) for name in names}
    assert f"{NATIVE}/libpallasc.so" in files
    for name, data in files.items():
        versions = {int(number) for number in re.findall(rb"GLIBC_2\.(\d+)", data)}
        assert versions, name
        assert max(versions) <= 17, name
        assert len(data) <= 200_000, name


def _zigs_cache() -> dict[str, str]:
    """Let zig use the user's cache for its C library, which takes a minute to compile."""
    folder = Path.home() / ".cache" / "zig"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return {}
    return {"ZIG_GLOBAL_CACHE_DIR": str(folder)} if os.access(folder, os.W_OK) else {}


def test_without_a_c_compiler_the_wheel_is_pure_and_says_so_once(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    wheel, said = _build(sources, tmp_path / "dist", "--wheel", CC="/nowhere/cc")
    assert wheel.name == "pallasc-0.1.0-py3-none-any.whl"
    assert f"{NATIVE}/libpallasc.so" not in _shipped_files(wheel)
    assert said.count("pallasc: installed without its C library") == 1
    assert "library: /nowhere/cc does not compile C. Kernels are launched by Python" in said


@pytest.mark.parametrize("variable", ["CC", "LDFLAGS"])
def test_a_variable_with_an_open_quote_is_told_and_nothing_is_compiled(
    variable: str, tmp_path: Path
) -> None:
    made, said = _install_editable(copy_sources(tmp_path / "sources"), **{variable: "cc 'x"})
    assert made == set()
    assert "Traceback" not in said
    assert (
        f"without its C library: {variable} is not words of a shell, No closing quotation: cc 'x. "
        "Kernels are launched by Python"
    ) in said


@needs_compiler
@pytest.mark.parametrize("change", [{"PALLASC_NATIVE": "0"}, {"CFLAGS": "-no-such-flag"}])
def test_an_editable_install_without_the_library_leaves_no_earlier_one(
    change: dict[str, str], tmp_path: Path
) -> None:
    sources = copy_sources(tmp_path / "sources")
    built, said = _install_editable(sources)
    assert built == {Path(name).name for name in _compiled()}
    assert "installed without" not in said
    left, said = _install_editable(sources, **change)
    assert left == set()
    assert said.count("pallasc: installed without its C library") == 1
    if "PALLASC_NATIVE" in change:
        assert f"pallasc: removed {NATIVE}/libpallasc.so, built earlier." in said


def _install_editable(sources: Path, **variables: str) -> tuple[set[str], str]:
    """Build as `pip install -e` does; return the compiled files and the output."""
    out = sources.parent / "editable"
    out.mkdir(exist_ok=True)
    code = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    done = captured(command, cwd=sources, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return {file.name for file in (sources / NATIVE).glob("*.so")}, done.stdout + done.stderr


def test_the_pkg_config_file_has_the_version_of_the_package() -> None:
    text = (ROOT / "runtime" / "native" / "pkgconfig" / "pallasc.pc").read_text()
    assert f"Version: {_project()['project']['version']}\n" in text


def test_the_metadata_names_version_licence_and_command(wheel: Path) -> None:
    metadata = Parser().parsestr(_metadata(wheel, "METADATA"))
    assert metadata["Version"] == _project()["project"]["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Provides-Extra") == list(
        _project()["project"]["optional-dependencies"]
    )
    entry_points = _metadata(wheel, "entry_points.txt")
    assert "pallasc = pallasc.__main__:main" in entry_points
    assert "pallasc = pallasc.hooks.setuptools_hook:add_step" in entry_points
    assert "pallasc = pallasc.hooks.hatchling_hook" in entry_points


def test_the_installed_wheel_is_imported_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install"]
    output_of([*install, "--no-deps", "--no-index", str(wheel)])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = "import pallasc; print(pallasc.__version__, pallasc.__file__)"
    version, file = output_of([python, "-I", "-c", program], cwd=elsewhere).split(maxsplit=1)
    assert version == _project()["project"]["version"]
    assert Path(file.strip()).is_relative_to(tmp_path / "env")
    _check_native(python, elsewhere)


def _check_native(python: Path, elsewhere: Path) -> None:
    """Check the paths that the C library of an installed wheel prints."""
    command = [python, "-I", "-m", "pallasc.runtime.native"]
    options = ("", "--include", "--library")
    told = {option: captured([*command, *option.split()], cwd=elsewhere) for option in options}
    if not _has_compiler():
        assert told[""].returncode == 4
        assert told[""].stderr.startswith("error: pallasc was installed without its C library.")
        return
    folders = {option: Path(done.stdout.strip()) for option, done in told.items()}
    assert (folders[""] / "pallasc.pc").is_file()
    assert (folders["--include"] / "pallasc.h").is_file()
    assert folders["--library"].is_file()


def _load_preflight() -> ModuleType:
    location = importlib.util.spec_from_file_location("preflight", ROOT / ".ci" / "preflight.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


GOOD = {
    "python": (3, 12, 1),
    "implementation": "CPython",
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc",
    "missing_module": None,
}


@pytest.mark.parametrize("change", [{}, {"python": (3, 11, 0)}, {"machine": "aarch64"}])
def test_preflight_accepts_supported_surroundings(change: dict[str, object]) -> None:
    assert _load_preflight().refusal(**{**GOOD, **change}) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"python": (3, 10, 13)},
            "pallasc needs Python 3.11 or newer, and this is 3.10.13: pass PYTHON=python3.12.",
        ),
        (
            {"implementation": "PyPy"},
            "pallasc needs CPython, as JAX does, and this is PyPy 3.12.1.",
        ),
        (
            {"system": "Darwin", "machine": "arm64"},
            "pallasc needs Linux, as NVIDIA's assembler wheels do, and this is Darwin.",
        ),
        (
            {"machine": "riscv64"},
            "pallasc needs x86_64 or aarch64, as JAX's CUDA wheels do, and this is riscv64.",
        ),
        (
            {"libc": ""},
            "pallasc needs glibc, as JAX's CUDA wheels do, and this Python is linked to another "
            "C library.",
        ),
        (
            {"missing_module": "ensurepip"},
            "pallasc needs the module ensurepip, which this Python lacks: install python3-venv.",
        ),
    ],
)
def test_preflight_refuses_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    assert _load_preflight().refusal(**{**GOOD, **change}) == sentence


def test_preflight_passes_where_the_tests_run() -> None:
    result = captured([sys.executable, ROOT / ".ci" / "preflight.py"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_preflight_keeps_to_the_syntax_of_old_pythons() -> None:
    tree = ast.parse((ROOT / ".ci" / "preflight.py").read_text(), feature_version=(3, 4))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]


def _make(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, even if make started these tests."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return captured(["make", "--no-print-directory", *arguments], cwd=folder, env=variables)


@pytest.mark.parametrize("target", ["test", "demo"])
def test_make_with_an_old_python_says_so_and_installs_nothing(target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    old = tmp_path / "old-python"
    # An interpreter that reports version 3.10.13, and otherwise runs everything.
    old.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '\n"
        "import runpy, sys\n"
        "sys.version_info = (3, 10, 13)\n"
        'if sys.argv[1] == "-c":\n'
        "    exec(sys.argv[2])\n"
        "else:\n"
        "    sys.argv = sys.argv[1:]\n"
        '    runpy.run_path(sys.argv[0], run_name="__main__")\n'
        '\' "$@"\n'
    )
    old.chmod(0o755)
    before = sorted(tmp_path.iterdir())
    result = _make(target, f"PYTHON={old}", folder=tmp_path)
    first_line = result.stderr.splitlines()[0]
    assert result.returncode != 0
    assert first_line == (
        "pallasc needs Python 3.11 or newer, and this is 3.10.13: pass PYTHON=python3.12."
    )
    assert sorted(tmp_path.iterdir()) == before


def test_make_help_lists_every_public_target() -> None:
    result = _make(folder=ROOT)
    listed = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    checks = ["test", "test-oldest", "check", "lint", "types", "docs", "site", "coverage", "bench"]
    assert listed == ["help", "demo", *checks, "wheel", "clean"]
