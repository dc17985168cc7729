"""Create kernels from artifacts, bundle files and installed packages."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from pallasc.errors import ArgumentError
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching import known
from pallasc.runtime.matching.candidates import Candidate, Origin
from pallasc.runtime.matching.variants import Rules
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.objects import cached_property
from pallasc.specs.spelling import suggestion
from pallasc.specs.templates import Scalar

if TYPE_CHECKING:
    from pallasc.runtime.bundles import Bundles
    from pallasc.specs.bundle.signature import Keys

Entry = tuple[str, Mapping[str, Scalar], Artifact]
"""A variant to open: kernel name, parameters, compiled artifact."""

_MOST_SHOWN = 8


class NoSuchKernelError(ArgumentError, KeyError):
    """No kernel has this name: an `ArgumentError`, and a `KeyError` as for any mapping."""


class _Siblings:
    """Find kernels opened from the same bundles, without keeping their `Kernels` alive."""

    def __init__(self, kernels: Kernels, bundles: Bundles, *, checks: bool) -> None:
        self._kernels = weakref.ref(kernels)
        self._bundles = bundles
        self._checks = checks

    def __call__(self, name: str) -> Kernel | None:
        """Return the kernel with a name, None if there is none."""
        kernels = self._kernels()
        return self.open(name) if kernels is None else kernels.get(name)

    def open(self, name: str) -> Kernel | None:
        """Return a new kernel object for a name."""
        candidates = self._bundles.candidates(name)
        if not candidates:
            return None
        return Kernel(name, candidates, checks=self._checks, rules=Rules(self))


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
        self._siblings = None if bundles is None else _Siblings(self, bundles, checks=checks)
        self._kernels: dict[str, Kernel] = {}
        variants: dict[str, list[Candidate]] = {}
        for name, params, artifact in entries:
            variants.setdefault(name, []).append(Candidate(name, dict(params), artifact))
        for name, candidates in variants.items():
            self._kernels[name] = Kernel(name, candidates, checks=checks)
        known.note(self)

    def __repr__(self) -> str:
        shown = ", ".join(self._names[:_MOST_SHOWN])
        more = ", …" if len(self._names) > _MOST_SHOWN else ""
        origins = ", ".join(map(str, self.origins))
        return f"<Kernels {shown or 'none'}{more}{f' from {origins}' if origins else ''}>"

    def __enter__(self) -> Kernels:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel.

        Raises:
            NoSuchKernelError: there is none with this name; `get` returns its default instead.
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
            ArgumentError: it is not a GPU.
            SelectionError: a kernel has no variant that can run there.
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
        if kernel is None and self._siblings is not None:
            made = self._siblings.open(name)
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
        ArgumentError: this is not an artifact.
    """
    if not isinstance(artifact, Artifact):
        raise ArgumentError(
            f"open_artifact takes what pallasc.compile returns, not {type(artifact).__name__}; "
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
        CorruptError: it is not a bundle, is damaged, or lacks a required signature.
        ToolError: a signature is required, and the cryptography package is missing.
    """
    from pathlib import Path

    from pallasc.runtime.bundles import Bundles
    from pallasc.runtime.discovery import BundleFile
    from pallasc.specs.bundle.signature import read_policy

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
    """Return the kernels of an installed package: its own, and those that providers add.

    Each call opens the bundles again, so call it once, `kernels = pallasc.load(__name__)` in the
    package itself. The package is not imported.

    Args:
        package: its import name, or the package.
        checks: as for `Kernel`.
        trusted: as for `open_bundle`; every bundle must be signed. Relative paths are resolved
            inside the package, and nowhere else.
        require_signature: as for `open_bundle`.

    Raises:
        ArgumentError: it cannot be the name of a package.
        ToolError: there is no bundle, a provider has none, or a signature is required and the
            cryptography package is missing.
        SpecError: `PALLASC_BUNDLE_PATH` names a path that does not exist, or a file cannot be read.
        CorruptError: a bundle is damaged, or lacks a required signature.
    """
    from pallasc.runtime.bundles import Bundles
    from pallasc.runtime.discovery import find_bundles, package_folders
    from pallasc.specs.bundle.signature import read_policy

    files = find_bundles(package)
    beside = () if trusted is None else package_folders(package)
    policy = read_policy(trusted, require_signature, beside=beside)
    return Kernels(checks=checks, bundles=Bundles(files, policy))


def _name(artifact: Artifact) -> str:
    launches: Any = artifact.plan.launches
    return launches[0].kernel if launches else f"artifact {artifact.digest[:12]}"
