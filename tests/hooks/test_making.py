"""What a build says of the bundles that it makes, and what it does before it signs one."""

from pathlib import Path

import pytest

from pallasc.errors import CompileError, CorruptError, NotCachedError
from pallasc.hooks import bundles
from pallasc.hooks.settings import read_settings
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.signature import (
    REQUIRE,
    TRUSTED,
    generate_key,
    private_key_text,
    public_key,
)
from pallasc.specs.bundle.verify import signed
from pallasc.specs.bundle.writer import build_bundle


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
        bundles.make(setting, output, root=tmp_path, environ=environ)

    monkeypatch.setenv(REQUIRE, "1")
    monkeypatch.setenv(TRUSTED, str(tmp_path / "trusted.pub"))
    if signer == "us":
        make()
        with open_bundle(output) as bundle:
            assert len(bundle.signatures) == 1
        return
    with pytest.raises(CorruptError, match="is not signed" if signer == "nobody" else "is signed"):
        make()
    assert not output.exists()
    monkeypatch.setenv(REQUIRE, "0")
    make()
    assert output.exists()


SPEC = """\
schema: 1
targets: [sm_90a]
kernels: [{name: scale, entry: "scale.py:run", args: ["f32[8]"]}]
"""
PYTHON = """\
import pallasc


@pallasc.kernel(args={"x": "f32[8]"}, targets=["sm_90a"])
def twice(x):
    return x + x
"""
WRITTEN = [
    ("PALLASC_FROZEN=1", "compile", {"PALLASC_FROZEN": "1"}),
    ("PALLASC_FROZEN=yes", "store", {"PALLASC_FROZEN": "yes"}),
    ('from = "frozen"', "frozen", {}),
    ('from = "store"', "store", {}),
]


@pytest.mark.parametrize(("written", "source", "environ"), WRITTEN)
def test_hints_name_what_the_user_wrote(
    written: str,
    source: str,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a.yaml").write_text(SPEC)
    (tmp_path / "scale.py").write_text("def run(x):\n    return x * 2\n")
    (tmp_path / "twice.py").write_text(PYTHON)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.pallasc.bundles]\n"mylib/a.pallasc" = {{specs = "a.yaml", from = "{source}"}}\n'
        f'"mylib/b.pallasc" = {{specs = "twice.py", from = "{source}"}}\n'
    )
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(tmp_path / "store"))
    yaml, python = read_settings(tmp_path, environ)
    output = tmp_path / "k.pallasc"
    with pytest.raises(CompileError) as failed:
        bundles.make(yaml, output, root=tmp_path, environ=environ)
    hint = f"{written} compiles nothing: build without it, or restore the store."
    assert str(failed.value).endswith(hint)
    if written == 'from = "store"':  # which has Python specs executed
        return
    with pytest.raises(NotCachedError) as missing:
        bundles.make(python, output, root=tmp_path, environ=environ)
    hint = (
        f"With {written}, the file is not executed. Build without {written}, or restore the store."
    )
    assert missing.value.hint == hint
