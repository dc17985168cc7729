"""Variants that may be launched: what decides whether they can be, and the artifact of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.canonical import canonical_json, variant_id
from pallasc.specs.lazy import cached_property
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning

ArrayType = tuple[Any, ...]
"""What decides about an array: its dtype by short name and its shape. Its layout is third where it
is not row-major (`specs/arrays.py`)."""


def array_type(
    dtype: str, shape: Iterable[int], layout: tuple[int, ...] | None = None
) -> ArrayType:
    """Return what decides about an array."""
    return (dtype, tuple(shape)) if layout is None else (dtype, tuple(shape), layout)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where variants come from.

    Attributes:
        file: the bundle.
        provider: who brought it: a package, `mylib-sm90 1.0`, `PALLASC_BUNDLE_PATH`; empty for a
            bundle that was opened by its path.
        package: the package whose kernels they are; empty where none was asked for.
    """

    file: str
    provider: str = ""
    package: str = ""

    def __str__(self) -> str:
        return f"{self.provider} ({self.file})" if self.provider else self.file


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a variant before its artifact is read.

    Attributes:
        target: the model that it was compiled for.
        arch: its architecture.
        minimum_driver: `cuda` and `linux`, None where the artifact does not say.
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
        params: its point of the matrix.
        artifact: what was compiled.

    Attributes:
        name, params: as given.
        origin: where it comes from, None where it was in no bundle.
        origins: of all bundles that were opened together with that.
    """

    def __init__(self, name: str, params: Mapping[str, Scalar], artifact: Artifact | None) -> None:
        self.name = name
        self.params = params
        self.origin: Origin | None = None
        self.origins: tuple[Origin, ...] = ()
        if artifact is not None:
            vars(self)["artifact"] = artifact

    def __repr__(self) -> str:
        origin = f" from {self.origin}" if self.origin else ""
        return f"<Variant {self.id} ({self.arch}){origin}>"

    @cached_property
    def artifact(self) -> Artifact:
        """What was compiled."""
        raise NotImplementedError

    @cached_property
    def signature(self) -> Signature:
        """What it takes and gives; its artifact is read for that.

        Raises:
            CorruptError: as `Signature.of` does.
        """
        return Signature.of(self.artifact.plan)

    @property
    def vmap(self) -> str | None:
        """The kernel that does the same to a batch, None where nothing names one."""
        return None

    @property
    def tuning(self) -> Tuning | None:
        """What decides where it is used, None where its kernel is not tuned."""
        return None

    @cached_property
    def facts(self) -> Facts:
        """What is known of it before its artifact is read."""
        target, plan = self.artifact.target, self.artifact.plan
        driver = self.artifact.record.get("minimum_driver")
        driver = driver if isinstance(driver, Mapping) else None
        arch = str(target.get("arch"))
        return Facts(str(target["name"]), arch, driver, plan.inputs, plan.outputs)

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
        """What it is called: `matmul[m=1024,n=4096]@h100-sxm`."""
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
        """What variants of one route have in common; its artifact is read for that."""
        signature = self.signature
        outputs = tuple((output.dtype, output.shape) for output in signature.outputs)
        trees = canonical_json([signature.input_tree, signature.output_tree])
        return self.arrays, outputs, signature.sources, signature.alignments, trees


def by_arrays(
    candidates: Iterable[Candidate],
) -> dict[tuple[ArrayType, ...], list[Candidate]]:
    """Return variants by the types of their arrays, those of each in order."""
    found: dict[tuple[ArrayType, ...], list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(candidate.arrays, []).append(candidate)
    return found


def has_params(candidate: Candidate, params: Mapping[str, object]) -> bool:
    """Tell whether a variant has these parameters of the matrix; 1 and True are two."""
    own = candidate.params
    return all(
        name in own and (type(own[name]), own[name]) == (type(value), value)
        for name, value in params.items()
    )
