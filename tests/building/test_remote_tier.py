"""The namespace of a toolchain in a remote store, and what a tier without requests says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.cache.remote.settings import read_settings
from pallasc.cache.store import Store
from pallasc.compiler.builds.remote_tier import RemoteTier, namespace
from pallasc.compiler.inputs.manifest import RememberedToolchain
from pallasc.compiler.toolchain.identity import versions_of
from pallasc.compiler.toolchain.setup import Setup, prepare


@pytest.fixture
def setup() -> Setup:
    with prepare() as made:
        return made


def test_a_namespace_is_of_versions_and_the_salt_and_hashes_no_file(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a file was hashed")

    versions, before = versions_of(setup.toolchain), namespace(setup)
    assert namespace(RememberedToolchain({}, versions, "")) == before
    assert namespace(RememberedToolchain({}, {**versions, "jaxlib": "0.0.1"}, "")) != before
    monkeypatch.setattr("pallasc.cache.stat_digest._hash_file", refused)
    monkeypatch.setattr("subprocess.run", refused)
    monkeypatch.setenv("PALLASC_CACHE_SALT", "one")
    salted = namespace(setup)
    monkeypatch.delenv("PALLASC_CACHE_SALT")
    (tmp_path / "pyproject.toml").write_text('[tool.pallasc]\ncache-salt = "one"\n')
    monkeypatch.chdir(tmp_path)
    assert salted == namespace(setup) != before


def test_nothing_is_asked_before_something_is_missing(
    setup: Setup, tmp_path: Path, warm_store: Store
) -> None:
    settings = read_settings({}, url=f"file://{tmp_path}/there", write=True)
    assert settings is not None
    tier = RemoteTier(settings, warm_store, setup)
    stats = tier.finish()
    assert (stats.url, stats.requests) == (f"file://{tmp_path}/there", 0)
    assert not (tmp_path / "there").exists()
