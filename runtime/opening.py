"""Create kernels from artifacts, bundle files and installed packages.

The bundles of a package are:

1. `PALLASC_BUNDLE_PATH`: files and folders; earlier ones take precedence.
2. `*.pallasc` directly inside the package.
3. Providers: entry points in the group `pallasc.bundles`. The entry point's name is the package
   that gets the kernels; its value is the package with the bundles, or `package:file`.

Neither the package nor a provider is imported, so a library can load its kernels during its own
import. For a dotted name, the parent packages are imported.

Opening a bundle reads the file's header and catalog and checks its signatures. Looking up a kernel
reads the manifest entries of its variants, which show whether a variant can run: architecture,
driver, dtypes and shapes. A variant's record and cubin are read just before first use, and compared
with the entry.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pallasc.errors import ArgumentError, SelectionError, SpecError, ToolError
from pallasc.runtime.calls.match import Rules
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching.candidates import Candidate, Facts, Origin, note_provider
from pallasc.specs.artifacts import cached_property
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.bundle import open_bundle as open_file
from pallasc.specs.bundle.manifest import Entry as ManifestEntry
from pallasc.specs.bundle.manifest import is_name
from pallasc.specs.bundle.reader import MemorySource
from pallasc.specs.bundle.signature import Policy, read_policy
from pallasc.specs.canonical import Scalar
from pallasc.specs.spelling import suggestion

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from importlib.resources.abc import Traversable

    from pallasc.specs.bundle.signature import Keys


# ---- finding bundles

PATH = "PALLASC_BUNDLE_PATH"
GROUP = "pallasc.bundles"
SUFFIX = ".pallasc"


class BundleFile(Struct, frozen=True):
    """A bundle that was found.

    Attributes:
        origin: where it was found.
        file: the file to read; a `Path` if it is in a real folder.
        rank: precedence; a lower rank goes first.
    """

    origin: Origin
    file: Traversable
    rank: int = 0


def find_bundles(package: str | ModuleType) -> list[BundleFile]:
    """Return a package's bundles in order of precedence.

    Args:
        package: its import name, or the package itself.

    Raises:
        ArgumentError: the name is not a valid package name.
        ToolError: there is no bundle, or a provider has none.
        SpecError: `PALLASC_BUNDLE_PATH` names a path that does not exist.
    """
    name = getattr(package, "__name__", package)
    if not isinstance(name, str) or not _is_name(name) or name == "__main__":
        raise ArgumentError(
            f"{str(name)!r} is not the name of a package.",
            hint="Give the package's import name; pallasc.open_bundle opens a file.",
        )
    items = [item for item in os.environ.get(PATH, "").split(os.pathsep) if item]
    bundles = [
        BundleFile(Origin(str(file), PATH, name), file, rank)
        for rank, item in enumerate(items)
        for file in _developed(name, item)
    ]
    spec = _spec_of(package)
    own = ((name, file) for file in _bundles_inside(spec))
    for provider, file in (*own, *_provided(name)):
        bundles.append(BundleFile(Origin(str(file), provider, name), file, len(items)))
    if not bundles:
        raise _nothing_found(name, spec, items)
    once: dict[str, BundleFile] = {}
    for bundle in bundles:
        once.setdefault(os.path.realpath(bundle.origin.file), bundle)
    return list(once.values())


def package_folders(package: str | ModuleType) -> list[Traversable]:
    """Return the folders of a package, possibly inside a zip file; none if it is not installed.

    Raises:
        ToolError: `package` is a module, not a package.
    """
    spec = _spec_of(package)
    return [] if spec is None else _folders(spec)


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def normalized(name: str) -> str:
    """Return a distribution name normalized for comparison (PEP 503): `my-lib` for `My_Lib`."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- development paths


def _developed(package: str, item: str) -> list[Path]:
    """Return a package's bundles at the path in one item of `PALLASC_BUNDLE_PATH`."""
    owner, is_named, rest = item.partition("=")
    if is_named and _is_name(owner):
        if owner != package:
            return []
        place = _existing(rest)
        return _bundles_in(place) if place.is_dir() else [place]
    place = _existing(item)
    if place.is_dir():
        own = place / package
        return [
            *(file for file in _bundles_in(place) if _is_of(package, file)),
            *(_bundles_in(own) if own.is_dir() else ()),
        ]
    if _is_of(package, place):
        return [place]
    _check_somebodys(place)
    return []


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise SpecError(f"{text}, which {PATH} names, does not exist.", hint=f"Correct {PATH}.")
    return path


def _bundles_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)


def _is_of(package: str, file: Path) -> bool:
    name = file.name.removesuffix(SUFFIX)
    return name != file.name and (name == package or name.startswith(f"{package}-"))


def _check_somebodys(file: Path) -> None:
    """Check that a file is named after an installed package; otherwise no package would load it."""
    owner = file.name.removesuffix(SUFFIX).partition("-")[0]
    if _is_name(owner) and _spec_of(owner) is not None:
        return
    raise SpecError(
        f"{file}, which {PATH} names, is not named after a package.",
        hint=f"Write PACKAGE={file} in the variable, or rename the file to PACKAGE{SUFFIX}.",
    )


# ---- installed packages


def _spec_of(package: str | ModuleType) -> ModuleSpec | None:
    """Return a package's import spec, None if it is not installed."""
    if isinstance(package, ModuleType):
        return package.__spec__
    try:
        return find_spec(package)
    except (ModuleNotFoundError, ValueError):
        module = sys.modules.get(package)
        return None if module is None else module.__spec__


def _bundles_inside(spec: ModuleSpec | None) -> Iterator[Traversable]:
    """Yield the bundles directly inside a package, sorted by name; none if it is not installed."""
    for folder in _folders(spec) if spec else ():
        if folder.is_dir():
            files = sorted(folder.iterdir(), key=lambda file: file.name)
            yield from (file for file in files if file.name.endswith(SUFFIX) and file.is_file())


def _folders(spec: ModuleSpec) -> list[Traversable]:
    places = spec.submodule_search_locations
    if places is None:
        raise ToolError(
            f"{spec.name} is a module, but only packages can contain bundles.",
            hint="Give the name of the package that contains the bundles.",
        )
    folders: list[Traversable] = [Path(place) for place in places]
    if not any(folder.is_dir() for folder in folders):
        reader = getattr(spec.loader, "get_resource_reader", lambda name: None)(spec.name)
        folders = [] if reader is None else [reader.files()]
    return folders


def _provided(package: str) -> Iterator[tuple[str, Traversable]]:
    """Yield each provider's name and version with each of its bundles."""
    from importlib.metadata import entry_points

    own = [
        entry
        for entry in entry_points(group=GROUP)
        if normalized(entry.name) == normalized(package)
    ]
    for entry in sorted(own, key=_provider_name):
        provider = _provider_name(entry)
        for file in _bundles_of(entry, provider, package):
            yield provider, file


def _provider_name(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _bundles_of(entry: EntryPoint, provider: str, package: str) -> list[Traversable]:
    module, _, name = (part.strip() for part in entry.value.partition(":"))
    spec = _spec_of(module) if _is_name(module) else None
    bundles = [file for file in _bundles_inside(spec) if name in ("", file.name)]
    if not bundles:
        lacking = f"has no {name or 'bundle'}" if spec else "cannot be found"
        raise ToolError(
            f"{provider} is installed as a provider of kernels for {package}, but its {module} "
            f"{lacking}.",
            hint="Install it again, or remove it.",
        )
    return bundles


def _nothing_found(package: str, spec: ModuleSpec | None, items: list[str]) -> ToolError:
    developed = f"{', '.join(items)} ({PATH})" if items else f"{PATH}, which is not set"
    places = list(spec.submodule_search_locations or ()) if spec else []
    own = ", ".join(places) if spec else f"{package}, which is not installed"
    return ToolError(
        f"there are no kernels for {package}: no *{SUFFIX} in {own}; none for it in {developed}; "
        f"and no provider (an entry point named {package} in {GROUP}).",
        hint=f"Install the package that provides kernels of {package} for this GPU, if any."
        if spec
        else "Check the name, and whether the package is installed in this environment. To open a "
        "file, use pallasc.open_bundle.",
    )


# ---- open bundles


class Bundled(Candidate):
    """A variant in a bundle.

    Args:
        bundle: the bundle that contains it.
        entry: its manifest entry.
        origin: where the bundle comes from.
        origins: the origins of all bundles opened together with this bundle.

    Attributes:
        entry: as given.
    """

    def __init__(
        self, bundle: Bundle, entry: ManifestEntry, origin: Origin, origins: tuple[Origin, ...]
    ) -> None:
        super().__init__(entry.name, dict(entry.params), None)
        self.origin: Origin = origin
        self.origins = origins
        self.vmap, self.tuning = entry.vmap, entry.tuning
        self._bundle = bundle
        self.entry = entry

    @cached_property
    def artifact(self) -> Artifact:
        """The compiled artifact. Its record is read on first access, its blobs on demand.

        Raises:
            CorruptError: the artifact is damaged, or does not match the manifest.
            SpecError: the bundle was closed.
        """
        return self._bundle.artifact(self.entry)

    @cached_property
    def facts(self) -> Facts:
        """Facts about the variant from the manifest."""
        own = self.entry
        driver = own.minimum_driver or None
        return Facts(own.target, own.arch, driver, own.inputs, own.outputs)


class Bundles:
    """Open bundles that provide kernels together.

    Args:
        files: the bundles to open.
        policy: the signatures that are required.

    Attributes:
        origins: where the bundles come from.

    Raises:
        CorruptError: a bundle is damaged, or lacks a required signature.
        SpecError: a bundle cannot be read.
        ToolError: signatures are required, but the cryptography package is missing.
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

        If a bundle has variants of the kernel for an architecture, bundles with less precedence (a
        greater `rank`) are ignored for that architecture.

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
            other = taken.setdefault(variant.entry.key, variant)
            if other is not variant and other.entry.digest != variant.entry.digest:
                raise _two_artifacts(other, variant)
        return list(taken.values())

    def _ranked(self, name: str) -> Iterator[Bundled]:
        """Yield the variants of a kernel: per architecture, from bundles of the lowest rank."""
        ranks: dict[str, int] = {}
        for file, bundle in self._opened:
            for entry in bundle.entries(name):
                if ranks.setdefault(entry.arch, file.rank) == file.rank:
                    yield Bundled(bundle, entry, file.origin, self.origins)


def _open(file: Traversable) -> Bundle:
    if isinstance(file, Path):
        return open_file(file)
    # The bundle is a compressed member of a zip file, so all of it has to be read.
    return Bundle(MemorySource(file.read_bytes()), str(file))


def _two_artifacts(first: Bundled, other: Bundled) -> SelectionError:
    return SelectionError(
        f"there are two artifacts of {first.id}: {first.entry.digest[:12]} from {first.origin}, "
        f"and {other.entry.digest[:12]} from {other.origin}.",
        hint="Remove one of the two, or reinstall both in matching versions.",
    )


# ---- kernels


Entry = tuple[str, Mapping[str, Scalar], Artifact]
"""A variant to open: kernel name, parameters, compiled artifact."""

_MOST_SHOWN = 8


class NoSuchKernelError(ArgumentError, KeyError):
    """No kernel has this name: an `ArgumentError`, and a `KeyError` as for any mapping."""


def _open_kernel(
    name: str, bundles: Bundles, kernels: weakref.ref[Kernels], *, checks: bool
) -> Kernel | None:
    """Return a new kernel that does not keep its `Kernels` alive; None if no bundle has it."""
    candidates = bundles.candidates(name)
    if not candidates:
        return None

    def find(other: str) -> Kernel | None:
        own = kernels()
        if own is None:
            return _open_kernel(other, bundles, kernels, checks=checks)
        return own.get(other)

    return Kernel(name, candidates, checks=checks, rules=Rules(find))


class Kernels(Mapping[str, Kernel]):
    """Kernels by name, each with its variants. Use `with` to close their bundles.

    A variant is read from its bundle on first use, so bundles stay open while this object or one of
    its kernels is in use. Variants that are already loaded keep working after `close`.

    Args:
        entries: variants that are already in memory.
        checks: as for `Kernel`.
        bundles: open bundles.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        checks: bool = True,
        bundles: Bundles | None = None,
    ) -> None:
        self._bundles = bundles
        self._checks = checks
        self._kernels: dict[str, Kernel] = {}
        variants: dict[str, list[Candidate]] = {}
        for name, params, artifact in entries:
            variants.setdefault(name, []).append(Candidate(name, dict(params), artifact))
        for name, candidates in variants.items():
            self._kernels[name] = Kernel(name, candidates, checks=checks)
        note_provider(self)

    def __repr__(self) -> str:
        shown = ", ".join(self._names[:_MOST_SHOWN])
        more = ", …" if len(self._names) > _MOST_SHOWN else ""
        origins = ", ".join(map(str, self.origins))
        return f"<Kernels {shown or 'none'}{more}{f' from {origins}' if origins else ''}>"

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel.

        Raises:
            NoSuchKernelError: no kernel has this name; `get` returns its default instead.
            CorruptError: the manifest of a bundle is damaged.
            SelectionError: two bundles have different artifacts for a variant.
        """
        kernel = self._find(name)
        if kernel is None:
            hint = suggestion(name, self._names, otherwise="Kernels")
            where = f" in {', '.join(map(str, self.origins))}" if self.origins else ""
            raise NoSuchKernelError(f"there is no kernel {name!r}{where}.", hint=hint)
        return kernel

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The bundles that contain the kernels, highest precedence first."""
        return self._bundles.origins if self._bundles else ()

    def preload(self, device: Any = None) -> None:
        """Load all variants of all kernels that can run on a device.

        Args:
            device: as for `Kernel.preload`.

        Raises:
            ArgumentError: the device is not a GPU.
            SelectionError: a kernel has no variant that can run on the device.
            DeviceError: a variant cannot be loaded.
        """
        for kernel in self.values():
            kernel.preload(device)

    def variants_of(self, kernel: str) -> tuple[Candidate, ...]:
        """Return the variants of a kernel, an empty tuple if the kernel does not exist.

        Raises:
            CorruptError, SelectionError: as for `kernels[name]`.
        """
        found = self._find(kernel)
        return () if found is None else found.variants

    def close(self) -> None:
        """Close the bundles. Calling it again does nothing.

        Variants that are already loaded can still be launched; others cannot.
        """
        if self._bundles is not None:
            self._bundles.close()

    @cached_property
    def _names(self) -> list[str]:
        bundled = self._bundles.names() if self._bundles else []
        return list(dict.fromkeys((*self._kernels, *bundled)))

    def _find(self, name: str) -> Kernel | None:
        kernel = self._kernels.get(name)
        if kernel is None and self._bundles is not None:
            made = _open_kernel(name, self._bundles, weakref.ref(self), checks=self._checks)
            if made is not None:
                kernel = self._kernels.setdefault(name, made)
        return kernel


def open_artifact(artifact: Artifact, *, name: str | None = None, checks: bool = True) -> Kernel:
    """Return the kernel of one artifact. The GPU is first used at the first call.

    Args:
        artifact: the result of `pallasc.compile`.
        name: the kernel's name; if omitted, the name of the artifact's first launch.
        checks: as for `Kernel`.

    Raises:
        ArgumentError: `artifact` is not an artifact.
    """
    if not isinstance(artifact, Artifact):
        raise ArgumentError(
            f"open_artifact takes an artifact from pallasc.compile, not {type(artifact).__name__}; "
            "pallasc.open_bundle opens files."
        )
    called = name or _name(artifact)
    return Kernel(called, [Candidate(called, {}, artifact)], checks=checks)


def open_bundle(
    path: str | os.PathLike[str],
    *,
    checks: bool = True,
    trusted: Keys | Iterable[Keys] | None = None,
    require_signature: bool | None = None,
) -> Kernels:
    """Return the kernels of a bundle. A variant is read on first use.

    Args:
        path: the file.
        checks: as for `Kernel`.
        trusted: the bundle must be signed with one of these keys: public keys, their text, paths of
            key files, or of folders with `*.pub`. Paths must be absolute.
        require_signature: require a signature even without `trusted`, by a key that this machine
            trusts. The environment variable `PALLASC_REQUIRE_SIGNATURE=1` always requires one.

    Raises:
        SpecError: the bundle or a key file cannot be read, or a key path is relative.
        CorruptError: the file is not a bundle, is damaged, or lacks a required signature.
        ToolError: a signature is required, and the cryptography package is missing.
    """
    file = Path(path)
    policy = read_policy(trusted, require_signature)
    return Kernels(checks=checks, bundles=Bundles([BundleFile(Origin(str(file)), file)], policy))


def load(
    package: str | ModuleType,
    *,
    checks: bool = True,
    trusted: Keys | Iterable[Keys] | None = None,
    require_signature: bool | None = None,
) -> Kernels:
    """Return the kernels of an installed package, from its own bundles and from providers.

    Each call opens the bundles again, so call `load` only once: `kernels = pallasc.load(__name__)`
    in the package itself. The package is not imported.

    Args:
        package: its import name, or the package.
        checks: as for `Kernel`.
        trusted: as for `open_bundle`; every bundle must be signed. Relative paths are resolved
            inside the package, and nowhere else.
        require_signature: as for `open_bundle`.

    Raises:
        ArgumentError: the name is not a valid package name.
        ToolError: there is no bundle, a provider has none, or a signature is required and the
            cryptography package is missing.
        SpecError: `PALLASC_BUNDLE_PATH` names a path that does not exist, or a file cannot be read.
        CorruptError: a bundle is damaged, or lacks a required signature.
    """
    files = find_bundles(package)
    beside = () if trusted is None else package_folders(package)
    policy = read_policy(trusted, require_signature, beside=beside)
    return Kernels(checks=checks, bundles=Bundles(files, policy))


def _name(artifact: Artifact) -> str:
    launches: Any = artifact.plan.launches
    return launches[0].kernel if launches else f"artifact {artifact.digest[:12]}"
