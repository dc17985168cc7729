"""Misspells a dtype."""

import pallasc


@pallasc.kernel(args={"x": "fp32[1024]"}, targets=["sm_90a"])
def double(x):
    return x
