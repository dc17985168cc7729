"""The files of `examples/warm/`, which docs/warm.md shows, do what the page says."""

import shutil
import sys
from pathlib import Path

import jax
import pytest
import standin_gpu
from standin_gpu import Folder

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "warm"
PAGE = (ROOT / "docs" / "warm.md").read_text()


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the example has arguments of JAX 0.12")
def test_the_example_starts_without_compiling(filled: Folder, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "example", filled.store)
    shutil.copytree(EXAMPLE, folder.path)
    shutil.copy(filled.path / "one.json", folder.path / "machine.json")
    done = folder.warm("programs.yaml", "--cache-dir", "jax-cache")
    assert done.returncode == 0, done.stderr
    variables = standin_gpu.started_with(folder.path / "jax-cache", standin_gpu.environment())
    started = standin_gpu.start(folder.path / "app.py", variables)
    assert (started.hits, started.compiled) == (2, 0), started.output


def test_the_page_shows_the_files_of_the_example() -> None:
    recipe = (EXAMPLE / "Dockerfile").read_text().partition("\n")[2]
    assert f"```dockerfile\n{recipe}```" in PAGE
    spec = (EXAMPLE / "programs.yaml").read_text()
    step = spec[spec.index("  - name: train_step") :]
    assert all(f"   {line}" in PAGE for line in step.splitlines())


def test_autotuning_results_are_of_the_named_program(filled: Folder, tmp_path: Path) -> None:
    variables = standin_gpu.environment()
    failed = filled.pallasc(
        "machine",
        "--autotune",
        str(tmp_path / "r.textproto"),
        "no-such-program",
        variables=variables,
    )
    assert failed.returncode == 4
    assert "no-such-program cannot be started" in failed.stderr
    run = ("--", sys.executable, str(filled.path / "sampler.py"))
    results = tmp_path / "tuned.textproto"
    made = filled.pallasc("machine", "--autotune", str(results), *run, variables=variables)
    assert made.returncode == 0, made.stderr
    done = filled.warm("programs.yaml", "-k", "sample", "--autotune-results", str(results))
    assert done.returncode == 0, done.stderr


def test_damaged_autotuning_results_are_an_error(filled: Folder, tmp_path: Path) -> None:
    (tmp_path / "bad.textproto").write_text("not { a result")
    done = filled.warm(
        "programs.yaml", "-k", "sample", "--autotune-results", str(tmp_path / "bad.textproto")
    )
    assert done.returncode == 1
    assert "Failed to parse autotune results" in done.stderr
