"""A dask worker's side, without dask: sessions, refusals, work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusters import PROGRAMS, is_alive, wait_for

from pallasc.compiler.cluster.host import Host
from pallasc.compiler.cluster.payloads import Result, Session, Work, name_of
from pallasc.compiler.cluster.slots import Cancelled
from pallasc.compiler.workers.worker_process import PROGRAM

SESSION = Session(
    build="b", identity={}, variables={}, versions={}, environment={}, program="fake_worker"
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    made = Host(tmp_path, 2)
    yield made
    made.close()
    assert list(tmp_path.glob("pallasc-cluster-*")) == []


def do(host: Host, session: Session, *codes: str, brought: bool = True, **options: Any) -> Result:
    data = session.to_bytes()
    requests = tuple({"op": "do", "code": code} for code in codes)
    work = Work(
        session=options.pop("name", name_of(data)), arch="", folders="/specs", declared={},
        requests=requests, topic="", key="",
    )  # fmt: skip
    how = {"is_wanted": lambda: True, "began": lambda: None, **options}
    return host.carry_out(work, data if brought else b"", worker="w", **how)


def values(result: Result) -> list[object]:
    return [outcome.reply and outcome.reply.get("value") for outcome in result.outcomes]


def test_a_session_is_lacking_until_it_is_brought(host: Host) -> None:
    assert do(host, SESSION, "value = 1", brought=False).lacks
    assert values(do(host, SESSION, "value = 1")) == [1]
    assert values(do(host, SESSION, "value = 2", brought=False)) == [2]
    host.forget(name_of(SESSION.to_bytes()))
    assert do(host, SESSION, "value = 1", brought=False).lacks


def test_a_session_under_another_name_is_refused(host: Host) -> None:
    with pytest.raises(ValueError, match="under the name of another"):
        do(host, SESSION, "value = 1", name="0" * 64)


def test_requests_of_one_piece_are_carried_out_in_order_by_one_process(host: Host) -> None:
    code = "import os; kept['n'] = kept.get('n', 0) + 1; value = [os.getpid(), kept['n']]"
    (one, first), (two, second), (three, third) = values(do(host, SESSION, code, code, code))  # type: ignore[misc]
    assert one == two == three
    assert (first, second, third) == (1, 2, 3)


def test_files_lie_below_the_session_and_are_called_as_at_home(host: Host, tmp_path: Path) -> None:
    session = replace(
        SESSION,
        folders=("/specs/empty",),
        files={"/specs/k.py": "aa", "/specs/../../escape.py": "aa"},
        links={"/specs/l.py": "k.py"},
        blobs={"aa": b"text"},
    )
    root = "/".join(["{}", "root"])
    code = f"import os; value = sorted(os.listdir(r'{tmp_path}'))"
    do(host, session, code)
    (place,) = tmp_path.glob("pallasc-cluster-*")
    found = {str(path.relative_to(place / "root")) for path in (place / "root").rglob("*")}
    assert found == {"specs", "specs/k.py", "specs/l.py", "specs/empty", "escape.py"}
    assert os.readlink(place / "root/specs/l.py") == "k.py"
    told = do(host, session, f"value = '{root.format(place)}/specs/k.py'")
    assert values(told) == ["/specs/k.py"]


def test_a_folder_that_takes_no_files_is_a_refusal_and_not_for_ever(
    host: Host, tmp_path: Path
) -> None:
    too_long = replace(SESSION, files={f"/specs/{'n' * 300}.py": "aa"}, blobs={"aa": b"text"})
    (why,) = do(host, too_long, "value = 1").refused
    assert why == (
        f"the files of a build cannot be laid out below its folder {tmp_path}: File name too long"
    )
    assert do(host, too_long, "value = 1", brought=False).lacks
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    (why,) = do(host, SESSION, "value = 1").refused
    assert why.endswith(f"below its folder {tmp_path}: No such file or directory")
    moved.rename(tmp_path)
    assert values(do(host, SESSION, "value = 1")) == [1]


def test_another_toolchain_is_refused_with_what_differs(host: Host) -> None:
    session = replace(
        SESSION, program=PROGRAM, identity={"jax": "0" * 64}, versions={"jax": "0.9.9"}
    )
    began: list[bool] = []
    result = do(host, session, "", began=lambda: began.append(True))
    assert result.outcomes == ()
    assert began == []
    assert "compiled with jax 0.9.9, but 0.1" in "; ".join(result.refused)


def test_an_assembler_that_is_not_here_is_refused(host: Host) -> None:
    session = replace(SESSION, program=PROGRAM, ptxas="/nowhere/ptxas")
    assert "There is no assembler /nowhere/ptxas." in do(host, session, "").refused[0]


def test_work_that_nobody_waits_for_ends(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "process"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    with pytest.raises(Cancelled):
        do(host, SESSION, code, is_wanted=lambda: not (file.exists() and file.read_text()))
    wait_for(lambda: not is_alive(int(file.read_text())), "the end of the process")
    assert values(do(host, SESSION, "value = 3")) == [3]


def test_a_session_that_is_forgotten_while_it_compiles_is_removed_afterwards(
    host: Host, tmp_path: Path
) -> None:
    name = name_of(SESSION.to_bytes())
    begun = threading.Event()
    answers: list[Result] = []
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nvalue = 1"
    thread = threading.Thread(
        target=lambda: answers.append(do(host, SESSION, code, began=begun.set))
    )
    thread.start()
    assert begun.wait(300)
    host.forget(name)
    assert list(tmp_path.glob("pallasc-cluster-*"))
    go.touch()
    thread.join(300)
    assert values(answers[0]) == [1]
    assert list(tmp_path.glob("pallasc-cluster-*")) == []


def test_only_a_few_sessions_are_kept(host: Host, tmp_path: Path) -> None:
    for number in range(6):
        do(host, replace(SESSION, build=str(number)), "value = 1")
    assert len(list(tmp_path.glob("pallasc-cluster-*"))) <= 4


def test_idle_processes_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from pallasc.compiler.cluster import slots

    monkeypatch.setattr(slots, "IDLE_S", 0.2)
    (process,) = values(do(host, SESSION, "import os; value = os.getpid()"))
    assert isinstance(process, int)
    wait_for(lambda: not is_alive(process), "the end of an idle process")
    assert values(do(host, SESSION, "value = 5")) == [5]
