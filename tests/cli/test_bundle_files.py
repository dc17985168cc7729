"""`pallasc bundle show`, `verify` and `merge`, on made-up bundles."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle" / "programs"))

from made_bundles import make_artifact, make_items

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item, Provenance
from pallasc.specs.bundle.writer import build_bundle

ORIGIN = Provenance("pallasc 1.0", {"ptxas": "13.5"}, {"a.yaml": "ab" * 32}, "c0ffee" * 6, False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle of two kernels with two points each on two targets."""
    items = make_items(2, names=("norm", "scale"), targets=("h100-sxm", "b200"))
    path = tmp_path / "kernels.pallasc"
    path.write_bytes(build_bundle(items, provenance=[ORIGIN]))
    return path


def _write(path: Path, items: list[Item], **options: Any) -> Path:
    path.write_bytes(build_bundle(items, **options))
    return path


def test_a_bundle_is_shown(run: Any, bundle: Path) -> None:
    result = run("bundle", "show", bundle)
    assert (result.code, result.err) == (0, "")
    with open_bundle(bundle) as opened:
        digest, root = opened.digest, opened.root
    lines = result.out.splitlines()
    assert lines[0] == "format      1.0"
    assert f"content     {digest}" in lines
    assert f"root        {root}" in lines
    assert "signatures  none" in lines
    assert "  norm: 4 variants" in lines
    assert "  b200 (sm_100a): 4 variants, driver 580.65.06 or newer (CUDA 13.0)" in lines
    assert lines[-3:] == [
        f"  pallasc 1.0, commit {'c0ffee' * 6}",
        "    ptxas 13.5",
        "    abababababab  a.yaml",
    ]
    data = json.loads(run("bundle", "show", bundle, "--json").out)
    assert (data["digest"], data["root"], data["bytes"]) == (digest, root, bundle.stat().st_size)
    assert data["kernels"] == {"norm": 4, "scale": 4}
    targets = [(target["target"], target["variants"]) for target in data["targets"]]
    assert targets == [("b200", 4), ("h100-sxm", 4)]
    assert data["provenance"][0]["commit"] == "c0ffee" * 6


def test_a_variant_is_shown(run: Any, bundle: Path) -> None:
    name = "norm[m=16,dtype=bf16]@b200"
    with open_bundle(bundle) as opened:
        (entry,) = (entry for entry in opened.entries() if entry.id == name)
        record, artifact = opened.record(entry), opened.artifact(entry)
    result = run("bundle", "show", bundle, name)
    lines = result.out.splitlines()
    assert lines[0] == name
    for line in (
        f"compiled   {entry.digest}",
        f"shipped    {artifact.digest}",
        "target     b200 (sm_100a)",
        "toolchain  jax 0.12.0.1, ptxas 13.5.37",
        "driver     CUDA 13.0, Linux 580.65.06 or newer",
        "plan",
        "     0: launch k grid=(4,1,1) block=(128,1,1) smem=1024",
        "provenance",
    ):
        assert line in lines
    assert run("bundle", "show", bundle, "norm and m=16 and target=sm_100a").out == result.out
    data = json.loads(run("bundle", "show", bundle, name, "--json").out)
    assert data["record"] == record
    assert data["variant"]["digest"] == entry.digest
    kernel = record["kernels"][0]
    assert data["shipped"][kernel["ptx"]] is None
    assert data["shipped"][kernel["cubin"]]["digest"] == artifact.kernels[0].cubin
    several = run("bundle", "show", bundle, "norm")
    assert (several.code, several.out) == (2, "")
    told = f"'norm' matches 4 variants of {bundle}.\n  Name one: {name}, "
    assert told in several.err
    none = run("bundle", "show", bundle, "nrom")
    assert (none.code, none.out) == (2, "")
    assert none.err == f"error: {bundle} has no variant 'nrom'.\n  Did you mean 'norm'?\n"


def test_a_bundle_is_taken_apart(run: Any, bundle: Path, tmp_path: Path) -> None:
    out = f"{tmp_path}/out/"
    options = ("--target", "sm_90a", "-k", "norm and m=16")
    result = run("inspect", bundle, "-o", out, *options)
    assert (result.code, result.err) == (0, f"wrote 3 files of 1 variant to {tmp_path}/out\n")
    own = tmp_path / "out" / "norm[m=16,dtype=bf16]@h100-sxm"
    assert {path.name for path in own.iterdir()} == {"artifact.json", "plan.json", "k.cubin"}
    assert (own / "k.cubin").read_bytes().startswith(b"\x7fELF")
    refused = run("inspect", bundle, "-o", out)
    assert (refused.code, refused.out) == (2, "")
    assert "already exists.\n  Remove it, or give another folder." in refused.err
    (tmp_path / "file").touch()
    for command, place in (("bundle merge", "file/k"), ("inspect", "file/out/")):
        result = run(*command.split(), bundle, "-o", f"{tmp_path}/{place}")
        assert (result.code, "cannot be written" in result.err) == (2, True)


def test_bundles_are_merged_in_any_order(run: Any, bundle: Path, tmp_path: Path) -> None:
    parts = []
    for target in ("b200", "h100-sxm"):
        part = tmp_path / f"{target}.pallasc"
        assert run("bundle", "merge", bundle, "-o", part, "--target", target).code == 0
        parts.append(part)
    for order in (parts, parts[::-1], [*parts, bundle]):
        merged = tmp_path / "merged.pallasc"
        result = run("bundle", "merge", *order, "-o", merged, "--json")
        size = bundle.stat().st_size
        assert result.err == f"wrote {merged}: 8 variants, {size:,} bytes\n"
        assert json.loads(result.out)["variants"] == 8
        assert merged.read_bytes() == bundle.read_bytes()
        merged.unlink()
    onto_itself = run("bundle", "merge", *parts, "-o", parts[0])
    assert onto_itself.code == 0
    assert parts[0].read_bytes() == bundle.read_bytes()


def test_conflicts_and_damage_are_named_and_nothing_is_written(
    run: Any, bundle: Path, tmp_path: Path
) -> None:
    paths = [
        _write(tmp_path / name, [Item("k", {"m": m}, make_artifact(m * seed)) for m in range(3)])
        for name, seed in (("one", 1), ("other", 5))
    ]
    out = tmp_path / "merged"
    out.write_text("old")
    for order in (paths, paths[::-1]):
        result = run("bundle", "merge", *order, "-o", out)
        assert (result.code, result.out) == (5, "")
        assert "there are two artifacts of k[m=1]@h100-sxm: " in result.err
    damaged = tmp_path / "damaged"
    data = bytearray(bundle.read_bytes())
    data[300] ^= 1
    damaged.write_bytes(data)
    result = run("bundle", "merge", bundle, damaged, "-o", out)
    assert (result.code, f"{damaged} is damaged" in result.err) == (5, True)
    none = run("bundle", "merge", *paths, "-o", out, "--target", "thor")
    assert (none.code, out.read_text()) == (2, "old")
    assert run("bundle", "merge", *paths, "-o", out, "-k", "m=0").code == 0


@pytest.mark.parametrize(
    ("fail_on", "code"), [("note", 5), ("warning", 5), ("error", 0), ("never", 0), (None, 0)]
)
def test_the_severity_that_fails_is_chosen(
    run: Any, bundle: Path, fail_on: str | None, code: int
) -> None:
    options = ["--fail-on", fail_on] if fail_on else []
    result = run("bundle", "verify", bundle, *options)
    assert result.code == code
    whole, *table = result.out.splitlines()
    assert whole.endswith("; 1 warning, 2 notes")
    assert table[:2] == [
        "SEVERITY  KIND       FINDING",
        "warning   signature  the bundle: it is not signed",
    ]
    assert run("bundle", "verify", bundle, "--fail-on", "never", "--budget", "1KB").code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--driver", "new"), "is not a CUDA version"), (("--budget", "much"), "is not a size"),
     (("--target", "sm_90"), "sm_90a"), (("--spills", "-1"), "-1")],
)  # fmt: skip
def test_wrong_options_are_refused(
    run: Any, bundle: Path, options: tuple[str, str], words: str
) -> None:
    result = run("bundle", "verify", bundle, *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
