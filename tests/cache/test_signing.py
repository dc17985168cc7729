"""Who vouches for what a store says."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import KEY, OTHER

from pallasc.cache import format
from pallasc.cache.manifests import Manifest, Trust, read_trust, secret_file
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.errors import SpecError
from pallasc.specs.bundle.signature import generate_key, private_key_text, public_key

NAME = "ef" * 32
BODY: dict[str, Any] = {"action": KEY, "record": NAME, "files": {"file:k.py": OTHER}}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a folder of settings of its own; return where the secret would lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PALLASC_REQUIRE_SIGNED_STORE", "PALLASC_STORE_KEY", "PALLASC_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)
    return secret_file()


@pytest.fixture
def key_pair(tmp_path: Path) -> tuple[Path, Path]:
    """Make a key; return the files of its private and its public half."""
    key = generate_key()
    private, public = tmp_path / "store.key", tmp_path / "store.key.pub"
    private.write_bytes(private_key_text(key))
    public.write_text(f"{public_key(key)}\n")
    return private, public


def required() -> Trust:
    return read_trust({}, required=True)


def test_the_secret_is_made_where_signatures_are_required_and_for_this_user_alone(
    settings: Path,
) -> None:
    trust = read_trust({})
    assert (trust.required, trust.strict, trust.notes) == (False, False, ())
    assert trust.signed("manifest", NAME, BODY) == BODY
    assert not settings.exists()
    before = os.umask(0)
    try:
        first = required()
    finally:
        os.umask(before)
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.parent.stat().st_mode) == 0o700
    assert list(settings.parent.iterdir()) == [settings]
    assert len(first.notes) == 1
    assert str(settings) in first.notes[0]
    again = required()
    assert again.notes == ()
    assert again.vouches("manifest", NAME, first.signed("manifest", NAME, BODY))
    assert again.vouches("manifest", NAME, read_trust({}).signed("manifest", NAME, BODY))


FORGERIES: dict[str, Callable[[dict[str, Any]], tuple[str, str, dict[str, Any]]]] = {
    "another name": lambda body: ("manifest", OTHER, body),
    "another kind": lambda body: ("stat", NAME, body),
    "another record": lambda body: ("manifest", NAME, {**body, "record": KEY}),
    "one field more": lambda body: ("manifest", NAME, {**body, "printed": "x"}),
    "no signature": lambda body: (
        "manifest", NAME, {k: v for k, v in body.items() if k != "signed"}
    ),
    "a wrong signature": lambda body: (
        "manifest", NAME, {**body, "signed": [{**body["signed"][0], "signature": "AAAA"}]}
    ),
    "no base64": lambda body: (
        "manifest", NAME, {**body, "signed": [{**body["signed"][0], "signature": "?"}]}
    ),
    "an unknown key": lambda body: (
        "manifest", NAME, {**body, "signed": [{**body["signed"][0], "key": "hmac-00"}]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("with_key", [False, True])
def test_a_signature_is_for_this_name_and_these_bytes(
    with_key: bool, key_pair: tuple[Path, Path]
) -> None:
    environ = {"PALLASC_REQUIRE_SIGNED_STORE": "1"}
    trust = read_trust(environ | ({"PALLASC_STORE_KEY": str(key_pair[0])} if with_key else {}))
    assert trust.required
    signed = trust.signed("manifest", NAME, BODY)
    assert trust.vouches("manifest", NAME, signed)
    assert [name for name, forge in FORGERIES.items() if trust.vouches(*forge(signed))] == []


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("00" * 32, 0o640, "other users can read or write it"),
        ("00" * 32, 0o602, "other users can read or write it"),
        ("00" * 31, 0o600, "is not a secret of pallasc"),
        ("zz" * 32, 0o600, "is not a secret of pallasc"),
        (None, 0o600, "is not a secret of pallasc"),
    ],
)
def test_a_secret_that_is_none_is_an_error(
    settings: Path, content: str | None, mode: int, reason: str
) -> None:
    settings.parent.mkdir(parents=True)
    settings.write_text(content) if content else os.mkfifo(settings)
    settings.chmod(mode)
    with pytest.raises(SpecError, match=reason) as caught:
        required()
    hint = f"If no one else can have read it, run chmod 600 {settings}; otherwise delete it."
    assert (caught.value.hint == hint) is (mode != 0o600)


def test_the_environment_is_understood_or_refused(tmp_path: Path) -> None:
    assert not read_trust({"PALLASC_REQUIRE_SIGNED_STORE": "off"}).required
    with pytest.raises(SpecError, match="PALLASC_REQUIRE_SIGNED_STORE is 'maybe'"):
        read_trust({"PALLASC_REQUIRE_SIGNED_STORE": "maybe"})
    with pytest.raises(SpecError, match=r"PALLASC_STORE_KEY: .* cannot be read"):
        read_trust({"PALLASC_STORE_KEY": str(tmp_path / "missing")})


def test_a_store_takes_only_signed_manifests_where_that_is_required(tmp_path: Path) -> None:
    Store(tmp_path / "store").put_manifest(NAME, Manifest(**BODY))
    store = Store(tmp_path / "store", require_signed=True)
    assert store.get_manifest(NAME) is None
    assert "has entries that no trusted key signed, which count as missing" in store.warnings[-1]
    assert store.find_manifest(NAME) == Manifest(**BODY)
    store.put_manifest(NAME, Manifest(**BODY))
    found = store.get_manifest(NAME)
    assert found is not None
    assert {**BODY, "signed": found.signed} == found.to_json()
    assert Store(tmp_path / "store").get_manifest(NAME) == found
    place = store.path("man", OTHER)
    place.parent.mkdir(parents=True)
    place.write_bytes(format.encode("manifest", OTHER, found.to_json())[0])
    assert store.find_manifest(OTHER) == found
    assert store.get_manifest(OTHER) is None, "it was signed for another request"


def test_what_the_store_remembers_of_files_is_signed_too(tmp_path: Path) -> None:
    path = tmp_path / "ptxas"
    path.write_text("the real one")
    os.utime(path, (1000, 1000))

    def digests(trust: Trust | None) -> FileDigests:
        return FileDigests(tmp_path / "store", now_ns=lambda: 4 * 10**18, trust=trust)

    forger, trust = digests(None), required()
    forger.digest(path)
    forger._unsaved[str(path)] = (*forger._hashed[str(path)][:4], "00" * 32)
    assert forger.save()
    assert digests(None).digest(path) == "00" * 32
    honest = digests(trust)
    true = format.sha256(b"the real one")
    assert (honest.digest(path), honest.hashed) == (true, 1)
    assert honest.save()
    again = digests(trust)
    assert (again.digest(path), again.hashed) == (true, 0)
    assert digests(None).digest(path) == true


def test_who_only_verifies_needs_no_secret(
    key_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, settings: Path
) -> None:
    settings.parent.parent.mkdir(parents=True, exist_ok=True)
    settings.parent.write_text("in its way")  # no folder can be made here
    with pytest.raises(SpecError, match=r"store\.secret"):
        read_trust({}, required=True)
    monkeypatch.setenv("PALLASC_TRUSTED_KEYS", str(key_pair[1]))
    trust = read_trust({}, required=True)
    assert (trust.required, trust.signers, len(trust.checkers)) == (True, {}, 1)
