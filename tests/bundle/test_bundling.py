"""Bundles from specs: all or nothing, and the same bytes from everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.bundling import BundleOptions, BundleResult, make_bundle
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.errors import SpecError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.verify import verify

KERNEL = """\
from pallasc.specs.library.elementwise import add


def double(x):
    return add(x, x, block_size=1024)


def square(x):
    return x * x
"""
KERNELS: list[dict[str, Any]] = [
    {"name": "double", "entry": "kernel.py:double", "vmap": "doubles"},
    {"name": "doubles", "entry": "kernel.py:double", "args": {"x": "f32[4, 8, 128]"}},
    {"name": "square", "entry": "kernel.py:square", "matrix": {"n": [128, 256]}},
]
TARGETS = ["sm_90a", "h200"]


def _spec(folder: Path, *, reverse: bool = False) -> Path:
    """Write a spec, perhaps with everything in the other order."""
    kernels: list[dict[str, Any]] = [
        {"args": {"x": "f32[8, {n}]" if "matrix" in kernel else "f32[8, 128]"}, **kernel}
        for kernel in KERNELS
    ]
    targets = TARGETS
    if reverse:
        kernels = [dict(reversed(kernel.items())) for kernel in reversed(kernels)]
        for kernel in kernels:
            kernel |= {"matrix": {"n": [256, 128]}} if "matrix" in kernel else {}
        targets = TARGETS[::-1]
    (folder / "kernel.py").write_text(KERNEL)
    path = folder / "kernels.yaml"
    path.write_text(json.dumps({"schema": 1, "targets": targets, "kernels": kernels}))
    return path


class Project:
    """A folder with a spec, and a store that has all of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.spec = _spec(folder)

    def make(self, output: Path, *, store: Store | None = None, **options: Any) -> BundleResult:
        """Make a bundle of the spec, or of what an expression means."""
        held = store or self.store
        expression = options.pop("expression", None)
        selection = SpecReader(store=held).select([str(self.spec)], expression=expression)
        how = BundleOptions(**options, build=Options(jobs=1))
        return make_bundle(selection, output, store=held, options=how)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose bundle was made once, with everything compiled for it."""
    project = Project(tmp_path_factory.mktemp("project"))
    made = project.make(project.folder / "made" / "kernels.pallasc")
    assert made.report.exit_code == 0
    assert {result.status for result in made.report.results} == {"compiled"}
    return project


@pytest.fixture(scope="module")
def expected(project: Project) -> bytes:
    """Return the bytes of that bundle."""
    return (project.folder / "made" / "kernels.pallasc").read_bytes()


def test_a_bundle_has_what_was_wanted(project: Project, expected: bytes) -> None:
    again = project.make(project.folder / "again.pallasc", source="store")
    assert {result.status for result in again.report.results} == {"hit"}
    assert (project.folder / "again.pallasc").read_bytes() == expected
    (written,) = again.bundles
    with open_bundle(expected) as bundle:
        verify(bundle)
        assert (written.target, written.size) == (None, len(expected))
        assert (written.digest, len(written.variants)) == (bundle.digest, len(bundle))
        assert [entry.id for entry in bundle.entries()] == [
            "double@h100-sxm", "double@h200", "doubles@h100-sxm", "doubles@h200",
            "square[n=128]@h100-sxm", "square[n=256]@h100-sxm",
            "square[n=128]@h200", "square[n=256]@h200",
        ]  # fmt: skip
        vmaps = {(entry.name, entry.vmap) for entry in bundle.entries()}
        (origin,) = bundle.provenance
    assert vmaps == {("double", "doubles"), ("doubles", None), ("square", None)}
    assert origin.specs.keys() == {"kernels.yaml"}
    assert {"jax", "jaxlib", "ptxas"} <= origin.toolchain.keys()
    assert str(project.folder).encode() not in expected
    made = project.make(project.folder / "k.pallasc", expression="square and n=256 and target=h200")
    with open_bundle(made.bundles[0].path) as part:
        assert [entry.id for entry in part.entries()] == ["square[n=256]@h200"]
        assert part.provenance == (origin,)


def test_order_changes_no_kernel(project: Project, expected: bytes, tmp_path: Path) -> None:
    other = Project(tmp_path)
    other.spec = _spec(tmp_path, reverse=True)
    (made,) = other.make(tmp_path / "out.pallasc", store=project.store).bundles
    with open_bundle(expected) as bundle:
        assert made.digest == bundle.digest


def test_folder_store_and_environment_change_no_byte(expected: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "a clone" / "deep er"
    folder.mkdir(parents=True)
    spec = _spec(folder)
    output = folder / "out.pallasc"
    subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", "bundle", "create", spec.name, "-o", output,
         "--jobs", "1", "--store", tmp_path / "store"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": "4711", "HOME": str(tmp_path), "LC_ALL": "C",
             "USER": "someone", "TZ": "Asia/Kathmandu", "OMP_NUM_THREADS": "7", "TERM": "vt100"},
        umask=0o077,
        check=True,
        capture_output=True,
    )  # fmt: skip
    assert output.read_bytes() == expected


def test_what_the_store_lacks_keeps_the_old_file(project: Project, tmp_path: Path) -> None:
    output = tmp_path / "k.pallasc"
    output.write_text("old")
    for source in ("store", "frozen"):
        made = project.make(output, store=Store(tmp_path / "empty"), source=source)
        assert made.report.exit_code == 3
        assert made.bundles == ()
        assert output.read_text() == "old"


def test_what_cannot_be_right_is_refused_first(project: Project, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        project.make(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"):
        project.make(tmp_path / "file" / "k")
