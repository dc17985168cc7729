"""`pallasc inspect`, `bundle create` and `verify` of made-up bundles."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle" / "programs"))

from made_bundles import make_artifact, make_items

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item, Provenance
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.tuning import Measured, Row, Tuning

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


def test_the_summary_of_a_bundle_comes_before_its_variants(run: Any, bundle: Path) -> None:
    result = run("inspect", bundle)
    assert (result.code, result.err) == (0, "")
    with open_bundle(bundle) as opened:
        digest, root = opened.digest, opened.root
        ids = [entry.id for entry in opened.entries()]
    summary, *variants = result.out.split("\n\n")
    lines = summary.splitlines()
    assert lines[:2] == [f"bundle         {bundle}", "format         1.0"]
    assert f"content        {digest}" in lines
    assert f"signed digest  {root} (the digest that keys sign)" in lines
    assert "signatures     none" in lines
    assert "  norm: 4 variants" in lines
    assert "  b200 (sm_100a): 4 variants, driver 580.65.06 or newer (CUDA 13.0)" in lines
    assert lines[-3:] == [
        f"  pallasc 1.0, commit {'c0ffee' * 6}",
        "    ptxas 13.5",
        "    abababababab  a.yaml",
    ]
    assert [text.splitlines()[0] for text in variants] == ids
    (data,) = json.loads(run("inspect", bundle, "--json").out)["bundles"]
    assert (data["file"], data["format"]) == (str(bundle), "1.0")
    assert (data["digest"], data["root"], data["bytes"]) == (digest, root, bundle.stat().st_size)
    assert data["kernels"] == {"norm": 4, "scale": 4}
    targets = [(target["target"], target["variants"]) for target in data["targets"]]
    assert targets == [("b200", 4), ("h100-sxm", 4)]
    assert data["provenance"][0]["commit"] == "c0ffee" * 6


def test_each_of_several_bundles_comes_before_its_variants(
    run: Any, bundle: Path, tmp_path: Path
) -> None:
    other = _write(bundle.with_name("other.pallasc"), make_items(1))
    parts = run("inspect", other, bundle, "-k", "m=16", "--target", "h100-sxm").out.split("\n\n")
    firsts = [part.splitlines()[0].removeprefix("bundle         ") for part in parts]
    norm, scale = "norm[m=16,dtype=bf16]@h100-sxm", "scale[m=16,dtype=bf16]@h100-sxm"
    assert firsts == [str(other), scale, str(bundle), norm, scale]
    some = run("inspect", other, bundle, "-k", "norm").out
    assert some == run("inspect", bundle, "-k", "norm").out
    shown = bundle.with_name("shown")
    unpacked = run("inspect", other, bundle, "-k", "norm and m=16", "--output", f"{shown}/")
    assert unpacked.code == 0
    assert {path.name.split("[")[0] for path in shown.iterdir()} == {"norm"}
    twice = run("inspect", other, bundle, "-k", "m=16", "--output", f"{tmp_path}/more/")
    assert (twice.code, twice.out) == (2, "")
    assert f"{scale} is in 2 of these bundles." in twice.err
    assert not (tmp_path / "more").exists()


def test_a_variant_of_a_bundle_is_shown(run: Any, bundle: Path) -> None:
    name = "norm[m=16,dtype=bf16]@b200"
    with open_bundle(bundle) as opened:
        (entry,) = (entry for entry in opened.entries() if entry.id == name)
        record, artifact = opened.record(entry), opened.artifact(entry)
    kernel = record["kernels"][0]
    result = run("inspect", bundle, "-k", name)
    _, variant = result.out.split("\n\n")
    lines = variant.splitlines()
    assert lines[:6] == [
        name,
        f"compiled   {entry.digest}",
        f"shipped    {artifact.digest}",
        "target     b200 (sm_100a)",
        "toolchain  jax 0.12.0.1, ptxas 13.5.37",
        "driver     CUDA 13.0, Linux 580.65.06 or newer",
    ]
    assert "  k grid=(4,1,1) block=(128,1,1) smem=1024" in lines
    shipped = artifact.kernels[0].cubin
    size = artifact.record["blobs"][shipped]
    blobs = {f"  {kernel['cubin']}  as {shipped}, {size} bytes", f"  {kernel['ptx']}  left out"}
    assert (lines[-3], {*lines[-2:]}) == ("blobs", blobs)
    assert run("inspect", bundle, "-k", "norm and m=16 and target=sm_100a").out == result.out
    (data,) = json.loads(run("inspect", bundle, "-k", name, "--json").out)["artifacts"]
    own = data["bundled"]
    assert (data["digest"], own["file"]) == (artifact.digest, str(bundle))
    assert own["record"] == record
    assert (own["variant"]["id"], own["variant"]["digest"]) == (name, entry.digest)
    assert own["shipped"][kernel["ptx"]] is None
    assert own["shipped"][kernel["cubin"]]["digest"] == shipped
    none = run("inspect", bundle, "-k", "nrom")
    assert (none.code, none.out) == (2, "")
    assert none.err == "error: -k 'nrom' selects none of 8 variants.\n  Did you mean 'norm'?\n"


def test_a_variant_is_named_by_its_id(run: Any, tmp_path: Path) -> None:
    """Even if values of its parameters have spaces, parentheses, or quotes."""
    items = [Item("k", {"how": text}, make_artifact(1)) for text in ("a (b) or", 'a"', "a")]
    bundle = _write(tmp_path / "k.pallasc", items)
    for item in items:
        shown = json.loads(run("inspect", bundle, "-k", item.id, "--json").out)["artifacts"]
        assert [each["id"] for each in shown] == [item.id]


def test_the_use_of_a_tuned_variant_is_shown_and_kept_by_a_merge(run: Any, tmp_path: Path) -> None:
    row = Row("h100-sxm", (16,), {"tile": 1}, source="tokamax 0.0.17", measured=Measured(12.5))
    tuning = Tuning(by=("m",), over=("tile",), is_default=True, rows=(row,))
    item = Item("k", {"m": 16, "tile": 1}, make_artifact(1), tuning=tuning)
    bundle, out = _write(tmp_path / "k.pallasc", [item]), tmp_path / "out"
    shown = run("inspect", bundle).out
    assert "\ntuned      tile by m\nused for\n" in shown
    assert "\n  h100-sxm, m=16, 12.5 µs on h100-sxm, from tokamax 0.0.17\n" in shown
    assert "\n  default, for keys without a row\nblobs\n" in shown
    assert run("bundle", "create", bundle, bundle, "-o", out).code == 0
    assert out.read_bytes() == bundle.read_bytes()
    out.unlink()
    other = _write(tmp_path / "other", [replace(item, tuning=replace(tuning, is_default=False))])
    result = run("bundle", "create", bundle, other, "-o", out)
    assert (result.code, out.exists()) == (2, False)
    assert "two copies of k[m=16,tile=1]@h100-sxm have different tuning." in result.err


def test_no_name_of_a_target_leads_out_of_the_folder(run: Any, tmp_path: Path) -> None:
    artifact = make_artifact(1)
    record = {**artifact.record, "target": {**artifact.record["target"], "name": "x/../../y"}}
    bundle = _write(tmp_path / "k.pallasc", [Item("k", {}, Artifact(record, artifact.blob))])
    out = tmp_path / "out" / "k.pallasc"
    result = run("bundle", "create", bundle, "-o", out, "--split-by", "target")
    assert (result.code, result.err) == (5, "error: 'x/../../y' is not the name of a GPU model.\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["k.pallasc"]


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
    for command, place in (("bundle create", "file/k"), ("inspect", "file/out/")):
        result = run(*command.split(), bundle, "-o", f"{tmp_path}/{place}")
        assert (result.code, "cannot be written" in result.err) == (2, True)


def test_bundles_are_merged_in_any_order(run: Any, bundle: Path, tmp_path: Path) -> None:
    parts = []
    for target in ("b200", "h100-sxm"):
        part = tmp_path / f"{target}.pallasc"
        assert run("bundle", "create", bundle, "-o", part, "--target", target).code == 0
        parts.append(part)
    for order in (parts, parts[::-1], [*parts, bundle]):
        merged = tmp_path / "merged.pallasc"
        result = run("bundle", "create", *order, "-o", merged, "--json")
        size = bundle.stat().st_size
        assert result.err == f"wrote {merged}: 8 variants, {size:,} bytes\n"
        (written,) = json.loads(result.out)["bundles"]
        assert (written["file"], written["bytes"]) == (str(merged), size)
        assert len(written["variants"]) == 8
        assert merged.read_bytes() == bundle.read_bytes()
        merged.unlink()
    onto_itself = run("bundle", "create", *parts, "-o", parts[0])
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
        result = run("bundle", "create", *order, "-o", out)
        assert (result.code, result.out) == (5, "")
        assert "there are two artifacts of k[m=1]@h100-sxm: " in result.err
    damaged = tmp_path / "damaged"
    data = bytearray(bundle.read_bytes())
    data[300] ^= 1
    damaged.write_bytes(data)
    result = run("bundle", "create", bundle, damaged, "-o", out)
    assert (result.code, f"{damaged} is damaged" in result.err) == (5, True)
    none = run("bundle", "create", *paths, "-o", out, "--target", "thor")
    assert (none.code, out.read_text()) == (2, "old")
    assert run("bundle", "create", *paths, "-o", out, "-k", "m=0").code == 0


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
