"""What kernels do to the process that compiles them, and what becomes of the others then."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.builds.report import Event
from pallasc.compiler.workers import worker_process
from pallasc.compiler.workers.messages import Collect, Failed, Listen, Reply, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import Location

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from fakes import BEGUN, PATIENCE_S, WHO, Prepare, code, fakes, pass_time, value
from fakes import answers as answers_of

LIMIT_BYTES = 300_000_000

SPEC = """
import pallasc

{before}

@pallasc.kernel(args=["f32[8]"], targets=["sm_90a"])
def run(x):
    return x
"""

FINE = "fine"
LOST = (
    "the answer of the compiling process was lost: something in it writes to file descriptors "
    "that it did not open"
)
TOO_LONG = r"the compiling process took longer than 300 s \(--timeout\) and was stopped"
MEMORY = (
    r"the compiling process held \d+(\.\d)? MB of memory, more than the 300 MB that one may hold "
    r"\(--memory\), and was stopped"
)
GROW = "len(kept) < 90 and kept.append(bytearray(b'x' * 5_000_000))"
"""Exceeds the limit of memory, but not the kernel's, which is reached if the build looks late."""


HOSTILE = {
    "is_killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        r"the compiling process was killed by SIGKILL \(perhaps out of memory\)",
    ),
    "kills_its_group": (
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        r"the compiling process was killed by SIGKILL \(perhaps out of memory\)",
    ),
    "kills_its_warden": (
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL); signal.pause()",
        r"the compiling process was killed by SIGKILL \(perhaps out of memory\)",
    ),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "the .* process was killed by SIGSEGV"),
    "aborts": (
        "import os; print('last word', end=''); os.abort()",
        "the compiling process was killed by SIGABRT",
    ),
    "is_interrupted": (
        "raise KeyboardInterrupt",
        "the compiling process was killed by SIGINT: KeyboardInterrupt",
    ),
    "loops": (f"import time\nwhile True: {BEGUN}; time.sleep(.01)", TOO_LONG),
    "is_stopped": (f"import os, signal; {BEGUN}; os.kill(os.getpid(), signal.SIGSTOP)", TOO_LONG),
    "prints_without_end": (
        "import os, time\nwhile time.sleep(0.01) is None: "
        f"os.write(1, b'all work and no play\\n' * 50_000); {BEGUN}",
        TOO_LONG,
    ),
    "allocates_without_end": (
        f"import time\nkept = []\nwhile time.sleep(0.02) is None: {GROW}",
        MEMORY,
    ),
    "starts_what_allocates": (
        "import subprocess, sys\ncode = 'import time\\nkept = []\\n'\n"
        f'code += "while not time.sleep(.02): {GROW}"\n'
        "subprocess.run([sys.executable, '-c', code])",
        MEMORY,
    ),
    "allocates_at_once": ("bytearray(12 << 30)", "MemoryError"),
    "writes_into_descriptors": (
        "import contextlib, os\nfor number in range(3, 200):\n"
        "    with contextlib.suppress(OSError): os.write(number, b'rubbish\\n')",
        LOST,
    ),
    "answers_itself": (
        "import contextlib, os\nfor number in range(3, 2000):\n"
        "    with contextlib.suppress(OSError): os.write(number, b'{\"ok\": true}\\n')",
        LOST,
    ),
    "closes_everything": (
        "import os; os.closerange(0, 5000)",
        "the compiling process ended with exit code 1",
    ),
    "closes_everything_and_stays": (
        f"import os, signal; os.closerange(0, 5000); {BEGUN}; signal.pause()",
        TOO_LONG,
    ),
    "leaves_a_child": (
        "import os, signal\nif not os.fork():\n    os.setsid()\n"
        "    if not os.fork(): signal.pause()\n    os._exit(0)",
        FINE,
    ),
    "replaces_its_output": (
        "import io, sys\nsys.stdout.close(); sys.stderr.close()\nsys.stdout = io.StringIO()",
        FINE,
    ),
}
"""What a spec file does when it is read, and the error for it."""


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, _own_temporary_folder: Path
) -> dict[str, Any]:
    """Return the answers for all hostile files, and for a good one after each."""
    folder = tmp_path_factory.mktemp("hostile")
    names = []
    for name, (before, _) in HOSTILE.items():
        (folder / f"{name}.py").write_text(SPEC.format(before=before))
        (folder / f"after_{name}.py").write_text(SPEC.format(before=""))
        names += [name, f"after_{name}"]
    tasks = [
        Task(number, ("", str(folder)), Collect(path=str(folder / f"{name}.py")))
        for number, name in enumerate(names)
    ]
    limits = {"timeout_s": PATIENCE_S, "memory_bytes": LIMIT_BYTES}
    with pytest.MonkeyPatch.context() as patch, Pool(2, os.environ, Listen(), **limits) as pool:
        pass_time(patch, lambda w: w.task and Path(f"{w.task.request.path}.begun").exists())
        done = [(task, answer) for kind, task, answer in pool.run(tasks) if kind == "done"]
    assert sorted(task.label for task, _ in done) == list(range(len(tasks)))
    assert list(_own_temporary_folder.glob("pallasc*")) == []
    return {names[task.label]: answer for task, answer in done}


def said(reply: Reply) -> str:
    """Return the error of a reply, `FINE` if there is none."""
    return reply.error.message if isinstance(reply, Failed) else FINE


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_harms_its_process_fails_alone(answers: Any, name: str) -> None:
    assert re.match(f"({HOSTILE[name][1]})($|: )", said(answers[name])), said(answers[name])
    assert said(answers[f"after_{name}"]) == FINE


def test_the_place_and_the_tail_of_the_output_are_told_and_no_more(answers: Any) -> None:
    failed = {name: reply for name, reply in answers.items() if isinstance(reply, Failed)}
    places = {name: reply.place for name, reply in failed.items() if reply.place}
    assert {name: place.line for name, place in places.items()} == {
        "aborts": 4,
        "segfaults": 4,
        "loops": 5,
        "is_stopped": 4,
        "prints_without_end": 5,
        "allocates_without_end": 6,
        "starts_what_allocates": 7,
    }
    assert places["loops"].file.endswith("/loops.py")
    printed = answers["prints_without_end"].output
    assert len(printed) <= worker_process.TAIL_BYTES
    assert "all work and no play" in printed
    assert "line 5 in <module>" in printed
    assert "KeyboardInterrupt" in answers["is_interrupted"].output
    assert answers["is_killed"].output == ""
    assert answers["aborts"].output.startswith("last word")
    assert "may hold 300 MB of memory" in str(answers["allocates_at_once"].error.hint)


# ---- limits


def run(pool: Pool, *codes: str) -> list[Any]:
    """Return the values that code leaves, or the errors that take their place."""
    done = answers_of(pool, *(code(text, number) for number, text in enumerate(codes)))
    return [str(reply.error) if isinstance(reply, Failed) else value(reply) for reply in done]


def test_the_time_to_get_ready_does_not_count(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read = f"value = open({str(fifo)!r}).read()"
    with fakes(timeout_s=60, context=Prepare(code=read), tick_s=0.05) as pool:
        ticks = 0
        for kind, _, answer in pool.run([code(read)]):
            ticks += kind == "tick"
            if kind == "tick" and ticks == 1:
                pool._busy[0].began_s -= 100
            elif kind == "tick" and ticks % 10 == 0:  # the build has looked at it meanwhile
                with contextlib.suppress(OSError):  # nobody reads just now
                    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            elif answer is not None:
                assert value(answer) == ""


def test_a_worker_that_never_gets_ready_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_START_S", 0.2)
    with fakes(timeout_s=0.2, context=Prepare(code="import signal; signal.pause()")) as pool:
        (error,) = run(pool, "value = 1")
    assert error.startswith("the compiling process took longer than 0.2 s (--timeout)")


def test_a_task_that_takes_too_long_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "import signal; signal.pause()",
        "kept['used'] = 1",
        f"if kept: {WHO}; import signal; signal.pause()",
        "value = 1",
    ]
    pass_time(monkeypatch, lambda w: w.task is not None and "pause" in texts[w.task.label])
    with fakes(timeout_s=PATIENCE_S, context=Prepare()) as pool:
        done = answers_of(pool, *(code(text, number) for number, text in enumerate(texts)))
    assert re.match(TOO_LONG, str(done[0].error))
    assert re.match(TOO_LONG, str(done[2].error))
    assert value(done[3]) == 1


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
    "loops": f"import time\ndef run(x):\n    while True: {BEGUN}; time.sleep(.01)\n",
    "allocates": (
        "import time\ndef run(x):\n    kept = []\n"
        "    while True: time.sleep(.01); "
        "len(kept) < 85 and kept.append(bytearray(b'x' * 10_000_000))\n"
    ),
    "exits": "import os\nos._exit(0)\ndef run(x): return x\n",
    "leaves": "import sys\ndef run(x): sys.exit(4)\n",
    "raises": "def run(x):\n    y = x\n    raise ValueError(f'no {y.shape}')\n",
    "closes": "import os\ndef run(x):\n    os.closerange(3, 5000)\n    return x * 6\n",
    "forks": "import os, signal\ndef run(x):\n    if os.fork(): os._exit(5)\n    signal.pause()\n",
    "talks": (
        "import os, sys\ndef run(x):\n    print('{\"ok\": false}')\n"
        "    print('rubbish', file=sys.stderr)\n"
        "    for number in range(1, 3): os.write(number, b'\\xff\\xfe\\n' * 1000)\n"
        "    return x * 3\n"
    ),
    "good_2": "def run(x): return x * 4\n",
}
ERRORS = {
    "is_killed": "the compiling process was killed by SIGKILL (perhaps out of memory)",
    "segfaults": "the compiling process was killed by SIGSEGV",
    "loops": "the compiling process took longer than 300 s (--timeout) and was stopped",
    "allocates": "of memory, more than the 900 MB that one may hold (--memory), and was stopped",
    "exits": "the compiling process ended with exit code 0",
    "leaves": "SystemExit: 4",
    "raises": "ValueError: no (8, 128)",
    "closes": "the compiling process ",
    "forks": "the compiling process ended with exit code 5",
}
PLACED = {"segfaults": 2, "loops": 3, "allocates": 4, "leaves": 2, "raises": 3}
"""Where these were is known, so that their errors are at the line of the kernel."""


def test_a_kernel_that_harms_its_compiler_fails_alone_and_is_reported(
    project: Any, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = project.folder / "loops.py.begun"
    pass_time(
        monkeypatch,
        lambda w: begun.exists() and w.task is not None and w.request.variant.name == "loops",
    )
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
    assert "allocates.py" in found["allocates"].output
    assert f'File "{project.folder}/loops.py", line 3 in run' in found["loops"].output
    assert f'File "{project.folder}/segfaults.py", line 2 in run' in found["segfaults"].output
    events = [event for event in project.events if isinstance(event, Event)]
    assert [event.done for event in events if event.result] == [*range(1, len(KERNELS) + 1)]
    for name, message in ERRORS.items():
        error = found[name].error
        assert message in error.message, name
        if name not in ("leaves", "raises"):  # it died: the command that shows it alone
            assert f"-k {name}@" in error.hint
    stored = sorted({*KERNELS} - {*ERRORS})
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in stored))
    assert [result.status for result in project.build().results] == ["hit"] * len(stored)
