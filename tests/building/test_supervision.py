"""What kernels do to the process that compiles them, and what becomes of the others then."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.builds.report import Event
from pallasc.compiler.workers import worker_process
from pallasc.compiler.workers.messages import Failed
from pallasc.compiler.workers.pool import Pool
from pallasc.compiler.workers.worker_process import Worker
from pallasc.errors import Location

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from fakes import BEGUN, PATIENCE_S, WHO, Prepare, code, fakes, pass_time, value
from fakes import answers as answers_of

LOST = (
    "the answer of the compiling process was lost: something in it writes to file descriptors "
    "that it did not open"
)
TOO_LONG = "the compiling process took longer than 300 s (--timeout) and was stopped"
KILLED = "the compiling process was killed by SIGKILL (perhaps out of memory)"
MEMORY = "held more than the 900 MB of memory that it may hold (--memory), and was stopped"


# ---- limits


def run(pool: Pool, *codes: str) -> list[Any]:
    """Return the values that code leaves, or the errors that take their place."""
    done = answers_of(pool, *(code(text, number) for number, text in enumerate(codes)))
    return [str(reply.error) if isinstance(reply, Failed) else value(reply) for reply in done]


def test_a_worker_that_never_gets_ready_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_START_S", 0.2)
    with fakes(timeout_s=0.2, context=Prepare(code="import signal; signal.pause()")) as pool:
        (error,) = run(pool, "value = 1")
    assert error.startswith("the compiling process took longer than 0.2 s (--timeout)")


def test_a_worker_that_has_grown_is_replaced_before_its_next_task() -> None:
    grows = f"kept.setdefault('memory', bytearray()).extend(bytes(%d_000_000)); {WHO}"
    with fakes(memory_bytes=220_000_000) as pool:
        first, second, third, fourth = run(pool, grows % 60, WHO, grows % 120, WHO)
    assert first == second == third
    assert third != fourth


def test_a_worker_that_closes_its_pipe_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_CLOSED_S", 0.2)
    with fakes() as pool:
        closed, fine = run(
            pool, "import os, signal; os.closerange(3, 5000); signal.pause()", "value = 1"
        )
    assert closed == "the compiling process closed its end of the pipe"
    assert fine == 1


def test_an_answer_without_an_end_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_LONGEST_LINE_BYTES", 1 << 20)
    with fakes() as pool:
        endless = "import os\nwhile True: os.write(answers, b'x' * 65536)"
        assert run(pool, endless, "value = 1") == [LOST, 1]


# ---- builds

KERNELS = {
    # The collector walks what kernels make, and not what the worker has imported.
    "good_1": "import gc\ndef run(x):\n    assert gc.isenabled()\n"
    "    assert gc.get_freeze_count() > 3 * len(gc.get_objects())\n    return x * 2\n",
    "is_killed": "import os, signal\ndef run(x): os.kill(os.getpid(), signal.SIGKILL)\n",
    "segfaults": "import ctypes\ndef run(x): ctypes.string_at(0)\n",
    "is_interrupted": "def run(x): raise KeyboardInterrupt\n",
    "loops": f"import time\ndef run(x):\n    while True: {BEGUN}; time.sleep(.01)\n",
    "prints": "import os, time\ndef run(x):\n    while time.sleep(.01) is None: "
    f"os.write(1, b'all work and no play\\n' * 50_000); {BEGUN}\n",
    "allocates": (
        "import time\ndef run(x):\n    kept = []\n"
        "    while True: time.sleep(.01); "
        "len(kept) < 85 and kept.append(bytearray(b'x' * 10_000_000))\n"
    ),
    "starts_what_allocates": (
        "import subprocess, sys\ndef run(x):\n    code = 'import time; kept = []\\n'\n"
        "    code += 'while not time.sleep(.01): '\n"
        "    code += 'len(kept) < 85 and kept.append(bytearray(b\"x\" * 10_000_000))'\n"
        "    subprocess.run([sys.executable, '-c', code])\n"
    ),
    "allocates_at_once": "def run(x): bytearray(12 << 30)\n",
    "exits": "import os\nos._exit(0)\ndef run(x): return x\n",
    "leaves": "import sys\ndef run(x): sys.exit(4)\n",
    "raises": "def run(x):\n    y = x\n    raise ValueError(f'no {y.shape}')\n",
    "closes": "import os\ndef run(x):\n    os.closerange(3, 5000)\n    return x * 6\n",
    "leaves_a_child": "import os, signal\ndef run(x):\n    if not os.fork():\n        os.setsid()\n"
    "        if not os.fork(): signal.pause()\n        os._exit(0)\n    return x * 8\n",
    "talks": (
        "import os, sys\ndef run(x):\n    print('{\"ok\": false}')\n"
        "    print('rubbish', file=sys.stderr)\n"
        "    for number in range(1, 3): os.write(number, b'\\xff\\xfe\\n' * 1000)\n"
        "    return x * 3\n"
    ),
    "good_2": "def run(x): return x * 4\n",
}
ERRORS = {
    "is_killed": KILLED,
    "segfaults": "the compiling process was killed by SIGSEGV",
    "is_interrupted": "the compiling process was killed by SIGINT: KeyboardInterrupt",
    "loops": TOO_LONG,
    "prints": TOO_LONG,
    "allocates": MEMORY,
    "starts_what_allocates": MEMORY,
    "allocates_at_once": "MemoryError",
    "exits": "the compiling process ended with exit code 0",
    "leaves": "SystemExit: 4",
    "raises": "ValueError: no (8, 128)",
    "closes": "the compiling process ",
}
PLACED = {
    "segfaults": 2, "loops": 3, "prints": 3, "allocates": 4, "starts_what_allocates": 6,
    "leaves": 2, "raises": 3,
}  # fmt: skip
"""Where these were is known, so that their errors are at the line of the kernel."""


def test_a_kernel_that_harms_its_compiler_fails_alone_and_is_reported(
    project: Any, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_endless(worker: Worker) -> bool:
        name = worker.request.variant.name if worker.task is not None else ""
        return (project.folder / f"{name}.py.begun").exists()

    pass_time(monkeypatch, is_endless)
    for name, text in KERNELS.items():
        project.write(f"{name}.py", text)
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in KERNELS))
    report = project.build(jobs=2, timeout_s=PATIENCE_S, memory_bytes=900_000_000)
    found = results(report)
    assert {name: result.status for name, result in found.items()} == {
        name: "failed" if name in ERRORS else "compiled" for name in KERNELS
    }
    assert report.exit_code == 1
    for name, line in PLACED.items():
        assert found[name].error.location == Location(f"{project.folder}/{name}.py", line)
    for name, line in {"segfaults": 2, "loops": 3, "allocates": 4}.items():
        shown = found[name].output.strip().splitlines()[-20:]
        assert f'  File "{project.folder}/{name}.py", line {line} in run' in shown
    assert len(found["prints"].output) <= worker_process.TAIL_BYTES
    assert "all work and no play" in found["prints"].output
    assert "KeyboardInterrupt" in found["is_interrupted"].output
    assert "may hold 900 MB of memory" in found["allocates_at_once"].error.hint
    events = [event for event in project.events if isinstance(event, Event)]
    assert [event.done for event in events if event.result] == [*range(1, len(KERNELS) + 1)]
    for name, message in ERRORS.items():
        error = found[name].error
        assert message in error.message, name
        if name not in ("leaves", "raises", "allocates_at_once"):  # the command that shows it alone
            assert f"-k {name}@" in error.hint
    stored = sorted({*KERNELS} - {*ERRORS})
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in stored))
    again = {name: result.status for name, result in results(project.build()).items()}
    assert again == {**dict.fromkeys(stored, "hit"), "leaves_a_child": "lowered"}
