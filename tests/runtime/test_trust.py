"""Who must have signed: what program and machine demand, and each way in which a bundle fails."""

import shutil
from collections.abc import Callable
from pathlib import Path

import made
import pytest

import pallasc
from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.signature import (
    REQUIRE,
    TRUSTED,
    PublicKey,
    generate_key,
    public_key,
    read_policy,
)
from pallasc.specs.bundle.verify import signed
from pallasc.specs.bundle.writer import build_bundle

pytest.importorskip("cryptography")

OWN, OTHER = generate_key(), generate_key()
PUBLIC, OTHER_PUBLIC = public_key(OWN, "ours"), public_key(OTHER)


@pytest.fixture(scope="session")
def plain() -> bytes:
    """Return a bundle that nobody signed."""
    return build_bundle([Item("add", {}, made.add())], level=3)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that keys of the machine are in; it does not exist."""
    monkeypatch.delenv(REQUIRE, raising=False)
    monkeypatch.delenv(TRUSTED, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "pallasc" / "trusted_keys"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "k.pallasc"
        path.write_bytes(data)
        return path

    return write


def _key_file(folder: Path, *keys: PublicKey, name: str = "a.pub") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("# whose\n" + "".join(f"{key}\n" for key in keys))
    return folder / name


def test_cryptography_is_imported_on_demand_only(
    write: Callable[[bytes], Path], plain: bytes, fresh_process: Callable[..., object]
) -> None:
    code = (
        "import sys, pallasc\nkernels = pallasc.open_bundle(sys.argv[1])\n"
        "kernels['add'].variants[0].artifact.cubin()\nassert 'cryptography' not in sys.modules"
    )
    done = fresh_process(code, str(write(signed(plain, OWN))))
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["key", "text", "file", "folder", "several"])
def test_trusted_bundles_open(
    write: Callable[[bytes], Path], plain: bytes, tmp_path: Path, form: str
) -> None:
    file = _key_file(tmp_path / "keys", OTHER_PUBLIC, PUBLIC)
    (tmp_path / "keys" / "readme.txt").write_text("no key")
    trusted = {
        "key": PUBLIC,
        "text": str(PUBLIC),
        "file": file,
        "folder": str(tmp_path / "keys"),
        "several": [OTHER_PUBLIC, file],
    }[form]
    path = write(signed(plain, OWN))
    assert len(pallasc.open_bundle(path, trusted=trusted)["add"].variants) == 1  # type: ignore[arg-type]


# ---- the machine


def test_the_machine_demands_a_signature_whatever_the_program_says(
    write: Callable[[bytes], Path], plain: bytes, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUIRE, "1")
    path = write(plain)
    for require in (None, False, True):
        with pytest.raises(CorruptError, match=r"is not signed") as caught:
            pallasc.open_bundle(path, require_signature=require)
        assert str(config) in str(caught.value.hint)
    path = write(signed(plain, OWN))
    with pytest.raises(CorruptError, match="no keys are trusted here"):
        pallasc.open_bundle(path)
    _key_file(config, PUBLIC)
    assert len(pallasc.open_bundle(path)) == 1
    # What the program trusts does not count for the machine, and the other way around.
    with pytest.raises(CorruptError, match="trusted are") as caught:
        pallasc.open_bundle(path, trusted=OTHER_PUBLIC)
    assert "the argument trusted" in str(caught.value.hint)
    _key_file(config, OTHER_PUBLIC)
    with pytest.raises(CorruptError, match="trusted are") as caught:
        pallasc.open_bundle(path, trusted=PUBLIC)
    assert str(config) in str(caught.value.hint)


def test_a_demand_that_is_not_understood_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_policy().demands == ()
    monkeypatch.setenv(REQUIRE, "2")
    with pytest.raises(SpecError, match=f"{REQUIRE} is '2'"):
        read_policy()


# ---- where keys are looked for


@pytest.mark.parametrize(
    ("form", "require"), [("attacker.pub", None), ("", True), (".", None), ("keys", True)]
)
def test_no_key_is_looked_for_in_the_current_folder(
    write: Callable[[bytes], Path],
    plain: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    require: bool | None,
) -> None:
    """A file of that name in the folder of a stranger must not make his bundle a trusted one."""
    _key_file(tmp_path / "elsewhere", OTHER_PUBLIC, name="attacker.pub")
    _key_file(tmp_path / "elsewhere" / "keys", OTHER_PUBLIC)
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write(signed(plain, OTHER))
    for trusted in (form, [OTHER_PUBLIC, form]):
        with pytest.raises(SpecError, match="keys are never read from the current folder") as got:
            pallasc.open_bundle(path, trusted=trusted, require_signature=require)  # type: ignore[arg-type]
        assert f"the argument trusted is {form!r}" in str(got.value)
    monkeypatch.setenv(TRUSTED, "attacker.pub")
    with pytest.raises(SpecError, match=f"{TRUSTED} is 'attacker.pub'"):
        pallasc.open_bundle(path, require_signature=True)


@pytest.mark.parametrize("packing", ["folder", "zip"])
def test_load_reads_keys_of_the_package(
    plain: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    package = tmp_path / "site" / "signedlib"
    _key_file(package, PUBLIC, name="release.key.pub")
    _key_file(package / "keys", PUBLIC)
    (package / "__init__.py").write_text("")
    (package / "k.pallasc").write_bytes(signed(plain, OWN))
    place = tmp_path / "site"
    if packing == "zip":
        shutil.make_archive(str(tmp_path / "site"), "zip", place)
        place = tmp_path / "site.zip"
    # The folder that the program runs in is a stranger's.
    _key_file(tmp_path / "elsewhere", OTHER_PUBLIC, name="release.key.pub")
    _key_file(tmp_path / "elsewhere", OTHER_PUBLIC, name="only_here.pub")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(str(place))
    for trusted in ("release.key.pub", "./release.key.pub", "keys", ["keys/a.pub"]):
        assert list(pallasc.load("signedlib", trusted=trusted)) == ["add"]
    with pytest.raises(SpecError, match=r"no such file in .*signedlib"):
        pallasc.load("signedlib", trusted="only_here.pub")
    for outside in ("../signedlib/release.key.pub", ""):
        with pytest.raises(SpecError, match="never read from the current folder"):
            pallasc.load("signedlib", trusted=outside)
