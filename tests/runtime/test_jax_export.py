"""Functions with kernels that jax.export wrote, opened in processes without the compiler."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import native_build
import processes
import pytest
import standin as control
from bundle_files import build_with_ptx

from pallasc.cache.store import Store

HERE = Path(__file__).parent
JAX = importlib.metadata.version("jax")
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


def run(*arguments: str | Path) -> Any:
    return processes.run_program(
        "jax_exported.py", *arguments, PALLASC_NATIVE=str(native_build.build())
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Give a bundle of one kernel, with the PTX that the emulator executes, beside its exports."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "add.yaml").write_text(SPEC)
    path = build_with_ptx(folder, folder / "add.yaml", warm_store)
    refused = run("write", path, folder)
    assert "pallasc_launch" in refused, "an export needs the checks of pallasc"
    return path


def test_a_file_has_the_kernel_or_its_digest_and_what_is_missing_or_damaged_is_told(
    bundle: Path,
) -> None:
    cases = {
        "unregistered": "bytes", "bytes": "bytes", "missing": "digest", "opened": "digest",
        "flipped": "bytes",
    }  # fmt: skip
    files = [f"{case}={bundle.parent / name}" for case, name in cases.items()]
    opened = run("read", bundle, "9.0", *files)
    assert "pallasc_launch" in opened["unregistered"]
    assert (opened["bytes"], opened["opened"], opened["launched"]) == ("right", "right", 2)
    assert opened["compiler"] == []
    head, reason, hint = opened["missing"].splitlines()
    assert head.endswith("the program names add by digest, and no open bundle has its cubins:")
    assert reason.startswith("  add@h100-sxm: ")
    assert hint.startswith("Open add.pallasc before, with pallasc.load or pallasc.open_bundle")
    assert "the flat plan is damaged: its bytes do not match its digest" in opened["flipped"]
    data = {name: (bundle.parent / name).read_bytes() for name in ("bytes", "digest", "cuda")}
    assert len(data["digest"]) < len(data["bytes"]) / 2
    assert b"pallasc_launch" in data["cuda"]
    assert b"\x7fELF" in data["cuda"]


def test_a_flipped_bit_is_told_or_changes_no_number_and_crashes_nothing(bundle: Path) -> None:
    found = run("flip", bundle, bundle.parent / "bytes")
    plan, texts, sealed = found["plan"], found["texts"], found["sealed"]
    assert all("DATA_LOSS: add: the flat plan is damaged: " in words for words in plan)
    assert texts["right"] < sum(texts.values())
    assert "wrong" not in texts
    assert sum("the flat plan is damaged" in words for words in sealed) > 1


def test_another_architecture_is_told(bundle: Path) -> None:
    file = bundle.parent / "bytes"
    found = run("read", bundle, "8.0", f"first={file}", f"bytes={file}")
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_80" in found["bytes"]
    assert found["launched"] == 0


def test_files_of_other_versions_of_jax_open() -> None:
    """`exports/` has a file of each: `jax_exported.py`, JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0."""
    files = [file for file in EXPORTS if can_open(JAX, file.stem.removeprefix("jax-"))]
    assert len(files) == (1 if minor(JAX) == 10 else len(EXPORTS))
    assert run("versions", *files) == {"jax": JAX, **{file.name: "right" for file in files}}


@pytest.mark.skipif(not JAX.startswith("0.10."), reason="later JAX opens all")
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


def minor(version: str) -> int:
    return int(version.split(".")[1])


def can_open(reader: str, writer: str) -> bool:
    """Tell whether JAX reads custom calls that another version wrote; 0.11 writes a new form."""
    return minor(reader) >= 11 or minor(writer) <= minor(reader)
