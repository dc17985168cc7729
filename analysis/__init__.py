"""What compiled kernels hold: their SASS, and numbers that follow from it and from the plan."""
