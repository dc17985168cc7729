"""A store as one file: what is whole arrives, and a file with any damage is refused."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from commands import output_of
from stored import held, pack_of
from variants import action_key, blobs, fill, put, request_key

from pallasc.cache.format import encode, sha256
from pallasc.cache.manifests import Manifest, Trust
from pallasc.cache.packs import Entry
from pallasc.cache.store import Store
from pallasc.cache.transfer import Exported, Imported, export_file, import_file
from pallasc.cache.verify import verify
from pallasc.errors import CorruptError, NotCachedError, SpecError, ToolError

Make = Callable[[str, Iterable[int]], Store]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(name: str, numbers: Iterable[int]) -> Store:
        made = Store(tmp_path / name)
        fill(made, numbers)
        return made

    return make


def exported(source: Store) -> Path:
    file = source.root.with_suffix(".pack")
    export_file(source, file)
    return file


def take(store: Store, source: Store) -> Imported:
    return import_file(store, exported(source))


def state(store: Store) -> dict[Path, bytes]:
    """Return each file of a store."""
    return {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}


def test_everything_that_the_store_lacks_is_taken_once(make: Make, store: Store) -> None:
    put(store, 0)
    one, two = make("one", range(4)), make("two", range(3, 7))
    one.put_artifact(action_key(8), {}, {"cubin": b"x" * 99})
    one.put_manifest(request_key(9), Manifest(check="passed"))
    before = state(one)
    assert export_file(one, exported(one)) == Exported(5, 5, exported(one).stat().st_size)
    first, second = take(store, one), take(store, two)
    assert (first.artifacts, first.manifests, first.existed) == (4, 4, 1)
    assert (second.artifacts, second.manifests, second.existed) == (3, 3, 1)
    assert held(store) == {*range(7), 8}
    assert all(store.get_manifest(request_key(n)) for n in [*range(7), 9])
    assert verify(store).findings == []
    assert state(one) == before
    before = state(store)
    again = take(store, one)
    assert (again.artifacts, again.manifests, again.existed) == (0, 0, 5)
    assert state(store) == before


def test_what_is_damaged_is_left_out_and_the_source_is_only_read(make: Make, store: Store) -> None:
    one = make("one", range(5))
    one.path("ac", action_key(0)).write_bytes(b"damaged")
    one.path("cas", sha256(blobs(1)["cubin"])).unlink()
    one.path("man", request_key(2)).write_bytes(b"")
    before, source = state(one), Store(one.root, read_only=True)
    assert take(store, source).artifacts == 3
    assert len(source.warnings) >= 2
    assert held(store) == {2, 3, 4}
    assert state(one) == before
    assert verify(store).findings == []


def _trust(secret: bytes, *, required: bool = True) -> Trust:
    def sign(message: bytes) -> bytes:
        return hashlib.sha256(secret + message).digest()

    name = hashlib.sha256(secret).hexdigest()
    return Trust(required, {name: sign}, {name: lambda given, text: sign(text) == given})


def test_only_what_a_trusted_key_signed_is_taken_where_that_is_required(
    make: Make, tmp_path: Path
) -> None:
    signed = Store(tmp_path / "signed", trust=_trust(b"ours"))
    forged = Store(tmp_path / "forged", trust=_trust(b"theirs"))
    swapped = Store(tmp_path / "swapped", trust=_trust(b"ours"))
    for number, source in enumerate((signed, forged, swapped)):
        put(source, number)
    swapped.path("ac", action_key(2)).unlink()
    swapped.put_artifact(action_key(2), {"made": "elsewhere"}, blobs(2))
    target = Store(tmp_path / "target", trust=_trust(b"ours"))
    plain = make("plain", [3])
    results = [take(target, each) for each in (signed, forged, swapped, plain)]
    assert [taken.artifacts for taken in results] == [1, 0, 0, 0]
    assert [taken.unsigned for taken in results] == [0, 1, 0, 1]
    assert held(target) == {0}
    assert target.get_manifest(request_key(0)) is not None
    willing = Store(tmp_path / "willing", trust=_trust(b"ours", required=False))
    assert take(willing, plain).artifacts == 1
    manifest = willing.find_manifest(request_key(3))
    assert manifest is not None
    assert "signed" not in manifest.to_json()


def test_a_file_with_a_changed_byte_is_refused_whole(make: Make, store: Store) -> None:
    file = exported(make("one", range(3)))
    data = file.read_bytes()
    for position in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[position] ^= 0x20
        for wrong in (damaged, data[:position]):
            file.write_bytes(wrong)
            with pytest.raises(CorruptError, match=r"cannot be imported: .*Nothing was stored\."):
                import_file(store, file)
    assert not store.folder.exists()


def _record(name: str, blob: str) -> Entry:
    body = {"artifact": {}, "blobs": {"cubin": {"digest": blob, "size": 5}}}
    return Entry("ac", name, encode("artifact", name, body)[0])


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("cas", "0" * 64, b"another digest")],
        [Entry("ac", action_key(0), b"no record")],
        [_record(action_key(0), "0" * 64)],
        [Entry("man", action_key(0), encode("manifest", action_key(0), {"unknown": 1})[0])],
    ],
    ids=["a blob of another digest", "no record", "a blob is missing", "an unknown field"],
)
def test_a_file_that_holds_something_else_is_refused(
    store: Store, tmp_path: Path, entries: list[Entry]
) -> None:
    (tmp_path / "pack").write_bytes(pack_of(*([entry] for entry in entries)))
    with pytest.raises(CorruptError, match="Nothing was stored"):
        import_file(store, tmp_path / "pack")
    assert not store.folder.exists()


MEASURED = """\
import json, sys
from pathlib import Path
from pallasc.cache.store import Store
from pallasc.cache.transfer import import_file
from pallasc.errors import CorruptError
try:
    import_file(Store(sys.argv[1]), Path(sys.argv[2]))
    message = ""
except CorruptError as error:
    message = error.message
status = Path("/proc/self/status").read_text()
print(json.dumps([message, int(status.partition("VmHWM:")[2].split()[0])]))
"""


def _dense() -> bytes:
    contents = [bytes([number]) + os.urandom(200_000) + bytes(50_000_000) for number in range(4)]
    return pack_of(*([Entry("cas", sha256(content), content)] for content in contents))


def _nested() -> bytes:
    text = b"[" + b"[]," * 2_600_000 + b"[]]"
    body = b'{"specs":' + text + b"}"
    head = f"pallasc-store 1 manifest {action_key(0)} {sha256(body)}\n".encode()
    return pack_of([Entry("man", action_key(0), head + body)])


@pytest.mark.parametrize("forge", [_dense, _nested])
def test_a_forged_file_costs_little_memory(tmp_path: Path, forge: Callable[[], bytes]) -> None:
    (tmp_path / "forged").write_bytes(forge())
    command = [sys.executable, "-P", "-c", MEASURED, str(tmp_path / "store"), "forged"]
    message, most_kb = json.loads(output_of(command, cwd=tmp_path))
    assert most_kb < 400_000
    # Dense files are allowed, but nothing names these blobs.
    assert ("cannot be imported" in message) == (forge is not _dense)
    assert not (tmp_path / "store").exists()


def test_what_cannot_be_read_or_written_is_an_error(make: Make, tmp_path: Path) -> None:
    with pytest.raises(NotCachedError, match="there is no store"):
        export_file(Store(tmp_path / "nothing"), tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
    one = make("one", [0])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SpecError, match="cannot be written"):
        export_file(one, tmp_path / "file" / "pack")
    with pytest.raises(SpecError, match="there is no folder"):
        export_file(one, tmp_path / "missing" / "x" / "file.pack")
    assert not (tmp_path / "missing").exists()
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", "pipe"):
        with pytest.raises(SpecError):
            import_file(one, tmp_path / name)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "v1").write_text("in the way")
    with pytest.raises(ToolError, match="cannot be written"):
        take(Store(tmp_path / "target"), one)
