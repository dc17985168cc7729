"""Builds with a remote store: hits of other machines, and remotes that fail."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.remote import session

DEADLINE_S = 900
PATIENCE_S = session.PATIENCE_S
"""How long a build waits; fixtures make it patient."""


def report(result: Any) -> Any:
    return json.loads(result.out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_compiled_is_sent_except_for_what_depends_on_the_machine(
    filled_remote: tuple[Path, str],
) -> None:
    *_, remote, totals = filled_remote[1].splitlines()
    moved = r"\d+ bytes read, \d+(\.\d)? kB sent, "
    start = re.escape(f"remote file://{filled_remote[0]}: 0 hits, 2 written, ")
    assert re.match(start + moved, remote)
    assert totals.endswith(": 1 lowered, 2 compiled")  # the third is as the first
    assert (
        "warning: there@h100-sxm is not sent to the remote store: it tests for /data/tiles.json, "
        "outside the folder of its spec" in filled_remote[1].splitlines()
    )


def test_a_build_takes_what_another_machine_has_made(machine: Any, run: Any) -> None:
    before = files_of(machine.remote)
    first = run("build", *machine.arguments, "--remote", machine.url, "--json")
    found = report(first)
    assert (first.code, found["totals"]["hit"]) == (0, 2)
    assert [row["remote"] for row in found["variants"]] == [True, True]
    stats = found["remote"]
    assert (stats["url"], stats["hits"], stats["offered"]) == (machine.url, 2, 0)
    assert (stats["bytes_written"], stats["refusals"], stats["tripped"]) == (0, 0, "")
    assert stats["bytes_read"] > 1000
    assert stats["requests"] <= 5
    assert stats["saved_s"] > 0
    ends = [line.split("  ")[-1] for line in first.err.splitlines()[:2]]
    assert ends == ["from the remote store"] * 2
    assert first.err.splitlines()[2].startswith(f"remote {machine.url}: 2 hits, ")
    assert files_of(machine.remote) == before
    second = run("build", *machine.arguments, "--remote", machine.url, "--json")
    again = report(second)
    assert again["remote"]["requests"] == 0
    assert [row["remote"] for row in again["variants"]] == [False, False]
    keys = [[row["action_key"] for row in each["variants"]] for each in (found, again)]
    assert keys[0] == keys[1]
    assert len(second.err.splitlines()) == 3
    assert run("build", *machine.arguments, "--frozen", "--remote", "none").code == 0


def test_frozen_builds_and_bundles_take_hits_of_the_remote(machine: Any, run: Any) -> None:
    lock = machine.folder / "pallasc.lock"
    remote = ("--remote", machine.url)
    assert run("build", *machine.arguments, "--frozen").code == 3
    made = run("lock", *machine.arguments, "--update", "--lock", lock, *remote)
    assert (made.code, made.out.count("+ ")) == (0, 2)
    shutil.rmtree(machine.store / "v1" / "packs")
    how = ("--lock", lock, "--json")
    missing = run("build", *machine.arguments, "--frozen", *how)
    assert (missing.code, report(missing)["totals"]["failed"]) == (3, 2)
    frozen = run("build", *machine.arguments, "--frozen", *how, *remote)
    assert (frozen.code, report(frozen)["remote"]["hits"]) == (0, 2)
    shutil.rmtree(machine.store / "v1" / "packs")
    locked = run("build", *machine.arguments, "--locked", *how, *remote)
    assert (locked.code, report(locked)["remote"]["hits"]) == (0, 2)
    shutil.rmtree(machine.store / "v1" / "packs")
    place = machine.folder / "kernels.pallasc"
    made = run("bundle", "create", *machine.arguments, "-o", place, *remote)
    assert (made.code, place.exists(), "compiled" in made.err) == (0, True, False)


def test_the_remote_is_named_by_the_environment_or_the_project(
    machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = ("build", *machine.arguments, "--dry-run", "--json")
    project = machine.folder / "pyproject.toml"
    project.write_text(f'[tool.pallasc]\nremote = "{machine.url}"\n')
    assert report(run(*build))["remote"] is None
    monkeypatch.chdir(machine.spec.parent)
    monkeypatch.setenv("PALLASC_REMOTE", f"file://{machine.folder}/nothing")
    assert report(run(*build))["remote"]["hits"] == 0
    assert report(run(*build, "--remote", "none"))["remote"] is None
    monkeypatch.delenv("PALLASC_REMOTE")
    assert report(run(*build))["remote"]["hits"] == 2
    project.write_text('# ours\n[tool.pallasc]\nremote = "ftp://there"\n')
    told = "remote: the address of the remote store begins with ftp:// instead of file://"
    result = run("build", *machine.arguments)
    assert result.code == 2
    assert result.err.startswith(f"error: {project}:3: {told}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--remote", "https://u:hush@h/?a=b"), "--remote: the address of the remote store has a"),
        (("--remote-write",), "--remote-write needs a remote store: set it with --remote or"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], told: str, machine: Any, run: Any
) -> None:
    result = run("build", *machine.arguments, *options)
    assert result.code == 2
    assert result.err.startswith(f"error: {told}")
    assert "hush" not in result.err


def test_writing_is_a_switch_of_its_own(
    machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = machine.folder / "empty"
    one = (*machine.arguments, "-k", "dtype=f32", "--remote", f"file://{empty}", "--json")
    monkeypatch.setenv("PALLASC_REMOTE_WRITE", "1")
    assert report(run("build", *one, "--no-remote-write"))["totals"]["compiled"] == 1
    assert not empty.exists()
    with (machine.spec.parent / "helper.py").open("a") as helper:
        helper.write("\n\nCHANGED = True\n")
    lowered = report(run("build", *one))
    assert (lowered["totals"]["lowered"], lowered["remote"]["offered"]) == (1, 1)
    assert list(empty.rglob("packs/*"))


class Server(ThreadingHTTPServer):
    """Answers every request in one way."""

    daemon_threads = True
    answer: Callable[[BaseHTTPRequestHandler], None]
    seen: list[str]
    asked: threading.Event
    over: threading.Event


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        server: Any = self.server
        server.seen.append(f"{self.command} {self.path}")
        server.asked.set()
        server.answer(self)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def refuse(status: int) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.send_header("Retry-After", "30")
        handler.end_headers()

    return answer


def cut_packs(folder: Path) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        data = (folder / handler.path.lstrip("/")).read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("Last-Modified", handler.date_time_string())
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2] if "/packs/" in handler.path else data)
        handler.close_connection = True

    return answer


def stall(handler: BaseHTTPRequestHandler) -> None:
    server: Any = handler.server
    server.over.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.answer, made.seen = refuse(403), []
        made.asked, made.over = threading.Event(), threading.Event()
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.over.set()
        made.shutdown()


@pytest.mark.parametrize(("answer", "most"), [(refuse(429), 2), (stall, 1)], ids=["429", "stall"])
def test_a_remote_that_fails_costs_a_warning_and_few_requests(
    answer: Callable[[BaseHTTPRequestHandler], None],
    most: int,
    machine: Any,
    run: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.answer = answer
    if answer is stall:  # and until the build is over, so that only its patience ends the wait
        monkeypatch.setattr(session, "PATIENCE_S", PATIENCE_S)
    one = (*machine.arguments, "-k", "dtype=f32", "--json", "--remote-write")
    url = f"http://me:hush@127.0.0.1:{server.server_port}/cache"
    result = run("build", *one, "--remote", url)
    found = report(result)
    assert (result.code, found["totals"]["compiled"]) == (0, 1)
    assert server.asked.wait(DEADLINE_S)
    assert len(server.seen) <= most
    assert ("s of waiting" in found["remote"]["tripped"]) == (answer is stall)
    (warning,) = (line for line in result.err.splitlines() if line.startswith("warning: "))
    assert "remote store disabled for this build" in warning
    assert "disabled" in result.err.splitlines()[-2]
    assert "hush" not in result.err + result.out


def test_a_remote_that_takes_no_packs_is_a_warning_of_a_build_and_an_error_of_push(
    machine: Any, run: Any, server: Server
) -> None:
    server.answer = refuse(404)
    url = f"http://127.0.0.1:{server.server_port}/cache"
    one = (machine.spec, "--store", machine.store, "-k", "dtype=f32", "--remote", url)
    built = run("build", *one, "--remote-write", "--jobs", "1")
    assert (built.code, "remote store disabled for this build: PUT http" in built.err) == (0, True)
    sent = run("cache", "push", *one)
    assert (sent.code, sent.out) == (4, "")
    assert sent.err.startswith(f"error: PUT {url}/pallasc/v4/")
    assert sent.err.endswith(
        ": the server answers 404\n"
        "  Check that the address exists on the server and can be written.\n"
    )


def test_a_connection_that_breaks_is_an_error_of_pull_and_verify(
    machine: Any, run: Any, server: Server
) -> None:
    server.answer = cut_packs(machine.remote)
    remote = ("--store", machine.store, "--remote", f"http://127.0.0.1:{server.server_port}")
    for command in ("pull", *remote), ("stats", *remote, "--verify"):
        result = run("cache", *command)
        assert (result.code, result.out) == (4, "")
        assert result.err.endswith(
            ": the answer broke off\n"
            "  Try again; if it keeps failing, check the network and any proxy.\n"
        )


def test_a_web_server_that_cannot_list_cannot_be_pruned(
    run: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = refuse(405)
    url = f"http://127.0.0.1:{server.server_port}/cache"
    monkeypatch.setenv("PALLASC_REMOTE", url)
    result = run("cache", "prune", "--remote", "--age", "1d")
    assert (result.code, result.out, result.err) == (
        4,
        "",
        f"error: LIST {url}/pallasc/v4: the server answers 405\n"
        "  The server does not support PROPFIND, which lists objects. Use a WebDAV server.\n",
    )


def test_a_missing_package_is_named_with_its_command(
    machine: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("build", *machine.arguments, "--dry-run", "--remote", "s3://bucket/prefix")
    assert result.code == 0
    (warning,) = (line for line in result.err.splitlines() if line.startswith("warning: "))
    assert "needs the package obstore, which is not installed" in warning
    assert "pip install 'pallasc[remote]'" in warning


@pytest.mark.parametrize("verb", ["build", "cache pull"])
def test_an_interrupt_ends_what_waits_for_a_remote(
    verb: str, machine: Any, server: Server, patient_command: list[str]
) -> None:
    """Nothing else ends it: the server never answers, and no limit is near."""
    server.answer = stall
    more = [str(machine.spec), "--remote-write"] if verb == "build" else ["--timeout", "3600"]
    where = ["--store", str(machine.store), "--remote", f"http://127.0.0.1:{server.server_port}"]
    process = subprocess.Popen(
        [*patient_command, *verb.split(), *more, *where],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CI": ""},
    )
    assert server.asked.wait(DEADLINE_S)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_doctor_says_whether_the_remote_answers(
    machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    def item() -> Any:
        found = report(run("doctor", "--json"))["items"]
        return next((each for each in found if each["name"] == "remote store"), None)

    assert item() is None
    monkeypatch.setenv("PALLASC_REMOTE", machine.url)
    before = files_of(machine.remote)
    found = item()
    assert (found["version"], found["path"], found["problem"]) == ("read", machine.url, "")
    assert files_of(machine.remote) == before
    monkeypatch.setenv("PALLASC_REMOTE_WRITE", "1")
    assert item()["version"] == "read, write"
    monkeypatch.setenv("PALLASC_REMOTE", f"http://me:hush@127.0.0.1:{server.server_port}/cache")
    found = item()
    assert (found["version"], found["needed"]) == ("", False)
    assert "403" in found["problem"]
    assert "hush" not in json.dumps(found)
    assert run("doctor").code == 0
    monkeypatch.setenv("PALLASC_REMOTE", "s3://x/y")
    assert "PALLASC_REMOTE: " in item()["problem"]
    assert "builds fail until this is fixed" in run("doctor").out
