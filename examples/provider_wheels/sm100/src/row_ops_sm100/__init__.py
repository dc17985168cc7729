"""Kernels of row-ops for sm_100a; pallasc finds them by this package's entry point."""
