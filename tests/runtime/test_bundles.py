"""Kernels from bundles: read when they are needed, chosen from the manifest, launched."""

from __future__ import annotations

import gc
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made
import pytest

import pallasc
from pallasc.errors import ArgumentError, CorruptError, SelectionError, SpecError, ToolError
from pallasc.runtime.bundles import Bundles
from pallasc.runtime.device.devices import active, capabilities, get_device
from pallasc.runtime.discovery import PATH, BundleFile
from pallasc.runtime.matching.candidates import Origin
from pallasc.runtime.opening import Kernels
from pallasc.specs.bundle.items import item_of
from pallasc.specs.bundle.source import OpenFile
from pallasc.specs.bundle.trust import Policy
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.user_files import replace_file

TARGETS = ("h100-sxm", "h200", "b200", "a100-sxm")


def _artifact(target: str = "h100-sxm", columns: int = 64, **changes: Any) -> Any:
    array = f"f32[4, {columns}]"
    return made.add(inputs={"a": array, "b": array}, outputs=[array], target=target, **changes)


def _write(path: Path, *targets: str, name: str = "add", columns: tuple[int, ...] = (64,)) -> Path:
    """Write a bundle of a kernel with so many columns on these targets."""
    items = (
        item_of(name, {"n": n}, _artifact(target, n))
        for target in targets or TARGETS
        for n in columns
    )
    replace_file(path, build_bundle(items, level=3))
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return _write(tmp_path / "kernels.pallasc", columns=(64, 128))


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


# ---- opening and launching


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


def test_a_refusal_reads_the_manifest_only(
    tmp_path: Path, framework: made.Framework, watched: _Watched
) -> None:
    kernels = pallasc.open_bundle(_write(tmp_path / "k.pallasc", "b200", "a100-sxm"))
    with pytest.raises(SelectionError) as caught:
        kernels.preload(0)
    assert _blobs_read(kernels, watched) == set()
    assert caught.value.message.endswith(
        "\nThere are variants for other architectures only:"
        f"\n  sm_80, sm_100a from {tmp_path / 'k.pallasc'}"
    )
    assert caught.value.hint is None


def test_a_launch_reads_its_own_record_and_cubin_only(
    tmp_path: Path, framework: made.Framework, watched: _Watched
) -> None:
    many = _write(tmp_path / "k.pallasc", "b200", "h100-sxm", "a100-sxm", columns=(64, 128, 256))
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


def test_likeness_of_models_is_known_before_cubins_are_read(
    tmp_path: Path, framework: made.Framework, watched: _Watched
) -> None:
    kernels = pallasc.open_bundle(_write(tmp_path / "k.pallasc", "h200", "h100-sxm", "h100-pcie"))
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
    loaded = [candidate for candidate in kernels["add"].variants if candidate.target == "h100-sxm"]
    cubins = {part for part in _own_blobs(kernels, *loaded) if part in watched.parts}
    assert cubins == _own_blobs(kernels, *loaded)


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


# ---- several GPUs


def _add(kernels: Kernels, framework: made.Framework, device: int) -> None:
    a, b = (framework.tensor("f32[4, 64]", device=device) for _ in range(2))
    with active(get_device(device)):
        kernels["add"](a, b)


def test_each_gpu_gets_the_variant_of_its_architecture(
    tmp_path: Path, framework: made.Framework, runtime: Any
) -> None:
    runtime.devices("9.0", "8.0")
    path = _write(tmp_path / "k.pallasc", "h100-sxm", "a100-sxm", "b200")
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


def test_a_gpu_that_nothing_is_for_is_refused_after_others_have_launched(
    tmp_path: Path, framework: made.Framework, runtime: Any
) -> None:
    runtime.devices("9.0", "10.0")
    kernels = pallasc.open_bundle(_write(tmp_path / "k.pallasc", "h100-sxm", "a100-sxm"))
    for _ in range(2):
        _add(kernels, framework, 0)
    with pytest.raises(SelectionError, match=r"fits GPU 1 .*sm_100") as caught:
        _add(kernels, framework, 1)
    assert "sm_90a from" in caught.value.message


def test_capabilities_are_read_without_making_a_context(runtime: Any) -> None:
    runtime.devices("9.0", "10.0", "9.0")
    assert capabilities() == {(9, 0), (10, 0)}
    assert runtime.count("cuDevicePrimaryCtxRetain") == 0


# ---- files that change while they are open


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


def test_a_file_that_is_overwritten_while_open_is_an_error(
    bundle: Path, framework: made.Framework
) -> None:
    kernels = pallasc.open_bundle(bundle)
    assert len(kernels["add"].variants) == 8
    with bundle.open("r+b") as file:
        file.write(bytes(bundle.stat().st_size))
    with pytest.raises(CorruptError, match=r"kernels\.pallasc is damaged"):
        kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_is_replaced_while_open_stays_readable(
    bundle: Path, framework: made.Framework, change: str
) -> None:
    kernels = pallasc.open_bundle(bundle)
    if change == "removed":
        bundle.unlink()
    else:
        _write(bundle, "b200", name="other")
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


# ---- closing, descriptors, threads, forks


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


def test_a_kernel_keeps_its_bundle_open(bundle: Path, framework: made.Framework) -> None:
    kernel = pallasc.open_bundle(bundle)["add"]
    kernel.prepare("f32[4, 64]", "f32[4, 64]")


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


# ---- several bundles


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install packages with bundles into a folder; a distribution makes one a provider."""
    monkeypatch.delenv(PATH, raising=False)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(package: str, *targets: str, distribution: str = "", **changes: Any) -> Path:
        folder = site / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        if distribution:
            info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(f"[pallasc.bundles]\nmylib = {package}\n")
        path = folder / "kernels.pallasc"
        return _write(path, *targets, **changes) if targets else path

    yield add
    assert not {name for name in sys.modules if name.startswith("mylib")}


def test_providers_add_architectures(
    install: Callable[..., Path], framework: made.Framework
) -> None:
    install("mylib", "a100-sxm")
    install("mylib_sm90", "h100-sxm", distribution="mylib-sm90")
    kernels = pallasc.load("mylib")
    assert [kernel.provider for kernel in kernels.origins] == ["mylib", "mylib-sm90 1.0"]
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
    assert {candidate.arch for candidate in kernels["add"].variants} == {"sm_80", "sm_90a"}


def test_a_missing_provider_is_named_and_no_other_architecture_runs(
    install: Callable[..., Path], framework: made.Framework
) -> None:
    base = install("mylib", "a100-sxm")
    blackwell = install("mylib_sm100", "b200", distribution="mylib-sm100")
    with pytest.raises(SelectionError) as caught:
        pallasc.load("mylib")["add"].prepare("f32[4, 64]", "f32[4, 64]")
    assert caught.value.exit_code == 4
    gpu = "GPU 0 (Stand-in H100, sm_90)"
    assert caught.value.message == (
        f"no variant of add fits {gpu}:\n"
        "  add[n=64]@a100-sxm: sm_80 runs on sm_80 and newer ones of its family, and this GPU is "
        "sm_90\n"
        "  add[n=64]@b200: sm_100a runs on exactly sm_100, and this GPU is sm_90\n"
        "There are variants for other architectures only:\n"
        f"  sm_80 from mylib ({base})\n"
        f"  sm_100a from mylib-sm100 1.0 ({blackwell})"
    )
    assert caught.value.hint == (
        "No installed provider of mylib supports sm_90; installed: mylib, mylib-sm100 1.0."
    )


def test_a_kernel_that_only_a_missing_provider_has_is_refused_with_where_was_looked(
    install: Callable[..., Path],
) -> None:
    path = install("mylib", "a100-sxm")
    with pytest.raises(ArgumentError, match="there is no kernel 'softmax'") as caught:
        pallasc.load("mylib")["softmax"]
    assert f"in mylib ({path})" in caught.value.message


def test_the_same_artifact_in_two_bundles_is_one(install: Callable[..., Path]) -> None:
    install("mylib", "h100-sxm", "a100-sxm")
    install("mylib_sm90", "h100-sxm", distribution="mylib-sm90")
    variants = pallasc.load("mylib")["add"].variants
    assert [candidate.id for candidate in variants] == ["add[n=64]@a100-sxm", "add[n=64]@h100-sxm"]
    assert {str(candidate.origin.provider) for candidate in variants if candidate.origin} == {
        "mylib"
    }


def _write_another(path: Path) -> Path:
    """Write a bundle with another artifact of the same variant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = _artifact(toolchain={"ptxas": "another"})
    replace_file(path, build_bundle([item_of("add", {"n": 64}, other)], level=3))
    return path


def test_two_artifacts_of_one_variant_are_refused_with_both_files(
    install: Callable[..., Path],
) -> None:
    first = install("mylib", "h100-sxm")
    second = _write_another(install("mylib_sm90", distribution="mylib-sm90"))
    with pytest.raises(SelectionError, match=r"two artifacts of add\[n=64\]@h100-sxm") as caught:
        pallasc.load("mylib")["add"]
    assert f"from mylib ({first})" in caught.value.message
    assert f"from mylib-sm90 1.0 ({second})" in caught.value.message


def test_development_wins_for_the_architectures_that_it_has(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = install("mylib", "h100-sxm", "b200", columns=(64, 128))
    developed = _write_another(tmp_path / "built" / "mylib.pallasc")
    monkeypatch.setenv(PATH, str(developed.parent))
    variants = pallasc.load("mylib")["add"].variants
    assert {
        (candidate.id, candidate.origin.file) for candidate in variants if candidate.origin
    } == {
        ("add[n=64]@h100-sxm", str(developed)),
        ("add[n=64]@b200", str(installed)),
        ("add[n=128]@b200", str(installed)),
    }
    assert [origin.provider for origin in pallasc.load("mylib").origins] == [PATH, "mylib"]


def test_a_bundle_in_a_zip_file_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: made.Framework
) -> None:
    bundle = _write(tmp_path / "k.pallasc", "h100-sxm")
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zipped_lib/__init__.py", "raise RuntimeError('imported')")
        file.write(bundle, "zipped_lib/kernels.pallasc")
    monkeypatch.syspath_prepend(archive)
    kernels = pallasc.load("zipped_lib")
    assert kernels.origins[0].file == str(archive / "zipped_lib" / "kernels.pallasc")
    kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")


def test_no_bundle_is_an_error_that_says_where_was_looked(install: Callable[..., Path]) -> None:
    folder = install("mylib").parent
    with pytest.raises(ToolError, match="there are no kernels for mylib") as caught:
        pallasc.load("mylib")
    assert str(folder) in caught.value.message


_UNWANTED = ("jax", "numpy", "torch", "cupy", "click", "yaml", "sqlite3", "sqlite_utils")

_LOADS = f"""
import json
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_UNWANTED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
import pallasc
kernels = pallasc.load("ownlib")

from pallasc.runtime.adapters.device_arrays import DeviceArray

a, b = (DeviceArray((4, 64), "f32") for _ in range(2))
kernels["add"](a, b)
assert not set({_UNWANTED}) & set(sys.modules)
assert "cryptography" not in sys.modules
"""


def test_loading_and_launching_need_nothing_large(tmp_path: Path, fresh_process: Any) -> None:
    _write(tmp_path / "ownlib" / "kernels.pallasc", "h100-sxm")
    (tmp_path / "ownlib" / "__init__.py").touch()
    done = fresh_process(_LOADS, str(tmp_path))
    assert done.returncode == 0, done.stderr


_PACKAGE = """
import sys
sys.path.insert(0, sys.argv[1])
import ownlib
ownlib.kernels["add"].prepare("f32[4, 64]", "f32[4, 64]")
"""


def test_a_package_loads_its_kernels_while_it_is_imported(
    tmp_path: Path, fresh_process: Any
) -> None:
    _write(tmp_path / "ownlib" / "kernels.pallasc", "h100-sxm")
    (tmp_path / "ownlib" / "__init__.py").write_text(
        "import pallasc\nkernels = pallasc.load(__name__)\n"
    )
    done = fresh_process(_PACKAGE, str(tmp_path))
    assert done.returncode == 0, done.stderr
