"""What compiles a variant once more, for what no artifact holds: lines, PTX of XLA's kernels."""
