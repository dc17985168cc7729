"""`pallasc bundle create` and `verify`: variants of specs and bundles in one file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle" / "programs"))

from made_bundles import make_artifact, make_items

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle


@pytest.fixture
def bundle(run: Any, built: Any, tmp_path: Path) -> Path:
    """Return a bundle of all that was built."""
    path = tmp_path / "kernels.pallasc"
    result = run("bundle", "create", *built.arguments, "--frozen", "--output", path)
    assert (result.code, result.out) == (0, "")
    assert result.err.endswith(f"wrote {path}: 2 variants, {path.stat().st_size:,} bytes\n")
    return path


def test_json_says_what_was_written_which_is_the_same_every_time(
    run: Any, built: Any, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "json.pallasc"
    result = run("bundle", "create", *built.arguments, "-o", path, "--json")
    assert path.read_bytes() == bundle.read_bytes()
    data = json.loads(result.out)
    (shown,) = json.loads(run("inspect", bundle, "--json").out)["bundles"]
    ids = ["add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"]
    size, digest = path.stat().st_size, shown["digest"]
    assert data["bundles"] == [
        {"file": str(path), "target": None, "bytes": size, "digest": digest, "variants": ids}
    ]
    (origin,) = data["provenance"]
    assert origin["specs"].keys() == {"kernels.yaml"}
    assert (origin["commit"], origin["dirty"]) == (None, None)
    assert origin["toolchain"]["ptxas"]


@pytest.mark.parametrize(("by", "name"), [("target", "h100-sxm"), ("arch", "sm_90a")])
def test_one_bundle_for_each_target(
    run: Any, built: Any, bundle: Path, tmp_path: Path, by: str, name: str
) -> None:
    path = tmp_path / "split" / "kernels.pallasc"
    result = run("bundle", "create", *built.arguments, "-o", path, "--split-by", by)
    written = path.with_name(f"kernels-{name}.pallasc")
    assert result.err == f"wrote {written}: 2 variants, {written.stat().st_size:,} bytes\n"
    assert [file.name for file in path.parent.iterdir()] == [written.name]
    assert written.read_bytes() == bundle.read_bytes()


IMPORTING = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: scaled
    entry: kernels.py:add
    args: {x: "f32[4096]"}
"""
HELPER = """\
from pathlib import Path

from pallasc.specs.library import elementwise

SCALE = float((Path(__file__).parent / "scale.txt").read_text())


def add(x):
    return elementwise.add(x, x * SCALE, block_size=1024)
"""


def _git(folder: Path, *arguments: str) -> None:
    own = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", "-C", folder, *own, *arguments], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_specs_and_all_that_kernels_import_and_open_must_be_in_the_commit(
    run: Any, tmp_path: Path
) -> None:
    """Neither modules that git does not track nor data that it ignores may hide behind a commit."""
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "kernels.yaml").write_text(IMPORTING)
    (folder / "kernels.py").write_text("from helper import add\n")
    path = tmp_path / "k.pallasc"
    (tmp_path / ".gitignore").write_text("*.txt\n*.pallasc\nstore\n__pycache__\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    (folder / "helper.py").write_text(HELPER)
    (folder / "scale.txt").write_text("2.0")
    create = ("bundle", "create", folder, "--store", tmp_path / "store", "-o", path, "--json")

    def changed() -> list[str]:
        result = run(*create)
        (origin,) = json.loads(result.out)["provenance"]
        told = "warning: it was made from files that differ from commit "
        assert origin["dirty"] is bool(origin["changed"]) is (told in result.err), result.err
        return list(origin["changed"])

    assert changed() == ["specs/helper.py", "specs/scale.txt"]
    assert changed() == ["specs/helper.py", "specs/scale.txt"]  # with hits
    _git(tmp_path, "add", "-f", "specs")
    _git(tmp_path, "commit", "-qm", "two")
    assert changed() == []
    assert ", with changed files" not in run("inspect", path).out
    (folder / "kernels.yaml").write_text(f"# Changed.\n{IMPORTING}")
    assert changed() == ["specs/kernels.yaml"]
    shown = run("inspect", path).out
    assert ", with changed files" in shown
    assert "differs       specs/kernels.yaml" in shown
    found = json.loads(run("bundle", "verify", path, "--json").out)["findings"]
    (severity,) = (each["severity"] for each in found if each["kind"] == "provenance")
    assert severity == "warning"


def test_a_list_is_a_table(run: Any, bundle: Path) -> None:
    head, first, second = run("list", bundle).out.splitlines()
    assert head.split() == ["VARIANT", "ARCH", "BYTES", "DIGEST"]
    assert {first.split()[0], second.split()[0]} == {
        "add[m=1024,dtype=f32]@h100-sxm",
        "add[m=1024,dtype=bf16]@h100-sxm",
    }
    some = run("list", bundle, "-k", "dtype=f32", "--target", "sm_90a").out.splitlines()
    assert [line.split()[0] for line in some[1:]] == ["add[m=1024,dtype=f32]@h100-sxm"]
    two = bundle.with_name("two.pallasc")
    two.write_bytes(build_bundle(make_items(1)))
    assert (
        run("list", two, bundle, "-k", "dtype=f32").out
        == run("list", bundle, "-k", "dtype=f32").out
    )
    other = run("list", bundle, "-k", "nothing")
    assert (other.code, "selects none of 2 variants" in other.err) == (2, True)
    none = run("list", bundle, "--target", "sm_90")
    assert (none.code, none.out) == (2, "")
    assert "has no variant for sm_90.\n  Did you mean 'sm_90a'?" in none.err


def test_a_bundle_and_a_lock_file_are_compared(
    run: Any, built: Any, bundle: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "own.lock"
    assert run("lock", *built.arguments, "--lock", lock, "--update").code == 0
    same = run("bundle", "verify", bundle, "--lock", lock)
    assert (same.code, same.out.splitlines()[-1]) == (0, f"{bundle} matches {lock}")
    for options in (("--frozen",), ("--locked",), ("--frozen", "--locked")):
        path = tmp_path / "locked.pallasc"
        made = run("bundle", "create", *built.arguments, *options, "--lock", lock, "-o", path)
        assert (made.code, path.read_bytes()) == (0, bundle.read_bytes())
    lines = lock.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if "dtype=f32" in line)
    digest = lines[place].partition("artifact: ")[2][:64]
    lines[place] = lines[place].replace(digest, "0" * 64)
    lock.write_text("".join(lines))
    other = run("bundle", "verify", bundle, "--lock", lock)
    assert other.code == 3
    told = "add[m=1024,dtype=f32]@h100-sxm: the lock file has artifact 000000000000, the bundle"
    assert other.out.splitlines()[2].split(None, 2) == ["error", "lock", f"{told} {digest[:12]}"]
    assert other.out.splitlines()[-1] == f"{bundle} does not match {lock}: 1 variant differs"
    path.unlink()
    refused = run("bundle", "create", *built.arguments, "--locked", "--lock", lock, "-o", path)
    assert (refused.code, path.exists()) == (3, False)
    del lines[place]
    lock.write_text("".join(lines))
    data = json.loads(run("bundle", "verify", bundle, "--lock", lock, "--json").out)
    assert [(f["severity"], f["message"]) for f in data["findings"] if f["kind"] == "lock"] == [
        ("error", "the lock file does not name it")
    ]
    nothing = run("bundle", "verify", bundle, "--lock", tmp_path / "none.lock")
    assert (nothing.code, "there is no" in nothing.err) == (3, True)


def test_specs_and_bundles_are_written_to_one_bundle(
    run: Any, built: Any, bundle: Path, tmp_path: Path
) -> None:
    with_ptx, other, out = (tmp_path / f"{name}.pallasc" for name in ("ptx", "other", "out"))
    create = ("bundle", "create", "--store", built.store)
    assert run(*create, built.spec, "-o", with_ptx, "--keep-ptx", "-k", "dtype=f32").code == 0
    other.write_bytes(build_bundle(make_items(1, targets=("b200",))))
    written = []
    for specs in ((built.spec, with_ptx, other), (other, with_ptx, built.spec)):
        result = run(*create, *specs, "-o", out, "--json")
        assert result.code == 0
        assert result.err == f"wrote {out}: 3 variants, {out.stat().st_size:,} bytes\n"
        written.append((out.read_bytes(), json.loads(result.out)["provenance"]))
    assert written[0] == written[1]
    with open_bundle(out) as mixed:
        verify(mixed)
        # Copied variants keep their PTX; without --keep-ptx, those of the spec have none.
        blobs = {entry.id: len(list(mixed.artifact(entry).blobs())) for entry in mixed.entries()}
        assert len(mixed.provenance) == len(written[0][1]) == 1
    f32, bf16 = "add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"
    assert blobs == {bf16: 1, f32: 2, "scale[m=16,dtype=bf16]@b200": 1}
    parts = run(*create, built.spec, with_ptx, other, "-o", out, "--split-by", "arch", "--json")
    listed = [(each["target"], each["variants"]) for each in json.loads(parts.out)["bundles"]]
    assert listed == [("sm_100a", ["scale[m=16,dtype=bf16]@b200"]), ("sm_90a", [f32, bf16])]
    assert run(*create, tmp_path / "out-sm_100a.pallasc", "-o", out).code == 0
    assert out.read_bytes() == (tmp_path / "out-sm_100a.pallasc").read_bytes()


def test_an_expression_must_match_in_one_spec_or_bundle(
    run: Any, built: Any, tmp_path: Path
) -> None:
    other, out = tmp_path / "other.pallasc", tmp_path / "out.pallasc"
    other.write_bytes(build_bundle(make_items(1, targets=("b200",))))
    create = ("bundle", "create", "--store", built.store, built.spec, other, "-o", out, "--json")
    for expression, name in (
        ("m=1024 and dtype=f32", "add[m=1024,dtype=f32]@h100-sxm"),
        ("m=16", "scale[m=16,dtype=bf16]@b200"),
    ):
        written = json.loads(run(*create, "-k", expression).out)
        assert [bundle["variants"] for bundle in written["bundles"]] == [[name]]
        assert len(written["provenance"]) == 1 - (expression == "m=16")
    both = json.loads(run(*create, "-k", "scale or dtype=f32").out)["bundles"][0]["variants"]
    assert both == ["add[m=1024,dtype=f32]@h100-sxm", "scale[m=16,dtype=bf16]@b200"]
    none = run(*create, "-k", "m=1025")
    assert (none.code, "selects none of 2 variants" in none.err) == (2, True)


def test_a_spec_and_a_bundle_with_other_artifacts_of_a_variant_are_refused(
    run: Any, built: Any, bundle: Path, tmp_path: Path
) -> None:
    other, out = tmp_path / "other.pallasc", tmp_path / "out.pallasc"
    item = Item("add", {"m": 1024, "dtype": "f32"}, make_artifact(1))
    other.write_bytes(build_bundle([item]))
    for arguments in ((other, *built.arguments), (other, bundle)):
        result = run("bundle", "create", *arguments, "-o", out)
        assert (result.code, result.out, out.exists()) == (5, "", False)
        assert "there are two artifacts of add[m=1024,dtype=f32]@h100-sxm: " in result.err


def test_bundles_are_merged_without_jax_and_without_a_store(
    process: Any, bundle: Path, tmp_path: Path
) -> None:
    modules, store, out = tmp_path / "modules", tmp_path / "none", tmp_path / "out.pallasc"
    result = process(
        "bundle", "create", bundle, bundle, "-o", out, "--store", store, modules=modules
    )
    assert (result.code, result.err.startswith(f"wrote {out}: 2 variants, ")) == (0, True)
    assert (out.read_bytes(), store.exists()) == (bundle.read_bytes(), False)
    loaded = set(modules.read_text().splitlines())
    assert loaded & {"jax", "jaxlib", "numpy", "yaml", "sqlite3", "obstore"} == set()


@pytest.mark.parametrize(
    "option",
    ["--frozen", "--locked", "--keep-debug", "--keep-ptx", "--lines", "--all-points",
     "--lock=pallasc.lock", "--fail-on-warning=x"],
)  # fmt: skip
def test_options_for_specs_are_refused_for_bundles(
    run: Any, bundle: Path, tmp_path: Path, option: str
) -> None:
    result = run("bundle", "create", bundle, "-o", tmp_path / "out", option)
    assert (result.code, result.out, (tmp_path / "out").exists()) == (2, "", False)
    name = option.partition("=")[0]
    assert f"{name} is for specs; variants of bundles are copied as they are." in result.err


def test_what_is_no_bundle_is_refused(run: Any, tmp_path: Path) -> None:
    for name in ("text", "text.pallasc"):
        (tmp_path / name).write_text("hello")
    out = ("-o", tmp_path / "out")
    for command, rest in (("inspect", ()), ("bundle verify", ()), ("bundle create", out)):
        refused = run(*command.split(), tmp_path / "text", *rest)
        words = "is not a bundle" if command == "bundle verify" else "not a spec file"
        assert (refused.code, words in refused.err) == (2, True)
        assert run(*command.split(), tmp_path / "text.pallasc", *rest).code == 5
        assert run(*command.split(), tmp_path / "nothing", *rest).code == 2
        assert run(*command.split(), tmp_path / "nothing.pallasc", *rest).code == 2
    assert not (tmp_path / "out").exists()
