"""Rows of tables as lists have them: `-k` selects of them as it does of variants."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.specs.gpus import MODELS
from pallasc.specs.spec import variant_id
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Row


@dataclass(frozen=True, slots=True)
class RowTarget:
    """What a row is for: the model of GPU, and its architecture, "" where that is not known."""

    name: str
    arch: str


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A row, with the kernel that it is of and the parameters of its key."""

    name: str
    by: tuple[str, ...]
    row: Row

    @property
    def params(self) -> tuple[tuple[str, Scalar], ...]:
        """The values of its key, of buckets what they are named after, then what it uses."""
        return (*zip(self.by, self.row.key, strict=True), *self.row.use.items())

    @property
    def target(self) -> RowTarget:
        """What it is for."""
        model = MODELS.get(self.row.gpu)
        return RowTarget(self.row.gpu, model.arch if model is not None else "")

    @property
    def id(self) -> str:
        """The id of the variant that has its key, where its parameters come in this order."""
        return variant_id(self.name, self.params, self.row.gpu)
