"""Implementations of the opcodes, one module per family; `registry` maps opcodes to them."""
