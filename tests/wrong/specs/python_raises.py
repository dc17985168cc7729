"""Raises while it is read."""

import pallasc

TILES = {64: 1}[128]


@pallasc.kernel(args={"x": "f32[1024]"}, targets=["sm_90a"])
def double(x):
    return x
