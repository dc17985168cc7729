"""Bytes that copies of tensors of bytes share with nobody."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import Run

from pallasc.emulator.races.observer import Races
from pallasc.specs.artifacts.plan import MAP_BYTES, TensorMap

COPIES = (
    "setp.eq.u32 %p8, %t, 0; mad.lo.u32 %r1, %b, {stride}, 3; mov.u32 %r2, s;"
    "mad.lo.u32 %r3, %t, 4, %r2; mov.u32 %r4, %b; st.shared.u32 [%r3], %r4;"
    "fence.proxy.async.shared::cta; bar.sync 0;"
    "@%p8 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%a1, {{%r1}}], [s];"
    "@%p8 cp.async.bulk.commit_group; @%p8 cp.async.bulk.wait_group 0;"
)
"""Each block stores 16 bytes, of other values than its neighbor, from an odd byte on."""


@pytest.mark.parametrize(("stride", "races"), [(16, False), (15, True)])
def test_stores_of_neighbors_at_odd_bytes_race_only_where_they_overlap(
    stride: int, races: bool
) -> None:
    array = np.zeros(64, np.uint8)
    arrays = array, np.zeros(MAP_BYTES, np.uint8)
    kernel = Run(
        COPIES.format(stride=stride), *arrays, blocks=2, variables=".shared .align 128 .b8 s[128];"
    )
    kernel.machine.observer = observer = Races()
    described = TensorMap(
        buffer=0, offset=0, dtype="uint8", dims=(64,), strides=(), box=(16,), element_strides=(1,)
    )  # fmt: skip
    data = kernel.machine.tensor_maps.encode(described, kernel.inputs[0].base)
    kernel.inputs[1].data[:MAP_BYTES] = np.frombuffer(data, np.uint8)
    kernel.run()
    assert bool(observer.findings) == races
