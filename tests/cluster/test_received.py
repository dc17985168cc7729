"""What a worker of a cluster compiled: published where it fits, refused where it does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.format import sha256
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.cluster.received import received
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.request import data_digests, request_fields
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.messages import Compile, Compiled
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

    def receive(
        self, reply: Compiled | None = None, *, sent: Mapping[str, str] | None = None
    ) -> Compiled | str:
        with prepare() as setup:
            context = setup.context(self.store)
        lookup = Lookup(context, self.store)
        keys = lookup.requests.of(self.variant)
        asked = Compile(
            variant=self.variant, request=keys.key, fields=request_fields(self.variant, context),
            data=data_digests(self.variant, context.digests), env={}, trusted_records=None,
        )  # fmt: skip
        held = {str(path): sha256(path.read_bytes()) for path in self.folder.glob("*.py")}
        return received(
            reply or self.reply, asked=asked, keys=keys, lookup=lookup, store=self.store,
            sent=held if sent is None else sent,
        )  # fmt: skip


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
        keys = Lookup(setup.context(full), full).requests.of(before)
    ((_, manifest),) = full.sets(keys.key)
    held = full.get_artifact(manifest.action)
    assert held is not None
    reply = Compiled(
        action=manifest.action, status="compiled", seconds=1.0, warnings={}, uncached="",
        digest=held.digest, record=held.artifact, manifest=manifest.to_json(),
        blobs={name: data for name in held.names if (data := held.blob(name)) is not None},
    )  # fmt: skip
    return Case(tmp_path / "specs", variant, Store(tmp_path / "store"), reply)


def test_what_fits_is_published(case: Case) -> None:
    reply = case.receive()
    assert isinstance(reply, Compiled)
    assert (reply.status, reply.digest, reply.stored) == ("compiled", case.reply.digest, True)
    held = case.store.get_artifact(reply.action, verify=True)
    assert held is not None
    assert held.artifact == case.reply.record


def test_what_is_there_already_was_not_compiled_anew(case: Case) -> None:
    case.receive()
    reply = case.receive()
    assert isinstance(reply, Compiled)
    assert reply.status == "hit"


def damaged_blob(reply: Compiled) -> Compiled:
    name, data = next(iter(reply.blobs.items()))
    return replace(reply, blobs={**reply.blobs, name: bytes([data[0] ^ 1]) + data[1:]})


def shorter_blob(reply: Compiled) -> Compiled:
    name, data = next(iter(reply.blobs.items()))
    return replace(reply, blobs={**reply.blobs, name: data[:-1]})


def without_blob(reply: Compiled) -> Compiled:
    return replace(reply, blobs=dict(list(reply.blobs.items())[1:]))


def with_more(reply: Compiled) -> Compiled:
    return replace(reply, blobs={**reply.blobs, sha256(b"more"): b"more"})


def of_record(**values: Any) -> Callable[[Compiled], Compiled]:
    return lambda reply: replace(reply, record={**(reply.record or {}), **values})


def of_manifest(**values: Any) -> Callable[[Compiled], Compiled]:
    return lambda reply: replace(reply, manifest={**(reply.manifest or {}), **values})


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda reply: replace(reply, record=None), "no artifact"),
        (damaged_blob, "damaged"),
        (shorter_blob, "damaged"),
        (without_blob, "damaged"),
        (with_more, "other files than it names"),
        (of_record(schema=99), "damaged"),
        (of_record(target={"name": "x"}), "another target"),
        (of_record(minimum_driver={"cuda": "1"}), "another digest than it says"),
        (of_record(kernels=3), "damaged"),
        (lambda reply: replace(reply, digest="0" * 64), "another digest than it says"),
        (lambda reply: replace(reply, action="0" * 64), "manifest is that of another variant"),
        (of_manifest(action="0" * 64), "manifest is that of another variant"),
        (of_manifest(variant="other@h100"), "manifest is that of another variant"),
        (of_manifest(request="{}"), "manifest is that of another variant"),
        (of_manifest(record="0" * 64), "manifest is that of another variant"),
        (of_manifest(files=3), "manifest is damaged"),
        (of_manifest(files={"module:helper": "0" * 64}), "what it read there is not what is here"),
        (of_manifest(absent=["json"]), "json was missing and can be imported now"),
        (of_manifest(packages={"jsonx": "0" * 64}), "what it read there is not what is here"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_published(
    case: Case, tamper: Callable[[Compiled], Compiled], reason: str
) -> None:
    told = case.receive(tamper(case.reply))
    assert isinstance(told, str)
    assert reason in told
    assert case.store.get_artifact(case.reply.action) is None


def test_a_source_that_differs_there_is_refused(case: Case) -> None:
    (case.folder / "helper.py").write_text("size = 256\n")
    told = case.receive()
    assert told == "what it read there is not what is here: helper (helper.py) has changed"


def test_a_source_that_has_changed_since_it_was_sent_leaves_no_manifest(case: Case) -> None:
    sent = {str(path): sha256(path.read_bytes()) for path in case.folder.glob("*.py")}
    (case.folder / "helper.py").write_text("size = 256\n")
    reply = case.receive(sent=sent)
    assert isinstance(reply, Compiled)
    assert reply.manifest is None
    assert reply.uncached == "helper (helper.py) has changed during compilation"
