"""`pallasc bundle keygen`, `sign`, and `verify --key`: what holds, and each way it can be wrong."""

import io
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle" / "programs"))

from made_bundles import make_items

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.format import HEAD_BYTES
from pallasc.specs.bundle.writer import build_bundle

PLAIN = build_bundle(make_items(2))
OTHER = build_bundle(make_items(3))


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PALLASC_TRUSTED_KEYS", "PALLASC_REQUIRE_SIGNATURE", "PALLASC_KEY_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def key(run: Any, tmp_path: Path) -> Path:
    """Return the file of a private key; the public one is beside it."""
    path = tmp_path / "release.key"
    assert run("bundle", "keygen", path, "--comment", "example.org releases").code == 0
    return path


@pytest.fixture
def signed(run: Any, key: Path, tmp_path: Path) -> Path:
    """Return a bundle with a signature by that key."""
    path = tmp_path / "kernels.pallasc"
    path.write_bytes(PLAIN)
    assert run("bundle", "sign", path, "--key", key).code == 0
    return path


def _public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def test_a_key_is_made_which_only_its_owner_can_read_and_is_never_replaced(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "release.key"
    mask = os.umask(0)
    try:
        result = run("bundle", "keygen", path, "--comment", "of  ours\nalone")
    finally:
        os.umask(mask)
    assert result.code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(_public(path).stat().st_mode) == 0o644
    assert result.out == _public(path).read_text()
    assert result.out.startswith("ed25519:")
    assert result.out.endswith(" of ours alone\n")
    before = path.read_bytes()
    assert before.startswith(b"-----BEGIN PRIVATE KEY-----")
    again = run("bundle", "keygen", path)
    assert (again.code, again.out) == (2, "")
    assert "keys are never replaced" in again.err
    _public(path).unlink()
    _public(path).symlink_to(tmp_path / "elsewhere")
    assert run("bundle", "keygen", path).code == 2
    path.unlink()
    assert run("bundle", "keygen", path).code == 2
    assert not (tmp_path / "elsewhere").exists()
    nowhere = run("bundle", "keygen", tmp_path / "no" / "folder")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (2, True)


def test_json_has_both_halves_places_and_the_id(run: Any, tmp_path: Path) -> None:
    key, bundle = tmp_path / "k", tmp_path / "b"
    data = json.loads(run("bundle", "keygen", key, "--json").out)
    assert (data["private"], data["public"]) == (str(key), f"{key}.pub")
    assert _public(key).read_text() == f"{data['key']}\n"
    bundle.write_bytes(PLAIN)
    signed = json.loads(run("bundle", "sign", bundle, "--key", key, "--json").out)
    assert (signed["key"], signed["id"]) == (data["key"], data["id"])
    assert signed["files"] == [{"file": str(bundle), "root": open_bundle(PLAIN).root}]
    (shown,) = json.loads(run("inspect", bundle, "--json").out)["bundles"]
    assert shown["signatures"] == [data["id"]]


def test_a_signature_is_right_and_changes_nothing_else(run: Any, key: Path, signed: Path) -> None:
    assert signed.read_bytes()[: len(PLAIN)] == PLAIN
    result = run("bundle", "verify", signed, "--key", _public(key))
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1].startswith(f"{signed} is signed by ")
    assert result.out.splitlines()[1].endswith("(example.org releases)")
    text = _public(key).read_text().strip()
    for trusted in (key.parent, text, text.split()[0]):
        assert run("bundle", "verify", signed, "--key", trusted).code == 0
    data = json.loads(run("bundle", "verify", signed, "--key", _public(key), "--json").out)
    assert data["signed"] == [text]
    before = signed.read_bytes()
    assert run("bundle", "sign", signed, "--key", key).code == 0
    assert signed.read_bytes() == before
    assert run("bundle", "verify", signed, "--key", _public(key), "--fail-on", "warning").code == 0
    other = key.with_name("other.key")
    assert run("bundle", "keygen", other).code == 0
    assert run("bundle", "sign", signed, "--key", other).code == 0
    both = run("bundle", "verify", signed, "--key", _public(key), "--key", _public(other))
    assert both.out.count(f"{signed} is signed by ") == 2


def test_the_keys_of_the_machine_are_demanded(
    run: Any, key: Path, signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("bundle", "verify", signed, "--require-signature").code == 5
    monkeypatch.setenv("PALLASC_TRUSTED_KEYS", str(_public(key)))
    assert run("bundle", "verify", signed, "--require-signature").code == 0
    (tmp_path / "plain").write_bytes(PLAIN)
    assert run("bundle", "verify", tmp_path / "plain").code == 0
    assert run("bundle", "verify", tmp_path / "plain", "--require-signature").code == 5
    monkeypatch.setenv("PALLASC_REQUIRE_SIGNATURE", "1")
    assert run("bundle", "verify", tmp_path / "plain").code == 5
    assert run("bundle", "verify", signed).code == 0


def test_every_fault_has_a_message_of_its_own(
    run: Any, key: Path, signed: Path, tmp_path: Path
) -> None:
    """Wrong key, no signature, replaced blob, manifest of another bundle, cut off."""
    good, tail = signed.read_bytes(), signed.read_bytes()[len(PLAIN) :]
    with open_bundle(PLAIN) as bundle:
        entry = next(bundle.entries())
        blob = next(number for number in entry.blobs if number is not None)
        place = bundle.reader.row(blob).extent
    other = tmp_path / "other.key"
    assert run("bundle", "keygen", other).code == 0
    replaced = good[: place.at] + bytes(place.size) + good[place.end :]
    faults: dict[str, tuple[bytes, Path, str]] = {
        "wrong key": (good, other, "is signed by .*, and trusted are "),
        "no signature": (PLAIN, key, "is not signed"),
        "replaced blob": (replaced, key, f"blob {blob}, cubin "),
        "another manifest": (good[:HEAD_BYTES] + OTHER[HEAD_BYTES:] + tail, key, "its catalog "),
        "another bundle": (OTHER + tail, key, "is for another bundle"),
        "cut off": (good[: len(good) // 2], key, "is cut off"),
        "cut off signature": (good[:-1], key, "are not signatures"),
        "forged signature": (good[:-1] + bytes([good[-1] ^ 1]), key, "is not valid"),
    }
    messages = set()
    for name, (data, trusted, words) in faults.items():
        path = tmp_path / f"{name}.pallasc"
        path.write_bytes(data)
        result = run("bundle", "verify", path, "--key", _public(trusted))
        assert (name, result.code, result.out) == (name, 5, "")
        line = result.err.splitlines()[0]
        assert line.startswith("error: ")
        assert str(path) in line
        assert re.search(words, line), line
        messages.add(line.replace(str(path), ""))
    assert len(messages) == len(faults)


def test_neither_damage_is_signed_nor_is_anything_else_a_key(
    run: Any, key: Path, signed: Path, tmp_path: Path
) -> None:
    for name, text in (("text", "hello"), ("empty", "# none\n")):
        (tmp_path / name).write_text(text)
    for wrong in ("text", "nothing", ""):
        assert run("bundle", "sign", signed, "--key", tmp_path / wrong).code == 2
    for given in (tmp_path / "text", tmp_path / "nothing", tmp_path / "empty", key, "ed25519:AAAA"):
        result = run("bundle", "verify", signed, "--key", given)
        assert (result.code, result.out) == (2, "")
    data = bytearray(signed.read_bytes())
    data[300] ^= 1
    signed.write_bytes(data)
    result = run("bundle", "sign", signed, "--key", key)
    assert (result.code, result.out) == (5, "")
    assert f"{signed} is damaged" in result.err
    assert signed.read_bytes() == data


def test_a_key_may_be_encrypted_and_come_from_standard_input(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bundle = tmp_path / "k", tmp_path / "b"
    bundle.write_bytes(PLAIN)
    monkeypatch.setenv("PALLASC_KEY_PASSWORD", "correct horse")
    assert run("bundle", "keygen", path).code == 0
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert run("bundle", "sign", bundle, "--key", "-").code == 0
    path.chmod(0o644)
    result = run("bundle", "sign", bundle, "--key", path)
    assert result.code == 0
    assert f"warning: others can read {path}; run: chmod 600 {path}" in result.err
    assert run("bundle", "verify", bundle, "--key", _public(path)).code == 0
    for password in ("wrong", ""):
        monkeypatch.setenv("PALLASC_KEY_PASSWORD", password)
        refused = run("bundle", "sign", bundle, "--key", path)
        assert refused.code == 2
        assert "no private key can be read" in refused.err


def test_without_the_package_it_says_what_to_install(
    run: Any, key: Path, signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    for arguments in (
        ("keygen", tmp_path / "new"),
        ("sign", signed, "--key", key),
        ("verify", signed, "--key", _public(key)),
    ):
        result = run("bundle", *arguments)
        assert (result.code, result.out) == (4, "")
        assert "pip install 'pallasc[sign]'" in result.err
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.pub").exists()
    for command in (("bundle", "verify"), ("inspect",)):
        assert run(*command, signed).code == 0
