"""Fixtures of the tests of remote stores."""

from pathlib import Path

import pytest

from pallasc.cache.remote import session
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.store import Store


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit of requests to minutes, because a busy machine may answer slowly."""
    monkeypatch.setattr(session, "PATIENCE_S", 600.0)
    monkeypatch.setattr(session, "REQUEST_S", 300.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests away from this user's credentials and from metadata services."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    for name in ("NETRC", "PALLASC_REMOTE_TOKEN", "PALLASC_REMOTE", "PALLASC_REMOTE_WRITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-SECRET")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Return the folder of a remote store; it does not exist yet."""
    return tmp_path / "there"


@pytest.fixture
def settings(there: Path) -> RemoteSettings:
    """Return the settings of a writable remote store in a folder."""
    found = read_settings({}, url=f"file://{there}", write=True)
    assert found is not None
    return found


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Return another machine's store."""
    return Store(tmp_path / "other")
