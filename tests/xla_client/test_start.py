"""Unmodified programs start from a filled cache, and compile nothing."""

import json
from pathlib import Path

import pytest
import standin_gpu
from json_outputs import check_output
from standin_gpu import Folder

PROGRAMS = {
    "training": 2,
    "sampler": 1,
    "two_devices": 1,
    "attention": 1,
    "settings": 1,
    "libraries": 2,
}
"""The programs and the number of their modules."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_nothing(filled: Folder, name: str) -> None:
    started = filled.start(name)
    assert (started.hits, started.compiled) == (PROGRAMS[name], 0), started.output
    if name == "libraries":
        assert "__cublas$" in started.output
        assert "__cudnn$conv" in started.output


def test_without_the_cache_a_program_compiles_all(filled: Folder, tmp_path: Path) -> None:
    variables = standin_gpu.environment()
    cold = standin_gpu.started_with(tmp_path, variables)
    assert standin_gpu.start(filled.path / "training.py", cold).compiled == 2


EDITS = {
    "def _square(": "# One more line above a kernel.\n# And another.\n\n\ndef _square(",
    "def _elementwise(": "# A comment above its call.\ndef _elementwise(",
    "for _ in range(3):": "for _ in range(2):",
}


def test_edits_that_change_no_module_compile_nothing(filled: Folder, tmp_path: Path) -> None:
    moved = filled.copy(tmp_path / "another folder" / "there")
    program = moved.path / "training.py"
    text = program.read_text()
    for before, after in EDITS.items():
        assert before in text
        text = text.replace(before, after, 1)
    program.write_text(text)
    started = moved.start("training")
    assert (started.hits, started.compiled) == (2, 0), started.output


def test_explicit_axes_of_a_mesh(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    changes = {
        "two_devices.py": (", axis_types=(jax.sharding.AxisType.Auto,)", ""),
        "programs.yaml": ("    mesh: {data: 2}\n", "    mesh: {data: 2}\n    explicit: [data]\n"),
    }
    for name, (before, after) in changes.items():
        file = copied.path / name
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))
    done = copied.warm("programs.yaml", "--cache-dir", "cache", "-k", "normalized")
    assert done.returncode == 0, done.stderr
    started = copied.start("two_devices")
    assert (started.hits, started.compiled) == (1, 0), started.output


def test_another_driver_misses_and_verify_says_why(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    assert copied.start("training", nvml_driver="580.95.05").compiled == 2
    variables = standin_gpu.environment(nvml_driver="580.95.05")
    told = copied.pallasc("warm", "--verify", "cache", variables=variables)
    assert told.returncode == 3
    assert "miss  train_step@one  driver 580.95.5 here, 580.82.7 recorded" in told.stdout


def test_verify_on_the_machine_itself_finds_hits(filled: Folder) -> None:
    told = filled.pallasc("warm", "--verify", "cache", variables=standin_gpu.environment())
    lines = [line for line in told.stdout.splitlines() if "@one" in line]
    assert lines
    assert all(line.startswith("hit ") for line in lines), told.stdout + told.stderr
    (other,) = [line for line in told.stdout.splitlines() if "@two" in line]
    assert "number of GPUs 1 here, 2 recorded" in other
    machine = ("--machine", filled.path / "one.json")
    printed = filled.pallasc("warm", "--verify", "cache", *map(str, machine), "--json")
    check_output(["warm"], printed.stdout)
    assert (
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT and PYTHONPATH not set as --print-env prints"
        in told.stderr
    )


def test_verify_names_the_changed_line(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    program = copied.path / "training.py"
    text = program.read_text().replace("p - 0.01 * m", "p - 0.02 * m")
    program.write_text(text)
    line = 1 + next(i for i, row in enumerate(text.splitlines()) if "0.02 * m" in row)
    told = copied.warm(
        "programs.yaml", "--verify", "cache", "--machine", "one.json", "-k", "train_step"
    )
    assert f"miss  train_step@one  module changed at training.py:{line}" in told.stdout
    assert "hit   init@one" in told.stdout


def test_the_machine_file_names_no_host_and_no_path(filled: Folder) -> None:
    text = (filled.path / "one.json").read_text()
    data = json.loads(text)
    assert (data["gpu"], data["gpus"], data["driver"]) == ("Stand-in H100", 1, "580.82.7")
    assert "/" not in text.replace(data["topology"], "")
    assert data["flags"] == standin_gpu.FLAGS.split()


def test_an_unchanged_program_is_a_hit_of_the_store(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    done = filled.pallasc(
        "warm", str(copied.path / "programs.yaml"), "--store", str(filled.path.parent / "store"),
        "--cache-dir", str(tmp_path / "cache"), "--frozen", "--json",
    )  # fmt: skip
    check_output(["warm"], done.stdout)
    report = json.loads(done.stdout)
    assert report["totals"]["hit"] == len(report["variants"]) == 8, done.stderr
    names = {path.name for path in (filled.path / "cache").glob("*-cache")}
    assert {path.name for path in (tmp_path / "cache").glob("*-cache")} == names


def test_a_remote_store_has_programs(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    options = ["warm", "programs.yaml", "-k", "product", "--remote", f"file://{tmp_path}/remote"]
    pushed = copied.pallasc(*options, "--remote-write", "--store", str(tmp_path / "first"))
    assert pushed.returncode == 0, pushed.stderr
    places = ["--store", str(tmp_path / "second"), "--cache-dir", str(tmp_path / "cache")]
    done = copied.pallasc(*options, *places, "--json")
    (variant,) = json.loads(done.stdout)["variants"]
    assert (variant["status"], variant["remote"]) == ("hit", True), done.stderr
    assert len([*(tmp_path / "cache").glob("*-cache")]) == 1


def test_a_shard_fills_its_part(filled: Folder, tmp_path: Path) -> None:
    for number in (1, 2):
        done = filled.warm(
            "programs.yaml", "--shard", f"{number}/2", "--cache-dir", str(tmp_path), "--frozen"
        )
        assert done.returncode == 0, done.stderr
    assert len([*tmp_path.glob("*-cache")]) == 8


def test_the_variables_of_a_start(filled: Folder) -> None:
    done = filled.pallasc("warm", "--print-env", "--cache-dir", "cache")
    place = filled.path / "cache"
    assert done.stdout.splitlines() == [
        f"export JAX_COMPILATION_CACHE_DIR={place}",
        "export JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0",
        f'export PYTHONPATH={place}/python"${{PYTHONPATH:+:$PYTHONPATH}}"',
    ]
