"""Kernels that take their worker down with them, and what else user code does to a process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KERNELS = {
    "good_1": "def run(x): return x * 2\n",
    "exits": "import os\ndef run(x): os._exit(3)\n",
    "leaves": "import sys\ndef run(x): sys.exit(4)\n",
    "segfaults": "import ctypes\ndef run(x): ctypes.string_at(0)\n",
    "raises": "def run(x):\n    y = x\n    raise ValueError(f'no {y.shape}')\n",
    "kills": "import os, signal\ndef run(x): os.kill(os.getpid(), signal.SIGKILL)\n",
    "good_2": "def run(x): return x * 3\n",
    "rubbish": (
        "import os, sys\n"
        "def run(x):\n"
        "    print('{\"ok\": true}')\n"
        "    print('rubbish', file=sys.stderr)\n"
        "    os.write(1, b'\\xff\\xfe\\n' * 1000)\n"
        "    os.write(2, b'{\"ok\": false}\\n')\n"
        "    return x * 4\n"
    ),
    "closes": "import os\ndef run(x): os.closerange(3, 100)\n",
    "forks": (
        "import os, signal\n"
        "def run(x):\n"
        "    if os.fork():\n"
        "        os._exit(5)\n"
        "    signal.pause()\n"
    ),
    "at_import": "import os\nos._exit(6)\ndef run(x): return x\n",
    "good_3": "def run(x): return x * 5\n",
}

ENDINGS = {
    "exits": "the compiling process ended with exit code 3",
    "segfaults": "the compiling process was killed by SIGSEGV",
    "kills": "the compiling process was killed by SIGKILL",
    "forks": "the compiling process ended with exit code 5",
    "at_import": "the compiling process ended with exit code 6",
}


@pytest.fixture
def hostile(project: Any) -> Any:
    """Return a project of good kernels and bad ones."""
    for name, text in KERNELS.items():
        project.write(f"{name}.py", text)
    project.spec(*({"name": n, "entry": f"{n}.py:run"} for n in KERNELS))
    return project


def test_a_kernel_that_kills_its_process_fails_alone(hostile: Any, results: Any) -> None:
    report = hostile.build(jobs=2)
    found = results(report)
    statuses = {name: result.status for name, result in found.items()}
    good = {"good_1", "good_2", "good_3", "rubbish"}
    assert statuses == {n: "compiled" if n in good else "failed" for n in KERNELS}
    for name, ending in ENDINGS.items():
        error = found[name].error
        assert error.message.startswith(ending), name
        assert error.location == found[name].variant.location
        assert error.exit_code == 1
    raised = found["raises"].error
    assert raised.message == "ValueError: no (8, 128)"
    assert (raised.location.file, raised.location.line) == (str(hostile.folder / "raises.py"), 3)
    left = found["leaves"].error
    assert left.message == "SystemExit: 4"
    assert (left.location.file, left.location.line) == (str(hostile.folder / "leaves.py"), 2)
    closed = found["closes"].error.message
    assert closed.startswith("the compiling process "), closed
    assert [event.done for event in hostile.events if event.result] == [*range(1, len(KERNELS) + 1)]
    assert report.exit_code == 1
    # The one that closes its pipe has published its result and could not say so.
    stored = sorted({*good, "closes"})
    hostile.spec(*({"name": n, "entry": f"{n}.py:run"} for n in stored))
    assert [r.status for r in hostile.build().results] == ["hit"] * len(stored)


def test_settings_that_a_kernel_changes_do_not_reach_the_next(project: Any, results: Any) -> None:
    project.write("plain.py", "import jax.numpy as jnp\ndef run(x): return x + jnp.arange(128)\n")
    for name, text in {
        "wide": "import jax\njax.config.update('jax_enable_x64', True)\n",
        "variables": "import os\nos.environ['XLA_FLAGS'] = '--xla_gpu_autotune_level=0'\n",
        "fails": "import jax\njax.config.update('jax_enable_x64', True)\nraise ValueError\n",
    }.items():
        project.write(f"{name}.py", f"{text}from plain import run\n")
    names = ["wide", "variables", "fails", "plain"]
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in names))
    found = results(project.build(jobs=1))
    assert [found[name].status for name in names] == [
        "compiled",
        "compiled",
        "failed",
        "hit",
    ]
    assert found["wide"].action_key != found["plain"].action_key
    assert found["variables"].action_key == found["plain"].action_key
    project.spec({"name": "plain", "entry": "plain.py:run"}, name="alone.yaml")
    alone = project.build("alone.yaml").results[0]
    assert (alone.status, alone.reason) == ("hit", "")
    assert alone.action_key == found["plain"].action_key


def test_a_source_that_changes_while_it_is_compiled_is_not_remembered(project: Any) -> None:
    text = "import pathlib\npathlib.Path(__file__).touch()\ndef run(x): return x * 6\n"
    project.write("restless.py", text)
    project.spec({"name": "restless", "entry": "restless.py:run"})
    first = project.build()
    assert first.results[0].status == "compiled"
    assert first.notes == (
        "restless@h100-sxm will be lowered again: restless.py was changed meanwhile",
    )
    second = project.build()
    assert [(r.status, r.reason) for r in second.results] == [
        ("hit", "never compiled with this spec and toolchain")
    ]


def test_no_bytecode_is_left_beside_the_users_files(project: Any) -> None:
    project.write("kernel.py", "import helper\ndef run(x): return x * helper.VALUE\n")
    project.write("helper.py", "VALUE = 7\n")
    project.spec({"name": "kernel", "entry": "kernel.py:run"})
    assert project.build().results[0].status == "compiled"
    assert list(project.folder.rglob("*.pyc")) == []


# ---- ends

BLOCKED = """
import os
import signal


def run(x):
    with open(os.environ["TEST_FIFO"], "w") as fifo:
        fifo.write(str(os.getpid()))
    signal.pause()
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_build_and_what_was_finished_stays(
    project: Any,
    start_program: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    end: signal.Signals,
) -> None:
    project.write("quick.py", f"def run(x): return x * {end + 0.5}\n")
    project.write("blocked.py", BLOCKED)
    quick = {"name": "quick", "entry": "quick.py:run"}
    spec = project.spec(quick, {"name": "blocked", "entry": "blocked.py:run"})
    os.mkfifo(tmp_path / "fifo")
    variables = {"TEST_FIFO": str(tmp_path / "fifo")}
    process = start_program("build.py", project.store.root, 1, spec, **variables)
    worker = os.pidfd_open(int((tmp_path / "fifo").read_text()))
    process.send_signal(end)
    _, errors = process.communicate(timeout=30)
    gone, _, _ = select.select([worker], [], [], 5)
    os.close(worker)
    assert gone, "a worker outlives the build"
    assert process.returncode == -end
    assert ("KeyboardInterrupt" in errors) == (end == signal.SIGINT)
    project.spec(quick)
    assert [(r.status, r.reason) for r in project.build().results] == [("hit", "")]
