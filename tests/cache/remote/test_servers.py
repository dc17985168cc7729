"""The same promises on real servers of every kind."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import servers
from variants import NAMESPACE, check, download, fill, put, request_key, upload

from pallasc.cache.remote.remote import prune, pull, push, verify
from pallasc.cache.remote.session import Objects, RemoteError, Session
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.remote.transfer import pack_name
from pallasc.cache.store import Store

Start = Callable[[str], RemoteSettings]
KINDS = ["file", "s3 of rclone", "s3 of moto", "webdav of rclone", "azurite"]


def _settings(url: str) -> RemoteSettings:
    settings = read_settings({}, url=url, write=True)
    assert settings is not None
    return settings


@pytest.fixture
def start(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a server of a kind and gives the settings for it."""
    folder = tmp_path / "server"
    with ExitStack() as stack:

        def start(kind: str) -> RemoteSettings:
            environment: Mapping[str, str] = {}
            url = f"file://{folder}"
            if kind.startswith("s3"):
                server = servers.s3_of_moto() if "moto" in kind else servers.s3_of_rclone(folder)
                environment = servers.s3_environment(stack.enter_context(server))
                url = "s3://kernels/team/a"
            elif kind == "azurite":
                environment = stack.enter_context(servers.azurite(folder))
                url = "az://kernels/team/a"
            elif kind == "webdav of rclone":
                place = stack.enter_context(servers.webdav_of_rclone(folder))
                url = f"http://{servers.USER}:{servers.PASSWORD}@{place}/kernels"
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return _settings(url)

        yield start


def test_the_page_has_the_commands_that_are_tested_here() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "remote.md").read_text()
    commands = (servers.RCLONE_S3, servers.RCLONE_WEBDAV, servers.MOTO_S3, servers.AZURITE)
    assert [c for c in commands if f"$ {c}\n" not in page] == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_machine_wrote_another_one_finds(
    start: Start,
    kind: str,
    store: Store,
    other: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = start(kind)
    assert download(settings, Store(tmp_path / "early"), [request_key(0)])[0] == {}
    keys = fill(store, range(12), size=40_000)
    sent = upload(settings, store, keys)
    assert (sent.offered, sent.tripped, sent.refused) == (12, "", [])
    found, stats = download(settings, other, keys)
    assert (len(found), stats.tripped, stats.refused) == (12, "", [])
    for number in range(12):
        check(other, number, size=40_000)
    upload(settings, other, [put(other, 99)])
    assert len(download(settings, store, [request_key(99), keys[0]])[0]) == 2
    assert verify(settings, [NAMESPACE]) == []
    push(settings, store, {"ab" * 32: keys[:2]})
    assert pull(settings, Store(tmp_path / "third"))[:3] == (13, 2, 0)
    writers_at_once_lose_nothing(settings, tmp_path, sees_others=kind in ("file", "s3 of moto"))
    if kind == "s3 of moto":
        missing = _settings("s3://kernel/team/a")
        found, stats = download(missing, store, [request_key(0)])
        assert found == {}
        assert stats.tripped.startswith("GET s3://kernel/team/a/pallasc/v4/")
        assert stats.tripped.endswith(": there is no such bucket")
        with pytest.raises(RemoteError, match="there is no such bucket"):
            pull(missing, store)
    if kind == "webdav of rclone":
        left = pack_name(NAMESPACE, "left by a writer that was killed")
        with Session(settings, is_build=False) as session:
            session.result(session.submit(Objects.put, left, b"pack"))
        monkeypatch.setattr("pallasc.cache.remote.remote.GRACE_S", -3600)
        assert prune(settings).unknown >= 1
        assert not (tmp_path / "server" / "kernels" / left).exists()
        assert verify(settings, [NAMESPACE]) == []
        place = settings.address.text.removeprefix("http://")
        missing = _settings(f"http://{servers.USER}:{servers.PASSWORD}@{place}-other/deep")
        assert "the server answers 409" in upload(missing, store, keys[:1]).tripped


def writers_at_once_lose_nothing(
    settings: RemoteSettings, folder: Path, *, sees_others: bool
) -> None:
    """Where no writer sees the others, a lost update costs misses, no more."""

    def write(number: int) -> None:
        store = Store(folder / f"writer{number}")
        upload(settings, store, [put(store, number)])

    numbers = range(100, 105)
    threads = [threading.Thread(target=write, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = Store(folder / "all")
    found, stats = download(settings, store, [request_key(number) for number in numbers])
    assert stats.refused == []
    assert len(found) == 5 or (found and not sees_others)
    for number in numbers:
        if request_key(number) in found:
            check(store, number)
    assert verify(settings, [NAMESPACE]) == []
