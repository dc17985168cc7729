"""Hostile servers, damaged remotes, and kills: `hostile.py` and `kills.py`, in own processes."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import output_of

from pallasc.cache.remote.session import Failure, Objects, RemoteError, Session
from pallasc.cache.remote.settings import read_settings


def test_no_answer_and_no_damaged_file_makes_a_build_wrong_slow_or_large() -> None:
    script = Path(__file__).with_name("hostile.py")
    options = ["--json", "--mutations", "40", "--patience", "1.0"]
    command = [sys.executable, "-W", "ignore", str(script), *options]
    said = output_of(command, timeout=900)
    rows = json.loads(said)
    assert "secret" not in said
    assert len(rows) > 70
    assert [row for row in rows if row["wrong"]] == []
    assert [row for row in rows if row["growth_bytes"] > 64 * 2**20] == []
    assert [row["hits"] for row in rows[:1]] == [6]


_STALLED = """
import os, sys
from pallasc.cache.remote.remote import survey
from pallasc.cache.remote.settings import read_settings
survey(read_settings({}, url=sys.argv[1]), ["5e" * 32])
"""


def test_the_process_that_makes_requests_ends_with_its_session() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen([sys.executable, "-c", _STALLED, url]) as stalled:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4).startswith(b"GET")
                stalled.kill()
                while connection.recv(4096):  # ends when the last process has closed it
                    pass


def test_a_command_whose_requests_die_says_so(tmp_path: Path) -> None:
    settings = read_settings({}, url=f"file://{tmp_path}")
    assert settings is not None
    with Session(settings, is_build=False) as session:
        assert session.result(session.submit(Objects.listed, "x")) == ([], [])
        assert session._process is not None
        session._process.send_signal(signal.SIGABRT)
        for _ in range(2):
            with pytest.raises(RemoteError, match="an answer ended the process") as caught:
                session.result(session.submit(Objects.listed, "x"))
            assert caught.value.failure is Failure.BROKEN


_PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import kills
outcome = kills.run(Path(sys.argv[2]), kills=int(sys.argv[3]), seed=int(sys.argv[4]))
print(json.dumps([outcome.kills, outcome.wrong]))
"""


def test_all_stores_verify_after_kills(fast_folder: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", _PROGRAM, str(here), str(fast_folder), "30", "7"]
    kills, wrong = json.loads(output_of(command, timeout=900))
    assert wrong == []
    assert min(kills.values()) >= 10
