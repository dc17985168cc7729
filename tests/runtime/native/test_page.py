"""What docs/native.md shows is true: its commands run, and the program launches without Python."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import page_programs
import pytest
import standin as control
from consoles import fits, shown

import pallasc
from pallasc.cache.store import Store

PAGE = page_programs.DOCS / "native.md"
EXAMPLE = page_programs.DOCS.parent / "examples" / "cpp"
MADE = (EXAMPLE / ".gitignore").read_text().replace("/", "").split()
TOOLS = ("c++", "pkg-config", "cmake")


@pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)} on the PATH"
)
def test_the_example_is_built_and_launches_a_kernel_of_a_bundle(
    tmp_path: Path, warm_store: Store, native_file: Path
) -> None:
    folder = tmp_path / "cpp"
    # What somebody who followed the page has there is left behind.
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(*MADE))
    shutil.copytree(warm_store.root, tmp_path / "store")
    environment = _environment(tmp_path, native_file)
    launching, exporting = page_programs.blocks(PAGE, "console")
    _show(launching, folder, environment)
    _check_log((tmp_path / "log").read_text(), folder / "add.pallasc")
    written = (folder / "add.plan").read_bytes()
    (first,) = (command for command in page_programs.commands(PAGE) if command[0] != "bash")
    page_programs.run([first], folder, environment)
    assert (folder / "add.plan").read_bytes() == written
    (tmp_path / "log").unlink()
    _show(exporting, folder, environment)
    _check_log((tmp_path / "log").read_text(), folder / "add.pallasc")


def _show(console: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the commands of a console, and compare what they say."""
    exported = ""
    for command, output in shown(console):
        done = subprocess.run(
            ["bash", "-c", f"{exported}{command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        assert fits(done.stdout, output), done.stdout
        if command.startswith("export "):
            exported = f"{command}\n"


def _environment(folder: Path, library: Path) -> dict[str, str]:
    """Return an environment where the compiler and the program find the library of the tests."""
    made = page_programs.environment(control.environment(devices="9.0"), folder)
    python = folder / "tools" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P "$@"\n')
    python.chmod(0o755)
    return {
        **made,
        "PALLASC_NATIVE": str(library),
        "LIBRARY_PATH": str(library.parent),
        "LD_LIBRARY_PATH": os.pathsep.join([str(library.parent), made["LD_LIBRARY_PATH"]]),
        "STANDIN_LOG_FILE": str(folder / "log"),
    }


def _check_log(log: str, bundle: Path) -> None:
    """Compare what was launched with the launch plan."""
    (variant,) = pallasc.open_bundle(bundle)["add"].variants
    (step,) = variant.artifact.plan.launches
    lines = log.splitlines()
    allocated = [int(line.split()[4], 16) for line in lines if line.startswith("cuMemAlloc_v2")]
    (launch,) = (line for line in lines if line.startswith("launch "))
    addresses = b"".join(address.to_bytes(8, "little") for address in allocated)
    for told in (
        f"launch {step.kernel} ",
        f"grid={','.join(map(str, step.grid))} ",
        f"block={','.join(map(str, step.block))} ",
        f"smem={step.dynamic_smem_bytes} ",
        f"parameters={addresses.hex()}",
        "failed=0",
    ):
        assert told in f"{launch} "
