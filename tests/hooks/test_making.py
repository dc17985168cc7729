"""What a build says of the bundles that it makes, and what it does before it signs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.errors import CorruptError
from pallasc.hooks import making
from pallasc.hooks.settings import read_settings
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.signature import generate_key, private_key_text, public_key, signed
from pallasc.specs.bundle.trust import REQUIRE, TRUSTED
from pallasc.specs.bundle.writer import build_bundle


def test_one_variant_is_one_and_many_are_counted() -> None:
    assert making._variants(1) == "1 variant"
    assert [making._variants(number) for number in (0, 2, 1024)] == [
        "0 variants", "2 variants", "1,024 variants",
    ]  # fmt: skip


@pytest.mark.parametrize("signer", ["nobody", "a stranger", "us"])
def test_a_bundle_made_before_is_verified_before_it_is_signed(
    signer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing what somebody put there would make a stranger's kernels ours."""
    pytest.importorskip("cryptography")
    own, strangers = generate_key(), generate_key()
    data = build_bundle([], level=3)
    if signer != "nobody":
        data = signed(data, own if signer == "us" else strangers)
    (tmp_path / "before.pallasc").write_bytes(data)
    (tmp_path / "trusted.pub").write_text(str(public_key(own)))
    (tmp_path / "sign.key").write_bytes(private_key_text(own))
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pallasc.bundles]\n"mylib/k.pallasc" = "before.pallasc"\n'
    )
    environ = {"PALLASC_SIGN_KEY": str(tmp_path / "sign.key")}
    (setting,) = read_settings(tmp_path, environ)
    output = tmp_path / "k.pallasc"

    def make() -> None:
        making.make(setting, output, root=tmp_path, environ=environ, say=lambda text: None)

    monkeypatch.setenv(REQUIRE, "1")
    monkeypatch.setenv(TRUSTED, str(tmp_path / "trusted.pub"))
    if signer == "us":
        make()
        with open_bundle(output) as bundle:
            assert len(bundle.signatures) == 1
        return
    with pytest.raises(
        CorruptError, match="is not signed" if signer == "nobody" else "is signed by"
    ):
        make()
    assert not output.exists()
    monkeypatch.setenv(REQUIRE, "0")
    make()
    assert output.exists()
