"""How small a bundle is: the library and JAX's own kernels for all their targets.

Against the raw cubins as they were compiled, against `fatbinary` with its strongest compression
(`--compress-all --compress-mode=size --concat`), and against the deflate of a wheel. The bundle has
manifest, plans and records in it, the rivals have cubins alone. The rivals are also given cubins
without their debug sections; no goal is set for that. Below, other ways to compress the same
stripped cubins, each by zstd at level 19: alone, with trained dictionaries, in solid blocks.

What is not in the store is compiled first.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard
from harness import Figure, run_benchmark

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.strip import strip_debug
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.matrix import expand

LIBRARY = Path(__file__).resolve().parent.parent / "specs" / "library"
LEVEL = 19


@dataclass(frozen=True)
class Cubin:
    """A cubin and the architecture it is for."""

    arch: str
    data: bytes


def build_all(specs: Sequence[str], store: Store) -> list[VariantResult]:
    """Return the results of all variants; each must have an artifact."""
    variants = expand(SpecReader(store=store).specs(specs))
    report = build(variants, store=store)
    for result in report.failed:
        raise SystemExit(f"{result.variant.id}: {result.error}")
    return list(report.results)


def cubins_of(results: Iterable[VariantResult]) -> dict[str, Cubin]:
    """Return every cubin once, by digest."""
    found = {}
    for result in results:
        assert result.artifact is not None
        for kernel in result.artifact.kernels:
            data = result.artifact.blob(kernel.cubin)
            found[kernel.cubin] = Cubin(result.variant.target.arch, data)
    return dict(sorted(found.items()))


def items_of(results: Iterable[VariantResult]) -> list[Item]:
    """Return what a bundle of all results is made from."""
    return [
        Item(result.variant.name, dict(result.variant.params), result.artifact)
        for result in results
        if result.artifact is not None
    ]


def fatbinary_bytes(cubins: Mapping[str, Cubin], *, concat: bool) -> int:
    """Return the size of a fat binary of all cubins with the strongest compression."""
    tool = find_toolchain().ptxas.with_name("fatbinary")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [str(tool), "-64", "--compress-all", "--compress-mode=size"]
        command += ["--concat"] if concat else []
        command.append(f"--create={folder / 'all.fatbin'}")
        for digest, cubin in cubins.items():
            path = folder / f"{digest}.cubin"
            path.write_bytes(cubin.data)
            command.append(f"--image3=kind=elf,sm={cubin.arch.removeprefix('sm_')},file={path}")
        subprocess.run(command, check=True)
        return (folder / "all.fatbin").stat().st_size


def wheel_bytes(files: Mapping[str, bytes]) -> int:
    """Return the size of a wheel's deflate over files of their own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return len(buffer.getvalue())


def alone(contents: Sequence[bytes]) -> int:
    """Return the size of all contents, each compressed alone."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    return sum(len(compressor.compress(content)) for content in contents)


def with_dictionary(contents: Sequence[bytes], size: int) -> int:
    """Return the same with one trained dictionary, itself compressed and counted."""
    dictionary = zstandard.train_dictionary(size, list(contents), level=LEVEL)
    compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary)
    own = len(zstandard.ZstdCompressor(level=LEVEL).compress(dictionary.as_bytes()))
    return own + sum(len(compressor.compress(content)) for content in contents)


def solid(groups: Iterable[Sequence[bytes]]) -> int:
    """Return the size of groups of contents, each compressed as one."""
    return alone([b"".join(group) for group in groups])


def by_arch(cubins: Mapping[str, Cubin]) -> list[list[bytes]]:
    """Return the contents of each architecture."""
    groups: dict[str, list[bytes]] = {}
    for cubin in cubins.values():
        groups.setdefault(cubin.arch, []).append(cubin.data)
    return [groups[arch] for arch in sorted(groups)]


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Compile what is missing, make the bundle, compare."""
    store = Store(options.store) if options.store else Store()
    results = build_all(options.specs or [str(LIBRARY)], store)
    cubins = cubins_of(results)
    stripped = {key: Cubin(cubin.arch, strip_debug(cubin.data)) for key, cubin in cubins.items()}
    items = items_of(results)
    data = build_bundle(items, level=LEVEL)
    raw, bare = _total(cubins), _total(stripped)
    return [
        Figure("variants", len(items)),
        Figure("cubins, each once", len(cubins)),
        Figure("raw cubins", raw, "bytes"),
        Figure("without debug sections", bare, "bytes"),
        Figure("bundle", len(data), "bytes"),
        *_parts(data),
        Figure("bundle with debug sections", len(build_bundle(items, keep_debug=True)), "bytes"),
        Figure("bundle / raw cubins", len(data) / raw, goal=0.2),
        Figure("bundle / stripped cubins", len(data) / bare),
        *_rivals("raw cubins", len(data), cubins, goal=1),
        *_rivals("stripped cubins", len(data), stripped, goal=None),
        *_ways(stripped),
    ]


def _total(cubins: Mapping[str, Cubin]) -> int:
    return sum(len(cubin.data) for cubin in cubins.values())


def _parts(data: bytes) -> list[Figure]:
    """Return how the bytes of a bundle are shared out."""
    with open_bundle(data) as bundle:
        reader = bundle.reader
        sizes = dict.fromkeys(Kind, 0)
        for number in range(reader.catalog.blobs):
            row = reader.row(number)
            sizes[row.kind] += row.extent.size
        manifest = len(data) - sum(sizes.values())
    return [
        Figure("of it cubins", sizes[Kind.CUBIN], "bytes"),
        Figure("of it records and plans", sizes[Kind.RECORD], "bytes"),
        Figure("of it manifest", manifest, "bytes"),
    ]


def _rivals(what: str, own: int, cubins: Mapping[str, Cubin], goal: float | None) -> list[Figure]:
    strongest = fatbinary_bytes(cubins, concat=True)
    each = fatbinary_bytes(cubins, concat=False)
    wheel = wheel_bytes({key: cubin.data for key, cubin in cubins.items()})
    return [
        Figure(f"fatbinary of {what}, solid", strongest, "bytes"),
        Figure(f"fatbinary of {what}", each, "bytes"),
        Figure(f"wheel's deflate of {what}", wheel, "bytes"),
        Figure(f"bundle / fatbinary of {what}, solid", own / strongest, goal=goal),
        Figure(f"bundle / fatbinary of {what}", own / each, goal=goal),
        Figure(f"bundle / wheel's deflate of {what}", own / wheel, goal=goal),
    ]


def _ways(stripped: Mapping[str, Cubin]) -> list[Figure]:
    contents = [cubin.data for cubin in stripped.values()]
    figures = [("each alone", alone(contents))]
    for size in (16, 64, 128, 256):
        figures.append((f"a dictionary of {size} KiB", with_dictionary(contents, size * 1024)))
    figures.append(("solid for each architecture", solid(by_arch(stripped))))
    figures.append(("solid, all together", solid([contents])))
    return [Figure(f"cubins, {name}", size, "bytes") for name, size in figures]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="*", help="spec files; by default the library")
    parser.add_argument("--store", type=Path, help="folder of the store")


if __name__ == "__main__":
    raise SystemExit(run_benchmark(__doc__ or "", measure, _options))
