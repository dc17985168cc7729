"""One assembler makes every cubin, whatever else is installed, on PATH or in the environment."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import captured, output_of
from msgspec.structs import replace

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import tool_folder
from pallasc.compiler.toolchain.toolchain import Toolchain, find_toolchain, tool_version

PROGRAM = Path(__file__).parent / "programs" / "assembled.py"
FAKE = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.9, V13.9.99"; exit; fi
echo "$0 $*" >> {ran}
echo "this is not the assembler" >&2
exit 9
"""

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Callable[..., Answer]:
    """Return a function that runs the program in an environment and gives what it tells."""

    def run(
        environment: Mapping[str, str],
        *arguments: str,
        before: tuple[str, ...] = (),
        folder: Path | None = None,
    ) -> Answer:
        store = tmp_path_factory.mktemp("assembled") / "store"
        shutil.copytree(warm_store.root, store)
        command = [*before, sys.executable, "-P", str(PROGRAM), str(store), *arguments]
        said = output_of(command, env={**os.environ, **environment}, cwd=folder)
        told: Answer = json.loads(said.splitlines()[-1])
        return told

    return run


@pytest.fixture(scope="module")
def plain(assembled: Callable[..., Answer]) -> Answer:
    """Return what comes out where nothing lies in the way."""
    return assembled({})


@pytest.fixture(scope="module")
def library(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a libnvJitLink of the assembler's version, as NVIDIA's package index has it."""
    name = "nvidia-nvjitlink" if toolchain.cuda >= 13 else f"nvidia-nvjitlink-cu{toolchain.cuda}"
    folder = tmp_path_factory.mktemp("nvjitlink")
    release = ".".join(tool_version(toolchain.ptxas).split(".")[:2])
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--timeout", "20",
        "--retries", "1", "--disable-pip-version-check", "--dest", str(folder),
        f"{name}=={release}.*",
    ]  # fmt: skip
    answer = captured(command)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        pytest.skip(f"no {name} {release} from a package index: {lines[-1] if lines else 'pip'}")
    with zipfile.ZipFile(wheel) as archive:
        found = next(n for n in archive.namelist() if f"libnvJitLink.so.{toolchain.cuda}" in n)
        return Path(archive.extract(found, folder))


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return a CUDA toolkit whose assembler notes that it was asked to assemble, and fails."""
    tools = tmp_path / "toolkit" / "bin"
    tools.mkdir(parents=True)
    for name in ("ptxas", "nvlink"):
        (tools / name).write_text(FAKE.format(ran=tmp_path / "ran"))
        (tools / name).chmod(0o755)
    device = tmp_path / "toolkit" / "nvvm" / "libdevice"
    device.mkdir(parents=True)
    (device / "libdevice.10.bc").write_bytes(b"no bitcode")
    return tools.parent


def test_both_ways_give_the_same_and_ptxas_made_it(plain: Answer, toolchain: Toolchain) -> None:
    version = tool_version(toolchain.ptxas)
    assert len(plain["here"]["digest"]) == 64, plain
    assert plain["isolated"] == plain["here"]
    if toolchain.cuda >= 13:
        assert plain["here"]["tools"] == [[["ptxas", version]]] * 2
    (spilled,) = plain["here"]["spills"]
    assert spilled > 0
    assert plain["path is as it was"]


@pytest.mark.parametrize("name", ["two words", "a,b", "a{b"])
def test_tools_are_linked_in_a_folder_whose_path_mosaic_can_parse(
    name: str, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    (odd / "ptxas").symlink_to(toolchain.ptxas)
    folder, temporary = tool_folder(replace(toolchain, ptxas=odd / "ptxas"))
    assert temporary is not None
    with temporary:
        assert folder.parent.parent == Path("/tmp")
        assert os.path.samefile(folder / "ptxas", toolchain.ptxas)


def test_libnvjitlink_changes_nothing(
    plain: Answer, assembled: Callable[..., Answer], library: Path
) -> None:
    """It is on the path of libraries, and one process has loaded it."""
    assert assembled({"LD_LIBRARY_PATH": str(library.parent)}, str(library)) == plain


def of_the_system(fake: Path) -> tuple[str, ...]:
    """Return a command that runs others with a toolkit in /usr/local, where that is possible."""
    prefixes = {os.path.realpath(place) for place in (sys.prefix, sys.base_prefix, sys.executable)}
    script = (
        f"mount -t tmpfs none /usr/local && cp -r {fake} /usr/local/cuda "
        '&& test -x /usr/local/cuda/bin/ptxas && exec "$@"'
    )
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    try:
        subprocess.run([*before, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return () if any(place.startswith("/usr/local/") for place in prefixes) else before


def test_other_toolkits_change_nothing(
    plain: Answer, assembled: Callable[..., Answer], fake: Path
) -> None:
    names = ("CUDA_DIR", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "MOSAIC_GPU_CUDA_ROOT")
    environment = {
        **dict.fromkeys(names, str(fake)),
        "PATH": os.pathsep.join([str(fake / "bin"), os.environ["PATH"]]),
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={fake}",
    }
    assert assembled(environment, before=of_the_system(fake)) == plain
    assert not (fake.parent / "ran").exists()


def test_a_toolkit_in_the_current_folder_is_refused(
    assembled: Callable[..., Answer], fake: Path, tmp_path: Path
) -> None:
    fake.rename(tmp_path / "cuda_sdk_lib")
    found = assembled({}, folder=tmp_path)
    for way in ("here", "isolated"):
        kind, code, text = found[way]["error"]
        assert (kind, code) == ("ToolError", 4), text
        assert text.endswith(
            f"XLA would use the toolkit in {tmp_path}/cuda_sdk_lib, because it is in the "
            "current folder.\n  Start the build in another folder, or rename cuda_sdk_lib."
        )
    assert not (tmp_path / "ran").exists()
