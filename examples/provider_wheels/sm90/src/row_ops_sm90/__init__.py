"""Kernels of row-ops for sm_90a; pallasc finds them by this package's entry point."""
