"""Notes on rows of tables, digests of tables, and padding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.compiler.builds.locked import tables_of
from pallasc.compiler.builds.report import VariantResult, stale_row_notes
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import Table, write_table
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant
from pallasc.specs.tuning import Row

SPEC = """\
schema: 1
targets: [h100-sxm, b200]
kernels:
  - name: k
    entry: json:loads
    args: {x: "f32[{m}]"}
    static: {tile: "{tile}"}
    matrix: {m: [300, 400, 512, 900, 1000]}
    tune: {over: {tile: [64, 128]}, buckets: {m: pow2}, default: {tile: 128}}
"""


def variants(folder: Path, *rows: Row) -> dict[tuple[object, str], Variant]:
    """Return the variants that rows choose on an H100, by `m`, and the whole of them."""
    (folder / "k.yaml").write_text(SPEC)
    write_table(folder / "k.tuned.yaml", {"k": Table(("m",), rows)})
    return {(dict(v.params)["m"], v.target.name): v for v in expand(load_yaml(folder / "k.yaml"))
            if v.tuning and v.tuning.rows}  # fmt: skip


def row(m: int, artifact: str, gpu: str = "h100-sxm") -> Row:
    return Row(gpu, (m,), {"tile": 64}, artifact * 64)


def is_stale(chosen: dict[tuple[object, str], Variant], **digests: str) -> bool:
    """Return whether results with these digests give a note."""
    results = [
        VariantResult(chosen[int(m[1:]), "h100-sxm"], "hit", artifact=made)  # type: ignore[arg-type]
        for m, made in ((m, SimpleNamespace(digest=own * 64)) for m, own in digests.items())
    ]
    return bool(stale_row_notes(results))


@pytest.mark.parametrize("m", [512, 1024])
def test_a_row_is_stale_if_none_of_its_variants_is_the_measured_artifact(
    tmp_path: Path, m: int
) -> None:
    chosen = variants(tmp_path, row(m, "a"))
    names = [f"m{own}" for own, _ in chosen]
    assert sorted(names) == (["m300", "m400", "m512"] if m == 512 else ["m1000", "m900"])
    others = dict.fromkeys(names, "b")
    assert is_stale(chosen, **others)
    assert not is_stale(chosen, **{**others, names[-1]: "a"})
    del others[names[0]]  # this one was not built, and may be the measured one
    assert not is_stale(chosen, **others)


def test_padding_that_no_array_can_have_fails_the_variant(project: Any) -> None:
    project.write("kernel.py", "def run(x, tile): return x * tile\n")
    pad = {"m": {"x": 0, "y": 0}}
    tune = {"over": {"tile": [1]}, "buckets": {"m": "pow2"}, "pad": pad}
    matrix = {"args": {"x": "f32[{m}]"}, "static": {"tile": "{tile}"}, "matrix": {"m": [8]}}
    project.spec({"name": "kernel", "entry": "kernel.py:run", **matrix, "tune": tune})
    (result,) = project.build().results
    assert (result.status, result.error.exit_code) == ("failed", 2)
    assert "pad: there is no dimension 0 of y" in result.error.message
    assert result.error.location.file.endswith(".yaml")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("buckets: {m: pow2}", "buckets: {m: [512, 1024]}"),
        ("buckets: {m: pow2}", "buckets: {m: pow2}, pad: {m: {x: 0, out: 0}}"),
        ("default: {tile: 128}", "default: {tile: 64}"),
    ],
)
@pytest.mark.parametrize("rows", [(), (row(512, "a"),)])
def test_the_digest_of_a_table_is_of_the_tune_of_the_spec_too(
    tmp_path: Path, rows: tuple[Row, ...], before: str, after: str
) -> None:
    def digests(spec: str) -> dict[str, str]:
        (tmp_path / "k.yaml").write_text(spec)
        return tables_of(expand(load_yaml(tmp_path / "k.yaml")))

    write_table(tmp_path / "k.tuned.yaml", {"k": Table(("m",), rows)})
    first, changed = digests(SPEC), digests(SPEC.replace(before, after))
    assert first == digests(SPEC.replace("[64, 128]", "[128, 64]"))
    assert changed.keys() == first.keys() == {"k@h100-sxm", "k@b200"}
    assert all(changed[name] != first[name] for name in first)
