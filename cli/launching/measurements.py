"""Measure variants on the GPU at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.launching.figures import Figures, moved_bytes, parse_flop
from pallasc.cli.launching.launching import naming
from pallasc.cli.launching.operands import Operands, make_inputs

if TYPE_CHECKING:
    from pallasc.cli.launching.launching import Chosen
    from pallasc.runtime.device.devices import Device


@dataclass(frozen=True, slots=True)
class Conditions:
    """How everything is measured.

    Attributes:
        device: where.
        repeats: how many launches are measured.
        warmup: how many go before them.
        cold: whether the L2 cache is emptied before each.
        seed: chooses random inputs.
        files: those of other inputs, by path of the array.
        flops: the operations of a launch, as `--flops` has them.
    """

    device: Device
    repeats: int
    warmup: int
    cold: bool
    seed: int
    files: Mapping[str, Path]
    flops: str | None


@dataclass(frozen=True)
class Measured:
    """The times of a variant's launches, in microseconds, in order."""

    chosen: Chosen
    under: Conditions
    times_us: list[float]

    @cached_property
    def figures(self) -> Figures:
        """How fast the kernel is."""
        from pallasc.cli.launching.chip import limits_of, model_of

        variant, flops = self.chosen.variant, self.under.flops
        model = model_of(self.under.device, [variant.target])
        return Figures.of(
            self.times_us,
            moved_bytes=moved_bytes(self.chosen.route.signature),
            flop=None if flops is None else parse_flop(flops, dict(variant.params)),
            limits=None if model is None else limits_of(model),
            cold=self.under.cold,
        )


def measure(chosen: Chosen, under: Conditions) -> Measured:
    """Launch a variant many times and return what each launch took.

    Raises:
        ArgumentError: a file does not fit.
        SpecError: a file cannot be read.
        DeviceError: a launch fails.
    """
    from pallasc.runtime.timing import time_launches

    signature, name = chosen.route.signature, chosen.variant.id
    inputs = make_inputs(signature, seed=under.seed, files=under.files, name=name)
    with naming(chosen.variant):
        operands = Operands(signature, inputs, under.device)
        times_us = time_launches(
            chosen.route,
            under.device,
            operands.pointers,
            repeats=under.repeats,
            warmup=under.warmup,
            cold=under.cold,
        )
    return Measured(chosen, under, times_us)
