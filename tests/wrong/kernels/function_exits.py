"""Ends Python from the function."""

import sys


def scale(x):
    sys.exit("no kernel for this shape")
