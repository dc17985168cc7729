"""Credentials: found where the clouds' own tools have them, and shown nowhere."""

import base64
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import servers
from variants import download, fill, request_key

from pallasc.cache.remote.remote import push
from pallasc.cache.remote.session import Failure, RemoteError, authorization
from pallasc.cache.remote.settings import parse_address, read_settings
from pallasc.cache.store import Store

SECRET = "wJalrXUtnFEMI-hunter2"


def test_the_url_counts_before_a_token() -> None:
    environ = {"PALLASC_REMOTE_TOKEN": "abc"}
    basic = f"Basic {base64.b64encode(b'u:w').decode()}"
    assert authorization(parse_address("https://u:w@host"), environ) == basic
    assert authorization(parse_address("https://host"), environ) == "Bearer abc"
    assert authorization(parse_address("https://host"), {}) is None
    with pytest.raises(RemoteError, match="PALLASC_REMOTE_TOKEN has characters") as caught:
        authorization(parse_address("https://host"), {"PALLASC_REMOTE_TOKEN": f"{SECRET}\nX: y"})
    assert SECRET not in str(caught.value)


def test_a_file_of_google_that_cannot_be_read_is_not_quoted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    file.write_text(f'{{"private_key": "{SECRET}"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    settings = read_settings({}, url="gs://kernels", write=True)
    assert settings is not None
    with pytest.raises(RemoteError, match="the environment has no complete settings") as caught:
        push(settings, store, {"5e" * 32: fill(store, range(1))})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_s3_shows_neither_key(
    store: Store, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.s3_of_rclone(tmp_path / "server") as endpoint:
        for name, value in servers.s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        settings = read_settings({}, url="s3://kernels", write=True)
        assert settings is not None
        with pytest.raises(RemoteError, match=r"403 \(SignatureDoesNotMatch\)") as caught:
            push(settings, store, {"5e" * 32: fill(store, range(1))})
    assert caught.value.failure is Failure.REFUSED
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert SECRET not in shown
    assert servers.ACCESS_KEY not in shown


def test_credentials_do_not_follow_a_redirect_to_another_host(other: Store, home: Path) -> None:
    seen: list[str | None] = []

    class Second(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_error(404)

    second = ThreadingHTTPServer(("127.0.0.1", 0), Second)

    class First(Second):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{second.server_address[1]}/x")
            self.send_header("Content-Length", "0")
            self.end_headers()

    first = ThreadingHTTPServer(("127.0.0.1", 0), First)
    for server in (first, second):
        Thread(target=server.serve_forever, daemon=True).start()
    settings = read_settings({}, url=f"http://u:{SECRET}@127.0.0.1:{first.server_address[1]}")
    assert settings is not None
    download(settings, other, [request_key(0)])
    for server in (first, second):
        server.shutdown()
        server.server_close()
    assert seen == [None]


@pytest.mark.parametrize(("code", "shown"), [("hunter2", "403"), ("SlowDown", "403 (SlowDown)")])
def test_only_a_known_error_code_of_a_server_is_shown(
    store: Store, home: Path, code: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Echo(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            body = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    monkeypatch.setenv("PALLASC_REMOTE_TOKEN", "hunter2")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    settings = read_settings({}, url=url, write=True)
    assert settings is not None
    with pytest.raises(RemoteError) as caught:
        push(settings, store, {"5e" * 32: []})
    server.shutdown()
    server.server_close()
    assert caught.value.message.endswith(f": the server answers {shown}")
