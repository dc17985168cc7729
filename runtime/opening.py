"""From artifacts to kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.selection import Candidate
from pallasc.specs.artifact import Artifact
from pallasc.specs.spelling import suggestion
from pallasc.specs.templates import Scalar

Entry = tuple[str, Mapping[str, Scalar], Artifact]
"""A variant that can be opened: name of the kernel, its parameters, what was compiled."""


class _NoSuchKernelError(ArgumentError, KeyError):
    """A name that no kernel has; `Kernels.get` answers with its default."""


class Kernels(Mapping[str, Kernel]):
    """Kernels by name, each with its variants.

    Args:
        entries: the variants.
        checks: as for `Kernel`.
    """

    def __init__(self, entries: Iterable[Entry], *, checks: bool = True) -> None:
        variants: dict[str, list[Candidate]] = {}
        for name, params, artifact in entries:
            variants.setdefault(name, []).append(Candidate(name, dict(params), artifact))
        self._kernels = {
            name: Kernel(name, found, checks=checks) for name, found in variants.items()
        }

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel.

        Raises:
            ArgumentError: none has this name.
        """
        found = self._kernels.get(name)
        if found is None:
            hint = suggestion(name, self._kernels, otherwise="Kernels")
            raise _NoSuchKernelError(f"there is no kernel {name!r}.", hint=hint)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def preload(self, device: int | None = None) -> None:
        """Load all variants of all kernels that can run on a device.

        Raises:
            SelectionError: a kernel has none that can.
            DeviceError: one cannot be loaded.
        """
        for kernel in self._kernels.values():
            kernel.preload(device)


def open_artifact(artifact: Artifact, *, name: str | None = None, checks: bool = True) -> Kernel:
    """Return the kernel of one artifact; nothing is loaded before it is needed.

    Args:
        artifact: what `pallasc.compile` returns.
        name: what to call it; that of its first launch when left out.
        checks: as for `Kernel`.
    """
    called = name or _name(artifact)
    return Kernel(called, [Candidate(called, {}, artifact)], checks=checks)


def _name(artifact: Artifact) -> str:
    launches: Any = artifact.plan.launches
    return launches[0].kernel if launches else f"artifact {artifact.digest[:12]}"
