"""The user's files that compiling a build's variants read, from the manifests in the store.

These are modules that kernels import and data files that they open, without installed packages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import file_holding
from pallasc.cache.store import Store
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.inputs.reads import FILE, path_of
from pallasc.compiler.inputs.request import place_of
from pallasc.compiler.toolchain.modules import Place, is_installed
from pallasc.specs.spec import Spec

_OWN = "module:pallasc."


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Files by the spec file whose variants read them.

    Attributes:
        files: resolved paths by the path of the spec file.
        unknown: spec files with a variant that has no manifest.
    """

    files: Mapping[Path, set[Path]] = field(default_factory=dict)
    unknown: frozenset[Path] = frozenset()

    def by(self, specs: Collection[Path]) -> set[Path]:
        """Return the files that variants of these spec files read."""
        return {file for spec in specs for file in self.files.get(spec, ())}

    def is_unknown(self, specs: Collection[Path]) -> bool:
        """Tell whether variants of these spec files may have read other files."""
        return not self.unknown.isdisjoint(specs)


NOTHING_READ = FilesRead()


def files_read(results: Iterable[VariantResult], store: Store) -> FilesRead:
    """Return the files that were read to compile results, now or earlier."""
    files: dict[Path, set[Path]] = {}
    unknown = set()
    seen: set[tuple[str, str]] = set()
    for result in results:
        spec = Path(result.variant.location.file).resolve()
        manifest = store.get_manifest(result.manifest_key) if result.manifest_key else None
        if manifest is None:
            unknown.add(spec)
            continue
        place = (manifest.read, str(spec))
        if place not in seen:
            seen.add(place)
            variant = result.variant
            read = paths_read(manifest, place_of(variant), variant.base_dir)
            files.setdefault(spec, set()).update(read)
    return FilesRead(files, frozenset(unknown))


def paths_read(manifest: Manifest, place: Place, base_dir: str) -> Iterator[Path]:
    """Yield the user's files that a manifest says were read.

    Args:
        manifest: that of a variant, or of a Python spec file.
        place: where modules were searched.
        base_dir: the folder of the spec.
    """
    for label in manifest.files:
        path = None if label.startswith(_OWN) else place.locate(label)
        if path is not None and not is_installed(str(path)):
            yield Path(file_holding(str(path))).resolve()
    for label, digest in manifest.opened.items():
        if label.startswith(FILE) and digest is not None:
            path = path_of(label, base_dir)
            if path.is_file() and not is_installed(str(path)):
                yield path.resolve()


def files_named(specs: Iterable[Spec]) -> set[Path]:
    """Return the spec files, and the entry points, data files and tables that they name."""
    files = set()
    for spec in specs:
        files.add(Path(spec.location.file).resolve())
        entry = spec.entry.partition(":")[0]
        own = [*spec.files, *([entry] if entry.endswith(".py") else [])]
        own += [spec.table] if spec.table else []
        own += [spec.tune.table] if spec.tune is not None else []
        files.update((Path(spec.base_dir) / name).resolve() for name in own)
    return files
