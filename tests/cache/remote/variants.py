"""Variants in a store, and builds with a remote that compile nothing."""

import random
from collections.abc import Iterable, Sequence

from pallasc.cache.manifests import Manifest
from pallasc.cache.remote.remote import Remote
from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
from pallasc.cache.store import Store
from pallasc.specs.canonical import labelled_key

NAMESPACE = "5e" * 32


def request_key(number: int) -> str:
    return labelled_key({"request": str(number)})


def action_key(number: int, version: int = 0) -> str:
    return labelled_key({"action": f"{number} {version}"})


def blobs(number: int, version: int = 0, size: int = 3000) -> dict[str, bytes]:
    """Return a cubin that does not compress and PTX that does."""
    rng = random.Random(f"{number} {version}")
    ptx = f"// variant {number} {version}\n" + "add.s32 %r1, %r2, %r3;\n" * (size // 20)
    return {"cubin": b"\x7fELF" + rng.randbytes(size), "ptx": ptx.encode()}


def put(store: Store, number: int, version: int = 0, size: int = 3000) -> str:
    """Put a variant into a store; another version has other sources and another action."""
    action = action_key(number, version)
    made = store.put_artifact(action, {"number": number}, blobs(number, version, size))
    assert made.stored
    about = {"name": f"kernel{number}", "target": "sm_90a", "params": {}, "seconds": 1.5}
    manifest = Manifest(action=action, record=made.digest, fields=f"v{version}", about=about)  # type: ignore[arg-type]
    assert store.put_manifest(request_key(number), manifest).stored
    return request_key(number)


def fill(store: Store, numbers: Iterable[int], version: int = 0, size: int = 3000) -> list[str]:
    return [put(store, number, version, size) for number in numbers]


def check(store: Store, number: int, version: int = 0, size: int = 3000) -> None:
    """Check that a store has a variant, byte for byte."""
    manifest = store.get_manifest(request_key(number))
    assert manifest is not None
    assert manifest.action == action_key(number, version)
    found = store.get_artifact(manifest.action, verify=True)
    assert found is not None
    assert found.digest == manifest.record
    assert {name: found.blob(name) for name in found.names} == blobs(number, version, size)


def accept_all(key: str, manifest: Manifest) -> bool:
    return True


def upload(settings: RemoteSettings, store: Store, keys: Sequence[str]) -> RemoteStats:
    """Do what a build does that has compiled these variants."""
    remote = Remote(settings, store, NAMESPACE, tell=lambda text: None)
    for key in keys:
        remote.offer(key)
    return remote.finish()


def download(
    settings: RemoteSettings, store: Store, keys: Sequence[str]
) -> tuple[dict[str, str], RemoteStats]:
    """Do what a build does that lacks these variants."""
    remote = Remote(settings, store, NAMESPACE, tell=lambda text: None)
    found = dict(remote.fetch(keys, accept_all))
    return found, remote.finish()
