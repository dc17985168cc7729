"""Ends the compiling process."""

import os


def scale(x):
    os._exit(3)
