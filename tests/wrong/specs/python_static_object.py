"""Passes an object where plain data belongs."""

import pathlib

import pallasc


@pallasc.kernel(
    args={"x": "f32[1024]"}, static={"shape": pathlib.Path("shape")}, targets=["sm_90a"]
)
def double(x, shape):
    return x
