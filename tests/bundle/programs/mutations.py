"""Damage bundles and read them: `mutations.py COUNT SEED`; prints what went wrong as JSON.

Two kinds take turns. *Damage* changes bytes of the file: what is read must be what was there, or a
CorruptError. *Forgery* changes a part behind its digests and makes all digests fit again: anything
may come out but a crash, another exception, or much time or memory.
"""

import copy
import json
import random
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_bundles import make_artifact, make_items
from taken_apart import Parts

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.format import Kind, pack_rows
from pallasc.specs.bundle.manifest import Item, Provenance
from pallasc.specs.bundle.signature import Signature, pack_signatures
from pallasc.specs.bundle.tuned import Reference, Sampled, pack_reference
from pallasc.specs.bundle.verify import Rules, audit, verify
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import Scalar, digest
from pallasc.specs.tuning import Measured, Row, Tuning

MEMORY_BYTES = 2**30
"""What a process may have: far more than it needs, far less than a bundle can claim."""
LONGEST_S = 20
WRONG = "a wrong kernel"
"""What the fault begins with, or has in it, where other code came out than was put in."""

Content = dict[str, tuple[str, dict[str, bytes]]]
"""Of each variant: the digest of its artifact, and what ships."""


def make_bundle(points: int = 4) -> bytes:
    """Return a bundle with everything in it: a tuned kernel, constants, provenance, a signature."""
    items = make_items(points, names=("norm", "scale"), targets=("h100-sxm", "b200"))
    constant = random.Random(5).randbytes(512)
    items.append(Item("table", {}, make_artifact(9, constant=constant)))
    items.append(_tuned_item())
    origin = Provenance("pallasc 1.0", {"ptxas": "13.5"}, {"a.yaml": "0" * 64}, "c0ffee", False)
    data = build_bundle(items, provenance=[origin], keep_ptx=True)
    root = bytes.fromhex(open_bundle(data).root)
    return data + pack_signatures([Signature("11" * 32, root, bytes(64))])


def _tuned_item() -> Item:
    measured = Measured(12.5, 0.5, 31, "NVIDIA H100 80GB HBM3", "580.95.05", 1755, "2026-11-23")
    tuning = Tuning(
        by=("m", "dtype"),
        over=("tile",),
        buckets={"m": (16, 64)},
        pad={"m": {"x": 0, "out": 0}},
        is_default=True,
        rows=(Row("h100-sxm", (16, "bf16"), {"tile": 8}, measured=measured),),
        rank=1,
    )
    params: dict[str, Scalar] = {"m": 16, "dtype": "bf16", "tile": 8}
    reference = Reference(7, 1e-2, 1e-3, (Sampled((0, 500), (1.5, float("nan"))),))
    return Item(
        "tuned", params, make_artifact(11), tuning=tuning, reference=pack_reference(reference)
    )


def read_all(bundle: Bundle) -> Content:
    """Return all that a bundle holds, without verifying it as a whole."""
    found: Content = {}
    for entry in bundle.entries():
        artifact: Artifact = bundle.artifact(entry)
        _ = artifact.plan, artifact.kernels, artifact.digest, artifact.cubin_bytes
        bundle.reference(entry)
        found[entry.id] = entry.digest, artifact.blobs()
        if any(digest(content) != key for key, content in found[entry.id][1].items()):
            raise ValueError(f"{WRONG}: {entry.id} has bytes that are not those of their digest")
        next(bundle.entries(entry.name), None)
    _ = bundle.names(), bundle.provenance, bundle.codec, bundle.signatures
    return found


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes changed in one way or several."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        rng.choice(_DAMAGES)(result, rng)
    return bytes(result)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _insert(data: bytearray, rng: random.Random) -> None:
    """Put bytes in, perhaps at the end, or in the place of others."""
    at = rng.choice((len(data), rng.randrange(len(data) + 1)))
    data[at : at + rng.choice((0, 1, 64, 512))] = rng.randbytes(rng.choice((0, 1, 8, 136, 1000)))


def _splice(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((1, 4, 32, 48, 200, 1000))
    here, there = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    data[here : here + size] = data[there : there + size]


def _number(data: bytearray, rng: random.Random) -> None:
    """Put an extreme number where one may stand, most often in the head."""
    size = rng.choice((2, 4, 8))
    at = rng.randrange(rng.choice((64, 256, max(1, len(data)))))
    value = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(data), rng.getrandbits(64)))
    if at + size <= len(data):
        data[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _flip, _cut, _insert, _splice, _number,
)  # fmt: skip


def forge(data: bytes, rng: random.Random) -> bytes:
    """Return a bundle with one part changed, and digests that fit."""
    parts = Parts.of(data)
    rng.choice(_FORGERIES)(parts, rng)
    return parts.data()


def _forge_blob(parts: Parts, rng: random.Random) -> None:
    number = rng.randrange(len(parts.rows))
    parts.set_content(number, damage(parts.contents()[number], rng))


def _forge_record(parts: Parts, rng: random.Random) -> None:
    contents = parts.contents()
    number = rng.choice([n for n, row in enumerate(parts.rows) if row.kind is Kind.RECORD])
    record = json.loads(contents[number])
    for _ in range(rng.choice((1, 1, 1, 3))):
        _change_json(record, rng)
    parts.set_content(number, _text(record))


def _forge_page(parts: Parts, rng: random.Random) -> None:
    parts.data()
    parts.blob_pages = [pack_rows(parts.rows)]
    pages = rng.choice((parts.stored, parts.blob_pages, parts.entry_pages))
    number = rng.randrange(len(pages))
    pages[number] = damage(pages[number], rng)


def _forge_entry(parts: Parts, rng: random.Random) -> None:
    """Change a value in what an entry says, and keep the page in order."""

    def change(about: Any) -> bytes:
        _change_json(about, rng)
        return _text(about)

    parts.change_entry(rng.randrange(parts.entries), change)


def _forge_catalog(parts: Parts, rng: random.Random) -> None:
    rng.choice(
        (
            lambda: parts.first_keys.__setitem__(0, damage(parts.first_keys[0], rng)),
            lambda: setattr(parts, "entries", rng.choice((0, 1, 63, 64, 65, 2**24, 2**32 - 1))),
            lambda: parts.info.update(codec=rng.choice((None, [], 5, {"level": [[]]}))),
            lambda: setattr(parts, "provenance", damage(parts.provenance, rng)),
        )
    )()


_FORGERIES: tuple[Callable[[Parts, random.Random], None], ...] = (
    _forge_blob, _forge_record, _forge_record, _forge_record, _forge_page, _forge_page,
    _forge_page, _forge_entry, _forge_entry, _forge_catalog,
)  # fmt: skip

_DEEP = "deep "
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**24, 2**31, 2**63, 2**64, 10**400, 1.5, 1e308, "", "x", "\0", "é",
    "a" * 64, [], [[]], {}, {"a": 1}, [0] * 70, [2**62] * 60,
)  # fmt: skip


def _change_json(value: Any, rng: random.Random) -> None:
    """Change, remove, double or nest something inside of JSON data."""
    places = list(_places(value))
    if not places:
        return
    holder, key = rng.choice(places)
    action = rng.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif action == 2:
        holder[key] = f"{_DEEP}{rng.choice((10, 70, 900, 3000, 200_000))}"
    elif action == 3:
        other, name = rng.choice(places)
        holder[key] = copy.deepcopy(other[name])
    else:
        holder[key] = copy.deepcopy(rng.choice(_VALUES))  # or it would be changed itself


def _text(value: Any) -> bytes:
    """Return JSON, with what stands for deep nesting replaced by it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return re.sub(
        f'"{_DEEP}(\\d+)"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text
    ).encode()


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def judge(data: bytes, original: Content | None) -> str:
    """Return what is wrong with how a bundle is read, "" if nothing is.

    Args:
        data: the bundle.
        original: what must come out if anything does; None where it may be anything.
    """
    found: Content | None = None
    try:
        with open_bundle(data) as bundle:
            found = read_all(bundle)
            verify(bundle)
            if original is None:
                audit(bundle, Rules(targets=("sm_90a",), bundle_bytes=1, driver="12.0"))
    except CorruptError as error:
        message = str(error)
        if original is not None and "the bundle" not in message:
            return f"the message does not name the file: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    if original is not None and found is not None and found != original:
        return f"{WRONG}: it reads as something else"
    return ""


def run(count: int, seed: int) -> dict[str, Any]:
    """Judge so many mutations."""
    data = make_bundle()
    with open_bundle(data) as bundle:
        original = read_all(bundle)
    wrong: list[str] = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        forged = number % 2 == 1
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            mutated = forge(data, rng) if forged else damage(data, rng)
            fault = judge(mutated, None if forged else original)
        except TimeoutError as error:
            fault = str(error)
        if fault:
            wrong.append(f"{seed} {number}: {fault}")
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"mutations": count, "wrong": wrong, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """Return the most memory that this program had since it was started."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def raise_timeout(number: int, frame: object) -> None:
    """Raise an error that no reader of bundles expects."""
    raise TimeoutError(f"it took more than {LONGEST_S} s")


def main() -> None:
    """Judge as many as the command line says, with bounded memory."""
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGPROF, raise_timeout)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(json.dumps(run(count, seed)))


if __name__ == "__main__":
    main()
