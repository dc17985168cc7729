"""The recipes of docs/shards.md, each job as a process with a folder and an empty store of its own.

What a CI service does around the commands is done here: numbers filled in, artifacts carried from
job to job.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from pallasc.cache.store import Store
from pallasc.specs.loading.lock_file import read_lock

PAGE = Path(__file__).parents[2] / "docs" / "shards.md"
INSTALL = 'pip install "pallasc[cuda13]" -c constraints.txt'
SHARDS, VARIANTS = 8, 16
AT_ONCE = 2
RAY = """\
class _Task:
    def __init__(self, function):
        self.remote = function

def remote(**resources):
    return _Task

def init():
    pass

def get(results):
    return results
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Job:
    """A job: its commands, the variables that the service sets, the files that it hands on."""

    name: str
    commands: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    leaves: list[str] = field(default_factory=list)
    takes: str = "."


def github(text: str) -> list[Job]:
    """Return the jobs of a workflow, one for each point of a matrix."""
    jobs = []
    for name, job in yaml.safe_load(text)["jobs"].items():
        matrix = job.get("strategy", {}).get("matrix", {})
        for shard in matrix.get("shard", [None]):
            values = {"matrix.shard": shard, "strategy.job-total": len(matrix.get("shard", []))}
            steps = [_filled(step, values) for step in job["steps"]]
            files = [
                line
                for step in steps
                if step.get("uses", "").startswith("actions/upload-artifact@")
                for line in step["with"]["path"].split()
            ]
            into = [
                step["with"]["path"]
                for step in steps
                if step.get("uses", "").startswith("actions/download-artifact@")
            ]
            commands = [step["run"] for step in steps if "run" in step]
            jobs.append(Job(name, commands, {}, files, *into))
    return jobs


def _filled(value: Any, values: Mapping[str, object]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: str(values[found[1]]), value)


def gitlab(text: str) -> list[Job]:
    """Return the jobs of a pipeline, one for each node of a parallel one."""
    jobs = []
    for name, job in yaml.safe_load(text).items():
        total = job.get("parallel", 1)
        for index in range(1, total + 1):
            variables = {"CI_NODE_INDEX": str(index), "CI_NODE_TOTAL": str(total)}
            jobs.append(Job(name, job["script"], variables, job["artifacts"]["paths"]))
    return jobs


@dataclass(frozen=True)
class Machine:
    """One machine: what it has checked out, and the store that it built everything into."""

    folder: Path
    store: Path

    def run(self, command: str, folder: Path | None = None, **variables: str) -> str:
        """Run a command, which must succeed, and return what it printed."""
        tools = self.folder.parent / "bin"
        own = {"PALLASC_CACHE_DIR": str(self.store), "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder or self.folder,
            env={**os.environ, **own, "CI": "true", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Machine:
    """Return the machine that builds all variants alone, and writes the lock."""
    place = tmp_path_factory.mktemp("machine")
    (place / "bin").mkdir()
    for name, arguments in (("pallasc", "-P -m pallasc"), ("python", "")):
        script = place / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(0o755)
    checkout = place / "checkout"
    checkout.mkdir()
    machine = Machine(checkout, Path(shutil.copytree(warm_store.root, place / "store")))
    machine.run("pallasc init specs")
    spec = checkout / "specs" / "kernels.yaml"
    sizes = [4096 * (number + 1) for number in range(VARIANTS // 2)]
    text, replaced = re.subn(r"n: \[[\d, ]*\]", f"n: {sizes}", spec.read_text())
    assert replaced == 1
    spec.write_text(text)
    told = machine.run("pallasc lock specs/ --update")
    assert f"pallasc.lock is written: {VARIANTS} added" in told
    return machine


def run_job(machine: Machine, job: Job, place: Path) -> str:
    """Run the commands of a job in a checkout of its own, with an empty store."""
    store = place / ".pallasc"
    assert not store.exists()
    said = ""
    for command in job.commands:
        if command == INSTALL:  # all of it is installed here
            continue
        assert command.startswith("pallasc "), command
        said += machine.run(command, place, PALLASC_CACHE_DIR=str(store), **job.variables)
    return said


def carry(job: Job, source: Path, target: Path) -> None:
    """Copy the files that a job leaves into the folder of one that takes them."""
    for name in job.leaves:
        path = source / name
        if path.is_dir():
            shutil.copytree(path, target / name, dirs_exist_ok=True)
        else:
            target.mkdir(exist_ok=True)
            shutil.copy(path, target)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)  # eight checkouts


@pytest.mark.parametrize("service", [github, gitlab])
def test_eight_processes_with_eight_empty_stores_give_what_one_machine_gives(
    machine: Machine, place: Path, service: Any
) -> None:
    jobs = {github: lambda: service(blocks("yaml")[0]), gitlab: lambda: service(blocks("yaml")[1])}
    *shards, last = jobs[service]()
    assert [job.name for job in shards] == ["shard"] * SHARDS
    folders = [place / str(number) for number in range(1, SHARDS + 1)]
    for folder in (*folders, place / "last"):
        shutil.copytree(machine.folder, folder)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        said = list(threads.map(lambda job, folder: run_job(machine, job, folder), shards, folders))
    for number, text in enumerate(said, 1):
        assert text.startswith(f"shard {number}/{SHARDS}: ")
        assert " hit" not in text
    for job, folder in zip(shards, folders, strict=True):
        carry(job, folder, place / "last" / last.takes)
    told = run_job(machine, last, place / "last")
    assert f"wrote kernels.pallasc: {VARIANTS} variants" in told
    assert all((place / "last" / name).exists() for name in last.leaves if "*" not in name)
    check_merged(machine, place / "last")


def check_merged(machine: Machine, folder: Path) -> None:
    """Compare what was merged with what the machine has that built everything."""
    report = json.loads((folder / "report.json").read_text())
    assert report["totals"]["compiled"] == len(report["variants"]) == VARIANTS
    assert [shard["number"] for shard in report["shards"]] == list(range(1, SHARDS + 1))
    assert all(shard["variants"] for shard in report["shards"])
    assert (report["missing"], report["notes"], report["error"]) == ([], [], None)
    cases = [case.get("name") for case in ElementTree.parse(folder / "report.xml").iter("testcase")]
    assert sorted(map(str, cases)) == sorted(row["id"] for row in report["variants"])
    machine.run("pallasc merge parts/*.part --store merged --lock new.lock", folder)
    machine.run("pallasc bundle create specs/ --frozen --output one.pallasc")
    lock, new = read_lock(machine.folder / "pallasc.lock"), read_lock(folder / "new.lock")
    assert lock is not None
    assert new is not None
    assert (new.toolchain, new.variants) == (lock.toolchain, lock.variants)
    one = (machine.folder / "one.pallasc").read_bytes()
    assert (folder / "kernels.pallasc").read_bytes() == one


def test_an_array_of_jobs_writes_the_parts(machine: Machine, place: Path) -> None:
    shutil.copytree(machine.folder, place / "shared")
    (script,) = blocks("sh")
    (place / "shared" / "array.sh").write_text(script)
    found = re.search(r"^#SBATCH --array=1-(\d+)$", script, re.MULTILINE)
    assert found is not None
    count = found[1]
    for number in range(1, int(count) + 1):
        variables = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": count}
        machine.run("sh array.sh", place / "shared", **variables)
    told = machine.run("pallasc merge parts/*.part --store merged", place / "shared")
    assert f"{count} shards with {VARIANTS} variants: {VARIANTS} hits (100 %)" in told


def test_tasks_of_ray_return_the_parts(machine: Machine, place: Path) -> None:
    shutil.copytree(machine.folder, place / "driver")
    (program,) = blocks("python")
    (place / "driver" / "farm.py").write_text(program)
    (place / "driver" / "ray.py").write_text(RAY)
    machine.run("python farm.py", place / "driver")
    told = machine.run("pallasc merge parts/*.part --store merged", place / "driver")
    assert f"{SHARDS} shards with {VARIANTS} variants: {VARIANTS} hits (100 %)" in told
