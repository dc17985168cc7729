"""Functions that the wrong specs name."""


def double(x, *, scale=2):
    """Return `x` times `scale`."""
    return x * scale
