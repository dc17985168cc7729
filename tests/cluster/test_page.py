"""The commands of docs/cluster.md, with a port that is free."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusters import answers_at, own_port, wait_for
from commands import captured

from pallasc.cache.store import Store

ROOT = Path(__file__).parents[2]


def blocks(heading: str) -> list[str]:
    """Return the blocks of commands below a heading."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    below = re.split(r"^##+ ", page.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(r"^```text\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def followed(commands: str, place: Path, here: dict[str, str]) -> Iterator[list[str]]:
    """Start scheduler and worker as a page says, with a free port; yield the words of the build."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(own_port())
        scheduler, worker, build = (
            shlex.split(line.replace("8786", str(port))) for line in commands.splitlines()
        )
        assert [scheduler[:2], worker[:2], build[:2]] == [
            ["dask", "scheduler"], ["dask", "worker"], ["pallasc", "build"]
        ]  # fmt: skip
        for words in (scheduler, worker):
            own = ["--dashboard-address", "127.0.0.1:0"] if words is scheduler else []
            log = stack.enter_context((place / f"{words[1]}.log").open("wb"))
            command = [sys.executable, "-P", "-m", "dask", *words[1:], *own]
            process = subprocess.Popen(command, cwd=place, env=here, stdout=log, stderr=log)
            stack.callback(process.wait, 600)
            stack.callback(process.terminate)
            wait_for(lambda: answers_at(port), "the scheduler")
        run(["pallasc", "init", "specs"], place, here)
        yield build


def run(words: list[str], place: Path, here: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return captured([sys.executable, "-P", "-m", *words], cwd=place, env=here)


@pytest.fixture
def here(tmp_path: Path, warm_store: Store) -> dict[str, str]:
    """Return an environment with its own folders, and stores with the toolchain's digests."""
    for name in ("store", "without", "strange"):
        shutil.copytree(warm_store.root, tmp_path / name)
    return {**os.environ, "PALLASC_CACHE_DIR": str(tmp_path / "store"), "TMPDIR": str(tmp_path)}


def test_the_commands_by_hand_build_on_a_cluster(tmp_path: Path, here: dict[str, str]) -> None:
    with followed(blocks("By hand, and over SSH")[0], tmp_path, here) as build:
        told = run(build, tmp_path, here)
    assert told.returncode == 0, told.stderr
    assert "4 compiled" in told.stderr


def test_the_commands_with_certificates_build_on_a_cluster_and_others_are_refused(
    tmp_path: Path, here: dict[str, str]
) -> None:
    made, exports, commands = blocks("TLS")
    subprocess.run(["sh", "-e", "-c", made], cwd=tmp_path, check=True, capture_output=True)
    words = shlex.split(exports)
    variables = dict(word.split("=") for word in words if word != "export")
    subprocess.run(
        ["sh", "-e", "-c", made.splitlines()[0].replace("ca.", "other.")],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    strange = {name: value.replace("ca.pem", "other.pem") for name, value in variables.items()}
    strange |= {"PALLASC_CACHE_DIR": str(tmp_path / "strange")}
    nothing = {"PALLASC_CACHE_DIR": str(tmp_path / "without")}
    with followed(commands, tmp_path, {**here, **variables}) as build, ThreadPoolExecutor() as many:
        builds = [
            many.submit(run, build, tmp_path, {**here, **own})
            for own in (variables, nothing, strange)
        ]
        told, without, refused = (each.result() for each in builds)
    assert told.returncode == 0, told.stderr
    assert "4 compiled" in told.stderr
    assert [without.returncode, refused.returncode] == [4, 4]
    assert ": no certificates are set for it\n" in without.stderr
    assert ": TLS certificate does not match" in refused.stderr
    for told in (without, refused):
        assert told.stderr.count("there is no scheduler that answers at dask+tls://") == 1
        assert "the scheduler and this machine need certificates of one authority" in told.stderr
        assert "Warning" not in told.stderr
