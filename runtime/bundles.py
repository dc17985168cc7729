"""Open bundles and offer their variants, which are read on demand.

Opening a bundle reads the file's header and catalog and checks its signatures. Asking for a kernel
reads the manifest entries of its variants, enough to decide which of them could run: architecture,
driver, dtypes and shapes. A variant's record and cubin are read just before first use, and compared
with the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import SelectionError
from pallasc.runtime.discovery import BundleFile
from pallasc.runtime.matching.candidates import Candidate, Facts, Origin
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Entry, is_name
from pallasc.specs.bundle.reader import MemorySource
from pallasc.specs.bundle.signature import Policy
from pallasc.specs.objects import cached_property
from pallasc.specs.tuning import Tuning

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Bundled(Candidate):
    """A variant in a bundle.

    Args:
        bundle: the bundle that contains it.
        entry: its manifest entry.
        origin: where the bundle comes from.
        origins: the origins of all bundles opened together with it.
    """

    def __init__(
        self, bundle: Bundle, entry: Entry, origin: Origin, origins: tuple[Origin, ...]
    ) -> None:
        super().__init__(entry.name, dict(entry.params), None)
        self.origin: Origin = origin
        self.origins = origins
        self._bundle = bundle
        self._entry = entry

    @cached_property
    def artifact(self) -> Artifact:
        """The compiled artifact. Its record is read on first access, its blobs on demand.

        Raises:
            CorruptError: it is damaged, or does not match the manifest.
            SpecError: the bundle was closed.
        """
        return self._bundle.artifact(self._entry)

    @cached_property
    def facts(self) -> Facts:
        """Facts about the variant from the manifest."""
        own = self._entry
        driver = own.minimum_driver or None
        return Facts(own.target, own.arch, driver, own.inputs, own.outputs)

    @property
    def vmap(self) -> str | None:
        """Name of the kernel that does the same for a batch, from the spec."""
        return self._entry.vmap

    @property
    def tuning(self) -> Tuning | None:
        """Tuning data that decides its use; None if its kernel is not tuned."""
        return self._entry.tuning

    @property
    def digest(self) -> str:
        """Digest of the artifact as compiled."""
        return self._entry.digest

    @property
    def key(self) -> bytes:
        """Lookup key of the variant."""
        return self._entry.key


class Bundles:
    """Open bundles whose variants are offered together.

    Args:
        files: the bundles to open.
        policy: the signatures that are required.

    Attributes:
        origins: where the bundles come from.

    Raises:
        CorruptError: a bundle is damaged, or lacks a required signature.
        SpecError: a bundle cannot be read.
        ToolError: signatures are required, and the cryptography package is missing.
    """

    def __init__(self, files: Iterable[BundleFile], policy: Policy) -> None:
        self._opened: list[tuple[BundleFile, Bundle]] = []
        try:
            for file in files:
                bundle = _open(file.file)
                self._opened.append((file, bundle))
                bundle.check_policy(policy)
        except BaseException:
            self.close()
            raise
        self.origins = tuple(file.origin for file, _ in self._opened)

    def close(self) -> None:
        """Close the files."""
        for _, bundle in self._opened:
            bundle.close()

    def names(self) -> list[str]:
        """Return the names of all kernels, sorted."""
        return sorted({name for _, bundle in self._opened for name in bundle.names()})

    def candidates(self, name: str) -> list[Candidate]:
        """Return the variants of a kernel, an empty list if no bundle contains it.

        If a bundle has variants for an architecture, variants for that architecture in bundles of a
        higher rank are ignored.

        Raises:
            CorruptError: a manifest is damaged.
            SelectionError: two bundles of the same rank have different artifacts for a variant.
        """
        if not is_name(name):
            return []
        variants = self._ranked(name)
        if len(self._opened) == 1:
            return list(variants)
        taken: dict[bytes, Bundled] = {}
        for variant in variants:
            other = taken.setdefault(variant.key, variant)
            if other is not variant and other.digest != variant.digest:
                raise _two_artifacts(other, variant)
        return list(taken.values())

    def _ranked(self, name: str) -> Iterator[Bundled]:
        """Yield the variants of a kernel: for each architecture, those with the lowest rank."""
        ranks: dict[str, int] = {}
        for file, bundle in self._opened:
            for entry in bundle.entries(name):
                if ranks.setdefault(entry.arch, file.rank) == file.rank:
                    yield Bundled(bundle, entry, file.origin, self.origins)


def _open(file: Traversable) -> Bundle:
    if isinstance(file, Path):
        return open_bundle(file)
    # The bundle is a compressed member of a zip file, so all of it has to be read.
    return Bundle(MemorySource(file.read_bytes()), str(file))


def _two_artifacts(first: Bundled, other: Bundled) -> SelectionError:
    return SelectionError(
        f"there are two artifacts of {first.id}: {first.digest[:12]} from {first.origin}, and "
        f"{other.digest[:12]} from {other.origin}.",
        hint="Remove one of the two, or install them anew in versions that belong together.",
    )
