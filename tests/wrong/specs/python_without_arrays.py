"""Decorates without saying what the arrays are."""

import pallasc


@pallasc.kernel
def double(x):
    return x
