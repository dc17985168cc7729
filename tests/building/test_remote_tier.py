"""The namespace of a toolchain in a remote store, and what a tier without requests says."""

from pathlib import Path

import pytest

from pallasc.compiler.builds.remote_tier import namespace
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
