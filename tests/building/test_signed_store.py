"""A store that strangers may have written: what is believed, and what is compiled again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from pallasc.cache import format
from pallasc.cache.manifests import ANOTHER_RECORD, NOT_SIGNED
from pallasc.cache.store import Store
from pallasc.cache.verify import verify
from pallasc.compiler.inputs.lookup import artifact_of_action
from pallasc.errors import CorruptError
from pallasc.specs.bundle.signature import generate_key, private_key_text, public_key

KERNEL = """\
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def _scaled(x, factor):
    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] * factor

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def double(x):
    return _scaled(x, 2)


def triple(x):
    return _scaled(x, 3)
"""


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a folder of settings of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PALLASC_REQUIRE_SIGNED_STORE", "PALLASC_STORE_KEY", "PALLASC_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def compiled(make_project: Any) -> Any:
    """Build a project with two kernels into a store that nobody signs."""
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.spec(*({"name": name, "entry": f"kernel.py:{name}"} for name in ("double", "triple")))
    assert statuses(project.build()) == ["compiled", "compiled"]
    return project


@pytest.fixture
def kernels(compiled: Any, tmp_path: Path) -> Any:
    """Return a copy of that project."""
    return compiled.copy(tmp_path)


@pytest.fixture(scope="module")
def vouched(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Build the project once more into a signed store; return it, and the folder of settings."""
    folder = tmp_path_factory.mktemp("vouched")
    project = compiled.copy(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        assert statuses(project.build(store=signed(project.store))) == ["compiled", "compiled"]
    return project, folder / "config"


@pytest.fixture
def signed_kernels(vouched: tuple[Any, Path], tmp_path: Path) -> Any:
    """Return a copy of that project, and take its settings over."""
    shutil.copytree(vouched[1], tmp_path / "config")
    return vouched[0].copy(tmp_path)


def signed(store: Store) -> Store:
    """Return the same store, of which only what is signed counts."""
    return Store(store.root, require_signed=True)


def statuses(report: Any) -> list[str]:
    return [result.status for result in report.results]


def forge(store: Store, action: str) -> bytes:
    """Put another cubin under an action key, with checksums that fit; return that cubin."""
    found = store.get_artifact(action, verify=True)
    assert found is not None
    old = found.artifact["kernels"][0]["cubin"]
    cubin = bytearray(found.blob(old) or b"")
    cubin[-1] ^= 1
    body = {"artifact": found.artifact, "blobs": to_builtins(found.record.blobs)}
    text = json.dumps(body).replace(old, format.sha256(cubin))
    place = store.path("cas", format.sha256(cubin))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(cubin)
    store.path("ac", action).write_bytes(format.encode("artifact", action, json.loads(text))[0])
    return bytes(cubin)


def test_a_forged_record_is_a_hit_unless_signatures_are_required(kernels: Any) -> None:
    first = kernels.build()
    action = first.results[0].action_key
    honest = first.results[0].artifact.cubin()
    forged = forge(kernels.store, action)
    assert verify(kernels.store).ok
    second = kernels.build()
    assert statuses(second) == ["hit", "hit"]
    assert second.results[0].artifact.cubin() == forged != honest

    doubted = kernels.build(store=signed(kernels.store), compile=False, explain=True)
    assert statuses(doubted) == ["missing", "missing"]
    assert {result.reason for result in doubted.results} == {NOT_SIGNED}
    assert {result.explanation[0] for result in doubted.results} == {NOT_SIGNED}
    healed = kernels.build(store=signed(kernels.store))
    assert statuses(healed) == ["compiled", "compiled"]
    assert healed.results[0].artifact.cubin() == honest
    assert statuses(kernels.build(store=signed(kernels.store))) == ["hit", "hit"]
    assert kernels.build().results[0].artifact.cubin() == honest


def test_what_was_signed_is_a_hit_until_its_record_is_another(signed_kernels: Any) -> None:
    kernels = signed_kernels
    report = kernels.build(store=signed(kernels.store), frozen=True)
    assert statuses(report) == ["hit", "hit"]
    forge(kernels.store, report.results[0].action_key)
    frozen = kernels.build(store=signed(kernels.store), frozen=True)
    assert statuses(frozen) == ["failed", "hit"]
    assert isinstance(frozen.results[0].error, CorruptError)
    assert ANOTHER_RECORD in frozen.results[0].error.message
    assert frozen.exit_code == 5
    healed = kernels.build(store=signed(kernels.store))
    assert statuses(healed) == ["compiled", "hit"]
    assert statuses(kernels.build(store=signed(kernels.store))) == ["hit", "hit"]


def test_a_key_alone_neither_doubts_nor_signs_what_others_stored(kernels: Any) -> None:
    assert Store(kernels.store.root, require_signed=True).trust.notes  # makes a secret
    first = kernels.build()
    forged = forge(kernels.store, first.results[0].action_key)
    kernels.write("kernel.py", f"# an edit that changes no kernel\n{KERNEL}")
    store = Store(kernels.store.root)
    assert (store.trust.required, store.trust.strict) == (False, True)
    again = kernels.build(store=store)
    assert statuses(again) == ["lowered", "lowered"]
    assert again.results[0].artifact.cubin() == forged
    healed = kernels.build(store=signed(kernels.store))
    assert statuses(healed) == ["compiled", "compiled"]
    assert healed.results[0].artifact.cubin() == first.results[0].artifact.cubin() != forged
    reasons = [path.read_text() for path in store.folder.glob("quarantine/*.reason")]
    assert any("is not signed by a trusted key" in reason for reason in reasons)


def test_a_key_signs_for_each_request_what_the_build_has_compiled(kernels: Any) -> None:
    assert Store(kernels.store.root, require_signed=True).trust.notes  # makes a secret
    for name in ("one", "other"):
        kernels.write(f"{name}.py", KERNEL.replace("x, 2", "x, 5"))
    kernels.spec(*({"name": name, "entry": f"{name}.py:double"} for name in ("one", "other")))
    assert statuses(kernels.build(store=Store(kernels.store.root))) == ["compiled", "lowered"]
    assert statuses(kernels.build(store=signed(kernels.store), frozen=True)) == ["hit", "hit"]


def test_another_machine_believes_the_public_key(
    compiled: Any, project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(compiled.folder, project.folder, dirs_exist_ok=True)
    key = generate_key()
    private, public = tmp_path / "ci.key", tmp_path / "ci.key.pub"
    private.write_bytes(private_key_text(key))
    public.write_text(f"{public_key(key)}\n")
    with monkeypatch.context() as patch:
        patch.setenv("PALLASC_STORE_KEY", str(private))
        project.build(store=Store(project.store.root))
    monkeypatch.setenv("PALLASC_REQUIRE_SIGNED_STORE", "1")
    doubted = project.build(store=Store(project.store.root), frozen=True)
    assert {result.reason for result in doubted.results} == {NOT_SIGNED}
    monkeypatch.setenv("PALLASC_TRUSTED_KEYS", str(public))
    assert statuses(project.build(store=Store(project.store.root), frozen=True)) == ["hit", "hit"]


def test_a_record_that_is_no_artifacts_is_put_away(doubling: Any, tmp_path: Path) -> None:
    project, action = doubling[0].copy(tmp_path), doubling[1]
    path = project.store.path("ac", action)
    honest = path.read_bytes()
    artifact = project.store.get_artifact(action, verify=True).artifact
    kernel = artifact["kernels"][0]
    wrong: list[dict[str, Any]] = [
        {"kernels": 7}, {"kernels": [{**kernel, "cubin": []}]}, {"blobs": []}, {"target": {}},
        {"kernels": [{**kernel, "registers": 10**30}]}, {"plan": None}, {"schema": 99},
    ]  # fmt: skip
    for change in wrong:
        body, _ = format.decode("artifact", action, honest, dict)
        body["artifact"] = {**artifact, **change}
        path.write_bytes(format.encode("artifact", action, body)[0])
        store = Store(project.store.root)
        assert artifact_of_action(store, action) is None, change
        assert "is corrupt and counts as missing" in store.warnings[0]
        assert not path.exists()


@pytest.fixture(scope="module")
def doubling(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """Return a copy of the project whose spec has one kernel alone, and its action key."""
    project = compiled.copy(tmp_path_factory.mktemp("doubling"))
    project.spec({"name": "double", "entry": "kernel.py:double"})
    (result,) = project.build().results
    return project, result.action_key


FORGED: list[dict[str, Any]] = [
    {"action": ""}, {"files": {"file:\0": "00" * 32}}, {"files": {"": "00" * 32}},
    {"packages": {"../..": "x", "a\0b": "x"}}, {"opened": {"file:/dev/zero": "x"}},
    {"opened": {"link:\0": None}}, {"opened": {"folder:site:../..": "x"}},
    {"missed": {"": "x", "A=B": "x", "\0": "x"}}, {"absent": ["", "..", "a\0b", "/etc/passwd"]},
    {"hidden": ["x"]}, {"read": "00" * 32}, {"request": "[", "fields": "7"}, {"printed": "x"},
    {"files": {"module:" + "a." * 500: "0" * 64}},
]  # fmt: skip


@pytest.mark.parametrize("change", FORGED, ids=range(len(FORGED)))
def test_a_forged_manifest_is_a_miss_or_the_truth(
    doubling: tuple[Any, str], tmp_path: Path, change: dict[str, Any]
) -> None:
    project, action = doubling[0].copy(tmp_path), doubling[1]
    for path in (project.store.folder / "man").glob("*/*"):
        body = {**project.store.find_manifest(path.name).to_json(), **change}
        path.write_bytes(format.encode("manifest", path.name, body)[0])
    report = project.build(compile=False, explain=True)
    assert statuses(report) in (["missing"], ["hit"])
    if statuses(report) == ["hit"]:
        assert report.results[0].action_key == action
