"""Compare the sources that a manifest lists with what is there now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.inputs.reads import change_of, digest_of, package_in, path_of
from pallasc.compiler.toolchain.identity import located_digest
from pallasc.compiler.toolchain.modules import Found, Place
from pallasc.errors import PallascError


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A source that differs from what a manifest recorded.

    Attributes:
        kind: field of the manifest that lists it; `unreadable` if it cannot be read.
        label: its label in that field; the error if unreadable.
        file: current path, relative to the spec's folder if inside it; "" if it is gone.
        packages: current digests of the installed packages that differ, None for missing ones.
        manifest: the manifest, for the recorded versions of packages.
    """

    kind: Literal["files", "packages", "opened", "absent", "hidden", "unreadable"]
    label: str = ""
    file: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    manifest: Manifest | None = field(default=None, repr=False)

    def sentences(self) -> list[str]:
        """Return the change in words."""
        if self.kind == "files":
            return [self._file_sentence()]
        if self.kind == "packages":
            return self._package_sentences()
        if self.kind == "opened":
            return [change_of(self.label)]
        if self.kind == "absent":
            return [f"{self.label} was missing and can be imported now"]
        if self.kind == "hidden":
            return ["different modules of Python are shadowed by files of the same name"]
        return [f"a source listed in its manifest cannot be read: {self.label}"]

    def _file_sentence(self) -> str:
        """Name the source: `helper (lib/helper.py)`, `kernel.py`."""
        kind, _, name = self.label.partition(":")
        shown = f"{name} ({self.file})" if self.file and kind != "file" else name
        return f"{shown} {'has changed' if self.file else 'is gone'}"

    def _package_sentences(self) -> list[str]:
        """Name each package with both versions."""
        from pallasc.compiler.toolchain.identity import package_components
        from pallasc.compiler.toolchain.toolchain import version_of
        from pallasc.specs.lock import differences

        recorded = self.manifest or Manifest()
        before = {name: recorded.packages.get(name) for name in self.packages}
        versions = {name: version_of(name) for name, now in self.packages.items() if now}
        return differences(
            package_components(before, recorded.package_versions),
            package_components(self.packages, versions),
        )


@dataclass(frozen=True, slots=True)
class CurrentSources:
    """The current state of the sources that manifests list.

    Attributes:
        place: folders in which files and modules are searched for.
        digests: computes digests of files.
        unchecked: if not None, missing packages do not count as changed, and their names are added
            here.
    """

    place: Place
    digests: FileDigests
    unchecked: set[str] | None = None

    def first_change(self, manifest: Manifest) -> SourceChange | None:
        """Return the first source that has changed, None if none has."""
        return next(self.changes(manifest), None)

    def changes(self, manifest: Manifest) -> Iterator[SourceChange]:
        """Yield each source that has changed."""
        try:
            found = self.place.find(manifest)
            yield from self._files(manifest, found)
            yield from self._packages(manifest, found)
            yield from self._opened(manifest)
            yield from (SourceChange("absent", name) for name in found.importable)
            if manifest.hidden != found.hidden:
                yield SourceChange("hidden")
        except (OSError, ValueError) as error:  # a name that no file or package can have
            yield SourceChange("unreadable", str(error))

    def _files(self, manifest: Manifest, found: Found) -> Iterator[SourceChange]:
        for label, path in found.files.items():
            now = None if path is None else self._digest(path)
            if now != manifest.files[label]:
                yield SourceChange("files", label, "" if now is None else self._shown(path))

    def _packages(self, manifest: Manifest, found: Found) -> Iterator[SourceChange]:
        differing: dict[str, str | None] = {}
        for name, path in found.packages.items():
            now = None if path is None else located_digest(path, self.digests.digest)
            if now is None and self.unchecked is not None:
                self.unchecked.add(name)
            elif now != manifest.packages[name]:
                differing[name] = now
        if differing:
            yield SourceChange("packages", packages=differing, manifest=manifest)

    def _opened(self, manifest: Manifest) -> Iterator[SourceChange]:
        for label, recorded in sorted(manifest.opened.items()):
            path = path_of(label, self.place.base_dir)
            now = digest_of(label, path, self.digests.digest)
            package = package_in(label)
            if self.unchecked is not None and now is None and recorded is not None and package:
                self.unchecked.add(package)
            elif now != recorded:
                yield SourceChange("opened", label)

    def _digest(self, path: Path) -> str | None:
        try:
            return self.digests.digest(path)
        except PallascError:
            return None

    def _shown(self, path: Path | None) -> str:
        base = self.place.base_dir
        return str(path.relative_to(base) if path and path.is_relative_to(base) else path)
