"""Runtime: open compiled kernels, select a variant, check its arguments, and launch it."""
