"""Each variable has one fate: counted, fixed, a place, declared, withheld; files count."""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import output_of

from pallasc.compiler.toolchain.setup import (
    compiler_variables,
    compiling_environment,
    declared_fields,
    settled,
)
from pallasc.specs.settings import why_not_declared

COUNTED = (
    "XLA_FLAGS", "JAX_ENABLE_X64", "TF_XLA_FLAGS", "MOSAIC_GPU_DUMP_PTX", "LLVM_PASS_PLUGIN_PATH",
    "MLIR_DISABLE_MULTITHREADING", "TRITON_OVERRIDE_ARCH", "PJRT_NAMES_AND_LIBRARY_PATHS",
    "NPY_DISABLE_CPU_FEATURES", "DISABLE_PTXAS_OPT", "LD_PRELOAD", "GLIBC_TUNABLES",
    "LIBTPU_INIT_ARGS", "PTXAS_OPTIONS", "CUDNN_ERRATA_JSON_FILE", "TF_CPP_VMODULE",
    "TF_FORCE_UNIFIED_MEMORY", "TF_GPU_ALLOCATOR", "TF_CUDA_PATHS", "TF_ENABLE_ONEDNN_OPTS",
)  # fmt: skip
FIXED = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "pallasc",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "pallasc",
}
DROPPED = (
    "CUDA_ROOT", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
    "NVTX_INJECTION64_PATH", "INTEL_LIBITTNOTIFY64", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
    "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHON_RUNFILES", "RUNFILES_DIR", "BAZEL_TEST", "LANG",
    "LC_NUMERIC", "LANGUAGE", "MAKEFLAGS", "NPROC", "PJRT_NPROC", "OPENBLAS_CORETYPE",
    "MOSAIC_GPU_CUDA_ROOT", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE",
)  # fmt: skip
TERRAFORM = (
    "TF_VAR_region", "TF_CLI_ARGS", "TF_CLI_ARGS_plan", "TF_CLI_CONFIG_FILE", "TF_LOG",
    "TF_LOG_PATH", "TF_LOG_PROVIDER", "TF_DATA_DIR", "TF_INPUT", "TF_IN_AUTOMATION", "TF_WORKSPACE",
    "TF_PLUGIN_CACHE_DIR", "TF_REATTACH_PROVIDERS", "TF_REGISTRY_DISCOVERY_RETRY",
    "TF_STATE_PERSIST_INTERVAL", "TF_IGNORE", "TF_TOKEN_app_terraform_io", "TF_APPEND_USER_AGENT",
    "TF_ACC", "TF_ACC_TERRAFORM_PATH", "TF_HTTP_ADDRESS", "TF_CLOUD_ORGANIZATION",
)  # fmt: skip
PLACES = (
    "HOME", "TMPDIR", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH",
)  # fmt: skip
WITHHELD = (
    "KERNEL_TILE", "RUN_ID", "CI", "_", "COLUMNS", "NO_COLOR", "XDG_CACHE_HOME", "SHLVL",
    "PWD", "https_proxy", "VIRTUAL_ENV", "PIP_CONSTRAINT", "PALLASC_FROZEN", *TERRAFORM,
)  # fmt: skip


def variables(**environment: str) -> dict[str, str]:
    """Return what counts, as `setup` computes it."""
    return compiler_variables(compiling_environment(environment, Path("/tools")))


def test_each_variable_is_counted_fixed_a_place_or_withheld() -> None:
    nothing = settled({})
    for name in (*COUNTED, *PLACES):
        assert settled({name: "/v"}) == {**nothing, name: "/v"}
        assert variables(**{name: "/v"}) == ({name: "/v"} if name in COUNTED else {})
    for name in (*FIXED, *DROPPED, *WITHHELD):
        assert settled({name: "/v"}) == nothing, name
        assert variables(**{name: "/v"}) == {}
    assert {name: nothing[name] for name in FIXED} == FIXED


def test_a_spec_may_declare_what_is_withheld_and_nothing_that_is_fixed_or_a_place() -> None:
    for name in ("KERNEL_TILE", "HOME", "USER", "CI", "COLUMNS", "XLA_FLAGS"):
        assert why_not_declared(name) == ""
    fixed = {*FIXED} - {"USER", "LOGNAME", "TERM"}
    for name in (*DROPPED, *fixed, "PATH", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"):
        assert why_not_declared(name), name


def test_a_declared_variable_counts_by_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in (None, "", "secret", os.fsdecode(b"\xff")):
        if value is None:
            monkeypatch.delenv("KERNEL_TILE", raising=False)
        else:
            monkeypatch.setenv("KERNEL_TILE", value)
        found.append(declared_fields(["KERNEL_TILE"])["env KERNEL_TILE"])
    assert len({*found}) == 4
    assert "secret" not in " ".join(found)


def test_entries_of_pythonpath_are_absolute_and_never_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = settled({"PYTHONPATH": ":/one::two/../three:"})["PYTHONPATH"]
    assert found == f"/one:{tmp_path / 'three'}"


@pytest.mark.parametrize(
    ("option", "expected"),
    [("-B", [True, None]), ("-E", [False, None]), ("-I", [False, "1"]), ("-s", [True, "1"])],
)
def test_workers_look_for_modules_where_this_process_does(
    option: str, expected: list[object]
) -> None:
    code = (
        "import sys, json; sys.path[:0] = json.loads(sys.argv[1])\n"
        "from pallasc.compiler.toolchain.setup import settled\n"
        "found = settled({'PYTHONPATH': '/some/folder'})\n"
        "print(json.dumps(['PYTHONPATH' in found, found.get('PYTHONNOUSERSITE')]))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONNOUSERSITE"}
    command = [sys.executable, option, "-c", code, json.dumps(sys.path)]
    assert json.loads(output_of(command, env=environment)) == expected


# Files that variables name.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_FLAGS", "{}"),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_load_autotune_results_from={}"),
        ("TF_XLA_FLAGS", "{}"),
        ("PJRT_NAMES_AND_LIBRARY_PATHS", "cuda:{};rocm:/no/such/file"),
        ("LLVM_PASS_PLUGIN_PATH", "{}"),
        ("LD_PRELOAD", "{}"),
    ],
)
def test_a_file_that_a_variable_names_counts_by_content(
    tmp_path: Path, name: str, value: str
) -> None:
    named = tmp_path / "named"
    given = {name: value.format(named)}
    named.write_text("--xla_one\n")
    before = variables(**given)
    assert before[name] == given[name]
    assert variables(**given) == before
    named.write_text("--xla_two\n")
    after = variables(**given)
    assert {label for label in before if before[label] != after[label]} == {f"{name}: {named}"}


def test_what_is_dumped_does_not_count(tmp_path: Path) -> None:
    dumps = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}", "MOSAIC_GPU_DUMP_TO": str(tmp_path)}
    before = variables(**dumps)
    (tmp_path / "module.txt").write_text("dumped")
    assert variables(**dumps) == before == dumps


@pytest.mark.parametrize(
    "name",
    ["libm.so.6", "libc.so.6", "libstdc++.so.6.0.30", "libnvvm.so.4",
     "libLLVM-18.so.1", "libm-2.36.so", "ld-linux-x86-64.so.2"],
)  # fmt: skip
def test_a_library_in_front_counts_by_content_wherever_it_lies(tmp_path: Path, name: str) -> None:
    found = []
    for number, text in enumerate(["one", "one", "two"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        found.append(variables(LD_LIBRARY_PATH=str(folder)))
    assert found[0] == found[1] != found[2] != {}


@pytest.mark.parametrize(
    "name", ["libpython3.12.so.1.0", "libmine.so", "libcuda.so.1", "libnvJitLink.so.13", "notes"]
)
def test_a_library_that_compiling_does_not_load_does_not_count(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one")
    assert variables(LD_LIBRARY_PATH=f"{tmp_path}::/no/such/folder") == {}


def test_the_order_of_library_folders_counts(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libm.so.6").write_text(name)
    first, second = str(tmp_path / "one"), str(tmp_path / "two")
    assert variables(LD_LIBRARY_PATH=f"{first}:{second}") != variables(
        LD_LIBRARY_PATH=f"{second}:{first}"
    )


def test_bytes_that_are_no_utf8_have_a_text_of_their_own() -> None:
    values = [b"a\xff", b"a\xfe", b"a\xc3\xbf", b"61ff", b"a\\xff"]
    found = [variables(XLA_FLAGS=os.fsdecode(value)) for value in values]
    assert all(found.count(each) == 1 for each in found)
    for each in found:
        for text in (*each, *each.values()):
            text.encode()
