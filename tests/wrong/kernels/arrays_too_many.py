"""A function of one array."""


def double(x):
    """Return `2 * x`."""
    return 2 * x
