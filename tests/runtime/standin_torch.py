"""Build what a stock PyTorch needs to have CUDA tensors on the stand-in driver.

`environment(folder)` returns the environment of a process in which `import torch` finds the
stand-in driver and a stand-in CUDA runtime; `program(code)` in it runs with `standin` loaded.
"""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import standin

_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden")
_LINK = ("-shared", "-Wl,-soname,libcuda.so.1", "-lpthread")
_SOURCE = Path(__file__).parent / "cudart"

# Functions of the driver that PyTorch asks for by name when it starts, and does not call here.
_DRIVER_STUBS = (
    *("cuCtxFromGreenCtx", "cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount"),
    *("cuDeviceGetDevResource", "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGreenCtxStreamCreate"),
    *("cuLinkAddData_v2", "cuLogsRegisterCallback", "cuLogsUnregisterCallback"),
    *("cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate", "cuMemExportToShareableHandle"),
    *("cuMemGetAddressRange", "cuMemGetAllocationGranularity", "cuMemImportFromShareableHandle"),
    *("cuMemGetAllocationPropertiesFromHandle", "cuMemMap", "cuMemRelease", "cuMemSetAccess"),
    *("cuMemRetainAllocationHandle", "cuMemUnmap", "cuMulticastAddDevice", "cuMulticastBindMem"),
    *("cuMulticastCreate", "cuMulticastUnbind", "cuStreamWriteValue32", "cuCtxPushCurrent"),
    *("cuCtxPopCurrent", "cuCtxGetLimit", "cuCtxSetLimit", "cuFuncSetCacheConfig"),
    "cuModuleUnload",
)


def why_not() -> str | None:
    """Return why there can be no CUDA tensors here, None where there can."""
    if standin.compiler() is None:
        return "no C compiler (cc or gcc)"
    for name in ("torch", "ml_dtypes"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if _runtime() is None:
        return "this torch was not built with CUDA 13"
    return None


def _runtime() -> Path | None:
    """Return the CUDA runtime that torch brings."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or [] if found else []:
        path = Path(folder) / "cu13" / "lib" / "libcudart.so.13"
        if path.exists():
            return path
    return None


def build(folder: Path) -> tuple[Path, Path]:
    """Build both libraries into a folder; return driver and runtime."""
    runtime = _runtime()
    assert runtime is not None
    cc = str(standin.compiler())
    stubs = folder / "stubs.c"
    stubs.write_text(
        "".join(
            f'__attribute__((visibility("default"))) int {name}(void) {{ return 801; }}\n'
            for name in _DRIVER_STUBS
        )
    )
    driver = folder / "libcuda.so.1"
    sources = sorted(map(str, standin.SOURCES.glob("*.c")))
    subprocess.run([cc, *_FLAGS, *sources, stubs, "-o", driver, *_LINK], check=True)
    return driver, _build_runtime(cc, folder, runtime)


def _build_runtime(cc: str, folder: Path, real: Path) -> Path:
    source = _SOURCE / "cudart.c"
    own = set(re.findall(r"\b(cuda\w+)\(", source.read_text()))
    listed = subprocess.run(["nm", "-D", real], check=True, capture_output=True, text=True).stdout
    names = set(re.findall(r" [TWti] (\w*cuda\w+)@", listed, re.IGNORECASE)) - own
    rest = folder / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
    versions = folder / "versions"
    versions.write_text("libcudart.so.13 { global: *; };\n")
    made = folder / "libcudart.so.13"
    subprocess.run(
        [cc, "-O2", "-w", "-shared", "-fPIC", source, rest, "-o", made, "-ldl",
         "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={versions}"],
        check=True,
    )  # fmt: skip
    return made


def environment(folder: Path, **options: object) -> dict[str, str]:
    """Return the environment for a process with CUDA tensors; options as of the stand-in's."""
    driver, runtime = build(folder)
    made = standin.environment(**options)  # type: ignore[arg-type]
    made["LD_LIBRARY_PATH"] = f"{folder}{os.pathsep}{made['LD_LIBRARY_PATH']}"
    return {**made, "LD_PRELOAD": str(runtime), "STANDIN_LIBRARY": str(driver)}


def load() -> standin.Standin:
    """Return the stand-in of this process, which was started with `environment`."""
    standin.build = lambda: Path(os.environ["STANDIN_LIBRARY"])  # type: ignore[assignment]
    return standin.load()
