"""`pallasc tune pick`: results in, a table out."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))

from made_results import made_lines, point_id

TUNED = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: matmul
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[{m}, 4096]", y: "f32[{m}, 4096]"}
    static: {block_size: "{tile}"}
    matrix: {m: [512, 1024]}
    tune: {over: {tile: [1024, 2048]}}
  - name: other
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[{m}, 4096]", y: "f32[{m}, 4096]"}
    static: {block_size: "{tile}"}
    matrix: {m: [512]}
    tune: {over: {tile: [1024, 2048]}, default: {tile: 1024}}
"""
TIMES = {512: {1024: 10.0, 2048: 10.1}, 1024: {1024: 30.0, 2048: 20.0}}


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    spec = tmp_path / "kernels.yaml"
    spec.write_text(TUNED)
    (tmp_path / "results.jsonl").write_bytes(b"".join(made_lines(TIMES, noise=0)))
    return spec


@pytest.fixture
def pick(run: Any, tuned: Path, tmp_path: Path) -> Any:
    """Run the command with a store that has nothing."""

    def run_pick(*arguments: object, results: str = "results.jsonl") -> Any:
        return run(
            "tune", "pick", tuned.parent / results, "--specs", tuned,
            "--store", tmp_path / "store", *arguments,
        )  # fmt: skip

    return run_pick


def test_pick_writes_a_table_that_builds_follow(
    pick: Any, run: Any, tuned: Path, tmp_path: Path
) -> None:
    result = pick()
    table = tuned.parent / "kernels.tuned.yaml"
    assert result.code == 0
    assert result.out == (
        "matmul on h100-sxm: uses 1 of 2 configurations for 2 keys; slower than the best by "
        "0.50 % (geometric mean), at most 1.00 %\n"
        "   GPU       KEY     BEFORE  AFTER         µs  SLOWER\n"
        "+  h100-sxm  m=512           tile=2048  10.62  1.00 %\n"
        "+  h100-sxm  m=1024          tile=2048  20.94  0.00 %\n"
    )
    assert "the best single configuration for all keys is tile=2048\n" in result.err
    assert f"{table} is written" in result.err
    row, _ = [line for line in table.read_text().splitlines() if "gpu:" in line]
    digest = "5122048".zfill(64)
    assert row.startswith(
        f'      - {{gpu: h100-sxm, key: [512], use: {{tile: 2048}}, artifact: "{digest}", us: '
    )
    listed = run("list", tuned, "--store", tmp_path / "store").out
    assert "matmul[m=512,tile=2048]@h100-sxm" in listed
    assert "matmul[m=512,tile=1024]" not in listed
    again = pick()
    assert f"{table} is unchanged" in again.err
    assert again.out.endswith("\n2 rows unchanged\n")


def test_the_page_follows_one_example_from_the_spec_to_the_table(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    monkeypatch.chdir(tmp_path)
    assert run("init", "kernels").code == 0
    Path("kernels/kernels.yaml").unlink()
    Path("kernels/scale.yaml").write_text(page.split("# kernels/scale.yaml\n")[1].split("```")[0])
    names = {"kernel": "scale_add", "names": ("n", "block")}
    lost = [point_id(n, 1024, **names) for n in (4096, 16384)]  # type: ignore[arg-type]
    times = {n: {512: us, 1024: us + 0.4} for n, us in ((4096, 3.9), (16384, 3.94), (65536, 8.2))}
    lines = made_lines(times, noise=0, failed=lost, **names)  # type: ignore[arg-type]
    Path("results.jsonl").write_bytes(b"".join(lines))
    arguments = ("results.jsonl", "--specs", "kernels/scale.yaml")
    result = run("tune", "pick", *arguments, "--store", "store")
    assert result.code == 0, result.err
    assert f"```text\n$ pallasc tune pick {' '.join(arguments)}\n{result.out}```" in page
    written = Path("kernels/scale.tuned.yaml").read_text()
    assert "key: [16384], use: {block: 512}, artifact: " in written
    assert "key: [65536], use: {block: 512}, artifact: " in written


def test_a_dry_run_writes_nothing_and_json_says_all(pick: Any, tuned: Path) -> None:
    result = pick("--dry-run", "--json", "--within", "0.5")
    assert not (tuned.parent / "kernels.tuned.yaml").exists()
    assert "kernels.tuned.yaml is not written" in result.err
    data = json.loads(result.out)
    assert data["written"] == []
    (kernel,) = data["kernels"]
    assert kernel["configurations"] == {"measured": 2, "used": 2}
    assert kernel["uses"] == [{"tile": 1024}, {"tile": 2048}]
    assert [row["change"] for row in kernel["rows"]] == ["added", "added"]


def test_results_without_a_finished_key_write_nothing(pick: Any, tuned: Path) -> None:
    content = b"".join(made_lines(TIMES, done=False))
    (tuned.parent / "open.jsonl").write_bytes(content)
    result = pick(results="open.jsonl")
    assert (result.code, result.out) == (
        1,
        "matmul on h100-sxm: no key has complete results; its rows are unchanged\n",
    )
    assert "not completely measured: m=512; m=1024" in result.err or "m=1024; m=512" in result.err
    assert "kernels.tuned.yaml is not written" in result.err
    assert not (tuned.parent / "kernels.tuned.yaml").exists()


@pytest.mark.parametrize(
    ("made", "cut", "code", "said"),
    [
        ({}, 9, 5, "the last line was cut"),
        ({"kernel": "matmull"}, 0, 2, "Did you mean 'matmul'?"),
    ],
)
def test_results_that_must_not_decide_are_refused_and_the_table_stays(
    pick: Any, tuned: Path, made: dict[str, Any], cut: int, code: int, said: str
) -> None:
    pick()
    table = tuned.parent / "kernels.tuned.yaml"
    before = table.read_bytes()
    content = b"".join(made_lines(TIMES, **made))
    (tuned.parent / "wrong.jsonl").write_bytes(content[: len(content) - cut])
    result = pick(results="wrong.jsonl")
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert table.read_bytes() == before
