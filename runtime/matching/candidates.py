"""Variants that may be launched: facts for selecting a variant, and its artifact."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from pallasc.errors import CorruptError, PallascError
from pallasc.specs.artifacts import cached_property
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.canonical import Scalar, canonical_json, variant_id
from pallasc.specs.tuning import Tuning

ArrayType = tuple[Any, ...]
"""The properties of an array that select a variant: the short name of its dtype, and its shape.

If the array is not row-major, its layout is third (`specs/arrays.py`).
"""


def array_type(
    dtype: str, shape: Iterable[int], layout: tuple[int, ...] | None = None
) -> ArrayType:
    """Return the type of an array."""
    return (dtype, tuple(shape)) if layout is None else (dtype, tuple(shape), layout)


class Origin(Struct, frozen=True):
    """Where variants come from.

    Attributes:
        file: the bundle.
        provider: where the bundle was found: a package (`mylib-sm90 1.0`) or
            `PALLASC_BUNDLE_PATH`; empty for a bundle that was opened by its path.
        package: the package that the kernels belong to; empty if none was requested.
    """

    file: str
    provider: str = ""
    package: str = ""

    def __str__(self) -> str:
        return f"{self.provider} ({self.file})" if self.provider else self.file


class Facts(Struct, frozen=True):
    """Facts about a variant that are known before its artifact is read.

    Attributes:
        target: the model that it was compiled for.
        arch: its architecture.
        minimum_driver: a mapping with the keys `cuda` and `linux`, None if unknown.
        inputs, outputs: its arrays.
    """

    target: str
    arch: str
    minimum_driver: Mapping[str, object] | None
    inputs: Sequence[Array | Binding]
    outputs: Sequence[Array | Binding]


class Candidate:
    """A variant that may be launched.

    Args:
        name: the kernel.
        params: its point in the matrix.
        artifact: the compiled artifact.

    Attributes:
        name, params: as given.
        origin: where it comes from, None if it was not in a bundle.
        origins: the origins of all bundles opened with its bundle.
        vmap: the kernel that does the same for a batch, None if there is none.
        tuning: tuning data that decides its use; None if its kernel is not tuned.
    """

    def __init__(self, name: str, params: Mapping[str, Scalar], artifact: Artifact | None) -> None:
        self.name = name
        self.params = params
        self.origin: Origin | None = None
        self.origins: tuple[Origin, ...] = ()
        self.vmap: str | None = None
        self.tuning: Tuning | None = None
        if artifact is not None:
            vars(self)["artifact"] = artifact

    def __repr__(self) -> str:
        origin = f" from {self.origin}" if self.origin else ""
        return f"<Variant {self.id} ({self.arch}){origin}>"

    @cached_property
    def artifact(self) -> Artifact:
        """The compiled artifact."""
        raise NotImplementedError

    @cached_property
    def signature(self) -> LaunchPlan:
        """The launch plan of its artifact, which has its signature.

        Raises:
            CorruptError: an array is smaller than its buffer.
        """
        self.artifact.plan.check_arrays()
        return self.artifact.plan

    @cached_property
    def facts(self) -> Facts:
        """Facts that are known before its artifact is read."""
        target, plan = self.artifact.target, self.artifact.plan
        driver = self.artifact.record.get("minimum_driver")
        return Facts(target.name, target.arch, driver, plan.inputs, plan.outputs)

    @property
    def target(self) -> str:
        """The model that it was compiled for."""
        return self.facts.target

    @property
    def arch(self) -> str:
        """Its architecture."""
        return self.facts.arch

    @cached_property
    def id(self) -> str:
        """Its variant ID: `matmul[m=1024,n=4096]@h100-sxm`."""
        return variant_id(self.name, self.params.items(), self.target)

    @cached_property
    def arrays(self) -> tuple[ArrayType, ...]:
        """Type of each input, in the order of the signature."""
        return tuple(
            array_type(array.dtype, array.shape, array.layout) for array in self.facts.inputs
        )

    @cached_property
    def types(self) -> tuple[tuple[ArrayType, ...], tuple[ArrayType, ...]]:
        """Type of each input and of each output."""
        return self.arrays, tuple(
            array_type(array.dtype, array.shape) for array in self.facts.outputs
        )

    @cached_property
    def kind(self) -> object:
        """Key of variants with equal signatures, which can share a route; reads the artifact."""
        plan = self.artifact.plan
        outputs = tuple((output.dtype, output.shape) for output in plan.outputs)
        trees = canonical_json([plan.input_tree, plan.output_tree])
        alignments = tuple(plan.buffers[array.buffer].alignment for array in plan.passed)
        return self.arrays, outputs, plan.sources, alignments, trees


def by_arrays(candidates: Iterable[Candidate]) -> dict[tuple[ArrayType, ...], list[Candidate]]:
    """Group variants by the types of their arrays, in order."""
    found: dict[tuple[ArrayType, ...], list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.arrays, []).append(candidate)
    return found


def has_params(candidate: Candidate, params: Mapping[str, object]) -> bool:
    """Return True if a variant has these matrix parameters; 1 and True are different."""
    own = candidate.params
    return all(
        name in own and (type(own[name]), own[name]) == (type(value), value)
        for name, value in params.items()
    )


# ---- kernels that are open in this process, to find blobs that JAX programs name by digest


class Provider(Protocol):
    """An object that has variants."""

    def variants_of(self, kernel: str) -> Iterable[Candidate]:
        """Return the variants of a kernel, an empty iterable if it has no such kernel."""


_lock = threading.Lock()
# By identity, because mappings have no hash.
_providers: WeakValueDictionary[int, Provider] = WeakValueDictionary()


def note_provider(provider: Provider) -> None:
    """Let `find_blob` search a provider as long as it is alive."""
    with _lock:
        _providers[id(provider)] = provider


def find_blob(kernel: str, variant: str, digest: str) -> bytes | None:
    """Return a cubin or constant of a variant, None if no open bundle has it.

    Args:
        kernel: its name.
        variant: its ID.
        digest: digest of the blob.

    Raises:
        CorruptError: no provider has it, and a provider that may have it is damaged.
    """
    with _lock:
        providers = list(_providers.values())
    damaged: CorruptError | None = None
    for provider in providers:
        try:
            for candidate in provider.variants_of(kernel):
                if candidate.id == variant and digest in candidate.artifact.record["blobs"]:
                    return candidate.artifact.blob(digest)
        except CorruptError as error:  # another provider may have it
            damaged = error
        except PallascError:  # its bundle was closed
            continue
    if damaged is not None:
        raise damaged
    return None
