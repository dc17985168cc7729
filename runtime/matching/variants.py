"""The variants of a kernel: their signatures, and the subsets with given parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import current_device, get_device
from pallasc.runtime.matching import known, mismatches
from pallasc.runtime.matching.candidates import (
    ArrayType,
    Candidate,
    array_type,
    by_arrays,
    has_params,
)
from pallasc.runtime.matching.padded import Padding, smallest
from pallasc.runtime.matching.selection import arch_refusal, several_fit
from pallasc.runtime.matching.tuned import Selector
from pallasc.specs.artifacts.signature import Arguments, Signature
from pallasc.specs.objects import cached_property


class Rules:
    """Rules that a program declared for a kernel, for JAX transformations.

    Args:
        find: returns the kernel with a name that was opened together with this one.

    Attributes:
        find: as given.
        backward: a kernel or a function that returns gradients, None if there is none.
        batched: the kernel that does the same for a batch, None for the kernel's own variants.
        is_batched: a batched kernel was declared.
        version: incremented by each declaration.
    """

    def __init__(self, find: Callable[[str], Any] = lambda _: None) -> None:
        self.find = find
        self.backward: Any = None
        self.batched: Any = None
        self.is_batched = False
        self.version = 0

    def declare_batched(self, batched: Variants | None) -> None:
        """Declare the kernel that does the same for a batch; None for the kernel's own variants."""
        self.batched, self.is_batched = batched, True
        self.version += 1

    def declare_backward(self, backward: Any) -> None:
        """Declare the kernel or function that returns gradients."""
        self.backward = backward
        self.version += 1


class Variants:
    """The variants of a kernel.

    Args:
        name: their name in messages.
        candidates: the variants, at least one.
        checks, is_by_digest: see `Kernel`.
        rules: declared rules, shared by all kernels derived from one.

    Attributes:
        name, checks, is_by_digest, rules: as given.
        variants: the candidates.
    """

    def __init__(
        self,
        name: str,
        candidates: Iterable[Candidate],
        *,
        checks: bool = True,
        is_by_digest: bool = False,
        rules: Rules | None = None,
    ) -> None:
        self.name = name
        self.checks = checks
        self.is_by_digest = is_by_digest
        self.rules = rules or Rules()
        self.variants: tuple[Candidate, ...] = tuple(candidates)
        if not self.variants:
            raise ArgumentError(f"kernel {name} has no variants.")
        self._with_params: dict[object, Self] = {}
        self._paddings: dict[tuple[int, tuple[ArrayType, ...]], Padding | None] = {}
        known.note(self)

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launch, and return new arrays, as `Kernel` does."""
        raise NotImplementedError

    @property
    def launch(self) -> Callable[..., Any]:
        """The function that calls currently go through."""
        raise NotImplementedError

    @cached_property
    def signature(self) -> Signature:
        """The signature of the first variant."""
        return self.variants[0].signature

    @cached_property
    def types(self) -> Mapping[tuple[ArrayType, ...], Sequence[Candidate]]:
        """The array types that any variant takes, and the variants that take them."""
        return by_arrays(self.variants)

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments that a caller may pass: names and trees of arrays, names of parameters."""
        names = dict.fromkeys(name for variant in self.variants for name in variant.params)
        return Arguments(self.name, self.signature, names)

    @cached_property
    def selector(self) -> Selector:
        """The selector of these variants."""
        return Selector(self.variants)

    @cached_property
    def is_tuned(self) -> bool:
        """True if a table may choose among the variants of the whole kernel."""
        return any(own.tuning is not None for own in self.variants)

    def with_params(self, params: Mapping[str, object]) -> Self:
        """Return the variants that have these matrix parameters.

        Raises:
            ArgumentError: there are none.
        """
        key = tuple(sorted((name, str(type(value)), value) for name, value in params.items()))
        variants = self._with_params.get(key)
        if variants is None:
            selection = [own for own in self.variants if has_params(own, params)]
            if not selection:
                raise mismatches.no_variant_with(self.name, self.variants, params)
            variants = self.of(selection, given=params)
            # If two threads get here, both use the object that the first one stored.
            variants = self._with_params.setdefault(key, variants)
        return variants

    def of(
        self,
        candidates: Iterable[Candidate],
        *,
        given: Mapping[str, object] | None = None,
        **changes: bool,
    ) -> Self:
        """Return a kernel like this one with some of the variants, or with other options.

        Args:
            candidates: the variants.
            given: parameters that the caller chose.
            changes: options that differ.
        """
        options = {"checks": self.checks, "is_by_digest": self.is_by_digest, **changes}
        made = type(self)(self.name, candidates, rules=self.rules, **options)
        vars(made)["selector"] = self.selector.among(made.variants, given)
        vars(made)["is_tuned"] = self.is_tuned
        return made

    def padding(self, ordinal: int | None, types: tuple[ArrayType, ...]) -> Padding | None:
        """Return how to pad arrays that no variant takes, None if they cannot be padded.

        Args:
            ordinal: the GPU; None for the current one.
            types: the arrays.

        Raises:
            DeviceError: the driver cannot be used.
        """
        if not self.can_pad or types in self.types or smallest(self.variants, types) is None:
            return None
        device = get_device(current_device() if ordinal is None else ordinal)
        if (device.ordinal, types) not in self._paddings:
            able = (
                own
                for own in self.variants
                if arch_refusal(own.arch, device.major, device.minor) is None
            )
            self._paddings[device.ordinal, types] = smallest(able, types)
        return self._paddings[device.ordinal, types]

    @cached_property
    def can_pad(self) -> bool:
        """True if some arrays may be shorter than the variants' arrays."""
        return any(own.tuning is not None and own.tuning.pad for own in self.variants)

    def variants_of(self, kernel: str) -> tuple[Candidate, ...]:
        """Return the variants, an empty tuple if the kernel has another name."""
        return self.variants if kernel == self.name else ()

    def check_types(self, arrays: Sequence[ArrayType]) -> None:
        """Check that a variant takes arrays of these types, without needing a driver.

        Raises:
            ArgumentError: none does.
        """
        if tuple(array_type(*array) for array in arrays) not in self.types:
            if len(self.types) == 1 and not self.can_pad:
                raise mismatches.wrong_array(self.name, self.variants[0].facts.inputs, arrays)
            raise self._no_variant_for(arrays)

    def _no_variant_for(self, arrays: Sequence[ArrayType]) -> ArgumentError:
        """Return the error for arrays that no variant takes, and that are not padded here."""
        error = mismatches.no_variant_for(self.name, self.variants, arrays)
        if self.can_pad and smallest(self.variants, tuple(arrays)) is not None:
            error.hint = (
                "Arrays of JAX, and those of an operator of torch, are not padded: pad them where "
                f"the program is written. {error.hint or ''}".rstrip()
            )
        return error

    def signature_for(self, arrays: Sequence[ArrayType]) -> Signature:
        """Return the signature of the variants for arrays of these types, for any GPU.

        Raises:
            ArgumentError: no variant takes such arrays.
            SelectionError: variants that do have different results.
        """
        alike = self.types.get(tuple(arrays))
        if alike is None:
            raise self._no_variant_for(arrays)
        kinds = {variant.kind: variant for variant in alike}
        if len(kinds) > 1:
            raise several_fit(list(kinds.values()))
        return alike[0].signature
