"""Gives a field that kernels do not have."""

import pallasc


@pallasc.kernel(args={"x": "f32[1024]"}, target=["sm_90a"])
def double(x):
    return x
