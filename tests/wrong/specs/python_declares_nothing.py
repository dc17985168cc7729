"""Forgets the decorator."""


def double(x):
    return x
