"""Functions with kernels that jax.export wrote, opened in processes without the compiler."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import native_build
import pytest
import standin as control

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

HERE = Path(__file__).parent
EXPORTS = sorted((HERE / "exports").glob("jax-*.bin"))
SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[16, 512]", y: "f32[16, 512]"}
"""

if importlib.util.find_spec("flatbuffers") is None:
    pytest.skip("flatbuffers, which jax.export needs, is not installed", allow_module_level=True)
if REASON := control.why_not() or native_build.why_not():
    pytest.skip(REASON, allow_module_level=True)


def minor(version: str) -> int:
    return int(version.split(".")[1])


def run(program: str, *arguments: str | Path) -> Any:
    """Run a program of programs/; JSON comes back."""
    path = os.pathsep.join([str(HERE), str(HERE / "programs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", HERE / "programs" / program, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "JAX_PLATFORMS": "cpu",
            "PALLASC_NATIVE": str(native_build.build()),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Give a bundle of one kernel, with the PTX that the emulator executes."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "add.yaml").write_text(SPEC)
    shutil.copytree(warm_store.root, folder / "store")
    variants = expand(load_yaml(folder / "add.yaml"))
    report = build(variants, store=Store(folder / "store"), options=Options(jobs=1))
    assert report.exit_code == 0
    items = [Item(r.variant.name, dict(r.variant.params), r.artifact) for r in report.results]
    path = folder / "add.pallasc"
    path.write_bytes(build_bundle(items, keep_ptx=True))
    return path


@pytest.fixture(scope="module")
def written(bundle: Path) -> Any:
    """Give what writing the files said."""
    return run("jax_export.py", bundle, bundle.parent)


@pytest.fixture(scope="module")
def opened(bundle: Path, written: Any) -> Any:
    """Give what became of the files on a GPU that the kernel is for."""
    cases = {
        "unregistered": "bytes", "bytes": "bytes", "missing": "digest", "opened": "digest",
        "flipped": "bytes",
    }  # fmt: skip
    files = [f"{case}={bundle.parent / name}" for case, name in cases.items()]
    return run("jax_open.py", bundle, "9.0", *files)


def test_an_export_needs_the_checks_of_pallasc(written: Any) -> None:
    assert "pallasc_launch" in written["without checks"]


def test_a_file_with_bytes_needs_nothing_else(opened: Any) -> None:
    assert opened["bytes"] < 1e-6
    assert opened["compiler"] == []
    assert opened["launched"] == 2


def test_a_file_with_digests_is_smaller_and_needs_the_bundle(opened: Any, bundle: Path) -> None:
    sizes = {name: (bundle.parent / name).stat().st_size for name in ("bytes", "digest")}
    assert sizes["digest"] < sizes["bytes"] / 2
    assert opened["opened"] < 1e-6
    head, reason, hint = opened["missing"].splitlines()
    assert head.endswith("the program names add by digest, and no open bundle has its cubins:")
    assert reason.startswith("  add@h100-sxm: ")
    assert hint.startswith("Open add.pallasc before, with pallasc.load or pallasc.open_bundle")


def test_a_flipped_byte_is_told(opened: Any) -> None:
    assert "the flat plan is damaged: its bytes do not match its digest" in opened["flipped"]


def test_a_flipped_bit_is_told_or_changes_no_number(bundle: Path, written: Any) -> None:
    found = run("jax_flips.py", bundle, bundle.parent / "bytes", "20", "1")
    plan, texts = found["plan"], found["texts"]
    assert (sum(plan.values()), sum(texts.values())) == (10, 10)
    assert all("DATA_LOSS: add: the flat plan is damaged: " in words for words in plan)
    assert texts["right"] < sum(texts.values())
    assert "wrong" not in texts


def test_flipped_bits_whose_digest_fits_again_crash_nothing(bundle: Path, written: Any) -> None:
    found = run("jax_flips.py", bundle, bundle.parent / "bytes", "16", "2", "sealed")
    assert sum(found["plan"].values()) == 16
    assert sum("the flat plan is damaged" in words for words in found["plan"]) > 1


def test_without_handlers_jax_names_the_call(opened: Any) -> None:
    assert "pallasc_launch" in opened["unregistered"]


def test_another_architecture_is_told(bundle: Path, written: Any) -> None:
    found = run(  # the first call has no handlers
        "jax_open.py", bundle, "8.0", *(f"{n}={bundle.parent / 'bytes'}" for n in ("none", "bytes"))
    )
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_80" in found["bytes"]
    assert found["launched"] == 0


def test_an_export_for_gpus_needs_none(bundle: Path, written: Any) -> None:
    data = (bundle.parent / "cuda").read_bytes()
    assert b"pallasc_launch" in data
    assert b"\x7fELF" in data


def test_files_of_other_versions_of_jax_open() -> None:
    """`exports/` has a file of each: `jax_export.py`, with JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0."""
    here = importlib.metadata.version("jax")
    files = [file for file in EXPORTS if can_open(here, file.stem.removeprefix("jax-"))]
    assert len(files) == (1 if minor(here) == 10 else len(EXPORTS))
    found = run("jax_versions.py", *files)
    assert found == {"jax": here, **{file.name: [6] for file in files}}


@pytest.mark.skipif(
    minor(importlib.metadata.version("jax")) != 10, reason="later JAX opens every file"
)
def test_jax_10_says_of_later_files_what_the_page_says() -> None:
    import jax.numpy as jnp
    from jax import export

    page = (HERE.parents[1] / "docs" / "jax.md").read_text("utf-8")
    words = "Failed to deserialize StableHLO"
    assert f"| `{words}`, after " in page
    for file in EXPORTS:
        if not can_open("0.10", file.stem.removeprefix("jax-")):
            exported = export.deserialize(bytearray(file.read_bytes()))
            with pytest.raises(Exception, match=words):
                exported.call(*(jnp.ones(own.shape, own.dtype) for own in exported.in_avals))


def can_open(reader: str, writer: str) -> bool:
    """Tell whether JAX reads custom calls that another version wrote; 0.11 writes a new form."""
    return minor(reader) >= 11 or minor(writer) <= minor(reader)
