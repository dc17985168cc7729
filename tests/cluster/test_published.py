"""Results of workers: published, or rejected because they do not fit."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from pallasc.cache.format import sha256
from pallasc.cache.manifests import manifest_from_json
from pallasc.cache.store import PutResult, Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.inputs.lookup import Lookup, data_digests, request_fields
from pallasc.compiler.inputs.manifest import joined
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.cluster import publish
from pallasc.compiler.workers.messages import Compile, Compiled
from pallasc.specs.gpus import MODELS
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: run
    entry: kernel.py:run
    args: {x: "f32[1024, 128]", y: "f32[1024, 128]"}
"""
KERNEL = """
from helper import size
from pallasc.specs.library.elementwise import add

def run(x, y):
    return add(x, y, block_size=size)
"""


@dataclass
class Case:
    """A variant, the honest reply of a worker, and a store without it."""

    folder: Path
    variant: Variant
    store: Store
    reply: Compiled

    def publish(self, reply: Compiled | None = None) -> Compiled:
        """Publish a reply."""
        with prepare() as setup:
            context = setup.context(self.store)
        lookup = Lookup(context, self.store)
        asked = Compile(
            variant=self.variant, request=lookup.key(self.variant),
            fields=request_fields(self.variant, context),
            data=data_digests(self.variant, context.digests), env={}, trusted_records=None,
        )  # fmt: skip
        return publish(lookup, asked, reply or self.reply)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> tuple[Path, Store]:
    place = tmp_path_factory.mktemp("received")
    (place / "specs").mkdir()
    (place / "specs" / "kernel.py").write_text(KERNEL)
    (place / "specs" / "helper.py").write_text("size = 512\n")
    (place / "specs" / "spec.yaml").write_text(SPEC)
    shutil.copytree(warm_store.root, place / "store")
    store = Store(place / "store")
    report = build(expand(load_yaml(place / "specs" / "spec.yaml")), store=store)
    assert not report.failed
    return place, store


@pytest.fixture
def case(built: tuple[Path, Store], warm_store: Store, tmp_path: Path) -> Case:
    place, full = built
    shutil.copytree(place / "specs", tmp_path / "specs")
    shutil.copytree(warm_store.root, tmp_path / "store")
    (before,) = expand(load_yaml(place / "specs" / "spec.yaml"))
    (variant,) = expand(load_yaml(tmp_path / "specs" / "spec.yaml"))
    with prepare() as setup:
        key = Lookup(setup.context(full), full).key(before)
    ((_, manifest),) = full.sets(key)
    held = full.get_artifact(manifest.action)
    assert held is not None
    reply = Compiled(
        action=manifest.action, status="compiled", seconds=1.0, warnings={}, uncached="",
        put=PutResult(stored=True, digest=held.digest), record=held.artifact,
        manifest=manifest.to_json(),
        blobs={name: data for name in held.names if (data := held.blob(name)) is not None},
    )  # fmt: skip
    return Case(tmp_path / "specs", variant, Store(tmp_path / "store"), reply)


def test_a_result_is_published_and_one_that_exists_is_a_hit(case: Case) -> None:
    reply = case.publish()
    assert (reply.status, reply.digest, reply.put.stored) == ("compiled", case.reply.digest, True)
    held = case.store.get_artifact(reply.action, verify=True)
    assert held is not None
    assert held.artifact == case.reply.record
    assert case.publish().status == "hit"


def with_blobs(
    change: Callable[[list[tuple[str, bytes]]], object],
) -> Callable[[Compiled], Compiled]:
    """Return a change of the blobs of a reply, given as a list."""

    def changed(reply: Compiled) -> Compiled:
        blobs = list(reply.blobs.items())
        change(blobs)
        return replace(reply, blobs=dict(blobs))

    return changed


def damage(blobs: list[tuple[str, bytes]]) -> None:
    name, data = blobs[0]
    blobs[0] = name, bytes([data[0] ^ 1]) + data[1:]


def of_record(**values: Any) -> Callable[[Compiled], Compiled]:
    return lambda reply: replace(reply, record={**(reply.record or {}), **values})


def of_manifest(**values: Any) -> Callable[[Compiled], Compiled]:
    return lambda reply: replace(reply, manifest={**(reply.manifest or {}), **values})


def resealed(reply: Compiled, **values: Any) -> Compiled:
    """Return a reply whose manifest has other sources, and the digest of these."""
    manifest = manifest_from_json("0" * 64, {**(reply.manifest or {}), **values})
    sealed = joined(manifest, manifest)
    assert sealed is not None
    return replace(reply, manifest={**(reply.manifest or {}), **values, "read": sealed.read})


TAMPERED: list[tuple[Callable[[Compiled], Compiled], str]] = [
    (lambda reply: replace(reply, record=None), "no artifact"),
    (with_blobs(damage), "damaged"),
    (with_blobs(lambda blobs: blobs.pop()), "damaged"),
    (with_blobs(lambda blobs: blobs.append((sha256(b"x"), b"x"))), "other files than it names"),
    (of_record(schema=99), "damaged"),
    (of_record(target=asdict(MODELS["a6000"])), "another target"),
    (lambda reply: replace(reply, action="0" * 64), "manifest is for another variant"),
    (of_manifest(action="0" * 64), "manifest is for another variant"),
    (of_manifest(variant="other@h100"), "manifest is for another variant"),
    (of_manifest(files=3), "damaged"),
    (of_manifest(files={}), "another digest than its sources"),
    (lambda reply: resealed(reply, files={}), "leaves out file:kernel.py"),
    (lambda reply: resealed(reply, absent=["json"]), "json was missing and can be imported now"),
    (lambda reply: resealed(reply, packages={"jsonx": "0" * 64}), "are not those here"),
]


def test_a_result_that_does_not_fit_is_rejected_and_not_published(case: Case) -> None:
    for tamper, reason in TAMPERED:
        with pytest.raises(ValueError, match=reason):
            case.publish(tamper(case.reply))
        assert case.store.get_artifact(case.reply.action) is None, reason


def test_a_source_that_differs_on_the_worker_is_rejected(case: Case) -> None:
    (case.folder / "helper.py").write_text("size = 256\n")
    with pytest.raises(ValueError, match=r"are not those here: helper \(helper.py\) has changed"):
        case.publish()
