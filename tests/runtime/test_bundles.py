"""Kernels from bundles: read when they are needed, chosen from the manifest, launched."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import made
import pytest
from bundle_files import write_bundle

import pallasc
from pallasc.errors import ArgumentError, CorruptError, SpecError
from pallasc.runtime.device.devices import active, get_device
from pallasc.runtime.matching.candidates import Origin
from pallasc.runtime.opening import BundleFile, Bundles, Kernels
from pallasc.specs.bundle.reader import OpenFile
from pallasc.specs.bundle.signature import Policy


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "kernels.pallasc", columns=(64, 128))


class _Watched:
    """What is read of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[tuple[int, int]] = []
        read = OpenFile.read

        def note(source: OpenFile, at: int, size: int) -> bytes:
            self.parts.append((at, size))
            return read(source, at, size)

        monkeypatch.setattr(OpenFile, "read", note)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> _Watched:
    return _Watched(monkeypatch)


def _blobs_read(kernels: Kernels, watched: _Watched) -> set[tuple[int, int]]:
    """Return which of the parts that were read are records or cubins."""
    assert kernels._bundles is not None
    ((_, opened),) = kernels._bundles._opened
    blobs = range(opened.reader.head.head_bytes, opened.reader.catalog.page(0).extent.at)
    # The first bytes of the file are read together with the head.
    return {part for part in watched.parts if part[0] in blobs and part[1]}


def _own_blobs(kernels: Kernels, *candidates: Any) -> set[tuple[int, int]]:
    """Return record, cubin and their bases, as they lie in the file."""
    own = set()
    for candidate in candidates:
        reader, entry = candidate._bundle.reader, candidate._entry
        for number in (entry.record, *(blob for blob in entry.blobs if blob is not None)):
            step = -1
            while step:
                row = reader.row(number)
                own.add((row.extent.at, row.extent.size))
                step = row.step
                number -= step
    return own


def test_a_bundle_is_opened_and_launched(bundle: Path, framework: made.Framework) -> None:
    with pallasc.open_bundle(bundle) as kernels:
        assert list(kernels) == ["add"]
        assert len(kernels) == 1
        assert "add" in kernels
        assert "sub" not in kernels
        assert 3 not in kernels
        a, b = (framework.tensor("f32[4, 128]") for _ in range(2))
        out = kernels["add"](a, b)
        assert (out.dtype, out.shape) == ("f32", (4, 128))
        kernels.preload(0)


def test_opening_and_asking_read_the_manifest_only(bundle: Path, watched: _Watched) -> None:
    kernels = pallasc.open_bundle(bundle)
    variants = kernels["add"].variants
    assert len(variants) == 8
    assert {candidate.id for candidate in variants} >= {"add[n=64]@h100-sxm", "add[n=128]@b200"}
    assert {(candidate.target, candidate.arch) for candidate in variants} >= {
        ("h200", "sm_90a"),
        ("b200", "sm_100a"),
    }
    assert {candidate.arrays for candidate in variants} == {
        (("f32", (4, n)), ("f32", (4, n))) for n in (64, 128)
    }
    assert _blobs_read(kernels, watched) == set()


def test_a_launch_reads_its_own_record_and_cubin_only(
    tmp_path: Path, framework: made.Framework, watched: _Watched
) -> None:
    many = write_bundle(
        tmp_path / "k.pallasc", "b200", "h100-sxm", "a100-sxm", columns=(64, 128, 256)
    )
    kernels = pallasc.open_bundle(many)
    a, b = (framework.tensor("f32[4, 128]") for _ in range(2))
    kernels["add"](a, b)
    by_id = {candidate.id: candidate for candidate in kernels["add"].variants}
    read = _blobs_read(kernels, watched)
    mine = by_id["add[n=128]@h100-sxm"]
    assert mine.artifact.plan.inputs[0].shape == (4, 128)
    # Names of arrays are taken from the record of the first variant.
    first = kernels["add"].variants[0]
    assert read
    assert read <= _own_blobs(kernels, mine, first)
    assert {id for id, variant in by_id.items() if "artifact" in vars(variant)} == {
        mine.id,
        first.id,
    }


def test_names_and_variants_say_where_they_come_from(bundle: Path) -> None:
    kernels = pallasc.open_bundle(str(bundle))
    assert repr(kernels) == f"<Kernels add from {bundle}>"
    assert kernels.origins == (Origin(str(bundle)),)
    (first,) = [
        candidate for candidate in kernels["add"].variants if candidate.id == "add[n=64]@b200"
    ]
    assert repr(first) == f"<Variant add[n=64]@b200 (sm_100a) from {bundle}>"
    assert first.origin == Origin(str(bundle))
    assert repr(Kernels()) == "<Kernels none>"
    assert repr(made.kernel(made.add()).variants[0]) == "<Variant made@h100-sxm (sm_90a)>"


def test_an_unknown_kernel_is_refused_with_the_nearest(bundle: Path) -> None:
    kernels = pallasc.open_bundle(bundle)
    for name in ("ad", "add\0h100-sxm", ""):
        with pytest.raises(ArgumentError, match="there is no kernel"):
            kernels[name]
    assert kernels.get("ad") is None
    with pytest.raises(ArgumentError) as caught:
        kernels["ad"]
    assert caught.value.message == f"there is no kernel 'ad' in {bundle}."
    assert caught.value.hint == "Did you mean 'add'?"


@pytest.mark.parametrize("content", [b"", b"no bundle at all", None])
def test_what_is_no_bundle_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "k.pallasc"
    if content is None:
        with pytest.raises(SpecError, match=r"k\.pallasc cannot be read: No such file"):
            pallasc.open_bundle(path)
        return
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"k\.pallasc"):
        pallasc.open_bundle(path)


def _add(kernels: Kernels, framework: made.Framework, device: int) -> None:
    a, b = (framework.tensor("f32[4, 64]", device=device) for _ in range(2))
    with active(get_device(device)):
        kernels["add"](a, b)


def test_each_gpu_gets_the_variant_of_its_architecture(
    tmp_path: Path, framework: made.Framework, runtime: Any
) -> None:
    runtime.devices("9.0", "8.0")
    path = write_bundle(tmp_path / "k.pallasc", "h100-sxm", "a100-sxm", "b200")
    kernels = pallasc.open_bundle(path)
    for device in (0, 1, 0, 1, 1, 0):
        _add(kernels, framework, device)
    assert [launch.device for launch in runtime.launches] == [0, 1, 0, 1, 1, 0]
    assert {
        candidate.target for candidate in kernels["add"].variants if "artifact" in vars(candidate)
    } == {
        "h100-sxm",
        "a100-sxm",
    }


def test_a_file_that_is_cut_off_while_open_is_an_error(
    bundle: Path, framework: made.Framework
) -> None:
    kernels = pallasc.open_bundle(bundle)
    variants = kernels["add"].variants
    os.truncate(bundle, 200)
    with pytest.raises(CorruptError, match=r"kernels\.pallasc is damaged: it was cut off"):
        kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
    with pytest.raises(CorruptError):
        _ = variants[0].artifact


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_is_replaced_while_open_stays_readable(
    bundle: Path, framework: made.Framework, change: str
) -> None:
    kernels = pallasc.open_bundle(bundle)
    if change == "removed":
        bundle.unlink()
    else:
        write_bundle(bundle, "b200", name="other")
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


def test_a_damaged_cubin_is_found_before_it_is_loaded(
    bundle: Path, framework: made.Framework
) -> None:
    kernels = pallasc.open_bundle(bundle)
    kernel = next(
        candidate for candidate in kernels["add"].variants if candidate.id == "add[n=64]@h100-sxm"
    )
    (number,) = kernel._entry.blobs  # type: ignore[attr-defined]
    row = kernel._bundle.reader.row(number)  # type: ignore[attr-defined]
    with bundle.open("r+b") as file:
        file.seek(row.extent.at + row.extent.size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptError, match=r"kernels\.pallasc is damaged: .*blob"):
        kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


def test_after_close_what_is_loaded_runs_and_nothing_else(
    bundle: Path, framework: made.Framework
) -> None:
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    with pallasc.open_bundle(bundle) as kernels:
        kernels["add"].into(a, b, out=out)
    kernels.close()
    other = framework.tensor("f32[4, 64]")
    assert kernels["add"].into(a, b, out=other) is other
    with pytest.raises(SpecError, match=r"kernels\.pallasc is closed"):
        kernels["add"].prepare("f32[4, 128]", "f32[4, 128]")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of descriptors here")
def test_many_opens_leave_no_descriptor(bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pallasc"
    broken.write_bytes(bundle.read_bytes()[:-1])
    gc.collect()  # what earlier tests left open
    before = _descriptors()
    for _ in range(40):
        assert len(pallasc.open_bundle(bundle)["add"].variants) == 8
        with pytest.raises(CorruptError):
            pallasc.open_bundle(broken)
        found = [BundleFile(Origin(str(path)), path) for path in (bundle, broken)]
        with pytest.raises(CorruptError):
            Bundles(found, Policy())
    gc.collect()  # a kernel that was asked for refers to itself
    assert _descriptors() == before


def test_threads_read_a_bundle_at_once(bundle: Path, framework: made.Framework) -> None:
    kernels = pallasc.open_bundle(bundle)
    start = threading.Barrier(8)
    found: list[Any] = []

    def ask(number: int) -> None:
        start.wait()
        kernel = kernels["add"]
        kernel.prepare(*(f"f32[4, {64 * (1 + number % 2)}]",) * 2)
        found.append((kernel, tuple(candidate.artifact for candidate in kernel.variants)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(kernel) for kernel, _ in found}) == 1
    assert len({tuple(map(id, artifacts)) for _, artifacts in found}) == 1


_FORK = """
import os, sys
import pallasc

kernels = pallasc.open_bundle(sys.argv[1])
names = list(kernels)
child = os.fork()
kernel = kernels["add"]
for one in kernel.variants:
    one.artifact.cubin()
kernel.prepare("f32[4, 64]", "f32[4, 64]")
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_parent_and_child_of_a_fork_read_the_same_file(bundle: Path, fresh_process: Any) -> None:
    done = fresh_process(_FORK, str(bundle))
    assert done.returncode == 0, done.stderr
